"""Krum and Multi-Krum (Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule


def krum_scores(distances: np.ndarray, neighbours: int) -> np.ndarray:
    """(n,) s_i = Σ of the `neighbours` smallest squared distances D_ij, j ≠ i."""
    apart = distances + np.diag(np.full(len(distances), np.inf))
    return np.asarray(np.sort(apart, axis=1)[:, :neighbours].sum(1))


def _needs(n: int, f: int) -> str | None:
    return None if n >= 2 * f + 3 else "n ≥ 2f + 3"


@dataclass(frozen=True)
class Krum(Rule):
    """The update with the smallest sum of squared distances to its n − f − 2 nearest others.

    Equal scores go to the first.

    Args:
        f: hostile updates to reckon with, n ≥ 2f + 3.
    """

    f: int
    citation: ClassVar[str] = "Blanchard et al., NeurIPS 2017"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return _needs(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        scores = krum_scores(rows.distances, rows.n - call.f - 2)
        return Decision(selected=np.array([np.argmin(scores)]), scores=scores)


@dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the m updates with the smallest Krum scores.

    Args:
        f: hostile updates to reckon with, n ≥ 2f + 3.
        m: how many are averaged, 1 ≤ m ≤ n − f − 2; None: n − f − 2.
    """

    f: int
    m: int | None = None
    citation: ClassVar[str] = "Blanchard et al., NeurIPS 2017"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)
        if self.m is not None:
            checked_count(self, "m", self.m, 1)

    def needs(self, n: int, f: int) -> str | None:
        if self.m is not None and self.m > n - f - 2:
            return f"m ≤ n − f − 2 (m={self.m})"
        return _needs(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        scores = krum_scores(rows.distances, rows.n - call.f - 2)
        best = np.argsort(scores, kind="stable")[: self.m or rows.n - call.f - 2]
        return Decision(selected=best, scores=scores)
