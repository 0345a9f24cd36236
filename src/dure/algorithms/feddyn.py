"""FedDyn: each client's objective gets a linear term that makes its own minimiser the global one.

Acar, Zhao, Matas, Mattina, Whatmough, Saligrama: Federated Learning Based on Dynamic Regularization, ICLR 2021.

    client k:  θ_k ≈ argmin F_k(θ) − ⟨λ_k, θ⟩ + (α/2) ‖θ − w‖²       from θ = w
               λ_k⁺ = λ_k − α (θ_k − w)
    server:    h ← h − α Σ_S p_k (θ_k − w)                           p_k over all N clients
               w ← Σ_S p_k θ_k / Σ_S p_k − h / α

λ and h start at zero, so h = Σ p_k λ_k over all clients after every round.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


class Corrected(NamedTuple):
    """The model and h, (d,) each."""

    w: Array
    h: Array


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedDyn. `alpha` α > 0: large is cautious."""

    citation: ClassVar[str] = (
        "D. A. E. Acar, Y. Zhao, R. Matas, M. Mattina, P. Whatmough, V. Saligrama. Federated Learning Based on "
        "Dynamic Regularization. ICLR 2021."
    )
    needs: ClassVar[Needs] = Needs(mean_of_states=True)
    alpha: float = 0.1

    def __post_init__(self) -> None:
        check.number(self, "alpha", 0, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Corrected:  # noqa: D102
        return Corrected(w, jnp.zeros_like(w))

    def init_client(self, w: Float[Array, " d"]) -> Array:  # noqa: D102
        return jnp.zeros_like(w)

    def broadcast(self, server: Corrected) -> Server:  # noqa: D102
        return Server(server.w)

    def local(self, server: Server, dual: Array, oracle: Oracle) -> tuple[Update, Array]:  # noqa: D102
        y = oracle.solve(server.w, linear=-dual, prox=self.alpha, anchor=server.w)
        delta = y.w - server.w
        return Update(delta), dual - self.alpha * delta

    def apply(self, server: Corrected, mean: Update, round: RoundInfo) -> Corrected:  # noqa: D102
        h = server.h - self.alpha * round.share * mean.delta
        return Corrected(server.w + mean.delta - h / self.alpha, h)
