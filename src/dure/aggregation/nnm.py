"""Nearest-neighbour mixing (Allouah, Farhadkhani, Guerraoui, Gupta, Pinot and Stephan, AISTATS 2023)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.preaggregator import PreAggregator
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, half


@dataclass(frozen=True)
class NNM(PreAggregator):
    """Every update becomes the mean of the n − f nearest ones, itself included.

    Among equally near ones the first count. Before a rule it makes the rule's error shrink with f/n, also where
    honest clients differ.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int
    citation: ClassVar[str] = "Allouah et al., AISTATS 2023"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def kappa_before(self, kappa: float, n: int, f: int) -> float | None:
        return 8.0 * f / (n - f) * (kappa + 1.0)

    def mixing(self, rows: Rows, call: Call) -> tuple[np.ndarray, dict[str, Any]]:
        near = rows.n - call.f
        itself_first = rows.distances - np.eye(rows.n)
        nearest = np.argsort(itself_first, axis=1, kind="stable")[:, :near]
        mixing = np.zeros((rows.n, rows.n))
        np.put_along_axis(mixing, nearest, 1.0 / near, axis=1)
        return mixing, {}
