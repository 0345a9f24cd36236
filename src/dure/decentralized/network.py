"""The network: rounds of training without a server, one XLA program for all nodes."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from dure import devices, keys
from dure.channel import wire
from dure.decentralized.base import Method
from dure.decentralized.graph import Graph
from dure.decentralized.mixing import lose_links
from dure.decentralized.nodes import StackedOracles
from dure.errors import ConfigError, DataError
from dure.oracles.layout import Layout, Variables
from dure.oracles.problem import ClientPlan, Shared
from dure.oracles.task import Task
from dure.simulation import hyper, schedule
from dure.simulation.cohort import Room, plan_round, sizes_of
from dure.simulation.settings import Settings


class Report(NamedTuple):
    """What is recorded of a round: `loss`, `norm`, `verdict` of each node's work (N,), consensus distance ()."""

    loss: Any
    norm: Any
    verdict: Any
    consensus: Any


class Launched(NamedTuple):
    """A round on its way: what the host knows at once, and the devices' report."""

    round: int
    examples: np.ndarray
    steps: np.ndarray
    lost: int
    report: Report


@dataclass(frozen=True)
class Statics:
    """All that shapes the program; equal statics share one compiled program."""

    structure: Any  # hyper.Structure of (method, optimizer)
    task: Task
    layout: Layout
    batch_size: int
    max_steps: int
    block: int
    together: bool
    cpu: bool


class Sent(NamedTuple):
    """What the host sends for a round: its number, the plan, keys (N, 2) as words, the matrix (N, N)."""

    round: Any
    order: Any
    plan: ClientPlan
    keys: Any
    mixing: Any


@lru_cache(maxsize=64)
def compiled_round(statics: Statics) -> Any:
    """The jitted `f(state, numbers, columns, sent) -> (state, Report)`."""

    def function(state: Any, numbers: Array, columns: Mapping[str, Array], sent: Sent) -> tuple[Any, Report]:
        values = iter([numbers[i] for i in range(numbers.shape[0])])
        method, optimizer = (hyper.join(part, values) for part in statics.structure)
        shared = Shared(
            statics.task,
            statics.layout,
            optimizer,
            columns,
            sent.order,
            jnp.zeros(0, jnp.float32),
            jnp.zeros(0, jnp.int32),
            sent.round,
            statics.batch_size,
            statics.max_steps,
            statics.block,
            statics.together,
            statics.cpu,
        )
        node_keys = jax.vmap(lambda words: jax.random.wrap_key_data(words, impl="threefry2x32"))(sent.keys)
        nodes = StackedOracles(shared, sent.plan, node_keys)
        state = method.step(state, sent.mixing, nodes)
        consensus = consensus_distance(method.models(state))
        return state, Report(nodes.loss, nodes.norm, nodes.verdict, consensus)

    return jax.jit(function)


def consensus_distance(x: Array) -> Array:
    """How far the nodes are apart: √((1/N) Σ_i ‖x_i − x̄‖²) of models x (N, d)."""
    return jnp.sqrt(jnp.mean(jnp.sum((x - x.mean(0)) ** 2, -1)))


