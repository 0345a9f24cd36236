"""DnC against the definition by a singular value decomposition, its draws, and the empty intersection."""

import numpy as np
import pytest

from dure import keys
from dure.aggregation import DnC
from dure.errors import ConfigError, DomainError


def outlying(x):
    centred = x - x.mean(0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    return (centred @ directions[0]) ** 2


@pytest.mark.parametrize("seed", range(10))
def test_all_columns_are_the_definition(seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(9, 6)) + np.where(np.arange(9) < 3, 3.0, 0.0)[:, None]
    scores = outlying(x)
    found = DnC(3)(x)
    np.testing.assert_allclose(found.scores, scores, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found.selected, np.sort(np.argsort(scores)[:6]))
    np.testing.assert_allclose(found.vector, x[found.selected].mean(0), rtol=1e-12)


def test_columns_are_drawn_by_their_address_and_kept_sets_intersected():
    x = np.random.default_rng(0).normal(size=(11, 40))
    kept = set(range(11))
    for i in range(4):
        columns = np.sort(keys.generator(9, "dnc", i).choice(40, 12, replace=False))
        kept &= set(np.argsort(outlying(x[:, columns]))[:9].tolist())
    found = DnC(2, iterations=4, columns=12)(x, key=9)
    assert len(kept) >= 2
    np.testing.assert_array_equal(found.selected, sorted(kept))
    other = DnC(2, iterations=4, columns=12)(x, key=10)
    assert not np.array_equal(other.scores, found.scores)


def test_it_needs_a_key_only_where_it_draws():
    x = np.random.default_rng(0).normal(size=(5, 4))
    DnC(1, columns=4)(x)
    with pytest.raises(ConfigError, match="key="):
        DnC(1, columns=3)(x)


def test_an_empty_intersection_keeps_those_kept_most_often_and_says_so():
    x = np.random.default_rng(3).normal(size=(5, 400))
    rule = DnC(2, iterations=40, columns=2)
    found = rule(x, key=0)
    assert len(found.selected) == 3
    assert any("every iteration" in flag for flag in found.flags)
    counts = np.zeros(5)
    for i in range(40):
        columns = np.sort(keys.generator(0, "dnc", i).choice(400, 2, replace=False))
        counts[np.argsort(outlying(x[:, columns]))[:3]] += 1
    assert counts.max() < 40
    assert set(found.selected) == set(np.argsort(-counts, kind="stable")[:3])
    np.testing.assert_allclose(found.vector, x[found.selected].mean(0), rtol=1e-12)


def test_c_is_meant_as_written():
    x = np.random.default_rng(0).normal(size=(210, 3))
    assert len(DnC(100, c=0.29)(x).selected) == 210 - 29
    assert len(DnC(3, c=1.5)(x).selected) == 210 - 4
    with pytest.raises(DomainError, match="c f < n"):
        DnC(2, c=2.5).check(5)
    DnC(2, c=2.4).check(5)


@pytest.mark.parametrize("wrong", [{"iterations": 0}, {"columns": 0}, {"c": 0.0}, {"c": np.inf}])
def test_impossible_arguments_are_refused(wrong):
    with pytest.raises(ConfigError, match="is not allowed"):
        DnC(1, **wrong)
