"""Bulyan (El Mhamdi, Guerraoui and Rouault, ICML 2018)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.krum import krum_scores
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule


@dataclass(frozen=True)
class Bulyan(Rule):
    """Krum's choice, n − 2f times, and what lies in their middle.

    θ = n − 2f times Krum picks a row among those that are left, with the nearest max(1, left − f − 2) others, and the
    row is taken out. In every coordinate the θ − 2f values nearest the median of the θ rows are averaged. Equal
    scores go to the first; with f ≤ 2 the last picks have a single neighbour, and the two nearest rows always tie.

    `scores`: Krum's scores among all rows.

    Args:
        f: hostile updates to reckon with, n ≥ 4f + 3.
    """

    f: int
    citation: ClassVar[str] = "El Mhamdi et al., ICML 2018"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return None if n >= 4 * f + 3 else "n ≥ 4f + 3"

    def decide(self, rows: Rows, call: Call) -> Decision:
        picked = rows.n - 2 * call.f
        selected = np.sort(iterated_krum(rows.distances, call.f, picked))
        vector = rows.take(selected).around_median(picked - 2 * call.f)
        return Decision(vector, selected=selected, scores=krum_scores(rows.distances, rows.n - call.f - 2))


def iterated_krum(distances: np.ndarray, f: int, picks: int) -> np.ndarray:
    """(picks,) rows in the order in which Krum takes them out."""
    from dure.aggregation.kernels import selection  # numba takes a second to import

    order = np.argsort(distances, axis=1, kind="stable").astype(np.int32)
    return np.asarray(selection.iterated_krum(np.take_along_axis(distances, order, 1), order, f, picks))
