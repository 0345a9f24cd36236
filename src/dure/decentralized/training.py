"""`simulate`: training without a server from one call, and the loop behind it."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dure import devices
from dure.decentralized.base import Method
from dure.decentralized.graph import Graph, graph_of
from dure.decentralized.mixing import mixing_for
from dure.decentralized.network import Launched, Network
from dure.decentralized.records import config_of, participation, round_record
from dure.devices import in_32_bits
from dure.errors import ConfigError, RunError
from dure.oracles.layout import Variables
from dure.oracles.task import Task
from dure.run import Run, RunWriter, data_summary, environment, snapshot
from dure.simulation import describe
from dure.simulation.evaluate import Evaluation
from dure.simulation.loop import CHECKPOINT_SECONDS
from dure.simulation.outside import check
from dure.simulation.settings import SCHEDULES, settings
from dure.simulation.statics import Model


@in_32_bits
def simulate(
    method: Method,
    task: Task,
    data: Any,
    graph: Any,
    *,
    rounds: int,
    mixing: Any = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: float = 10,
    optimizer: Any = None,
    seed: int = 0,
    lost_messages: float = 0.0,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate_every: int | None = 1,
    checkpoint_every: int | None = None,
    schedule: str = "auto",
    initial: Variables | None = None,
    on_round: Callable[[dict[str, Any]], object] | None = None,
) -> Run:
    """Train one model at every node of a graph, in simulation. The objective is (1/N) Σ F_i: nodes count alike.

    Args:
        method: such as `DPSGD()`.
        task: model, loss and measures; the model has no running statistics.
        data: the federated data set; client i is node i.
        graph: `ring(10)` or another graph, a matrix of zeros and ones, or a networkx graph, see `graph_of`.
        rounds: number of rounds, at least 1; one exchange over all edges each.
        mixing: (N, N), what each node (row) takes of each sender (column); None: Metropolis–Hastings weights,
            for push-sum equal shares.
        epochs: E, passes over a node's examples in a round (1).
        steps: a fixed number of local steps K instead.
        batch_size: B; `math.inf` for all of a node's examples at once.
        optimizer: local optimizer as in `dure.simulate`, a learning rate 0.1 when None; its state is new in
            each round. Methods with a `learning_rate` of their own take none: they step along the mean of the
            round's minibatch gradients.
        seed: everything random follows from it.
        lost_messages: probability in [0, 1) that a link is lost in a round. Both directions go together and their
            weight stays with their ends, so that the round's matrix is doubly stochastic; under push-sum each
            direction goes by itself and the sender keeps the share. What was sent is counted.
        directory: where the run is kept; None keeps it in memory.
        resume: continue the run in `directory`; all arguments must be the same, only `rounds` may grow.
        evaluate_every: rounds between evaluations on the central test set, of the mean model and of every node's
            (the worst is recorded); also before the first and after the last round; None: never.
        checkpoint_every: rounds between checkpoints; None: one every ten seconds.
        schedule: "sequential" (nodes one by one), "vectorised" (all together), or "auto".
        initial: variables to start from; None: the model's `init`. All nodes start alike.
        on_round: called with each round's record.

    Returns:
        The run; its model is the mean of the nodes' models. `consensus` in its rounds is
        √((1/N) Σ ‖x_i − x̄‖²), `uplink_bytes` is what all nodes sent, one message for each directed edge.

    Raises:
        ConfigError: an argument has an impossible value, the graph is not connected, the matrix is not what the
            method needs, or the combination breaks a guarantee.
        DataError: the data don't fit the task or the graph.
        RunError: the models left the finite numbers; the run can't be written, read or resumed.
    """
    devices.only_one_process("Training without a server")
    for name, value in (
        ("rounds", rounds),
        ("evaluate_every", evaluate_every),
        ("checkpoint_every", checkpoint_every),
    ):
        optional = name != "rounds" and value is None
        if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name}={value!r} is not allowed: it must be an integer of at least 1.")
    if resume and directory is None:
        raise ConfigError("resume=True needs the directory of the run: give directory=.")
    if schedule not in SCHEDULES:
        raise ConfigError(f"schedule={schedule!r} is not known: give one of {', '.join(SCHEDULES)}.")
    graph = graph_of(graph)
    weights = mixing_for(graph, method.mixing, mixing)
    _check(method, graph, data, weights, optimizer, lost_messages)
    chosen = settings(
        data,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        optimizer=0.1 if optimizer is None else optimizer,
        weighting="uniform",
        seed=seed,
    )
    network = Network(method, task, data, graph, weights, chosen, float(lost_messages), schedule, initial)
    config = config_of(network, rounds, evaluate_every, initial)
    place = None if directory is None else Path(directory)
    if resume and place is not None:
        describe.check_same(describe.stored_config(place), config)
    writer = RunWriter(
        place, config=config, environment=environment(), data=data_summary(data), rounds=rounds, resume=resume
    )
    return _Loop(network, writer, rounds, evaluate_every, checkpoint_every, on_round).run(resume)


def _check(method: Method, graph: Graph, data: Any, mixing: np.ndarray, optimizer: Any, lost: Any) -> None:
    """Combinations that can't work, or would break what the method promises (law 7)."""
    name = type(method).__name__
    if graph.nodes != data.clients:
        raise ConfigError(
            f"{graph.name} has {graph.nodes} nodes and the data have {data.clients} clients; each client is a "
            f"node. Give a graph on {data.clients} nodes, or choose clients with data.select(…)."
        )
    if optimizer is not None and hasattr(method, "learning_rate"):
        raise ConfigError(
            f"{name} takes its own gradient steps, so optimizer={optimizer!r} would play no part. Leave it out "
            f"and give {name}(learning_rate=…)."
        )
    number = isinstance(lost, int | float) and not isinstance(lost, bool)
    if not number or not 0 <= lost < 1:
        raise ConfigError(f"lost_messages={lost!r} is not allowed: it must be a probability in [0, 1).")
    if lost and method.reliable:
        raise ConfigError(
            f"lost_messages={lost} with {name}: neighbours that miss a message would hold different replicas for "
            "ever, and the mean would not be kept. Use DPSGD, GradientTracking or PushSum on lossy links."
        )
    if lost and method.mixing != "column stochastic" and not np.allclose(mixing, mixing.T, rtol=0, atol=1e-9):
        raise ConfigError(
            f"lost_messages={lost} with a mixing matrix that is not symmetric: a lost message would leave it not "
            "doubly stochastic. Give a symmetric one, or use PushSum."
        )


