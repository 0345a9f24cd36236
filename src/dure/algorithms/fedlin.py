"""FedLin: exact under different objectives and different numbers of local steps, without client state.

Mitra, Jaafar, Pappas, Hassani: Linear Convergence in Federated Learning: Tackling Client Heterogeneity and
Sparse Gradients, NeurIPS 2021.

    survey:    g = Σ_S p_k ∇F_k(w) / Σ_S p_k
    client k:  y ← y − (η / τ_k) (g_B(y) − g_B(w) + g)          τ_k local steps
    server:    w ← Σ_S p_k y_k / Σ_S p_k
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Float

from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update
from dure.algorithms.mime import Gradient


class Surveyed(NamedTuple):
    """The model and the mean gradient at it, (d,) each."""

    w: Array
    g: Array


@dataclass(frozen=True)
class FedLin(Algorithm):
    """FedLin. No hyper-parameters of its own: the local learning rate is η."""

    citation: ClassVar[str] = (
        "A. Mitra, R. Jaafar, G. J. Pappas, H. Hassani. Linear Convergence in Federated Learning: Tackling "
        "Client Heterogeneity and Sparse Gradients. NeurIPS 2021."
    )
    needs: ClassVar[Needs] = Needs(uplink=2, downlink=2)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def survey(self, server: Server, client: Any, oracle: Oracle) -> Gradient:  # noqa: D102
        return Gradient(oracle.gradient(server.w))

    def inform(self, sent: Server, mean: Gradient) -> Surveyed:  # noqa: D102
        return Surveyed(sent.w, mean.gradient)

    def local(self, server: Surveyed, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        y = oracle.solve(server.w, reference=(server.w, server.g), rate=1 / oracle.steps)
        return Update(y.w - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)
