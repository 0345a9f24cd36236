"""CAF against the definition in full space."""

import numpy as np
import pytest

from dure.aggregation import CAF
from dure.errors import ConfigError


def by_definition(x, f, active):
    """(mean, λ, rounds), with the covariance as a d × d matrix."""
    c, best, least, rounds = np.ones(len(x)), None, np.inf, 0
    while True:
        rounds += 1
        p = c / c.sum()
        mean = p @ x
        values, vectors = np.linalg.eigh((x - mean).T @ ((x - mean) * p[:, None]))
        if values[-1] < least:
            least, best = values[-1], mean
        if values[-1] <= 1e-14:
            return best, least, rounds
        tau = ((x - mean) @ vectors[:, -1]) ** 2
        c = c * (1 - tau / (tau[c > 0].max() if active else tau.max()))
        if c.sum() <= len(x) - 2 * f:
            return best, least, rounds


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("tau_max", ["active", "all_rows"])
def test_it_is_the_definition(seed, tau_max):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 14))
    f = int(rng.integers(0, (n + 1) // 2))
    x = rng.normal(size=(n, 3)) + np.where(np.arange(n) < f, 4.0, 0.0)[:, None]
    mean, least, rounds = by_definition(x, f, tau_max == "active")
    found = CAF(f, tau_max=tau_max)(x)
    np.testing.assert_allclose(found.vector, mean, atol=1e-9)
    assert found.details["lambda_max"] == pytest.approx(least, rel=1e-9)
    assert found.details["iterations"] == rounds
    np.testing.assert_allclose(found.weights_used @ x, mean, atol=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_the_active_maximum_needs_n_rounds_at_most(seed):
    rng = np.random.default_rng(seed)
    x = np.vstack([rng.normal(size=(6, 3)), 1e4 * rng.normal(size=(3, 3))])
    found = CAF(3)(x)
    assert found.details["iterations"] <= 9
    assert not found.flags
    assert np.linalg.norm(found.vector - x[:6].mean(0)) < 5


def test_the_maximum_over_all_rows_is_stopped():
    rng = np.random.default_rng(0)
    x = np.vstack([rng.normal(size=(6, 3)), 1e4 * rng.normal(size=(3, 3))])
    found = CAF(3, tau_max="all_rows")(x)
    assert found.details["iterations"] == 1000
    assert any("1000 rounds" in flag for flag in found.flags)


def test_without_hostile_ones_it_is_the_mean_and_equal_rows_are_that_row():
    x = np.random.default_rng(1).normal(size=(6, 3))
    np.testing.assert_allclose(CAF(0)(x).vector, x.mean(0), rtol=1e-12)
    equal = CAF(2)(np.tile([0.1, 0.2, 0.3], (6, 1)))
    np.testing.assert_allclose(equal.vector, [0.1, 0.2, 0.3], rtol=1e-15)
    assert equal.details == {"lambda_max": 0.0, "iterations": 1}


def test_another_maximum_is_refused():
    with pytest.raises(ConfigError, match="tau_max"):
        CAF(1, tau_max="all")
