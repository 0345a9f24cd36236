"""FLDetector finds clients whose updates don't follow from their last ones and the model's step."""

from typing import Any

import numpy as np
import pytest

from dure.aggregation import FLDetector
from dure.aggregation.fldetector import curvature_times
from dure.aggregation.rule import Aggregate
from dure.errors import ConfigError, DataError, DomainError

D, K, BAD = 20, 10, 3
CURVATURE = np.random.default_rng(17).uniform(0.2, 1.0, (K, D))
OPTIMA = np.random.default_rng(18).normal(size=(K, D))


def train(
    rule: FLDetector, rounds: int, attack: Any, centred: bool = False, resume: bool = False
) -> list[Aggregate]:
    """Gradient steps on K quadratics; the last BAD clients send what `attack` makes of theirs."""
    w, state, found = np.zeros(D), None, []
    for t in range(rounds):
        updates = -0.2 * CURVATURE * (w - OPTIMA)
        updates[-BAD:] = attack(updates[-BAD:], np.random.default_rng((t, 5)))
        center = w if centred else None
        if resume and state is not None:
            state = {k: np.array(v.tolist(), v.dtype).reshape(v.shape) for k, v in state.items()}
        one = rule(
            w + updates if centred else updates, state=state, key=t, center=center, clients=np.arange(K) * 3
        )
        state = one.state
        w = one.vector if centred else w + one.vector
        found.append(one)
    return found


