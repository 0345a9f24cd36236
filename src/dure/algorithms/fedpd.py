"""FedPD: primal-dual local work, averaged every `period`-th step.

Zhang, Hong, Dhople, Yin, Liu: FedPD: A Federated Learning Framework with Optimal Rates and Adaptivity to
Non-IID Data, IEEE Transactions on Signal Processing 2021. With x₀ = w at the beginning of a round:

    client k:  `period` times:  x ≈ argmin F_k(x) + ⟨λ_k, x⟩ + ‖x − x₀‖² / (2η)      from x₀
                                λ_k ← λ_k + (x − x₀) / η,    x₀ ← x + η λ_k
    server:    w ← Σ p_k x₀

Steps without averaging cost no message; with period > 1 the limit is no longer exact.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class FedPD(Algorithm):
    """FedPD. `eta` η > 0, the inverse of the proximal strength; `period` ≥ 1 dual steps a round."""

    citation: ClassVar[str] = (
        "X. Zhang, M. Hong, S. Dhople, W. Yin, Y. Liu. FedPD: A Federated Learning Framework with Optimal Rates "
        "and Adaptivity to Non-IID Data. IEEE Transactions on Signal Processing, 2021."
    )
    needs: ClassVar[Needs] = Needs(everyone=True)
    eta: float = 1.0
    period: int = 1

    def __post_init__(self) -> None:
        check.number(self, "eta", 0, open_low=True)
        check.count(self, "period")

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def init_client(self, w: Float[Array, " d"]) -> Array:  # noqa: D102
        return jnp.zeros_like(w)

    def local(self, server: Server, dual: Array, oracle: Oracle) -> tuple[Update, Array]:  # noqa: D102
        x0 = server.w
        for _ in range(self.period):
            x = oracle.solve(x0, linear=dual, prox=1 / self.eta, anchor=x0).w
            dual = dual + (x - x0) / self.eta
            x0 = x + self.eta * dual
        return Update(x0 - server.w), dual

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)
