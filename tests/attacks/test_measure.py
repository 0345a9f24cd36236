"""Measures of success, against figures by hand and against the promise of a rule."""

import numpy as np
import pytest

from dure.attacks import attack_success_rate, honest_distance
from dure.errors import DataError


def test_distance_over_variance() -> None:
    x = np.array([[0.0, 0], [2, 0], [0, 2], [2, 2]])  # mean (1, 1), every ‖x_i − m‖² = 2
    assert honest_distance(np.array([1.0, 1]), x) == 0
    assert honest_distance(np.array([4.0, 5]), x) == pytest.approx((9 + 16) / 2)
    assert honest_distance(np.float32([4, 5]), x.astype(np.float32)) == pytest.approx(12.5)
    far = honest_distance(np.float32([1e4 + 1, 1e4]), (x + 1e4).astype(np.float32))
    assert far == pytest.approx(0.5)  # (0, −1) from the mean


def test_equal_honest_updates() -> None:
    x = np.full((3, 2), 0.1, np.float32)  # three times 0.1 over three isn't 0.1 in floating point
    assert honest_distance(x[0], x) == 0
    assert honest_distance(np.float32([0.1, 0.2]), x) == np.inf
    assert honest_distance(np.zeros(0), np.zeros((3, 0))) == 0
    assert honest_distance(np.float32([1.0]), np.float32([[1.0]])) == 0
    assert np.isnan(honest_distance(np.array([np.nan]), np.array([[0.0], [1.0]])))
    assert np.isnan(honest_distance(np.array([np.nan]), np.array([[0.0]])))


def test_it_is_what_a_rules_kappa_bounds() -> None:
    """Trimmed mean, n = 7, f = 2: κ = 6 r (1 + r) with r = f/(n − 2f) (Allouah et al., AISTATS 2023)."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(200):
        honest = rng.normal(size=(5, 2))
        rows = np.vstack([honest, honest.max(0) + rng.exponential(3, (2, 2))])
        worst = max(worst, honest_distance(np.sort(rows, axis=0)[2:5].mean(0), honest))
    ratio = 2 / 3
    assert 0.1 < worst <= 6 * ratio * (1 + ratio)


def test_success_rate() -> None:
    labels, mask = np.full(5, 7), np.array([True, True, False, True, True])
    assert attack_success_rate(np.array([7, 1, 7, 7, 2]), labels, mask) == 0.5
    assert attack_success_rate(np.array([7, 1, 7, 7, 2]), labels, mask.astype(np.float32)) == 0.5
    assert np.isnan(attack_success_rate(labels, labels, np.zeros(5, bool)))


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="h ≥ 1"):
        honest_distance(np.zeros(2), np.zeros((0, 2)))
    with pytest.raises(DataError, match=r"aggregate\[3\]"):
        honest_distance(np.zeros(3), np.zeros((2, 2)))
    with pytest.raises(DataError, match=r"predictions\[5, 10\]"):
        attack_success_rate(np.zeros((5, 10)), np.zeros(5), np.ones(5))
