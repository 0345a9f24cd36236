"""Norm clipping bounds what one client can do; the noise has the scale that it says."""

import numpy as np
import pytest

from dure.aggregation import NormClipping
from dure.errors import ConfigError

RNG = np.random.default_rng(10)
X = RNG.normal(size=(6, 80)) * np.array([0.01, 0.1, 1, 1, 10, 100])[:, None]


def naive(x: np.ndarray, weights: np.ndarray, most: float) -> np.ndarray:
    total = np.zeros(x.shape[1])
    for row, weight in zip(x, weights, strict=True):
        total += weight * row * min(1.0, most / max(np.sqrt((row**2).sum()), 1e-300))
    return total / weights.sum()


@pytest.mark.parametrize("weights", [None, np.array([1.0, 2, 3, 0.5, 1, 4])])
@pytest.mark.parametrize("centre", [None, RNG.normal(size=80)])
def test_weighted_mean_of_shortened_updates(weights: np.ndarray | None, centre: np.ndarray | None) -> None:
    origin = 0.0 if centre is None else centre
    found = NormClipping(2.0)(X, weights, center=centre)
    mass = np.ones(6) if weights is None else weights
    np.testing.assert_allclose(found.vector, origin + naive(X - origin, mass, 2.0), rtol=1e-10)
    assert found.weights_used is not None
    rest = 1.0 - found.weights_used.sum()
    np.testing.assert_allclose(found.vector, found.weights_used @ X + rest * origin, rtol=1e-10)


def test_no_client_moves_it_by_more_than_its_share_of_the_norm() -> None:
    without = NormClipping(2.0)(X)
    changed = X.copy()
    changed[0] *= 1e9
    moved = np.linalg.norm(NormClipping(2.0)(changed).vector - without.vector)
    assert moved <= 2 * 2.0 / 6 + 1e-12
    assert moved > 1.9 / 6


def test_noise_is_drawn_by_the_key_in_the_scale_that_was_asked_for() -> None:
    x = np.zeros((3, 20000), np.float32)
    rule = NormClipping(1.0, noise=0.5)
    one, again, other = (rule(x, key=k).vector for k in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert one.dtype == np.float32
    assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(20000)
    assert one.std() == pytest.approx(0.5, rel=5 / np.sqrt(2 * 20000))
    assert abs(one.mean()) < 5 * 0.5 / np.sqrt(20000)
    with pytest.raises(ConfigError, match="give key="):
        rule(x)
    assert not NormClipping(1.0)(x).vector.any()


def test_errors() -> None:
    for norm in (0.0, -1.0, np.inf, np.nan):
        with pytest.raises(ConfigError, match="a finite number above 0"):
            NormClipping(norm)
    for noise in (-1.0, np.nan):
        with pytest.raises(ConfigError, match="at least 0"):
            NormClipping(1.0, noise)
