"""FedLC: local training calibrates the logits by how rare a label is at the client.

Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits Calibration, ICML
2022. In the place of cross-entropy while training:

    −log( e^{f_y − τ n_y^(−1/4)} / Σ_c e^{f_c − τ n_c^(−1/4)} )

n_c: the client's own examples of label c; labels that it doesn't have are left out of the sum.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update


def calibrated_loss(counts: Array, tau: Any) -> Any:
    """(logits (B, C), labels (B,)) → (B,) with these label counts (C,)."""
    there = counts > 0
    margin = tau * jnp.where(there, counts, 1) ** -0.25

    def loss(logits: Array, labels: Array) -> Array:
        calibrated = jnp.where(there, logits - margin, -jnp.inf)
        chosen = jnp.take_along_axis(logits - margin, labels[:, None].astype(jnp.int32), 1)[:, 0]
        return jax.nn.logsumexp(calibrated, -1, where=there) - chosen

    return loss


@dataclass(frozen=True)
class FedLC(Algorithm):
    """FedLC for classification. `classes` C, `tau` τ ≥ 0; τ = 0 still leaves absent labels out."""

    citation: ClassVar[str] = (
        "J. Zhang, Z. Li, B. Li, J. Xu, S. Wu, S. Ding, C. Wu. Federated Learning with Label Distribution Skew "
        "via Logits Calibration. ICML 2022."
    )
    classes: int
    tau: float = 1.0

    def __post_init__(self) -> None:
        check.count(self, "classes")
        check.number(self, "tau", 0)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        counts = oracle.labels(self.classes)
        y = oracle.solve(server.w, loss=calibrated_loss(counts, self.tau))
        return Update(y.w - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)
