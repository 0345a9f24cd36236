"""MDA and SMEA against enumeration of all subsets."""

import sys
from itertools import combinations

import numpy as np
import pytest

from dure.aggregation import MDA, SMEA
from dure.aggregation.mda import smallest_diameter
from dure.errors import DomainError


def distances_of(x):
    return ((x[:, None] - x) ** 2).sum(2)


def by_enumeration(distances, f):
    n = len(distances)
    # combinations come in lexicographic order, and min keeps the first
    return min(combinations(range(n), n - f), key=lambda s: distances[np.ix_(s, s)].max())


@pytest.mark.parametrize("seed", range(60))
def test_the_set_is_that_of_enumeration(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 11))
    f = int(rng.integers(0, (n + 1) // 2))
    if seed % 3 == 0:
        x = rng.integers(-2, 3, size=(n, 2)).astype(float)  # many ties
    else:
        x = rng.standard_t(2, size=(n, int(rng.integers(1, 4))))
    found = MDA(f)(x)
    chosen = by_enumeration(distances_of(x) if seed % 3 == 0 else found_distances(x), f)
    np.testing.assert_array_equal(found.selected, chosen)
    np.testing.assert_allclose(
        found.details["diameter"] ** 2, distances_of(x)[np.ix_(chosen, chosen)].max(), atol=1e-12
    )
    np.testing.assert_allclose(found.vector, x[list(chosen)].mean(0), atol=1e-12)


def found_distances(x):
    """By the Gram matrix, so that ties among equal pairs are the same."""
    gram = x @ x.T
    return np.diag(gram)[:, None] + np.diag(gram) - 2 * gram


def test_graphs_at_random_are_searched_right():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n = int(rng.integers(8, 14))
        f = int(rng.integers(1, n // 2))
        levels = np.triu(rng.integers(1, 5, (n, n)), 1).astype(float)
        levels += levels.T
        chosen, diameter = smallest_diameter(levels, f)
        best = by_enumeration(levels, f)
        np.testing.assert_array_equal(chosen, best)
        assert diameter == levels[np.ix_(best, best)].max()


def test_ties_go_to_the_lexicographically_smallest_set():
    x = np.array([[0.0], [1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(MDA(1)(x).selected, [0, 1, 2])
    np.testing.assert_array_equal(MDA(1)(x[::-1].copy()).selected, [0, 1, 2])
    np.testing.assert_array_equal(MDA(1)(np.ones((5, 2))).selected, [0, 1, 2, 3])


def test_a_hundred_rows_with_thirty_hostile_ones():
    rng = np.random.default_rng(1)
    x = np.vstack([rng.normal(size=(70, 20)), 3.0 * rng.normal(size=(30, 20)) + 2.0])
    order = rng.permutation(100)
    x = x[order]
    found = MDA(30)(x)
    assert len(found.selected) == 70
    # No set without one of the kept rows and with another instead has a smaller diameter.
    distances = found_distances(x)
    inside = distances[np.ix_(found.selected, found.selected)]
    assert found.details["diameter"] ** 2 == pytest.approx(inside.max())
    assert inside.max() <= distances[np.ix_(np.flatnonzero(order < 70), np.flatnonzero(order < 70))].max()


def covariance_top(x, chosen):
    return np.linalg.eigvalsh(np.cov(x[list(chosen)].T, ddof=0).reshape(x.shape[1], x.shape[1]))[-1]


@pytest.mark.parametrize("seed", range(25))
def test_smea_is_that_of_enumeration(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 10))
    f = int(rng.integers(0, (n + 1) // 2))
    x = rng.standard_t(2, size=(n, 3))
    sets = list(combinations(range(n), n - f))
    tops = [covariance_top(x, s) for s in sets]
    found = SMEA(f)(x)
    np.testing.assert_array_equal(found.selected, sets[int(np.argmin(tops))])
    np.testing.assert_allclose(found.details["lambda_max"], min(tops), rtol=1e-9)
    assert found.details["sets"] <= len(sets) + 1


def test_smea_is_not_mda():
    rng = np.random.default_rng(0)
    differ = 0
    for _ in range(20):
        x = rng.normal(size=(9, 3))
        differ += not np.array_equal(SMEA(3)(x).selected, MDA(3)(x).selected)
    assert differ > 3


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2], [2, 0, 3, 1]])
def test_mirrored_sets_tie_whatever_the_rounding_and_the_first_counts(order):
    # Three of four on a line, symmetric about the middle: without one end or without the other.
    x = np.outer([-np.pi, -1.1, 1.1, np.pi], [0.3, 0.7, -0.1])[order] + [10.1, 0.2, -3.3]
    ends = np.flatnonzero(np.isin(order, [0, 3]))
    np.testing.assert_array_equal(SMEA(1)(x).selected, np.delete(np.arange(4), ends[1]))


def test_smea_refuses_what_would_take_days():
    with pytest.raises(DomainError, match="at most 1,000,000 sets"):
        SMEA(10).check(30)
    SMEA(10).check(21)  # 352,716 sets
    with pytest.raises(
        DomainError, match="at most 100 sets"
    ):  # 1000 of them, and each takes a good part of a second
        SMEA(1).check(1001)
    with pytest.raises(DomainError, match="2f < n"):
        SMEA(15).check(30)


def test_a_cohort_larger_than_the_stack_of_python():
    x = np.zeros((sys.getrecursionlimit() + 50, 2))
    np.testing.assert_array_equal(SMEA(f=0)(x).vector, np.zeros(2))
