"""FedProx: a proximal term keeps local work near the server's model; partial work of slow clients counts.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys 2020.

    client k:  y_k ≈ argmin F_k(y) + (μ/2) ‖y − w‖²        from y = w, γ-inexactly: as far as it comes
    server:    w ← w + Σ p_k (y_k − w)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a proximal term of strength `mu` μ ≥ 0. μ = 0 is FedAvg."""

    citation: ClassVar[str] = (
        "T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar, V. Smith. Federated Optimization in "
        "Heterogeneous Networks. MLSys 2020."
    )
    mu: float = 0.01

    def __post_init__(self) -> None:
        check.number(self, "mu", 0)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        y = oracle.solve(server.w, prox=self.mu, anchor=server.w)
        return Update(y.w - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)