def noise(updates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return updates + 3.0 * rng.normal(size=updates.shape)


def flips(updates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return 3.0 * rng.choice([-1.0, 1.0], (BAD, 1)) * updates


def naive_bfgs(steps: np.ndarray, changes: np.ndarray) -> np.ndarray:
    """Broyden, Fletcher, Goldfarb and Shanno's update, pair after pair."""
    b = np.eye(steps.shape[1]) * (changes[-1] @ steps[-1]) / (steps[-1] @ steps[-1])
    for s, y in zip(steps, changes, strict=True):
        b = b - np.outer(b @ s, b @ s) / (s @ b @ s) + np.outer(y, y) / (y @ s)
    return b


@pytest.mark.parametrize("pairs", [1, 2, 5])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_curvature_products(pairs: int, sign: float) -> None:
    rng = np.random.default_rng(pairs)
    hessian = np.diag(rng.uniform(0.5, 2, D))
    steps = rng.normal(size=(pairs, D)) * rng.uniform(1e-6, 1e3, (pairs, 1))
    changes = sign * steps @ hessian
    v = rng.normal(size=D)
    np.testing.assert_allclose(curvature_times(steps, changes, v), naive_bfgs(steps, changes) @ v, rtol=1e-7)
    np.testing.assert_allclose(curvature_times(steps, changes, steps[-1]), changes[-1], rtol=1e-7)  # secant


@pytest.mark.parametrize("centred", [False, True])
def test_inconsistent_clients_are_found_after_the_window(centred: bool) -> None:
    window = 5
    found = train(FLDetector(window=window), 14, noise, centred)
    for t, one in enumerate(found, 1):
        assert one.selected is not None
        if t <= window + 1:
            assert "too early to judge" in one.flags[0]
            assert len(one.selected) == K
            assert (one.scores is None) == (t <= 2)
        else:
            assert not one.flags
            np.testing.assert_array_equal(one.details["suspicious"], [21, 24, 27])
            np.testing.assert_array_equal(one.selected, np.arange(K - BAD))
    assert found[-1].scores is not None
    assert found[-1].scores[-BAD:].min() > 10 * found[-1].scores[:-BAD].max()


def test_turning_clients_score_high_and_no_honest_one_is_accused() -> None:
    found = train(FLDetector(window=5), 14, flips)
    accused = [set(one.details["suspicious"]) for one in found]
    assert all(one <= {21, 24, 27} for one in accused)
    assert {21, 24, 27} in accused
    for one in found[6:]:
        assert one.scores is not None
        assert one.scores[-BAD:].min() > one.scores[:-BAD].max()


def test_without_an_attack_the_first_scores_are_shares_and_nothing_is_random() -> None:
    found = train(FLDetector(window=3), 8, lambda updates, rng: updates)
    again = train(FLDetector(window=3), 8, lambda updates, rng: updates)
    for one, other in zip(found, again, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        if one.scores is not None:
            assert one.scores.sum() == pytest.approx(1.0)


def test_a_resumed_state_equals_an_uninterrupted_one() -> None:
    whole, resumed = (train(FLDetector(window=3), 9, noise, resume=r) for r in (False, True))
    for one, other in zip(whole, resumed, strict=True):
        np.testing.assert_array_equal(one.vector, other.vector)
        assert one.state is not None
        assert other.state is not None
        for name, value in one.state.items():
            np.testing.assert_array_equal(value, other.state[name])
    assert {k: v.shape for k, v in (whole[-1].state or {}).items()} == {
        "clients": (K,),
        "known": (K,),
        "updates": (K, D),
        "scores": (K, 3),
        "steps": (3, D),
        "changes": (3, D),
        "vector": (D,),
        "center": (D,),
    }


def test_who_sends_nothing_sound_has_the_largest_distance() -> None:
    def broken(updates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        sent = updates + 0.5 * rng.normal(size=updates.shape)
        sent[-1, 0] = np.nan
        return sent

    found = train(FLDetector(window=4), 9, broken)
    state = found[-1].state
    assert state is not None
    assert not state["known"][-1]
    np.testing.assert_array_equal(state["scores"][-1], state["scores"].max(0))
    np.testing.assert_array_equal(found[-1].dropped, [K - 1])
    np.testing.assert_array_equal(found[-1].details["suspicious"], [21, 24, 27])
    assert np.isfinite(found[-1].vector).all()


def test_dropping_out_now_and_then_hides_nobody() -> None:
    rounds = iter(range(100))

    def hiding(updates: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        sent = noise(updates, rng)
        if next(rounds) % 2:
            sent[:, 0] = np.inf
        return sent

    found = train(FLDetector(window=4), 10, hiding)
    np.testing.assert_array_equal(found[-1].details["suspicious"], [21, 24, 27])


def test_the_same_clients_in_every_round() -> None:
    x = np.random.default_rng(0).normal(size=(4, 6))
    first = FLDetector()(x, key=0)
    with pytest.raises(DataError, match=r"1 are new or missing, such as \[3\]"):
        FLDetector()(x[:3], key=0, state=first.state)
    with pytest.raises(DataError, match="FLDetector returns and takes"):
        FLDetector()(x, key=0, state={"known": np.ones(4, bool)})
    with pytest.raises(DataError, match="updates of length 6, and these have 5"):
        FLDetector()(x[:, :5], key=0, state=first.state)
    with pytest.raises(DataError, match="equal"):
        FLDetector()(x, key=0, clients=[1, 1, 2, 3])
    turned = FLDetector()(
        x[::-1], key=0, clients=[3, 2, 1, 0], state=first.state
    )  # another order is no matter
    assert turned.state is not None
    np.testing.assert_array_equal(turned.state["updates"], x)
    FLDetector()(x[:3], key=0)
    with pytest.raises(DomainError, match="n ≥ 3"):
        FLDetector()(x[:2], key=0)
    with pytest.raises(ConfigError, match="at least 1"):
        FLDetector(window=0)


def test_weights_only_average_and_inputs_stay() -> None:
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    given, weights = x.copy(), np.array([1.0, 2.0, 3.0, 4.0])
    found = FLDetector()(x, weights, key=0)
    np.testing.assert_allclose(found.vector, weights @ x / 10, rtol=1e-6)
    np.testing.assert_array_equal(x, given)
    assert found.state is not None
    assert found.state["updates"].dtype == np.float32
    still = FLDetector()(x, weights, key=0, state=found.state)
    for _ in range(4):
        still = FLDetector(window=2)(x, weights, key=0, state=still.state)
    np.testing.assert_allclose(still.scores, 0.25)  # nobody is ahead of anybody
    np.testing.assert_array_equal(still.selected, np.arange(4))


def test_rounding_makes_nobody_suspicious() -> None:
    x = np.random.default_rng(0).normal(size=(5, 60)).astype(np.float32)
    state = None
    for t in range(8):
        sent = x.copy()
        sent[0] = np.nextafter(sent[0], np.float32(np.inf if t % 2 else -np.inf))
        found = FLDetector(window=3)(sent, state=state, key=t)
        state = found.state
    np.testing.assert_allclose(found.scores, 0.2, rtol=1e-12)
    assert not len(found.details["suspicious"])
