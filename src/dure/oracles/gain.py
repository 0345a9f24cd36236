"""Where a local solver stopped, and how far a unit of constant gradient would have taken it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32

from dure.errors import ConfigError
from dure.oracles.optimizer import Optimizer, is_linear


@dataclass(frozen=True)
class Solution:
    """Where the solver stopped.

    Attributes:
        w: (d,) the last iterate.
        steps: local steps taken; fewer than planned for a client that stopped early.
        loss: mean minibatch loss over the steps (without the linear and proximal terms).
    """

    w: Float32[Array, " d"]
    steps: Int32[Array, ""]
    loss: Float32[Array, ""]
    _gain: Callable[[bool], Array]

    @property
    def gain(self) -> Float32[Array, ""]:
        """Displacement per unit of constant gradient, Σ_s η_s for SGD; FedNova's η‖a‖₁ in general.

        It is the response of the local optimizer, as it is, to a constant gradient of one: right under
        schedules, momentum, a proximal term and early stops. Weight decay counts as a part of F_k.

        Raises:
            ConfigError: the optimizer is not linear in the gradients (Adam, clipping): no such number exists.
        """
        return self._gain(True)

    @property
    def free_gain(self) -> Float32[Array, ""]:
        """The same without the proximal term: Σ_s η_s for SGD whatever μ is.

        Raises:
            ConfigError: as for `gain`.
        """
        return self._gain(False)


def path_gain(optimizer: Optimizer, round: Array, rate: Any, prox: Any, steps: Array, longest: int) -> Array:
    """The path of the optimizer under a constant gradient of one, at `steps` of at most `longest` steps."""
    if not is_linear(_concrete(optimizer)):
        raise ConfigError(
            "This method divides by the displacement per unit of gradient (`gain`), which the local "
            f"optimizer {_name(optimizer)} does not have: its steps are not linear in the gradients. "
            "Use dure.sgd(…), with momentum or a schedule if wanted, without clip_norm."
        )
    transformation = optimizer.transformation()
    scale = optimizer.scale(round)
    origin = jnp.float32(0)

    def step(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], Array]:
        z, state = carry
        move, state = transformation.update(1.0 + prox * z, state, origin)
        z = z + scaled(rate, scaled(scale, move))
        return (z, state), -z

    _, path = lax.scan(step, (origin, transformation.init(origin)), None, longest)
    gains: Array = jnp.concatenate([jnp.zeros(1, jnp.float32), path])
    return gains[steps]


def scaled(factor: Any, move: Array) -> Array:
    """The displacement times a factor; nothing is computed for a plain 1.0."""
    return move if isinstance(factor, float) and factor == 1.0 else factor * move


def _concrete(optimizer: Optimizer) -> Optimizer:
    """The optimizer with ordinary numbers where values are traced: linearity doesn't depend on them."""
    arguments = {k: 0.5 if isinstance(v, jax.core.Tracer) else v for k, v in optimizer.arguments.items()}
    return Optimizer(optimizer.factory, arguments)


def _name(optimizer: Optimizer) -> str:
    return str(getattr(optimizer.factory, "__name__", optimizer.factory)).lstrip("_")
