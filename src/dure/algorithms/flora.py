"""FLoRA: the clients' products summed into the frozen weights, and new adapters in every round, so it is exact.

Wang, Shen, He, Sun, Wang, Lyu, Li: FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank
Adaptations, NeurIPS 2024. s = α/r:

    client k:  (B_k, A_k) ≈ argmin F_k(W + s B A)                       from B = 0 and a new random A
    server:    W ← W + s [p_1 B_1 … p_n B_n] [A_1; …; A_n],   B ← 0,   A ← new

The stacked factors' product is Σ p_k B_k A_k; the server adds it up client by client instead. With ΔB_k = B_k − B:

    Σ p_k B_k A_k = B A + mean(ΔB) A + B mean(ΔA) + Σ p_k ΔB_k ΔA_k

Up go the factors; down go the new ones and W, whole: the stack of a round is of use to its own cohort only, and is
larger than W as soon as n r (inputs + outputs) > inputs · outputs.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from dure.algorithms._adapters import Based, Factors
from dure.algorithms.base import RoundInfo
from dure.algorithms.fedexlora import FedExLoRA


@dataclass(frozen=True)
class FLoRA(FedExLoRA):
    """Exact sum of low-rank adapters (`dure.lora`) in the weights; the adapters begin anew in every round."""

    citation: ClassVar[str] = (
        "Z. Wang, Z. Shen, Y. He, G. Sun, H. Wang, L. Lyu, A. Li. FLoRA: Federated Fine-Tuning Large Language Models "
        "with Heterogeneous Low-Rank Adaptations. NeurIPS 2024."
    )

    def apply(self, server: Based, mean: Factors, round: RoundInfo) -> Based:  # noqa: D102
        w, delta = server.w, mean.delta
        product = self.products(w, w) + self.products(delta, w) + self.products(w, delta) + mean.product
        frozen = self.with_weights(server.frozen, self.weights(server.frozen) + product)
        new = w + delta
        for p, a in zip(self.places, self.fresh(w, round.number), strict=True):
            new = p.put(new, a, jnp.zeros_like(p.b_of(w)))
        return Based(new, frozen)
