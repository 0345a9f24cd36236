"""Buckets are means of permuted rows, and the permutation follows from the key alone."""

import numpy as np
import pytest

from dure.aggregation import Bucketing, Krum, Mean, chain
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(6)
X = RNG.normal(size=(11, 30))


def naive(x: np.ndarray, order: np.ndarray, size: int) -> np.ndarray:
    return np.array([x[order[i : i + size]].mean(0) for i in range(0, len(order), size)])


@pytest.mark.parametrize("size", [1, 2, 3, 11, 40])
def test_means_of_runs_of_a_permutation(size: int) -> None:
    found = Bucketing(size)(X, key=3)
    order = found.details["permutation"]
    assert sorted(order) == list(range(11))
    np.testing.assert_allclose(found.matrix, naive(X, order, size), rtol=1e-12, atol=1e-14)
    again = Bucketing(size)(X, key=3).details["permutation"]
    np.testing.assert_array_equal(order, again)


def test_keys_draw_different_permutations() -> None:
    drawn = {tuple(Bucketing(2)(X, key=k).details["permutation"]) for k in range(20)}
    assert len(drawn) == 20
    first = [Bucketing(2)(X, key=k).details["permutation"][0] for k in range(200)]
    assert set(first) == set(range(11))


def test_dropped_rows_are_not_dealt_out() -> None:
    x = X.copy()
    x[4, 0] = np.nan
    found = Bucketing(2)(x, key=1)
    order = found.details["permutation"]
    assert sorted(order) == [i for i in range(11) if i != 4]
    np.testing.assert_allclose(found.matrix, naive(x, order, 2), atol=1e-14)
    np.testing.assert_array_equal(found.dropped, [4])
    assert not found.weights_used[:, 4].any()


def test_the_rule_behind_meets_fewer_rows_with_as_many_hostile_ones() -> None:
    rule = chain(Bucketing(2), Krum(f=1))
    rule.check(9)  # five buckets
    with pytest.raises(DomainError, match="n ≥ 2f"):
        rule.check(8)
    with pytest.raises(DomainError, match="Krum"):
        rule(X[:8], key=0)
    assert rule(X[:9], key=0).vector.shape == (30,)


def test_errors() -> None:
    with pytest.raises(ConfigError, match="give key="):
        chain(Bucketing(2), Mean())(X)
    with pytest.raises(ConfigError, match="every number from 0"):
        Bucketing(2, (0, 0, 1))
    with pytest.raises(ConfigError, match="permutation of 3 updates"):
        Bucketing(2, (0, 1, 2))(X)
    with pytest.raises(ConfigError, match="at least 1"):
        Bucketing(0)
