"""What an algorithm is: a frozen dataclass of hyper-parameters with a few pure functions.

`init` and `apply` run on the server, `local` on a client. An algorithm sees parameters as flat float32
vectors (d,), never data: it asks an `Oracle`. What `local` returns as its second value is only *proposed*:
the client's state takes it when the server has used the update (law 5 of the design).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int32

from dure.oracles.adapter import Adapter
from dure.oracles.layout import Layout


class Server(NamedTuple):
    """What the server keeps between rounds. `w`: the model (d,). A method may use its own tuple with a `w`."""

    w: Float[Array, " d"]


class Update(NamedTuple):
    """What one client sends. `delta` = y − w points downhill (d,). A method may use its own tuple."""

    delta: Float[Array, " d"]


class RoundInfo(NamedTuple):
    """What `apply` may know of the round.

    Attributes:
        number: number of this round, from 1.
        accepted: number of clients whose update entered the mean.
        participation: accepted clients / registered clients, |S| / N.
        share: `share · mean` is Σ_S p_k x_k, a sum over the accepted clients with their weights p_k in the
            whole population: Σ_S p_k under the ratio estimator; |S| / N when all clients weigh the same.
            Methods that keep a mean over all clients' states on the server move it by this.
        survey: the mean of what `survey` returned; None for a method without.
    """

    number: Int32[Array, ""]
    accepted: Int32[Array, ""]
    participation: Float[Array, ""]
    share: Float[Array, ""]
    survey: Any = None


@runtime_checkable
class Solution(Protocol):
    """Where a local solver stopped, see `dure.oracles.local.Solution`."""

    @property
    def w(self) -> Float[Array, " d"]: ...  # noqa: D102
    @property
    def steps(self) -> Int32[Array, ""]: ...  # noqa: D102
    @property
    def loss(self) -> Float[Array, ""]: ...  # noqa: D102
    @property
    def gain(self) -> Float[Array, ""]: ...  # noqa: D102
    @property
    def free_gain(self) -> Float[Array, ""]: ...  # noqa: D102


@runtime_checkable
class Minibatch(Protocol):
    """The minibatch of one local step: its gradient can be asked at any point, with the same random numbers."""

    def gradient(self, y: Float[Array, " d"]) -> Float[Array, " d"]:
        """∇ of the minibatch's mean loss at y."""
        ...

    def loss(self, y: Float[Array, " d"]) -> Float[Array, ""]:
        """The minibatch's mean loss at y."""
        ...


@runtime_checkable
class Oracle(Protocol):
    """One client's access to its own data: what an algorithm may ask."""

    examples: Any
    client: Any

    @property
    def steps(self) -> Any:
        """Local steps that the client does in this round, at least 1."""
        ...

    def solve(
        self,
        start: Float[Array, " d"],
        *,
        linear: Float[Array, " d"] | None = None,
        prox: Any = 0.0,
        anchor: Float[Array, " d"] | None = None,
        reference: tuple[Array, Array] | None = None,
        direction: Callable[[Any, Array], Array] | None = None,
        loss: Callable[[Any, Any], Array] | None = None,
        penalty: Callable[[Callable[[Array], Any], Array], Array] | None = None,
        train: str | None = None,
        frozen: Float[Array, " f"] | None = None,
        rate: Any = 1.0,
        repeats: int = 1,
    ) -> Solution:
        """Approximately minimise F_k(y) + ⟨linear, y⟩ + (prox/2)‖y − anchor‖² from y = start."""
        ...

    def walk(self, start: Any, step: Callable[..., Any], *, batches: int = 1) -> Any:
        """A local loop of the method's own: state ← step(state, minibatch, …) over the client's plan."""
        ...

    def gradient(self, w: Float[Array, " d"]) -> Float[Array, " d"]:
        """∇F_k(w) over all of the client's data."""
        ...

    def loss(self, w: Float[Array, " d"]) -> Float[Array, ""]:
        """F_k(w), the mean loss over all of the client's data."""
        ...

    def labels(self, classes: int) -> Float[Array, " c"]:
        """How many of the client's examples have each of the labels 0 … classes − 1."""
        ...

    def join(self, shared: Float[Array, " s"], private: Float[Array, " p"]) -> Float[Array, " d"]:
        """The whole parameter vector of its shared and its private part."""
        ...

    def shared(self, w: Float[Array, " d"]) -> Float[Array, " s"]:
        """The part of the vector that travels."""
        ...

    def private(self, w: Float[Array, " d"]) -> Float[Array, " p"]:
        """The part of the vector that stays with the client."""
        ...

    @property
    def frozen(self) -> Float[Array, " f"]:
        """The frozen parameters, which every client has and nobody trains."""
        ...


