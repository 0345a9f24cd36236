"""Proximal steps: regularisers and constraint sets that a method's server can put on the model.

Each is a function (v, step) → argmin_z g(z) + ‖z − v‖² / (2 · step); for a set, the projection on it.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check


@dataclass(frozen=True)
class L1:
    """g(z) = strength · ‖z‖₁: soft thresholding. `strength` ≥ 0."""

    strength: float = 1.0

    def __post_init__(self) -> None:
        check.number(self, "strength", 0)

    def __call__(self, v: Float[Array, " d"], step: Any) -> Float[Array, " d"]:
        """Soft thresholding of v (d,) at step · strength."""
        return jnp.sign(v) * jnp.maximum(jnp.abs(v) - step * self.strength, 0)


@dataclass(frozen=True)
class Box:
    """The set of z with low ≤ z ≤ high in every coordinate."""

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check.number(self, "low", -float("inf"))
        check.number(self, "high", self.low)

    def __call__(self, v: Float[Array, " d"], step: Any) -> Float[Array, " d"]:
        """The nearest point of the box."""
        return jnp.clip(v, self.low, self.high)


@dataclass(frozen=True)
class Ball:
    """The set of z with ‖z‖₂ ≤ radius. `radius` > 0."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        check.number(self, "radius", 0, open_low=True)

    def __call__(self, v: Float[Array, " d"], step: Any) -> Float[Array, " d"]:
        """The nearest point of the ball."""
        norm = jnp.sqrt(jnp.vdot(v, v))
        return v * jnp.minimum(1, self.radius / jnp.where(norm > 0, norm, 1))
