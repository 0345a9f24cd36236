"""Sorting networks, by the zero–one principle (Knuth, TAOCP 3, §5.3.4): sorting all 0/1 columns is sorting all."""

import numpy as np
import pytest

from dure.aggregation.kernels.networks import BOTH, LOWER, UPPER, pruned, sorting


def run(network, columns):
    columns = columns.copy()
    for a, b, kind in network:
        low, high = np.minimum(columns[a], columns[b]), np.maximum(columns[a], columns[b])
        if kind in (BOTH, LOWER):
            columns[a] = low
        if kind in (BOTH, UPPER):
            columns[b] = high
    return columns


def every_column(rows):
    return (np.arange(2**rows) >> np.arange(rows)[:, None]) & 1


@pytest.mark.parametrize("rows", range(1, 13))
def test_every_column_of_zeros_and_ones_is_sorted(rows):
    columns = every_column(rows)
    found = run([(a, b, BOTH) for a, b in sorting(rows)], columns)
    np.testing.assert_array_equal(found, np.sort(columns, axis=0))
    np.testing.assert_array_equal(run(pruned(rows, range(rows)), columns), found)


@pytest.mark.parametrize("rows", [5, 8, 11, 12])
def test_pruned_networks_get_the_wanted_ranks_right(rows):
    columns = every_column(rows)
    ranked = np.sort(columns, axis=0)
    for first in range(rows):
        for last in range(first, rows):
            found = run(pruned(rows, range(first, last + 1)), columns)
            np.testing.assert_array_equal(found[first : last + 1], ranked[first : last + 1])


def test_pruning_leaves_something_out():
    assert len(pruned(50, [24, 25])) < len(sorting(50))
    assert (pruned(50, [24, 25])[:, 2] != BOTH).sum() > 20
    # Hardly a comparator is idle: without it the median is wrong.
    columns, network = every_column(9), pruned(9, [4])
    median = np.sort(columns, axis=0)[4]
    needed = [(run(np.delete(network, p, axis=0), columns)[4] != median).any() for p in range(len(network))]
    assert sum(needed) > 0.7 * len(needed)


@pytest.mark.parametrize("rows", [33, 64, 100, 257])
def test_large_networks_sort_random_columns(rows):
    columns = np.random.default_rng(rows).integers(0, 5, (rows, 200))
    np.testing.assert_array_equal(run(pruned(rows, range(rows)), columns), np.sort(columns, axis=0))
