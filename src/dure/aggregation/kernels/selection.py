"""Loops over an n × n matrix of distances, in numba."""

from typing import no_type_check

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
@no_type_check
def iterated_krum(ranked, order, f, picks):
    """(picks,) rows in the order in which Krum takes them out, by sums of the max(1, left − f − 2) nearest others.

    ranked (n, n): every row's distances in ascending order; order: whose they are. Sums are formed anew for every
    pick: differences of old ones would not tie where the sums do.
    """
    n = ranked.shape[0]
    here = np.ones(n, np.bool_)
    taken = np.zeros(picks, np.int64)
    for pick in range(picks):
        left = n - pick
        neighbours = min(max(1, left - f - 2), left - 1)
        best, least = -1, np.inf
        for i in range(n):
            if here[i]:
                total, counted, at = 0.0, 0, 0
                while counted < neighbours and total < least:
                    j = order[i, at]
                    if here[j] and j != i:
                        total += ranked[i, at]
                        counted += 1
                    at += 1
                if total < least:
                    best, least = i, total
        taken[pick] = best
        here[best] = False
    return taken
