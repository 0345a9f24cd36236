"""FedOpt: the server's step is any optax optimizer on the pseudo-gradient G = −Σ p_k Δ_k.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization, ICLR 2021,
Algorithm 1. Only parameters go through the optimizer; buffers are averaged. With `optax.sgd(1.0)` it is FedAvg.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import optax
from jaxtyping import Array, Float

from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update
from dure.oracles.optimizer import Optimizer, as_optimizer


class Optimised(NamedTuple):
    """The model (d,) and the optimizer's state."""

    w: Array
    state: Any


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """Federated averaging with a server optimizer: `Optimizer(optax.adam, {…})`, `sgd(…)` or a learning rate.

    `round_decay` of the optimizer multiplies the server's step, with the round's number.
    """

    citation: ClassVar[str] = (
        "S. Reddi, Z. Charles, M. Zaheer, Z. Garrett, K. Rush, J. Konečný, S. Kumar, H. B. McMahan. Adaptive "
        "Federated Optimization. ICLR 2021."
    )
    optimizer: Any = field(
        default_factory=lambda: Optimizer(optax.adam, {"learning_rate": 0.01, "eps": 1e-3})
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "optimizer", as_optimizer(self.optimizer))

    def init(self, w: Float[Array, " d"]) -> Optimised:  # noqa: D102
        return Optimised(w, self.optimizer.transformation().init(w))

    def broadcast(self, server: Optimised) -> Server:  # noqa: D102
        return Server(server.w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        return Update(oracle.solve(server.w).w - server.w), client

    def apply(self, server: Optimised, mean: Update, round: RoundInfo) -> Optimised:  # noqa: D102
        step, state = self.optimizer.transformation().update(-mean.delta, server.state, server.w)
        return Optimised(server.w + self.optimizer.scale(round.number) * step, state)
