"""Sorting networks: which pairs of rows to compare so that every column comes out sorted.

Batcher's odd–even merge exchange (Knuth, TAOCP 3, §5.2.2, algorithm M) for any number of rows, then pruned
from the back: a comparator whose outputs nobody reads is left out, and one with a single reader keeps only
its minimum or its maximum.
"""

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

#: What a comparator of the rows (a, b) writes: the smaller to a and the larger to b, or only one of them.
BOTH, LOWER, UPPER = 0, 1, 2


@lru_cache(maxsize=256)
def sorting(rows: int) -> tuple[tuple[int, int], ...]:
    """Comparators (a, b), a < b, that sort any column of so many rows in ascending order."""
    pairs = []
    size = 1
    while size < rows:
        gap = size
        while gap >= 1:
            for first in range(gap % size, rows - gap, 2 * gap):
                for i in range(first, min(first + gap, rows - gap)):
                    if i // (2 * size) == (i + gap) // (2 * size):
                        pairs.append((i, i + gap))
            gap //= 2
        size *= 2
    return tuple(pairs)


def pruned(rows: int, wanted: Iterable[int]) -> np.ndarray:
    """(k, 3) int32 comparators (a, b, what is written) after which the `wanted` ranks are right."""
    return _pruned(rows, tuple(sorted(set(wanted))))


@lru_cache(maxsize=256)
def _pruned(rows: int, wanted: tuple[int, ...]) -> np.ndarray:
    read, kept = set(wanted), []
    for a, b in reversed(sorting(rows)):
        if a in read or b in read:
            kept.append((a, b, BOTH if a in read and b in read else LOWER if a in read else UPPER))
            read |= {a, b}
    network = np.array(kept[::-1], np.int32).reshape(-1, 3)
    network.setflags(write=False)
    return network
