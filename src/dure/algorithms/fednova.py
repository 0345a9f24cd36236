"""FedNova: updates are normalised by how far their local steps could go, so that no client counts for more.

Wang, Liu, Liang, Joshi, Poor: Tackling the Objective Inconsistency Problem in Heterogeneous Federated
Optimization, NeurIPS 2020.

    client k:  d_k = (y_k − w) / gain_k           gain_k = η ‖a_k‖₁: displacement per unit of constant gradient
    server:    w ← w + η_g (Σ p_k gain_k) Σ p_k d_k

`gain` is right for momentum, schedules, the proximal term and early stops together. Equal gains are FedAvg.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server


class Normalised(NamedTuple):
    """A client's update per unit of gain (d,), and its gain."""

    delta: Array
    gain: Array


@dataclass(frozen=True)
class FedNova(Algorithm):
    """FedNova. `server_lr` η_g > 0; `mu` ≥ 0 adds FedProx's term to the local problem."""

    citation: ClassVar[str] = (
        "J. Wang, Q. Liu, H. Liang, G. Joshi, H. V. Poor. Tackling the Objective Inconsistency Problem in "
        "Heterogeneous Federated Optimization. NeurIPS 2020."
    )
    needs: ClassVar[Needs] = Needs(gain=True)
    server_lr: float = 1.0
    mu: float = 0.0

    def __post_init__(self) -> None:
        check.number(self, "server_lr", 0, open_low=True)
        check.number(self, "mu", 0)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Normalised, Any]:  # noqa: D102
        y = oracle.solve(server.w, prox=self.mu)
        return Normalised((y.w - server.w) / y.gain, y.gain), client

    def apply(self, server: Server, mean: Normalised, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + self.server_lr * mean.gain * mean.delta)
