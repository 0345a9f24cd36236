"""SignGuard filters by length and by signs, and only then clips."""

import numpy as np
import pytest

from dure.aggregation import SignGuard
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(14)
COMMON = np.where(RNG.random(400) < 0.8, 1.0, -1.0)
HONEST = 0.5 * COMMON + 0.3 * RNG.normal(size=(8, 400))
RULE = SignGuard(f=3, share=0.5)


def test_far_signs_are_dropped() -> None:
    x = np.vstack([-HONEST[:3], HONEST])
    found = RULE(x, key=1)
    assert found.selected is not None
    assert not set(found.selected) & {0, 1, 2}
    assert len(found.selected) >= 5
    np.testing.assert_array_equal(found.details["usual_length"], np.arange(11))


def test_clipped_mean_of_what_passed() -> None:
    weights = RNG.uniform(1, 4, 11)
    x = np.vstack([-HONEST[:3], HONEST * RNG.uniform(0.5, 1.5, (8, 1))])
    found = RULE(x, weights, key=1)
    kept = found.selected
    assert kept is not None
    lengths = np.linalg.norm(x, axis=1)
    clipped = x * np.minimum(1.0, np.median(lengths) / lengths)[:, None]
    np.testing.assert_allclose(found.vector, weights[kept] @ clipped[kept] / weights[kept].sum(), rtol=1e-10)
    assert found.weights_used is not None
    np.testing.assert_allclose(found.weights_used @ x, found.vector, rtol=1e-10)


def test_the_length_filter_sees_lengths_before_clipping() -> None:
    """A known defect: clipped to the median first, no length exceeds three medians any more."""
    x = HONEST.copy()
    x[0] *= 50.0  # of the usual signs
    x[1] *= 0.01
    found = RULE(x, key=1)
    lengths = np.linalg.norm(x, axis=1)
    bound = np.median(lengths)
    assert (np.minimum(lengths, bound) < 3 * bound).all()  # what the wrong order would see
    assert found.selected is not None
    assert not {0, 1} & set(found.selected)
    np.testing.assert_array_equal(found.details["usual_length"], np.arange(2, 8))


def test_features_are_shares_of_signs_in_a_run_of_columns() -> None:
    x = np.zeros((4, 100))
    x[:, 20:] = 1.0
    x[0] = -x[0]
    rule = SignGuard(share=1.0)
    sound = rule(x, key=0)
    np.testing.assert_array_equal(sound.details["usual_signs"], [1, 2, 3])
    centred = rule(x + 7.0, key=0, center=np.full(100, 7.0))
    np.testing.assert_array_equal(centred.details["usual_signs"], [1, 2, 3])


def test_the_key_draws_which_columns_are_looked_at() -> None:
    x = np.ones((5, 1000))
    x[0, :500] = -1.0
    seen = {tuple(SignGuard(share=0.1)(x, key=k).details["usual_signs"]) for k in range(20)}
    assert seen == {(0, 1, 2, 3, 4), (1, 2, 3, 4)}
    assert SignGuard()(x, key=3).vector.tolist() == SignGuard()(x, key=3).vector.tolist()
    with pytest.raises(ConfigError, match="give key="):
        SignGuard()(x)


def test_an_empty_meeting_of_both_filters_has_a_flag() -> None:
    x = np.ones((7, 64))
    x[:4] *= np.array([1e-3, 1e-3, 1e3, 1e3])[:, None]  # usual signs, unusual lengths
    x[4:] *= -1.0
    found = SignGuard(share=1.0)(x, key=0)
    np.testing.assert_array_equal(found.details["usual_signs"], [0, 1, 2, 3])
    np.testing.assert_array_equal(found.selected, [4, 5, 6])
    assert found.flags == ("no update passed both filters: lengths alone decided",)
    np.testing.assert_allclose(found.vector, -1.0)


def test_equal_rows_and_zero_rows() -> None:
    np.testing.assert_allclose(RULE(np.repeat(HONEST[:1], 7, 0), key=0).vector, HONEST[0], rtol=1e-12)
    assert not RULE(np.zeros((7, 4)), key=0).vector.any()
    some = np.vstack([np.zeros((4, 400)), HONEST[:3]])
    found = RULE(some, key=0)
    np.testing.assert_array_equal(found.details["usual_length"], [0, 1, 2, 3])  # their median length is 0
    assert not found.vector.any()
    assert RULE(np.zeros((7, 0)), key=0).vector.shape == (0,)


def test_errors() -> None:
    RULE(HONEST[:7], key=0)
    with pytest.raises(DomainError, match="2f < n"):
        RULE(HONEST[:6], key=0)
    for wrong in ({"low": -0.1}, {"low": 1.0}, {"high": 1.0}, {"high": np.inf}):
        with pytest.raises(ConfigError, match="low < 1 < high"):
            SignGuard(**wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"in \(0, 1\]"):
        SignGuard(share=0.0)
