"""FedSGD: every client of the round sends its full gradient; the server takes one step.

The baseline of McMahan et al. (AISTATS 2017), section 2: FedAvg with E = 1 and B = ∞.

    client k:  g_k = ∇F_k(w)
    server:    w ← w − η Σ_k (n_k / Σ_j n_j) g_k
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update
from dure.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FedSGD(Algorithm):
    """Federated gradient descent. `learning_rate` is η > 0. Local epochs, batches and optimizer don't apply."""

    citation: ClassVar[str] = FedAvg.citation
    learning_rate: float = 0.1

    def __post_init__(self) -> None:
        check.number(self, "learning_rate", 0, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        return Update(delta=-oracle.gradient(server.w)), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(w=server.w + self.learning_rate * mean.delta)
