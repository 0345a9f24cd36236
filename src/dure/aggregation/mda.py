"""Minimum-diameter averaging (Rousseeuw 1985; El Mhamdi, Guerraoui and Rouault, ICML 2018), exactly."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half


@dataclass(frozen=True)
class MDA(Rule):
    """The mean of the n − f updates whose largest distance from each other is smallest.

    Such a set exists within a distance t exactly where f rows can be found that are in every pair further apart than
    t: a vertex cover of size f. So t is searched for among the distances, and covers are found by branching. Of
    equally good sets the lexicographically smallest counts: a tie is nothing rare here.

    `details`: `diameter`, that largest distance.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int
    citation: ClassVar[str] = "El Mhamdi et al., ICML 2018"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        chosen, squared = smallest_diameter(rows.distances, call.f)
        return Decision(selected=chosen, details={"diameter": float(np.sqrt(squared))})


def smallest_diameter(distances: np.ndarray, f: int) -> tuple[np.ndarray, float]:
    """(n − f,) ascending rows with the smallest largest D_ij among them, lexicographically first, and that D_ij."""
    levels = np.unique(distances)
    low, high = 0, len(levels) - 1
    while low < high:  # the first level that can be kept within
        middle = (low + high) // 2
        if _cover(_further(distances, levels[middle]), (1 << len(distances)) - 1, f) is None:
            low = middle + 1
        else:
            high = middle
    return _first_set(_further(distances, levels[low]), f), float(levels[low])


def _further(distances: np.ndarray, level: float) -> list[int]:
    """For every row those that are further away than the level, as bits."""
    packed = np.packbits(distances > level, axis=1, bitorder="little")
    return [int.from_bytes(row.tobytes(), "little") for row in packed]


def _cover(edges: list[int], rows: int, size: int) -> int | None:
    """At most `size` of the rows such that every edge between rows has one of them at an end, or None."""
    taken = 0
    while True:
        degrees = [(v, (edges[v] & rows).bit_count()) for v in _bits(rows)]
        degrees = [(v, degree) for v, degree in degrees if degree]
        if not degrees:
            return taken
        rows = sum(1 << v for v, _ in degrees)  # the others have no edges left
        most = max(degree for _, degree in degrees)
        if sum(degree for _, degree in degrees) > 2 * size * most:
            return None  # so few can't be at the end of so many edges
        forced = sum(1 << v for v, degree in degrees if degree > size)
        if not forced:
            # A row with one edge: the other end serves it and perhaps more.
            forced = next((edges[v] & rows for v, degree in degrees if degree == 1), 0)
        if not forced:
            break
        taken, rows, size = taken | forced, rows & ~forced, size - forced.bit_count()
        if size < 0:
            return None
    if _matched(edges, rows) > size:
        return None
    busiest = next(v for v, degree in degrees if degree == most)
    for choice in (1 << busiest, edges[busiest] & rows):  # itself, or all whom it has an edge with
        if choice.bit_count() <= size:
            more = _cover(edges, rows & ~choice, size - choice.bit_count())
            if more is not None:
                return taken | choice | more
    return None


def _matched(edges: list[int], rows: int) -> int:
    """How many edges without a common end a greedy search finds: each needs a row of its own."""
    found = 0
    for v in _bits(rows):
        if rows >> v & 1:
            partners = edges[v] & rows
            if partners:
                rows &= ~(1 << v | partners & -partners)
                found += 1
    return found


def _first_set(edges: list[int], f: int) -> np.ndarray:
    """The lexicographically smallest n − f rows without an edge between them."""
    kept: list[int] = []
    rows, size = (1 << len(edges)) - 1, f
    cover = _cover(edges, rows, size)
    assert cover is not None
    for v in range(len(edges)):
        if len(kept) == len(edges) - f:
            break
        if not rows >> v & 1:
            continue  # further away from one that is kept
        out = edges[v] & rows
        if cover >> v & 1:
            other = (
                None
                if out.bit_count() > size
                else _cover(edges, rows & ~out & ~(1 << v), size - out.bit_count())
            )
            if other is None:  # it can't be kept
                rows, size, cover = rows & ~(1 << v), size - 1, cover & ~(1 << v)
                continue
            cover = other
        kept.append(v)
        rows, size, cover = rows & ~out & ~(1 << v), size - out.bit_count(), cover & ~out
    return np.array(kept)


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return found
