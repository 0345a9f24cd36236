"""What an algorithm is: a frozen dataclass of hyper-parameters with a few pure functions.

`init` and `apply` run on the server, `local` on a client. An algorithm sees parameters as flat float32
vectors (d,), never data: it asks an `Oracle`. What `local` returns as its second value is only *proposed*:
the client's state takes it when the server has used the update (law 5 of the design).
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float32, Int32


class Server(NamedTuple):
    """What the server keeps between rounds. `w`: the model (d,). A method may use its own tuple with a `w`."""

    w: Float32[Array, " d"]


class Update(NamedTuple):
    """What one client sends. `delta` = y − w points downhill (d,). A method may use its own tuple."""

    delta: Float32[Array, " d"]


class RoundInfo(NamedTuple):
    """What `apply` may know of the round.

    Attributes:
        number: number of this round, from 1.
        accepted: number of clients whose update entered the mean.
        participation: accepted clients / registered clients, |S| / N.
    """

    number: Int32[Array, ""]
    accepted: Int32[Array, ""]
    participation: Float32[Array, ""]


@runtime_checkable
@runtime_checkable
class Solution(Protocol):
    """Where a local solver stopped, see `dure.oracles.local.Solution`."""

    @property
    def w(self) -> Float32[Array, " d"]: ...  # noqa: D102
    @property
    def steps(self) -> Int32[Array, ""]: ...  # noqa: D102
    @property
    def loss(self) -> Float32[Array, ""]: ...  # noqa: D102
    @property
    def gain(self) -> Float32[Array, ""]: ...  # noqa: D102


@runtime_checkable
@runtime_checkable
class Oracle(Protocol):
    """One client's access to its own data: what an algorithm may ask."""

    examples: Any

    def solve(
        self,
        start: Float32[Array, " d"],
        *,
        linear: Float32[Array, " d"] | None = None,
        prox: Any = 0.0,
        anchor: Float32[Array, " d"] | None = None,
        reference: tuple[Array, Array] | None = None,
    ) -> Solution:
        """Approximately minimise F_k(y) + ⟨linear, y⟩ + (prox/2)‖y − anchor‖² from y = start."""
        ...

    def gradient(self, w: Float32[Array, " d"]) -> Float32[Array, " d"]:
        """∇F_k(w) over all of the client's data."""
        ...

    def loss(self, w: Float32[Array, " d"]) -> Float32[Array, ""]:
        """F_k(w), the mean loss over all of the client's data."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """Defaults that most methods share: no client state, and the server's state is what goes down."""

    citation: ClassVar[str] = ""

    def init(self, w: Float32[Array, " d"]) -> Any:
        """The server's state before the first round."""
        return Server(w)

    def init_client(self, w: Float32[Array, " d"]) -> Any:
        """A client's state before its first round: a pytree of float32 arrays, or None."""
        return None

    def broadcast(self, server: Any) -> Any:
        """What goes down to the clients of a round: arrays that `local` reads."""
        return server

    def local(self, server: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """One client's work: (update, proposed client state)."""
        raise NotImplementedError(f"{type(self).__name__} has no local work")

    def apply(self, server: Any, mean: Any, round: RoundInfo) -> Any:
        """The server's state after a round whose mean update is `mean`."""
        raise NotImplementedError(f"{type(self).__name__} has no server step")
