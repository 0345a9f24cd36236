"""FedAvg: every client of the round runs local SGD from the server's model; the server averages.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks from
Decentralized Data, AISTATS 2017, Algorithm 1.

    client k:  y_k ← E epochs of SGD on F_k with batches of B, from y = w
    server:    w ← w + η_g Σ_k (n_k / Σ_j n_j) (y_k − w)          sums over the clients of the round
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """Federated averaging. `server_lr` is η_g > 0; 1 replaces the model by the weighted mean of the y_k."""

    citation: ClassVar[str] = (
        "B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning "
        "of Deep Networks from Decentralized Data. AISTATS 2017."
    )
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check.number(self, "server_lr", 0, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        y = oracle.solve(server.w)
        return Update(delta=y.w - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(w=server.w + self.server_lr * mean.delta)
