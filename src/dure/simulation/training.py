"""`simulate`: a federated training from one call, and the loop behind it."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dure.algorithms.base import Algorithm, has_personal
from dure.errors import ConfigError, RunError
from dure.oracles.layout import Variables
from dure.oracles.task import Task
from dure.population.samplers import Sampler
from dure.run import Run, RunWriter, data_summary, environment
from dure.simulation import checkpoint, describe
from dure.simulation.engine import Engine, Launched
from dure.simulation.evaluate import Evaluation, spread
from dure.simulation.personal import PersonalEvaluation
from dure.simulation.records import participation, round_record
from dure.simulation.settings import LostUploads, WorkLimit, settings

OnRound = Callable[[dict[str, Any]], object]
#: Seconds between checkpoints where `checkpoint_every` is not given.
CHECKPOINT_SECONDS = 10.0


def simulate(
    algorithm: Algorithm,
    task: Task,
    data: Any,
    *,
    rounds: int,
    fraction: float | None = None,
    clients_per_round: int | None = None,
    sampler: Sampler | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: float = 10,
    optimizer: Any = 0.1,
    weighting: str = "examples",
    estimator: str = "ratio",
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate_every: int | None = 1,
    evaluate_clients_every: int | None = None,
    checkpoint_every: int | None = None,
    schedule: str = "auto",
    width: int | None = None,
    memory_budget: float = 2**30,
    client_state: str = "auto",
    devices: int | None = None,
    eager: bool = False,
    work_limit: WorkLimit | None = None,
    lost_uploads: float | LostUploads = 0.0,
    initial: Variables | None = None,
    on_round: OnRound | None = None,
    experiment: Mapping[str, Any] | None = None,
) -> Run:
    """Train one model on the clients' data, in simulation.

    Args:
        algorithm: the method, such as `FedAvg()`.
        task: model, loss and measures, such as `classification(softmax_regression(64, 10))`.
        data: the federated data set.
        rounds: number of rounds, at least 1.
        fraction: C in (0, 1], the share of clients in each round, m = max(⌊C·K⌋, 1) of K without replacement.
        clients_per_round: m itself. Neither: everyone takes part.
        sampler: any sampler instead, such as `Poisson(0.01)`.
        epochs: E, passes over a client's examples in a round (1).
        steps: a fixed number of local steps instead.
        batch_size: B; `math.inf` for all of a client's examples at once. The last batch of an epoch may be
            short; its mean is over the examples that are there.
        optimizer: local optimizer: a learning rate (plain SGD), `sgd(…)`, `Optimizer(…)`, or any optax one.
        weighting: "examples" (objective Σ (n_k/n) F_k) or "uniform" ((1/N) Σ F_k).
        estimator: "ratio" divides by the weights that came back (McMahan et al.), which is biased for small
            cohorts; "horvitz-thompson" divides each update by its inclusion probability and is unbiased.
        seed: everything random follows from it.
        directory: where the run is kept (records, checkpoints, model, report); None keeps it in memory.
        resume: continue the run in `directory` from its last checkpoint; all arguments must be the same,
            only `rounds` may grow.
        evaluate_every: rounds between evaluations on the central test set (also before the first and after
            the last round); None: never.
        evaluate_clients_every: the same for every client's own test rows; None: after the last round.
        checkpoint_every: rounds between checkpoints; None: one every ten seconds.
        schedule: "sequential" (clients one by one on each device), "vectorised" (chunks of `width` clients
            together), or "auto".
        width: clients in a chunk; None: chosen.
        memory_budget: bytes that the models of a chunk may take.
        client_state: where per-client state is kept: "host", "device", "disk" or "auto".
        devices: how many of JAX's devices to use; None: all.
        eager: run the same code without compilation, for prints and breakpoints.
        work_limit: (seed, round, ids, steps) → steps that each client really does; slow clients stop early.
        lost_uploads: probability in [0, 1) that an update is lost on its way, or a function
            (seed, round, ids) → one bool per client. What was sent is counted; the client keeps its old state.
        initial: variables to start from; None: the model's `init`.
        on_round: called with each round's record.
        experiment: the configuration file's content, kept with the run for `dure resume`.

    Returns:
        The run: its model, history, plots and report.

    Raises:
        ConfigError: an argument has an impossible value or the combination breaks a guarantee.
        DataError: the data don't fit the task.
        RunError: the run can't be written, read or resumed.
    """
    for name, value in (
        ("rounds", rounds),
        ("evaluate_every", evaluate_every),
        ("evaluate_clients_every", evaluate_clients_every),
        ("checkpoint_every", checkpoint_every),
    ):
        optional = name != "rounds" and value is None
        if not optional and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name}={value!r} is not allowed: it must be an integer of at least 1.")
    if resume and directory is None:
        raise ConfigError("resume=True needs the directory of the run: give directory=.")
    chosen = settings(
        data,
        fraction=fraction,
        clients_per_round=clients_per_round,
        sampler=sampler,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        optimizer=optimizer,
        weighting=weighting,
        estimator=estimator,
        seed=seed,
        schedule=schedule,
        width=width,
        memory_budget=memory_budget,
        client_state=client_state,
        devices=devices,
        eager=eager,
        work_limit=work_limit,
        lost_uploads=lost_uploads,
    )
    place = None if directory is None else Path(directory)
    stored = describe.stored_config(place) if resume and place is not None else None
    engine = Engine(
        algorithm,
        task,
        data,
        chosen,
        variables=initial,
        directory=place and place / "client_state",
        width=None if stored is None else int(stored["schedule"]["width"]),
    )
    config = describe.config(engine, rounds, evaluate_every, evaluate_clients_every, initial, experiment)
    if stored is not None:
        describe.check_same(stored, config)
    writer = RunWriter(
        place, config=config, environment=environment(), data=data_summary(data), rounds=rounds, resume=resume
    )
    loop = _Loop(engine, writer, rounds, evaluate_every, evaluate_clients_every, checkpoint_every, on_round)
    return loop.run(resume)


class _Loop:
    """Rounds, evaluations, records and checkpoints of one run."""

    def __init__(
        self,
        engine: Engine,
        writer: RunWriter,
        rounds: int,
        every: int | None,
        clients_every: int | None,
        checkpoint_every: int | None,
        on_round: OnRound | None,
    ):
        self.engine, self.writer, self.rounds = engine, writer, rounds
        self.every, self.clients_every, self.checkpoint_every = every, clients_every, checkpoint_every
        self.on_round = on_round
        self.uplink = self.downlink = 0
        data, task = engine.data, engine.task
        test = data.central_test
        self.central = None if test is None or every is None else self._evaluation(test)
        self.own = None if data.client_test is None else self._evaluation(data.client_test)
        self.personal = None
        if data.client_test is not None and has_personal(engine.algorithm):
            self.personal = PersonalEvaluation(engine)
        self.better = {"loss": False, **{m.name: m.higher_is_better for m in task.metrics}}
        self.saved_at = time.monotonic()

    def _evaluation(self, columns: Mapping[str, np.ndarray]) -> Evaluation:
        return Evaluation(self.engine.task, self.engine.layout, self.engine.mesh, columns)

    def run(self, resume: bool) -> Run:
        with self._guarded():
            if resume and not self._never_began():
                self._go_back()
            else:
                self._record(None, self._start_evaluation(0), time.perf_counter(), 0)
                self._save()
            self._rounds()
            self.writer.model(self.engine.state_dict(), {"round": str(self.engine.round), "format": "dure 1"})
            self.writer.status("complete", self.engine.round)
        self.writer.close()
        return self.writer.run(model=self.engine.params())

    def _rounds(self) -> None:
        engine = self.engine
        while engine.round < self.rounds:
            begin, compiled = time.perf_counter(), engine.compilations
            launched = engine.launch()
            evaluations = self._start_evaluation(launched.round)
            if launched.round < self.rounds:
                engine.plan_ahead()
            self._record(launched, evaluations, begin, engine.compilations - compiled)
            if self._checkpoint_due():
                self._save()

    def _start_evaluation(self, round: int) -> tuple[Any, Any]:
        """Begin the evaluations that are due; the devices do them behind the round."""
        engine, last = self.engine, round == self.rounds
        central = own = None
        if self.central is not None and (last or round % (self.every or 1) == 0):
            central = self.central.start(engine.vector(), engine.model)
        if self.own is not None and (last or (self.clients_every and round % self.clients_every == 0)):
            own = self.own.start(engine.vector(), engine.model)
        return central, own

    def _record(
        self, launched: Launched | None, evaluations: tuple[Any, Any], begin: float, compilations: int
    ) -> None:
        engine = self.engine
        result = None if launched is None else engine.collect(launched)
        if result is not None:
            self.uplink += engine.uplink_message * result.senders
            self.downlink += engine.downlink_message * len(result.ids)
        record = round_record(engine, result, self.uplink, self.downlink)
        central, own = evaluations
        if central is not None:
            assert self.central is not None
            record |= {f"test_{k}": v for k, v in self.central.totals(central).items()}
        if own is not None:
            record |= self._clients(engine.round, own)
        if result is not None:
            self.writer.participation(result.round, participation(result))
        self.writer.round(record)
        seconds = time.perf_counter() - begin
        self.writer.timing({"round": engine.round, "seconds": seconds, "compilations": compilations})
        if self.on_round is not None:
            self.on_round({**record, "seconds": seconds})

    def _clients(self, round: int, started: Any) -> dict[str, float]:
        """Evaluate every client on its own test rows; returns the summary for the round's record."""
        assert self.own is not None
        data = self.engine.data
        offsets = data.client_test_offsets
        values = self.own.per_client(started, offsets)
        if self.personal is not None:
            values |= {f"personal_{name}": value for name, value in self.personal.measure().items()}
        known = np.flatnonzero(np.diff(offsets))
        self.writer.clients(
            round,
            {
                "client": known,
                "name": [data.client_name(int(k)) for k in known],
                "examples": np.diff(offsets)[known],
                **{name: value[known] for name, value in values.items()},
            },
        )
        return {
            f"client_{name}_{what}": number
            for name, value in values.items()
            for what, number in spread(value, self.better[name.removeprefix("personal_")]).items()
        }

    def _checkpoint_due(self) -> bool:
        if self.writer.directory is None:
            return False
        if self.engine.round == self.rounds:
            return True
        if self.checkpoint_every is not None:
            return self.engine.round % self.checkpoint_every == 0
        return time.monotonic() - self.saved_at > CHECKPOINT_SECONDS

    def _save(self) -> None:
        if self.writer.directory is None:
            return
        at = checkpoint.Checkpoint(self.engine.round, self.writer.positions(), self.uplink, self.downlink)
        checkpoint.save(self.writer.directory, self.engine, at)
        self.writer.status("running", self.engine.round)
        self.saved_at = time.monotonic()

    def _never_began(self) -> bool:
        """Whether the run was stopped before its first checkpoint, which comes before round 1: begin it anew."""
        assert self.writer.directory is not None
        if checkpoint.saved_rounds(self.writer.directory) or self.writer.run().rounds[1:]:
            return False
        self.writer.truncate(dict.fromkeys(self.writer.positions(), 0))
        return True

    def _go_back(self) -> None:
        assert self.writer.directory is not None
        at = checkpoint.load(self.writer.directory, self.engine)
        if at.round > self.rounds:
            raise RunError(f"The run has done {at.round} rounds already; rounds={self.rounds} is less.")
        self.writer.truncate(at.positions)
        self.uplink, self.downlink = at.uplink, at.downlink
        self.writer.status("running", at.round)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A run that stops is left so that it can be resumed, and its status says why."""
        try:
            yield
        except BaseException as error:
            self.writer.fail(error, self.engine.round)
            raise
