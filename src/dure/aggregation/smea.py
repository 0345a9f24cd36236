"""Smallest maximum eigenvalue averaging (Allouah et al., ICML 2023), exactly."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import comb
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.mda import smallest_diameter
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half

#: More sets than this are refused: a million take about a minute.
MOST_SETS = 1_000_000
#: Nor more than this for the number of sets times the cube of their size, which is what their eigenvalues take.
MOST_WORK = 10**11
#: Sets whose eigenvalues are computed together: at most so many, of so many numbers in all.
_BATCH, _NUMBERS = 2048, 2**22
#: Eigenvalues this near to each other are the same: a set and its mirror image differ by rounding alone.
_SAME = 1e-12


@dataclass(frozen=True)
class SMEA(Rule):
    """The mean of the n − f updates whose covariance has the smallest top eigenvalue.

    All sets are compared, but for those with a pair of rows that is too far apart to do better than the best so far:
    the top eigenvalue of a set S is at least D_ij / (2|S|). The lexicographically smallest of equally good sets
    counts. Calls with more than 1,000,000 sets, C(n, f), are refused, and large sets sooner (C(n, f) · (n − f)³
    at most 10¹¹, which is a minute or two): take MDA or CAF there.

    `details`: `lambda_max`, that eigenvalue (divisor |S|); `sets`, how many were compared.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int
    citation: ClassVar[str] = "Allouah et al., ICML 2023"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        failed = half(n, f)
        if failed is None and comb(n, f) > (most := min(MOST_SETS, MOST_WORK // (n - f) ** 3)):
            failed = (
                f"at most {most:,} sets to compare (C(n, f) = {comb(n, f):,}; MDA and CAF need no search)"
            )
        return failed

    def decide(self, rows: Rows, call: Call) -> Decision:
        apart, size = rows.distances, rows.n - call.f
        start = smallest_diameter(apart, call.f)[0]
        least = float(_top(apart, start[None])[0])
        found = [(least, tuple(start))]
        compared = 1
        sets = _sets(apart, size, lambda: 2.0 * size * least * (1.0 + _SAME))
        while batch := list(islice(sets, max(1, min(_BATCH, _NUMBERS // size**2)))):
            tops = _top(apart, np.array(batch))
            compared += len(batch)
            least = min(least, float(tops.min()))
            found += [
                (float(top), kept)
                for top, kept in zip(tops, batch, strict=True)
                if top <= least * (1 + _SAME)
            ]
        chosen = min(kept for top, kept in found if top <= least * (1.0 + _SAME))
        return Decision(selected=np.array(chosen), details={"lambda_max": least, "sets": compared})


def _top(apart: np.ndarray, sets: np.ndarray) -> np.ndarray:
    """(b,) top eigenvalues of the covariances of sets (b, s) of rows: those of −½ J D J / s."""
    inside = apart[sets[:, :, None], sets[:, None, :]]
    means = inside.mean(2, keepdims=True)
    centred = means + means.transpose(0, 2, 1) - inside - means.mean(1, keepdims=True)
    return np.asarray(np.maximum(np.linalg.eigvalsh(centred)[:, -1], 0.0) / (2.0 * sets.shape[1]))


def _sets(apart: np.ndarray, size: int, bound: Callable[[], float]) -> Iterator[tuple[int, ...]]:
    """Ascending rows, `size` of them, none further apart than the bound, which may sink meanwhile."""
    n = len(apart)
    kept: list[int] = []
    furthest = [0.0]
    v = 0  # the next row to try; a loop, as a set may be larger than Python's stack
    while True:
        if len(kept) == size:
            yield tuple(kept)
        elif v <= n - (size - len(kept)):
            reach = max(furthest[-1], float(apart[v, kept].max())) if kept else 0.0
            if reach <= bound():
                kept.append(v)
                furthest.append(reach)
            v += 1
            continue
        if not kept:
            return
        v = kept.pop() + 1
        furthest.pop()
