"""FedDC: each client keeps track of its drift from the server's model and corrects for it.

Gao, Fu, Li, Chen, Xu, Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and
Correction, CVPR 2022.

    client k:  y_k ≈ argmin F_k(y) + ⟨c − c_k, y⟩ + (α/2) ‖y + h_k − w‖²       from y = w
               h_k⁺ = h_k + y_k − w
               c_k⁺ = c_k − c + (w − y_k) / Σ η_s
    server:    c ← c + Σ_S p_k (c_k⁺ − c_k)
               w ← Σ_S p_k y_k / Σ_S p_k + Σ_all p_k h_k

Everything starts at zero. α = 0 without h is SCAFFOLD's option II.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo
from dure.algorithms.scaffold import Controlled, ControlledUpdate


class Drifting(NamedTuple):
    """The model, the server's control and the mean drift over all clients, (d,) each."""

    w: Array
    c: Array
    h: Array


class Drift(NamedTuple):
    """A client's control and drift, (d,) each."""

    c: Array
    h: Array


@dataclass(frozen=True)
class FedDC(Algorithm):
    """FedDC. `alpha` α ≥ 0."""

    citation: ClassVar[str] = (
        "L. Gao, H. Fu, L. Li, Y. Chen, M. Xu, C.-Z. Xu. FedDC: Federated Learning with Non-IID Data via Local "
        "Drift Decoupling and Correction. CVPR 2022."
    )
    needs: ClassVar[Needs] = Needs(uplink=2, downlink=2, gain=True, mean_of_states=True)
    alpha: float = 0.1

    def __post_init__(self) -> None:
        check.number(self, "alpha", 0)

    def init(self, w: Float[Array, " d"]) -> Drifting:  # noqa: D102
        return Drifting(w, jnp.zeros_like(w), jnp.zeros_like(w))

    def init_client(self, w: Float[Array, " d"]) -> Drift:  # noqa: D102
        return Drift(jnp.zeros_like(w), jnp.zeros_like(w))

    def broadcast(self, server: Drifting) -> Controlled:  # noqa: D102
        return Controlled(server.w, server.c)

    def local(self, server: Controlled, own: Drift, oracle: Oracle) -> tuple[ControlledUpdate, Drift]:  # noqa: D102
        w, c = server
        y = oracle.solve(w, linear=c - own.c, prox=self.alpha, anchor=w - own.h)
        new = Drift(own.c - c + (w - y.w) / y.free_gain, own.h + y.w - w)
        return ControlledUpdate(y.w - w, new.c - own.c), new

    def apply(self, server: Drifting, mean: ControlledUpdate, round: RoundInfo) -> Drifting:  # noqa: D102
        h = server.h + round.share * mean.delta
        return Drifting(server.w + mean.delta + h, server.c + round.share * mean.control, h)
