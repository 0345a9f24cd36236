"""Median, trimmed mean and MeaMed against numpy, column by column; large and odd shapes; weights by definition."""

import numpy as np
import pytest

from dure.aggregation import MeaMed, Median, TrimmedMean
from dure.errors import ConfigError, DomainError


def matrix(n, d, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return (rng.standard_t(2, size=(n, d)) * 10.0 ** rng.integers(-3, 3, d)).astype(dtype)


SHAPES = [(1, 5), (2, 1), (3, 127), (4, 129), (7, 4096), (8, 4097), (25, 10_000), (64, 300), (101, 50)]


@pytest.mark.parametrize(("n", "d"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_median_is_numpys(n, d, dtype):
    x = matrix(n, d, dtype=dtype)
    expected = np.median(x.astype(np.float64), axis=0)
    if n % 2 or dtype == np.float32:  # formed in float64 and rounded once
        np.testing.assert_array_equal(Median()(x).vector, expected.astype(dtype))
    error = np.abs(Median()(x).vector - expected)
    assert (error <= 2 * np.finfo(dtype).eps * np.abs(x).max(0)).all()


def test_of_an_even_number_the_midpoint_and_neither_of_the_two():
    x = np.array([[1.0], [2.0], [4.0], [100.0]])
    assert Median()(x).vector == 3.0
    # The sum of two large numbers would overflow.
    big = np.array([[3e38], [3.2e38], [1.0], [3.3e38]], np.float32)
    np.testing.assert_allclose(Median()(big).vector, np.float32(3.1e38), rtol=1e-6)


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_the_trimmed_mean_is_that_of_the_sorted_column(n, d):
    x = matrix(n, d, 1)
    for f in {0, (n - 1) // 4, (n - 1) // 2}:
        ranked = np.sort(x.astype(np.float64), axis=0)[f : n - f]
        error = np.abs(TrimmedMean(f)(x).vector - ranked.mean(0))
        assert (error <= 1e-7 * np.abs(ranked).max(0)).all()


def meamed(column, keep):
    ranked, median = np.sort(column), np.median(column)
    starts = range(len(column) - keep + 1)
    first = min(starts, key=lambda i: max(median - ranked[i], ranked[i + keep - 1] - median))
    return ranked[first : first + keep].mean()


@pytest.mark.parametrize(("n", "d"), [(5, 40), (8, 130), (21, 60)])
def test_meamed_is_the_mean_of_those_nearest_the_median(n, d):
    x = matrix(n, d, 2, np.float64)
    for f in {0, 1, (n - 1) // 2}:
        by_window = [meamed(column, n - f) for column in x.T]
        nearest = [
            np.mean(column[np.argsort(np.abs(column - np.median(column)), kind="stable")[: n - f]])
            for column in x.T
        ]
        found = MeaMed(f)(x).vector
        for expected in (by_window, nearest):
            assert (np.abs(found - expected) <= 1e-14 * np.abs(x).max(0)).all()


def test_of_two_windows_equally_near_the_smaller_values_count():
    assert MeaMed(1)(np.array([[0.0], [1.0], [2.0]])).vector == 0.5
    assert MeaMed(1)(np.array([[2.0], [0.0], [1.0]])).vector == 0.5


def test_the_mean_of_equal_numbers_is_that_number_exactly():
    # Three times 0.1 divided by three is not 0.1.
    x = np.full((7, 1), 0.1)
    x[0], x[1] = 1e6, -1e6
    for rule in (Median(2), TrimmedMean(2), MeaMed(2)):
        assert rule(x).vector == 0.1


def test_a_fraction_never_cuts_nothing_and_is_meant_as_written():
    assert TrimmedMean(fraction=0.1).hostile(5) == 1
    assert TrimmedMean(fraction=0.29).hostile(100) == 29
    assert TrimmedMean(fraction=0.0).hostile(100) == 0
    x = matrix(10, 3, 3, np.float64)
    np.testing.assert_array_equal(TrimmedMean(fraction=0.2)(x).vector, TrimmedMean(2)(x).vector)
    with pytest.raises(DomainError):
        TrimmedMean(fraction=0.49)(x)  # five of ten
    for wrong in ({"fraction": 0.5}, {"fraction": -0.1}, {}, {"f": 1, "fraction": 0.1}):
        with pytest.raises(ConfigError):
            TrimmedMean(**wrong)


def test_the_weighted_median_is_where_half_of_the_mass_is_reached():
    x = np.array([[3.0], [1.0], [2.0], [10.0]])
    assert Median()(x, [1, 1, 1.5, 1]).vector == 2.0
    assert Median()(x, [1, 1, 1, 1]).vector == 2.5
    assert Median()(x, [2, 1, 2, 1]).vector == 2.5  # 3 of 6 are at 2 and below
    assert Median()(x, [0.1, 0.1, 0.1, 5]).vector == 10.0


def test_the_weighted_trimmed_mean_splits_the_value_on_the_boundary():
    # F = 2 of W = 5: of the sorted masses 1@1, 2@2, 1@3, 1@10 the mass between 2 and 3 is left: half of what is at 2.
    x, weights = np.array([[3.0], [1.0], [2.0], [10.0]]), [1, 1, 2, 1]
    assert TrimmedMean(1)(x, weights).vector == 2.0
    x, weights = np.array([[1.0], [2.0], [3.0], [10.0]]), [1.0, 1.0, 1.5, 1.0]
    # F = 1.5 of 4.5: left is [1.5, 3.0]: half a unit at 2 and one at 3.
    np.testing.assert_allclose(TrimmedMean(1)(x, weights).vector, (0.5 * 2 + 1.0 * 3) / 1.5)
