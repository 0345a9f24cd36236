"""CGE and MoNNA against the definitions."""

import numpy as np
import pytest

from dure.aggregation import CGE, MoNNA
from dure.errors import ConfigError, DataError


@pytest.mark.parametrize("seed", range(10))
def test_cge_keeps_the_shortest(seed):
    rng = np.random.default_rng(seed)
    x, center = rng.standard_t(2, size=(8, 3)), rng.normal(size=3)
    kept = sorted(range(8), key=lambda i: np.linalg.norm(x[i] - center))[:5]
    found = CGE(3)(x, center=center)
    np.testing.assert_array_equal(found.selected, sorted(kept))
    np.testing.assert_allclose(found.vector, x[kept].mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.scores, np.linalg.norm(x - center, axis=1), rtol=1e-14)


def test_cge_of_equal_norms_keeps_the_first():
    x = np.array([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    np.testing.assert_array_equal(CGE(2)(x).selected, [0, 1])


def test_cge_goes_on_until_one_is_left():
    np.testing.assert_array_equal(CGE(3)(np.arange(1.0, 5.0)[:, None]).selected, [0])


@pytest.mark.parametrize("seed", range(10))
def test_monna_keeps_the_nearest(seed):
    rng = np.random.default_rng(seed)
    x, trusted = rng.standard_t(2, size=(9, 3)), seed % 9
    kept = sorted(range(9), key=lambda i: np.linalg.norm(x[i] - x[trusted]))[:5]
    found = MoNNA(4, trusted=trusted)(x)
    np.testing.assert_array_equal(found.selected, sorted(kept))
    np.testing.assert_allclose(found.vector, x[kept].mean(0), rtol=1e-12)


def test_the_trusted_one_is_always_kept_and_ties_go_to_the_first():
    x = np.array([[2.0], [2.0], [2.0], [2.0], [9.0]])
    np.testing.assert_array_equal(MoNNA(2, trusted=3)(x).selected, [0, 1, 3])
    x = np.array([[1.0], [-1.0], [0.0], [1.0], [-1.0]])
    np.testing.assert_array_equal(MoNNA(2, trusted=2)(x).selected, [0, 1, 2])


def test_trust_is_in_a_client_not_in_a_row():
    x = np.random.default_rng(0).normal(size=(5, 2))
    by_row = MoNNA(2, trusted=3)(x)
    by_client = MoNNA(2, trusted=70)(x, clients=[5, 900, 12, 70, 33])
    np.testing.assert_array_equal(by_row.selected, by_client.selected)
    x[0] = np.nan  # rows move, clients don't
    assert 3 in MoNNA(2, trusted=70)(x, clients=[5, 900, 12, 70, 33]).selected
    assert 3 in MoNNA(2, trusted=3)(x).selected


@pytest.mark.parametrize("break_it", ["nan", "weight", "absent", "twice"])
def test_without_the_trusted_client_it_refuses(break_it):
    x, weights, clients = np.random.default_rng(0).normal(size=(7, 2)), np.ones(7), np.arange(7)
    if break_it == "nan":
        x[3, 1] = np.inf
    elif break_it == "weight":
        weights[3] = 0.0
    elif break_it == "absent":
        clients = clients + 10
    else:
        clients[2] = 3
    with pytest.raises(DataError, match="trusts client 3"):
        MoNNA(2, trusted=3)(x, weights, clients=clients)


@pytest.mark.parametrize("make", [lambda: CGE(-1), lambda: MoNNA(1, trusted=-1)])
def test_impossible_arguments_are_refused(make):
    with pytest.raises(ConfigError, match="is not allowed"):
        make()
