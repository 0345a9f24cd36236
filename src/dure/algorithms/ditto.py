"""Ditto: a personal model beside the global one, pulled towards it.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021.

    client k:  y_k ≈ argmin F_k(y)                              from y = w       (as in FedAvg)
               v_k ≈ argmin F_k(v) + (λ/2) ‖v − w‖²             from the last v_k
    server:    w ← w + Σ p_k (y_k − w)

Both phases go through the same minibatches; w is the model as received. v_k stays with the client for ever,
whether or not its update arrived, and the global path is the same bits as FedAvg's.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Ditto. `lam` λ ≥ 0: 0 is local training, large is the global model."""

    citation: ClassVar[str] = (
        "T. Li, S. Hu, A. Beirami, V. Smith. Ditto: Fair and Robust Federated Learning Through Personalization. "
        "ICML 2021."
    )
    needs: ClassVar[Needs] = Needs(personal=True)
    own: ClassVar[tuple[str, ...]] = ("*",)
    lam: float = 1.0

    def __post_init__(self) -> None:
        check.number(self, "lam", 0)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def init_client(self, w: Float[Array, " d"]) -> Array:  # noqa: D102
        return w

    def local(self, server: Server, v: Array, oracle: Oracle) -> tuple[Update, Array]:  # noqa: D102
        v = oracle.solve(v, prox=self.lam, anchor=server.w).w
        y = oracle.solve(server.w)  # last, so that its buffers are the ones that travel
        return Update(y.w - server.w), v

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)

    def personal(self, server: Server, v: Array, oracle: Oracle) -> Array:  # noqa: D102
        return v
