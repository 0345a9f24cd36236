"""FlexLoRA: the mean of the products, cut back to rank r by a singular value decomposition; W stays as it was.

Bai, Chen, Qian, Yao, Li: Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
Resources, NeurIPS 2024, with one rank for all clients.

    client k:  (B_k, A_k) ≈ argmin F_k(W + s B A)                       from (B, A);   s = α/r
    server:    U Σ Vᵀ = Σ p_k B_k A_k,   B ← U_r Σ_r^½,   A ← Σ_r^½ V_rᵀ

It is the nearest product of rank r: exact where the mean has no higher rank, else better than any other average that
leaves W alone. Traffic is FedIT's.

Where the mean has a lower rank, components are left without a singular value. As √0 in both factors they could never
move again (each one's gradient is a multiple of the other), so there B = 0 and A is new, as at the beginning.
"""

from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dure.algorithms._adapters import Adapted, Factors
from dure.algorithms.base import Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class FlexLoRA(Adapted):
    """The nearest adapters of rank r (`dure.lora`) to the mean of the clients' products."""

    citation: ClassVar[str] = (
        "J. Bai, D. Chen, B. Qian, L. Yao, Y. Li. Federated Fine-tuning of Large Language Models under "
        "Heterogeneous Tasks and Client Resources. NeurIPS 2024."
    )

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        return Update(oracle.solve(server.w).w - server.w), client

    def receive(self, update: Update) -> Factors:  # noqa: D102
        return Factors(update.delta, self.products(update.delta, update.delta))

    def apply(self, server: Server, mean: Factors, round: RoundInfo) -> Server:  # noqa: D102
        w, delta = server.w, mean.delta
        terms = [self.products(w, w), self.products(delta, w), self.products(w, delta), mean.product]
        product, largest = sum(terms), jnp.max(jnp.abs(jnp.stack(terms)), 0)
        new, at = w + delta, 0
        for p, fresh in zip(self.places, self.fresh(w, round.number), strict=True):
            rank = p.adapter.rank
            part = slice(at, at + p.size)
            matrix = p.adapter.matrix(product[part]) / p.adapter.scale
            u, values, v = jnp.linalg.svd(matrix, full_matrices=False)
            # The terms may cancel: then what they leave is their rounding.
            noise = jnp.max(largest[part]) / p.adapter.scale * sqrt(max(matrix.shape)) + values[0]
            there = values[:rank] > 4 * noise * np.finfo(w.dtype).eps
            root = jnp.where(there, jnp.sqrt(values[:rank]), 0)
            new = p.put(new, jnp.where(there[:, None], root[:, None] * v[:rank], fresh), u[:, :rank] * root)
            at += p.size
        return Server(new)
