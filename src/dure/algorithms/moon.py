"""MOON: local representations stay near the global model's and away from the client's own last ones.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021. Added to each example's loss:

    μ · −log( e^{s(z, z_g)/T} / (e^{s(z, z_g)/T} + e^{s(z, z_p)/T}) )        s: cosine similarity

z is the model's representation of the example, z_g the received model's, z_p that of the client's own last
*local* model; z_g and z_p are constants, in evaluation mode. A client that comes for the first time has no
z_p and no term.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update


class Last(NamedTuple):
    """The client's last local model (d,) and whether there is one (1 or 0)."""

    w: Array
    known: Array


def _cosine(a: Array, b: Array) -> Array:
    lengths = jnp.sqrt((a * a).sum(-1) * (b * b).sum(-1) + 1e-16)
    return (a * b).sum(-1) / lengths


@dataclass(frozen=True)
class Moon(Algorithm):
    """MOON. `mu` μ ≥ 0, `temperature` T > 0. The model must say what its representation is (`features`)."""

    citation: ClassVar[str] = "Q. Li, B. He, D. Song. Model-Contrastive Federated Learning. CVPR 2021."
    own: ClassVar[tuple[str, ...]] = ("*",)
    mu: float = 1.0
    temperature: float = 0.5

    def __post_init__(self) -> None:
        check.number(self, "mu", 0)
        check.number(self, "temperature", 0, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def init_client(self, w: Float[Array, " d"]) -> Last:  # noqa: D102
        return Last(w, jnp.zeros((), w.dtype))

    def local(self, server: Server, last: Last, oracle: Oracle) -> tuple[Update, Last]:  # noqa: D102
        def contrast(features: Any, y: Array) -> Array:
            z = features(y)
            z_global = jax.lax.stop_gradient(features(server.w))
            z_last = jax.lax.stop_gradient(features(last.w))
            nearer = _cosine(z, z_last) - _cosine(z, z_global)
            return self.mu * last.known * jax.nn.softplus(nearer / self.temperature)

        y = oracle.solve(server.w, penalty=contrast)
        return Update(y.w - server.w), Last(y.w, jnp.ones_like(last.known))

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)
