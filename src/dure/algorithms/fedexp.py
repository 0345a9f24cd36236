"""FedExP: the server extrapolates when clients' updates point in different directions.

Jhunjhunwala, Wang, Joshi: FedExP: Speeding Up Federated Averaging via Extrapolation, ICLR 2023.

    η_g = max(1, Σ p_k ‖Δ_k‖² / (2 (‖Δ̄‖² + ε)))          Δ̄ = Σ p_k Δ_k
    w ← w + η_g Δ̄

What is handed out is the mean of the last two iterates. Near a fixed point Δ̄ → 0 and η_g would grow without
bound: ε has the scale of ‖Δ‖² (it is given relative to Σ p_k ‖Δ_k‖² of the first round), and η_g is clipped.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server


class Extrapolated(NamedTuple):
    """The model and the one before it (d,), the first round's Σ p_k ‖Δ_k‖² (0 before it), the last η_g."""

    w: Array
    previous: Array
    scale: Array
    step: Array


class Measured(NamedTuple):
    """A client's update (d,) and its squared 2-norm."""

    delta: Array
    square: Array


@dataclass(frozen=True)
class FedExP(Algorithm):
    """FedAvg with extrapolation. `epsilon` ≥ 0; `relative`: in units of the first round; `largest` η_g ≥ 1."""

    citation: ClassVar[str] = (
        "D. Jhunjhunwala, S. Wang, G. Joshi. FedExP: Speeding Up Federated Averaging via Extrapolation. ICLR 2023."
    )
    needs: ClassVar[Needs] = Needs()
    epsilon: float = 0.1
    relative: bool = True
    largest: float = 100.0

    def __post_init__(self) -> None:
        check.number(self, "epsilon", 0)
        check.number(self, "largest", 1)

    def init(self, w: Float[Array, " d"]) -> Extrapolated:  # noqa: D102
        return Extrapolated(w, w, jnp.zeros((), w.dtype), jnp.ones((), w.dtype))

    def broadcast(self, server: Extrapolated) -> Server:  # noqa: D102
        return Server(server.w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Measured, Any]:  # noqa: D102
        delta = oracle.solve(server.w).w - server.w
        return Measured(delta, jnp.vdot(delta, delta)), client

    def apply(self, server: Extrapolated, mean: Measured, round: RoundInfo) -> Extrapolated:  # noqa: D102
        scale = jnp.where(server.scale > 0, server.scale, mean.square)
        epsilon = self.epsilon * scale if self.relative else self.epsilon
        below = 2 * (jnp.vdot(mean.delta, mean.delta) + epsilon)
        step = jnp.clip(mean.square / jnp.where(below > 0, below, 1), 1, self.largest)
        return Extrapolated(server.w + step * mean.delta, server.w, scale, step)

    def model(self, server: Extrapolated) -> Array:  # noqa: D102
        return (server.w + server.previous) / 2
