"""FedEx-LoRA: both factors averaged as in FedIT, and what that leaves out added to the frozen weights, so it is exact.

Singhal, Ponkshe, Vepakomma: FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of Large Language
Models, ACL 2025. s = α/r, x̄ = Σ p_k x_k:

    client k:  (B_k, A_k) ≈ argmin F_k(W + s B A)                       from (B, A)
    server:    W ← W + s (Σ p_k B_k A_k − B̄ Ā),   B ← B̄,   A ← Ā

so that W + s B A becomes W + s Σ p_k B_k A_k. The residual is the covariance of the changes ΔB_k = B_k − B and
ΔA_k = A_k − A:

    Σ p_k B_k A_k − B̄ Ā = Σ p_k ΔB_k ΔA_k − mean(ΔB) mean(ΔA)

Up go the factors only: the server multiplies. Down goes W as well, whole: a client may have missed rounds.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms._adapters import Adapted, Based, Factors, Sent
from dure.algorithms.base import Needs, Oracle, RoundInfo, Update


@dataclass(frozen=True)
class FedExLoRA(Adapted):
    """Exact average of low-rank adapters (`dure.lora`): the residual goes into the weights."""

    citation: ClassVar[str] = (
        "R. Singhal, K. Ponkshe, P. Vepakomma. FedEx-LoRA: Exact Aggregation for Federated and Efficient "
        "Fine-Tuning of Large Language Models. ACL 2025."
    )
    needs: ClassVar[Needs] = Needs(
        adapters=True, downlink=2
    )  # W beside the factors; how large it is, the model says
    changes_frozen: ClassVar[bool] = True

    def init(self, w: Float[Array, " e"]) -> Based:  # noqa: D102
        return Based(*self.parts(w))

    def broadcast(self, server: Based) -> Sent:  # noqa: D102
        return Sent(server.w, self.weights(server.frozen))

    def local(self, server: Sent, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        y = oracle.solve(server.w, frozen=self.with_weights(oracle.frozen, server.weights))
        return Update(y.w - server.w), client

    def receive(self, update: Update) -> Factors:  # noqa: D102
        return Factors(update.delta, self.products(update.delta, update.delta))

    def apply(self, server: Based, mean: Factors, round: RoundInfo) -> Based:  # noqa: D102
        residual = mean.product - self.products(mean.delta, mean.delta)
        weights = self.weights(server.frozen) + residual
        return Based(server.w + mean.delta, self.with_weights(server.frozen, weights))

    def model(self, server: Based) -> Array:  # noqa: D102
        return jnp.concatenate(server)
