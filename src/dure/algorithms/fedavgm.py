"""FedAvgM: the server takes heavy-ball or Nesterov steps along the mean update.

Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification,
2019. The momentum is on the pseudo-gradient G = −Σ p_k Δ_k, never an average of models.

    v ← β v + G
    w ← w − η_g v                  heavy ball
    w ← w − η_g (G + β v)          Nesterov
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update


class Momentum(NamedTuple):
    """The model and the velocity, (d,) each."""

    w: Array
    v: Array


@dataclass(frozen=True)
class FedAvgM(Algorithm):
    """FedAvg with server momentum. `server_lr` η_g > 0, outside the velocity; `momentum` β in [0, 1)."""

    citation: ClassVar[str] = (
        "T.-M. H. Hsu, H. Qi, M. Brown. Measuring the Effects of Non-Identical Data Distribution for Federated "
        "Visual Classification. arXiv:1909.06335, 2019."
    )
    server_lr: float = 1.0
    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.number(self, "server_lr", 0, open_low=True)
        check.number(self, "momentum", 0, 1, open_high=True)

    def init(self, w: Float[Array, " d"]) -> Momentum:  # noqa: D102
        return Momentum(w, jnp.zeros_like(w))

    def broadcast(self, server: Momentum) -> Server:  # noqa: D102
        return Server(server.w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        return Update(oracle.solve(server.w).w - server.w), client

    def apply(self, server: Momentum, mean: Update, round: RoundInfo) -> Momentum:  # noqa: D102
        gradient = -mean.delta
        v = self.momentum * server.v + gradient
        step = gradient + self.momentum * v if self.nesterov else v
        return Momentum(server.w - self.server_lr * step, v)
