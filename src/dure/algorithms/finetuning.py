"""Fine-tuning and local-only training: the two baselines of personalisation.

Fine-tuning: FedAvg, and each client runs its local work once more from the global model before it uses it.
Local only: nothing is sent; each client trains its own model. Personalisation must beat both.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from jaxtyping import Array, Float

from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update
from dure.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class FineTuning(Algorithm):
    """FedAvg whose clients fine-tune the global model by one round's local work before using it."""

    citation: ClassVar[str] = FedAvg.citation
    needs: ClassVar[Needs] = Needs(personal=True)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        return Update(oracle.solve(server.w).w - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)

    def personal(self, server: Server, client: Any, oracle: Oracle) -> Array:  # noqa: D102
        return oracle.solve(server.w).w


class Nothing(NamedTuple):
    """An update without content."""


@dataclass(frozen=True)
class LocalOnly(Algorithm):
    """Every client trains alone; the server's model stays at its start. The baseline of personalisation."""

    citation: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs(uplink=0, downlink=0, personal=True)
    own: ClassVar[tuple[str, ...]] = ("*",)

    @property
    def private_buffers(self) -> bool:  # noqa: D102
        return True

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def init_client(self, w: Float[Array, " d"]) -> Array:  # noqa: D102
        return w

    def broadcast(self, server: Server) -> Nothing:  # noqa: D102
        return Nothing()

    def local(self, server: Nothing, v: Array, oracle: Oracle) -> tuple[Nothing, Array]:  # noqa: D102
        return Nothing(), oracle.solve(v).w

    def apply(self, server: Server, mean: Nothing, round: RoundInfo) -> Server:  # noqa: D102
        return server

    def personal(self, server: Nothing, v: Array, oracle: Oracle) -> Array:  # noqa: D102
        return v