class Network:
    """Nodes on a graph, in simulation: `launch` rounds.

    Args:
        method: the method.
        task: model, loss and measures.
        data: one client for each node.
        graph: who can send to whom.
        mixing: (N, N) float64, checked.
        settings: seed, optimizer and local work, see `dure.simulation.settings.settings`.
        lost_messages: probability in [0, 1) that a link is lost in a round.
        name: schedule: "auto", "sequential" or "vectorised".
        variables: where all nodes start; None: the model's `init` with the seed's key.

    Raises:
        ConfigError: the model has buffers; the compressor does not fit its size.
        DataError: the data lack the task's columns.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        data: Any,
        graph: Graph,
        mixing: np.ndarray,
        settings: Settings,
        lost_messages: float,
        name: str,
        variables: Variables | None,
    ):
        self.method, self.task, self.data, self.graph, self.settings = method, task, data, graph, settings
        self.mixing, self.lost_messages = mixing, lost_messages
        start = variables or task.model.init(keys.jax_key(settings.seed, "init"))
        if task.model.frozen:
            raise ConfigError(
                f"Model {task.model.name!r} has frozen parameters, which methods without a server would train. "
                "Give them the model without adapters."
            )
        self.layout = Layout.of(start)
        if self.layout.buffer_size or self.layout.counter_size:
            raise ConfigError(
                f"Model {task.model.name!r} has running statistics ({self.layout.buffers[0].name!r}), and these "
                "methods don't say how neighbours mix them. Use a model with GroupNorm or LayerNorm."
            )
        mesh = devices.mesh(1)
        # All on one mesh from the beginning: a state from elsewhere would compile the round a second time.
        self._place = NamedSharding(mesh, PartitionSpec())
        self.columns = _columns(task, data, mesh)
        w = self.layout.flatten_params(start.params)
        self.round = 0
        self.state = jax.device_put(method.init(jnp.tile(w, (graph.nodes, 1))), self._place)
        self.message = wire.size(method.message(self.layout.size))
        self.shapes = sizes_of(data, settings, False)
        self._room = Room()
        parts = [hyper.split(thing) for thing in (method, settings.optimizer)]
        self._structure = tuple(structure for structure, _ in parts)
        numbers = np.array([x for _, own in parts for x in own], np.float32)
        self._numbers, self._mixing = jax.device_put((numbers, mixing.astype(np.float32)), self._place)
        self._cpu = jax.local_devices()[0].platform == "cpu"
        self.schedule = self._schedule(name, start)

    def launch(self) -> Launched:
        """Start the next round; returns before the devices are done."""
        number = self.round + 1
        n = self.graph.nodes
        inputs = plan_round(self.data, self.settings, number, 1, 1, self.shapes, self._room)
        self._room = Room(inputs.places.order, inputs.places.chunks, inputs.max_steps)
        # The federated round's plan, its clients in the order of their numbers.
        plan = ClientPlan(*(x[inputs.facts.seats] for x in inputs.clients.plan))
        words = keys.words(self.settings.seed, "node", number, np.arange(n), np.zeros(1, np.int64))
        mixing, lost = self._mixing, 0
        if self.lost_messages:
            links = self.lost_links(number)
            lost = int(links.sum())
            mixing = lose_links(self.mixing, links).astype(np.float32)
        statics = Statics(
            self._structure,
            self.task,
            self.layout,
            inputs.batch_size,
            inputs.max_steps,
            self.shapes.block,
            self.schedule.width > 1,
            self._cpu,
        )
        node_keys = words.view(np.uint32).reshape(-1, 2)
        sent = jax.device_put(Sent(np.int32(number), inputs.order, plan, node_keys, mixing), self._place)
        self.state, report = compiled_round(statics)(self.state, self._numbers, self.columns, sent)
        self.round = number
        return Launched(number, inputs.facts.sizes, inputs.facts.planned, lost, report)

    def lost_links(self, round: int) -> np.ndarray:
        """(N, N) bool, [i, j] where the message from j to i is lost in a round.

        Under push-sum each direction is lost by itself, else both directions of a link together.
        """
        sender, receiver = self.graph.edges.T
        if self.method.mixing != "column stochastic":
            sender, receiver = np.minimum(sender, receiver), np.maximum(sender, receiver)
        words = keys.words(self.settings.seed, "link", round, sender, receiver)
        gone = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < self.lost_messages
        lost = np.zeros_like(self.graph.adjacency)
        lost[receiver[gone], sender[gone]] = True
        return lost if self.method.mixing == "column stochastic" else lost | lost.T

    def restore(self, state: Any, round: int) -> None:
        """Go to the state after a round."""
        self.state, self.round = jax.device_put(state, self._place), round

    def models(self) -> np.ndarray:
        """The nodes' models now, (N, d) float32."""
        return np.asarray(self.method.models(self.state))

    def mean(self) -> np.ndarray:
        """The mean of the nodes' models now, (d,) float32."""
        return np.asarray(self.models().mean(0, dtype=np.float64), np.float32)

    def params(self) -> Any:
        """The mean model's parameters, as the pytree that its `init` makes."""
        return self.layout.unflatten_params(self.mean())

    def _schedule(self, name: str, start: Variables) -> schedule.Schedule:
        """All nodes together or one by one, by the federated engine's rule; unmeasured between its clear cases."""
        convolutions = schedule.uses_convolutions(
            self.task, self.layout, start, self.data.columns[self.task.input][:1]
        )
        n, platform = self.graph.nodes, "cpu" if self._cpu else "gpu"
        return schedule.candidates(name, n, False, platform, self.layout, convolutions, n, 2**30)[0]


def _columns(task: Task, data: Any, mesh: Mesh) -> dict[str, Any]:
    for name in (task.input, task.target):
        if name not in data.columns:
            raise DataError(
                f"The task reads column {name!r}, but the data have {', '.join(sorted(data.columns))}."
            )
    return {
        name: devices.replicate(data.complete(name, name == task.target), mesh)
        for name in (task.input, task.target)
    }
