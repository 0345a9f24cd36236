"""Worker momentum: clients send the momentum of their updates, which hostile clients can't hide behind.

Karimireddy, He, Jaggi: Learning from History for Byzantine Robust Optimization, ICML 2021; El Mhamdi, Guerraoui,
Rouault: Distributed Momentum for Byzantine-resilient Stochastic Gradient Descent, ICLR 2021.

    client k:  y_k ← local steps on F_k from y = w
               m_k ← β m_k + (1 − δ) (y_k − w)                    kept by the client, and sent
    server:    w ← w + η_g · aggregate of the m_k

Honest updates differ by the noise of their batches, and in that noise an attacker moves unseen. Momentum averages
it over rounds. With δ = 0 a constant update adds up to 1 / (1 − β) times itself, with δ = β to itself.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class WorkerMomentum(Algorithm):
    """FedAvg with momentum at the clients, for robust aggregation.

    `momentum` β in [0, 1), `dampening` δ in [0, 1), `server_lr` η_g > 0. The momentum is the client's own business:
    it goes on whether or not the server used the update.
    """

    citation: ClassVar[str] = (
        "S. P. Karimireddy, L. He, M. Jaggi. Learning from History for Byzantine Robust Optimization. ICML 2021."
    )
    own: ClassVar[tuple[str, ...]] = ("*",)
    momentum: float = 0.9
    dampening: float = 0.0
    server_lr: float = 1.0

    def __post_init__(self) -> None:
        check.number(self, "momentum", 0, 1, open_high=True)
        check.number(self, "dampening", 0, 1, open_high=True)
        check.number(self, "server_lr", 0, open_low=True)

    def init_client(self, w: Float[Array, " d"]) -> Array:  # noqa: D102
        return jnp.zeros_like(w)

    def local(self, server: Server, m: Array, oracle: Oracle) -> tuple[Update, Array]:  # noqa: D102
        y = oracle.solve(server.w)
        m = self.momentum * m + (1 - self.dampening) * (y.w - server.w)
        return Update(delta=m), m

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(w=server.w + self.server_lr * mean.delta)