@dataclass(frozen=True)
class Needs:
    """What a method asks of its setting, for the catalogue and for refusing what can't work.

    Attributes:
        everyone: right only when every client takes part in every round.
        uplink: what a client sends in a round, in models (1 is FedAvg's).
        downlink: what a client receives in a round, in models.
        gain: the local optimizer must be linear in the gradients (SGD, momentum, schedules; not Adam).
        mean_of_states: the server follows Σ p_k (state of k) over all clients, so that Σ_S p_k must be
            known in every round: samplers that draw by weight are refused.
        personal: each client ends with a model of its own.
        adapters: the model must have low-rank adapters (`dure.lora`).
    """

    everyone: bool = False
    uplink: float = 1.0
    downlink: float = 1.0
    gain: bool = False
    mean_of_states: bool = False
    personal: bool = False
    adapters: bool = False


@dataclass(frozen=True)
class Algorithm:
    """Defaults that most methods share: no client state, and the server's state is what goes down.

    Class attributes:
        citation: the paper.
        needs: what the method asks of its setting.
        own: fields of the client's state that are the client's own business (a personal model): they take
            their new value whether or not the server used the update. "*" is the whole state.
        changes_frozen: the server changes frozen parameters: `init` is given the whole vector (d + f,) and
            `model` returns it.
    """

    citation: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs()
    own: ClassVar[tuple[str, ...]] = ()
    changes_frozen: ClassVar[bool] = False

    @property
    def frozen_patterns(self) -> tuple[str, ...]:
        """Name patterns of parameters that are neither trained nor sent, beside the model's own; none by default."""
        return ()

    @property
    def private_patterns(self) -> tuple[str, ...]:
        """Name patterns of the parameters that never leave the client; none by default.

        A method that has some is given the shared part in `init` and the private part in `init_client`.
        """
        return ()

    @property
    def private_buffers(self) -> bool:
        """Whether float buffers (BatchNorm statistics) and counters stay with each client."""
        return False

    def bind(self, adapters: Sequence[Adapter], layout: Layout) -> "Algorithm":
        """The method for a model, for one that must know which numbers of the vector are what; itself by default.

        Raises:
            ConfigError: the model has not what the method works on.
        """
        return self

    def check(self, clients: int) -> None:
        """Refuse a population of so many clients that the method can't serve.

        Raises:
            ConfigError: why.
        """

    def init(self, w: Float[Array, " d"]) -> Any:
        """The server's state before the first round."""
        return Server(w)

    def init_client(self, w: Float[Array, " p"]) -> Any:
        """A client's state before its first round: a pytree of float32 arrays, or None."""
        return None

    def broadcast(self, server: Any) -> Any:
        """What goes down to the clients of a round: arrays that `local` reads."""
        return server

    def deliver(self, sent: Any, client: Any) -> Any:
        """What of the broadcast this client (its number) receives; all of it by default."""
        return sent

    def survey(self, server: Any, client: Any, oracle: Oracle) -> Any:
        """For two-phase methods: what a client answers before the local work; the mean goes to `inform`."""
        raise NotImplementedError(f"{type(self).__name__} has no survey")

    def inform(self, sent: Any, mean: Any) -> Any:
        """What clients know after the survey: the broadcast together with the mean answer."""
        raise NotImplementedError(f"{type(self).__name__} has no survey")

    def local(self, server: Any, client: Any, oracle: Oracle) -> tuple[Any, Any]:
        """One client's work: (update, proposed client state)."""
        raise NotImplementedError(f"{type(self).__name__} has no local work")

    def receive(self, update: Any) -> Any:
        """What the server makes of one client's update before averaging; the update itself by default."""
        return update

    def apply(self, server: Any, mean: Any, round: RoundInfo) -> Any:
        """The server's state after a round whose mean update is `mean`."""
        raise NotImplementedError(f"{type(self).__name__} has no server step")

    def model(self, server: Any) -> Float[Array, " d"]:
        """The model that the server would hand out now: what is evaluated and saved."""
        return server.w  # type: ignore[no-any-return]

    def personal(self, server: Any, client: Any, oracle: Oracle) -> Float[Array, " d"]:
        """The model that a client uses, given what the server sends and its own state; for evaluation."""
        raise NotImplementedError(f"{type(self).__name__} has no personal models")


def has_survey(algorithm: Algorithm) -> bool:
    """Whether the method asks its clients something before the local work."""
    return type(algorithm).survey is not Algorithm.survey


class Exchange(NamedTuple):
    """One client's part in a round: received, answered to the survey (or None), sent, and proposed to keep."""

    received: Any
    answer: Any
    update: Any
    proposed: Any


def exchange(algorithm: Algorithm, server: Any, client: Any, oracle: Any) -> Exchange:
    """A round as if this client were the only one: what goes down and up, for counting it in shapes."""
    sent, answer = algorithm.broadcast(server), None
    received = algorithm.deliver(sent, oracle.client)
    if has_survey(algorithm):
        answer = algorithm.survey(received, client, oracle)
        sent = algorithm.inform(sent, answer)
    update, proposed = algorithm.local(algorithm.deliver(sent, oracle.client), client, oracle)
    return Exchange(received, answer, update, proposed)


def has_personal(algorithm: Algorithm) -> bool:
    """Whether clients use models of their own."""
    return type(algorithm).personal is not Algorithm.personal
