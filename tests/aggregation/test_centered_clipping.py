"""Centred clipping against the formula in full space, its memory, and what it bounds."""

import numpy as np
import pytest

from dure.aggregation import CenteredClipping
from dure.errors import ConfigError, DataError


def by_formula(x, v, radius, steps, weights=None):
    weights = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()
    for _ in range(steps):
        apart = x - v
        lengths = np.linalg.norm(apart, axis=1)
        factors = np.array([1.0 if length <= radius else radius / length for length in lengths])
        v = v + (weights * factors) @ apart
    return v


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_the_formula(steps, weighted):
    rng = np.random.default_rng(steps)
    x, center = rng.standard_t(2, size=(9, 5)), rng.normal(size=5)
    weights = rng.uniform(0.5, 1.5, 9) if weighted else None
    found = CenteredClipping(1.3, steps)(x, weights, center=center)
    np.testing.assert_allclose(found.vector, by_formula(x, center, 1.3, steps, weights), rtol=1e-12)
    rest = 1 - found.weights_used.sum()
    np.testing.assert_allclose(found.weights_used @ x + rest * center, found.vector, rtol=1e-12)


def test_the_memory_is_the_last_aggregate():
    rng = np.random.default_rng(0)
    rule, v, state = CenteredClipping(0.7, 2), np.zeros(4), None
    for _ in range(4):
        x = rng.normal(size=(6, 4)) + 1.0
        found = rule(x, state=state)
        v = by_formula(x, v, 0.7, 2)
        np.testing.assert_allclose(found.vector, v, rtol=1e-12)
        state = found.state


def test_models_with_their_predecessor_as_centre_are_as_good_as_differences():
    rng = np.random.default_rng(1)
    rule, differences, models = CenteredClipping(0.5, 3), None, None
    w = np.zeros(3)
    for _ in range(3):
        w = w + rng.normal(size=3)
        delta = rng.normal(size=(5, 3))
        as_differences, as_models = rule(delta, state=differences), rule(w + delta, center=w, state=models)
        np.testing.assert_allclose(as_models.vector - w, as_differences.vector, atol=1e-13)
        differences, models = as_differences.state, as_models.state


def test_one_client_moves_it_by_its_share_of_the_radius_at_most():
    x = np.random.default_rng(2).normal(size=(10, 4))
    for scale in (1e3, 1e38, 1e140):
        hostile = x.copy()
        hostile[0] = scale
        moved = (
            CenteredClipping(2.0)(hostile).vector
            - CenteredClipping(2.0)(np.delete(x, 0, axis=0)).vector * 0.9
        )
        np.testing.assert_allclose(np.linalg.norm(moved), 2.0 / 10, rtol=1e-9)


def test_far_rows_leave_several_steps_exact():
    x = np.random.default_rng(3).normal(size=(8, 3))
    x[-1] = [1e38, -1e38, 1e38]
    np.testing.assert_allclose(
        CenteredClipping(1.0, 5)(x).vector, by_formula(x, np.zeros(3), 1.0, 5), rtol=1e-10
    )


def test_a_large_radius_is_the_mean():
    x = np.random.default_rng(4).normal(size=(5, 3))
    found = CenteredClipping(1e6)(x)
    np.testing.assert_allclose(found.vector, x.mean(0), rtol=1e-12)
    assert found.details["clipped"] == 0
    assert CenteredClipping(1e-3)(x).details["clipped"] == 5


def test_a_row_at_the_centre_is_no_division_by_zero():
    np.testing.assert_array_equal(CenteredClipping(1.0)(np.zeros((3, 2))).vector, [0.0, 0.0])


def test_beyond_a_tenth_it_says_so():
    x = np.random.default_rng(5).normal(size=(20, 3))
    assert CenteredClipping(1.0, f=2)(x).flags == ()
    assert any("n/10" in flag for flag in CenteredClipping(1.0, f=3)(x).flags)


def test_a_wrong_memory_is_refused():
    x = np.zeros((3, 2))
    with pytest.raises(DataError, match="previous"):
        CenteredClipping(1.0)(x, state={"last": np.zeros(2)})
    with pytest.raises(DataError, match="previous"):
        CenteredClipping(1.0)(x, state={"previous": np.zeros(3)})
    with pytest.raises(DataError, match="not finite"):
        CenteredClipping(1.0)(x, state={"previous": np.array([np.nan, 0.0])})


@pytest.mark.parametrize("make", [lambda: CenteredClipping(0.0), lambda: CenteredClipping(1.0, 0)])
def test_impossible_arguments_are_refused(make):
    with pytest.raises(ConfigError, match="is not allowed"):
        make()