class _Loop:
    """Rounds, evaluations, records and checkpoints of one run."""

    def __init__(
        self,
        network: Network,
        writer: RunWriter,
        rounds: int,
        every: int | None,
        checkpoint_every: int | None,
        on_round: Callable[[dict[str, Any]], object] | None,
    ):
        self.network, self.writer, self.rounds = network, writer, rounds
        self.every, self.checkpoint_every, self.on_round = every, checkpoint_every, on_round
        self.sent = 0
        self.better = {"loss": False, **{m.name: m.higher_is_better for m in network.task.metrics}}
        test = network.data.central_test
        self.test = None if test is None or every is None else _Test(network, test)
        self.saved_at = time.monotonic()

    def run(self, resume: bool) -> Run:
        network, writer = self.network, self.writer
        try:
            if not (resume and self._go_back()):
                self._record(None, time.perf_counter())
                self._save()
            while network.round < self.rounds:
                begin = time.perf_counter()
                self._record(network.launch(), begin)
                if self._checkpoint_due():
                    self._save()
            state = network.layout.to_state_dict(network.mean())
            writer.model(state, {"round": str(network.round), "format": "dure 1"})
            writer.status("complete", network.round)
        except BaseException as error:
            writer.fail(error, network.round)
            raise
        writer.close()
        return writer.run(model=network.params())

    def _record(self, launched: Launched | None, begin: float) -> None:
        network = self.network
        if launched is not None:
            self.sent += network.message * len(network.graph.edges)
        record = round_record(network, launched, self.sent)
        check(network.task, network.round, network.data)
        if launched is not None and record["consensus"] is None:
            raise RunError(
                f"The nodes' models are not finite after round {launched.round}: the method diverged. Give a smaller "
                "learning rate, or a smaller gamma to a method with compression."
            )
        record |= self._evaluate()
        if launched is not None:
            self.writer.participation(launched.round, participation(network, launched))
        self.writer.round(record)
        seconds = time.perf_counter() - begin
        self.writer.timing({"round": network.round, "seconds": seconds})
        if self.on_round is not None:
            self.on_round({**record, "seconds": seconds})

    def _evaluate(self) -> dict[str, float]:
        """The mean model's measures and the worst node's; after the last round every node's, in clients.jsonl."""
        network = self.network
        last = network.round == self.rounds
        if self.test is None or not (last or network.round % (self.every or 1) == 0):
            return {}
        mean, nodes = self.test.measure(network.mean(), network.models())
        if last:
            ids = np.arange(network.graph.nodes)
            names = [network.data.client_name(int(k)) for k in ids]
            sizes = network.data.rows(ids)[1]
            self.writer.clients(network.round, {"client": ids, "name": names, "examples": sizes, **nodes})
        worst = {k: float(v.min() if self.better[k] else v.max()) for k, v in nodes.items()}
        return {f"test_{k}": v for k, v in mean.items()} | {f"test_{k}_worst": v for k, v in worst.items()}

    def _checkpoint_due(self) -> bool:
        if self.network.round == self.rounds:
            return True
        if self.checkpoint_every is not None:
            return self.network.round % self.checkpoint_every == 0
        return time.monotonic() - self.saved_at > CHECKPOINT_SECONDS

    def _state(self) -> dict[str, Any]:
        """The network's arrays by name."""
        return {f"state/{i}": leaf for i, leaf in enumerate(jax.tree.leaves(self.network.state))}

    def _save(self) -> None:
        if self.writer.directory is None:
            return
        at = snapshot.Snapshot(
            self.network.round, self.writer.positions(), {"sent": self.sent}, jax.device_get(self._state())
        )
        snapshot.save(self.writer.directory, at)
        self.writer.status("running", self.network.round)
        self.saved_at = time.monotonic()

    def _go_back(self) -> bool:
        """To the last checkpoint; False for a run that was stopped before its first one, which begins anew."""
        assert self.writer.directory is not None
        at = snapshot.load(self.writer.directory, self._state())
        if at is None:
            self.writer.truncate(dict.fromkeys(self.writer.positions(), 0))
            return False
        if at.round > self.rounds:
            raise RunError(f"The run has done {at.round} rounds already; rounds={self.rounds} is less.")
        self.writer.truncate(at.positions)
        self.sent = at.counters["sent"]
        leaves = [at.tensors[name] for name in self._state()]
        self.network.restore(jax.tree.unflatten(jax.tree.structure(self.network.state), leaves), at.round)
        self.writer.status("running", at.round)
        return True


class _Test:
    """The central test set on the devices, for the mean model and each node's."""

    def __init__(self, network: Network, columns: Mapping[str, np.ndarray]):
        self._evaluation = Evaluation(network.task, network.layout, devices.mesh(), columns)
        self._rest = Model(None, jnp.zeros(0, jnp.float32), jnp.zeros(0, jnp.int32))

    def measure(self, mean: np.ndarray, nodes: np.ndarray) -> tuple[dict[str, float], dict[str, np.ndarray]]:
        """(measures of the mean model (d,), measures of each node's model (N, d) as (N,))."""
        started = [self._evaluation.start(w, self._rest) for w in (mean, *nodes)]
        first, *others = [self._evaluation.totals(s) for s in started]
        return first, {name: np.array([o[name] for o in others]) for name in first}
