"""FedSAM and MoFedSAM: local steps look for flat minima.

Qu, Li, Duan, Liu, Tang, Lu: Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022.

    client k:  ỹ = y + ρ g_B(y) / ‖g_B(y)‖₂            the norm over the whole vector
               y ← y − η g_B(ỹ)                        FedSAM, the same minibatch B
               y ← y − η (β g_B(ỹ) + (1 − β) G)        MoFedSAM
    server:    w ← Σ_S p_k y_k / Σ_S p_k
               G = −Σ_S p_k (y_k − w) / Σ_S p_k gain_k     last round's uphill direction per unit of step
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


def sharp_gradient(rho: Any) -> Callable[[Any, Array], Array]:
    """(minibatch, y) → the gradient at distance ρ uphill from y; at y itself where the gradient is zero."""

    def direction(batch: Any, y: Array) -> Array:
        g = batch.gradient(y)
        norm = jnp.sqrt(jnp.vdot(g, g))
        uphill = jnp.where(norm > 0, g / jnp.where(norm > 0, norm, 1), 0)
        return batch.gradient(y + rho * uphill)  # type: ignore[no-any-return]

    return direction


@dataclass(frozen=True)
class FedSAM(Algorithm):
    """FedAvg with sharpness-aware local steps. `rho` ρ ≥ 0, the radius; 0 is FedAvg."""

    citation: ClassVar[str] = (
        "Z. Qu, X. Li, R. Duan, Y. Liu, B. Tang, Z. Lu. Generalized Federated Learning via Sharpness Aware "
        "Minimization. ICML 2022."
    )
    rho: float = 0.05

    def __post_init__(self) -> None:
        check.number(self, "rho", 0)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        y = oracle.solve(server.w, direction=sharp_gradient(self.rho))
        return Update(y.w - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)


class Moving(NamedTuple):
    """The model and last round's uphill direction G, (d,) each."""

    w: Array
    uphill: Array


class WithGain(NamedTuple):
    """A client's update (d,) and its displacement per unit of gradient."""

    delta: Array
    gain: Array


@dataclass(frozen=True)
class MoFedSAM(Algorithm):
    """FedSAM with the last round's direction in the local steps. `beta` β in (0, 1]; 1 is FedSAM."""

    citation: ClassVar[str] = FedSAM.citation
    needs: ClassVar[Needs] = Needs(downlink=2, gain=True)
    rho: float = 0.05
    beta: float = 0.1

    def __post_init__(self) -> None:
        check.number(self, "rho", 0)
        check.number(self, "beta", 0, 1, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Moving:  # noqa: D102
        return Moving(w, jnp.zeros_like(w))

    def local(self, server: Moving, client: Any, oracle: Oracle) -> tuple[WithGain, Any]:  # noqa: D102
        sharp = sharp_gradient(self.rho)

        def direction(batch: Any, y: Array) -> Array:
            return self.beta * sharp(batch, y) + (1 - self.beta) * server.uphill

        y = oracle.solve(server.w, direction=direction)
        return WithGain(y.w - server.w, y.gain), client

    def apply(self, server: Moving, mean: WithGain, round: RoundInfo) -> Moving:  # noqa: D102
        return Moving(server.w + mean.delta, -mean.delta / mean.gain)
