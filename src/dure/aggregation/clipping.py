"""Clipping of updates, by a fixed length and by one that adapts to the updates, before any rule."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite
from dure.aggregation.preaggregator import PreAggregator
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, half


def clip_factors(lengths: np.ndarray, most: float) -> np.ndarray:
    """(n,) min(1, most / length); 1 for a length of 0."""
    return np.asarray(most / np.maximum(lengths, most)) if most > 0 else (lengths <= 0).astype(np.float64)


@dataclass(frozen=True)
class Clipping(PreAggregator):
    """x · min(1, norm / ‖x‖): updates that are longer than `norm` are shortened to it.

    Lengths are measured from the centre of the call.

    Args:
        norm: the greatest length, more than 0.
    """

    norm: float

    def __post_init__(self) -> None:
        checked_finite(self, "norm", self.norm, above=0)

    def mixing(self, rows: Rows, call: Call) -> tuple[np.ndarray, dict[str, Any]]:
        factors = clip_factors(rows.lengths(), self.norm)
        return np.diag(factors), {"clip_factors": call.at_given(factors)}


@dataclass(frozen=True)
class ARC(PreAggregator):
    """Adaptive robust clipping: the k = ⌊2f(n − f)/n⌋ longest updates are shortened to the length of the next.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int
    citation: ClassVar[str] = "Allouah et al., ICLR 2025"

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def mixing(self, rows: Rows, call: Call) -> tuple[np.ndarray, dict[str, Any]]:
        clipped = 2 * call.f * (rows.n - call.f) // rows.n
        lengths = rows.lengths()
        most = float(np.sort(lengths)[rows.n - 1 - clipped])
        factors = clip_factors(lengths, most)
        return np.diag(factors), {"clip_factors": call.at_given(factors), "norm": most}
