"""Bulyan against the definition: Krum again and again, all scores formed anew."""

import numpy as np
import pytest

from dure.aggregation import Bulyan
from dure.errors import ConfigError


def picks_by_definition(x, f):
    left, picked = list(range(len(x))), []
    distances = ((x[:, None] - x) ** 2).sum(2)
    while len(picked) < len(x) - 2 * f:
        neighbours = max(1, len(left) - f - 2)
        scores = [sum(sorted(distances[i, j] for j in left if j != i)[:neighbours]) for i in left]
        picked.append(left.pop(int(np.argmin(scores))))
    return sorted(picked)


def middle_by_definition(x, keep):
    found = []
    for column in x.T:
        median = np.median(column)
        found.append(np.mean(sorted(column, key=lambda v: abs(v - median))[:keep]))
    return np.array(found)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_definition(seed):
    rng = np.random.default_rng(seed)
    f = seed % 4
    n = 4 * f + 3 + seed % 3
    x = rng.standard_t(2, size=(n, 4))
    picked = picks_by_definition(x, f)
    found = Bulyan(f)(x)
    np.testing.assert_array_equal(found.selected, picked)
    np.testing.assert_allclose(
        found.vector, middle_by_definition(x[picked], n - 4 * f), rtol=1e-9, atol=1e-12
    )
    assert found.weights_used is None


def test_picking_once_is_another_rule():
    differ = 0
    for seed in range(40):
        x = np.random.default_rng(seed).standard_t(2, size=(13, 3))
        distances = ((x[:, None] - x) ** 2).sum(2)
        scores = np.sort(distances, axis=1)[:, 1:10].sum(1)
        differ += not np.array_equal(np.sort(np.argsort(scores)[:9]), Bulyan(2)(x).selected)
    assert differ > 10


def test_two_nearest_rows_tie_and_the_first_is_picked():
    # f = 1, 7 rows: with three left a single neighbour counts, and both of a pair have the same score.
    x = np.array([[0.0], [0.1], [10.0], [0.2], [0.3], [0.4], [10.0]])
    np.testing.assert_array_equal(Bulyan(1)(x).selected, picks_by_definition(x, 1))
    np.testing.assert_array_equal(Bulyan(1)(np.ones((7, 2))).selected, [0, 1, 2, 3, 4])


def test_rows_far_away_leave_the_scores_of_the_others_alone():
    x = np.random.default_rng(0).normal(size=(11, 3))
    x[4] = 1e100
    x[7] = -1e100
    np.testing.assert_array_equal(Bulyan(2)(x).selected, picks_by_definition(x, 2))


def test_impossible_arguments_are_refused():
    with pytest.raises(ConfigError, match="is not allowed"):
        Bulyan(-1)
