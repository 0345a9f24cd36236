"""Optimizers: which arguments are possible, which are linear, what a sweep can change."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dure.errors import ConfigError
from dure.oracles.optimizer import Optimizer, as_optimizer, is_linear, sgd


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"learning_rate": float("nan")}, "learning_rate=nan"),
        ({"learning_rate": float("inf")}, "learning_rate=inf"),
        ({"learning_rate": 0.1, "momentum": 1.0}, "momentum=1.0"),
        ({"learning_rate": 0.1, "momentum": -0.1}, "momentum=-0.1"),
        ({"learning_rate": 0.1, "nesterov": True}, "nesterov=True needs a momentum"),
        ({"learning_rate": 0.1, "weight_decay": -1e-3}, "weight_decay=-0.001"),
        ({"learning_rate": 0.1, "clip_norm": 0.0}, "clip_norm=0.0"),
        ({"learning_rate": 0.1, "round_decay": 0.0}, "round_decay=0.0"),
    ],
)
def test_impossible_values_are_named(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(named)):
        sgd(**keywords)


def test_what_counts_as_an_optimizer() -> None:
    assert as_optimizer(0.1) == sgd(0.1)
    assert as_optimizer(1) == sgd(1.0)
    adam = optax.adam(0.1)
    assert as_optimizer(adam).transformation() is adam
    assert as_optimizer(adam) == as_optimizer(adam), "one transformation is one program"
    assert hash(as_optimizer(adam).factory) == hash(as_optimizer(adam).factory)
    for wrong in ("adam", True, None, [0.1]):
        with pytest.raises(ConfigError, match=re.escape(f"optimizer={wrong!r}")):
            as_optimizer(wrong)
    with pytest.raises(ConfigError, match="learning_rate"):
        as_optimizer(-0.5)


def test_scale() -> None:
    assert sgd(0.1).scale(jnp.int32(5)) == 1.0
    np.testing.assert_allclose(sgd(0.1, round_decay=0.5).scale(jnp.int32(3)), 0.25)
    np.testing.assert_allclose(sgd(0.1, round_decay=lambda r: 1.0 / r).scale(jnp.int32(4)), 0.25)


def step(optimizer: Optimizer, gradients: Any, parameters: Any) -> np.ndarray:
    transformation = optimizer.transformation()
    state = transformation.init(jnp.asarray(parameters))
    for g in gradients:
        move, state = transformation.update(jnp.asarray(g), state, jnp.asarray(parameters))
    return np.asarray(move)


def test_order_of_clipping_decay_and_momentum() -> None:
    """The gradient is clipped, then decay is added, then momentum sees both."""
    g, y = np.array([30.0, 40.0], np.float32), np.array([1.0, -2.0], np.float32)
    move = step(sgd(0.5, clip_norm=5.0, weight_decay=0.1, momentum=0.9), [g, g], y)
    inner = np.array([3.0, 4.0]) + 0.1 * y
    np.testing.assert_allclose(move, -0.5 * (0.9 * inner + inner), rtol=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "linear"),
    [
        (sgd(0.1), True),
        (sgd(0.1, momentum=0.9), True),
        (sgd(0.1, momentum=0.9, nesterov=True), True),
        (sgd(optax.cosine_decay_schedule(0.1, 10)), True),
        (sgd(0.1, clip_norm=1e-3), False),
        (sgd(0.1, clip_norm=1e4), False),
        (Optimizer(optax.adam, {"learning_rate": 0.1}), False),
        (Optimizer(optax.adagrad, {"learning_rate": 0.1}), False),
        (Optimizer(optax.sign_sgd, {"learning_rate": 0.1}), False),
        (Optimizer(optax.lion, {"learning_rate": 0.1}), False),
    ],
)
def test_linearity(optimizer: Optimizer, linear: bool) -> None:
    assert is_linear(optimizer) is linear


def test_linearity_inside_a_trace() -> None:
    seen = []

    @jax.jit
    def f(x: Any) -> Any:
        seen.append(is_linear(sgd(0.1, momentum=0.5)))
        return x

    f(1.0)
    assert seen == [True]
