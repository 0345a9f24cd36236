"""`dure.distillation.simulate`: clients of different architectures learn from each other's predictions."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dure.devices import in_32_bits, only_one_process
from dure.distillation.base import Method
from dure.distillation.describe import config, record
from dure.distillation.evaluate import Evaluation
from dure.distillation.group import Group
from dure.distillation.public import PublicSet
from dure.distillation.round import Round
from dure.distillation.setting import (
    check_assignment,
    check_count,
    check_method,
    check_public,
    check_sampler,
    check_tasks,
    public_set,
)
from dure.oracles.task import Task
from dure.population.samplers import Sampler
from dure.run import Run, RunWriter, data_summary, environment
from dure.simulation.evaluate import spread
from dure.simulation.outside import check
from dure.simulation.settings import Settings, settings

OnRound = Callable[[dict[str, Any]], object]


@in_32_bits
def simulate(
    method: Method,
    tasks: Sequence[Task],
    data: Any,
    public: Any,
    *,
    assignment: Any,
    rounds: int,
    fraction: float | None = None,
    clients_per_round: int | None = None,
    sampler: Sampler | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: float = 10,
    optimizer: Any = 0.1,
    public_per_round: int | None = None,
    public_batch_size: float = 32,
    public_optimizer: Any = None,
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    evaluate_every: int | None = 1,
    evaluate_clients_every: int | None = None,
    schedule: str = "auto",
    width: int | None = None,
    memory_budget: float = 2**30,
    devices: int | None = None,
    on_round: OnRound | None = None,
) -> Run:
    """Train clients of several architectures by distillation on a public set, in simulation.

    Args:
        method: `FedMD()`, `DSFL()` or `FedDF()`.
        tasks: one for each architecture; their models have logits (B, C) over the same C classes.
        data: the federated data set of all N clients.
        public: (P, …) inputs without labels, of the shape and in the preparation of the data's inputs.
        assignment: (N,) integers: the number of each client's architecture in `tasks`.
        rounds: number of rounds, at least 1.
        fraction: as `clients_per_round`, `sampler`, `epochs`, `steps`, `batch_size`, `optimizer`, `seed`,
            `schedule`, `width`, `memory_budget` and `devices` as in `dure.simulate`.
        clients_per_round: see there.
        sampler: see there.
        epochs: see there.
        steps: see there.
        batch_size: see there.
        optimizer: see there; the same for all architectures.
        public_per_round: r ≤ P public inputs are drawn for each round; None: all of them.
        public_batch_size: rows in a step of a digest; `math.inf` for all.
        public_optimizer: of the digest, as `optimizer`; None: the same.
        seed: everything random follows from it.
        directory: where the run is kept; None keeps it in memory. Such a run cannot be resumed yet.
        evaluate_every: rounds between evaluations of every client's model on the central test set; None: never.
        evaluate_clients_every: the same on every client's own test rows; None: after the last round.
        schedule: see `dure.simulate`.
        width: see there.
        memory_budget: see there.
        devices: see there.
        on_round: called with each round's record.

    Returns:
        The run. "test_accuracy" is the mean over clients of each one's model (of its architecture's prototype
        in FedDF) on the central test set, "test_accuracy_architecture0" over the clients of the first
        architecture; "client_accuracy_…" is of each client on its own test rows. `run.model` is a list of
        parameters: one for each architecture in FedDF, else one for each client.

    Raises:
        ConfigError: an argument has an impossible value, or the tasks, the assignment and the method don't fit.
        DataError: the data or the public set don't fit the tasks.
        RunError: the run can't be written.
    """
    check_method(method)
    check_count("rounds", rounds, optional=False)
    check_count("evaluate_every", evaluate_every)
    check_count("evaluate_clients_every", evaluate_clients_every)
    tasks = list(tasks)
    inputs = check_public(tasks, data, public)
    classes = check_tasks(tasks, data, inputs)
    architecture = check_assignment(assignment, len(tasks), data.clients)
    only_one_process("Distillation")
    chosen = settings(
        data,
        fraction=fraction,
        clients_per_round=clients_per_round,
        sampler=sampler,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        optimizer=optimizer,
        seed=seed,
        schedule=schedule,
        width=width,
        memory_budget=memory_budget,
        devices=devices,
    )
    check_sampler(method, chosen.sampler)
    digest = optimizer if public_optimizer is None else public_optimizer
    public = public_set(inputs, classes, public_per_round, public_batch_size, digest)
    groups: list[Group] = []
    for a, task in enumerate(tasks):
        columns = groups[0].engine.columns if groups else None
        groups.append(Group(task, data, architecture == a, chosen, columns))
    writer = RunWriter(
        None if directory is None else Path(directory),
        config=config(method, groups, data, public, chosen, rounds),
        environment=environment(),
        data=data_summary(data),
        rounds=rounds,
    )
    return _Loop(
        method, groups, data, public, chosen, writer, evaluate_every, evaluate_clients_every, on_round
    ).run(rounds)


class _Loop:
    """Rounds, evaluations and records of one run."""

    def __init__(
        self,
        method: Method,
        groups: list[Group],
        data: Any,
        public: PublicSet,
        chosen: Settings,
        writer: RunWriter,
        every: int | None,
        clients_every: int | None,
        on_round: OnRound | None,
    ):
        self.method, self.groups, self.data, self.public, self.chosen = method, groups, data, public, chosen
        self.writer, self.every, self.clients_every, self.on_round = writer, every, clients_every, on_round
        self.prototypes: Any = tuple(group.prototype for group in groups)
        self.uplink = self.downlink = 0
        mesh, task = groups[0].engine.mesh, groups[0].task
        test, own = data.central_test, data.client_test
        self.central = None if test is None or every is None else Evaluation(test, mesh, task)
        self.own = None if own is None else Evaluation(own, mesh, task)
        self.better = {"loss": False, **{m.name: m.higher_is_better for m in task.metrics}}

    def run(self, rounds: int) -> Run:
        number = 0
        try:
            start = {
                "round": 0,
                "status": "start",
                "cumulative_uplink_bytes": 0,
                "cumulative_downlink_bytes": 0,
            }
            self._write(start | self._evaluate(0, rounds), time.perf_counter())
            for number in range(1, rounds + 1):
                begin = time.perf_counter()
                record = self._round(number)
                self._write(record | self._evaluate(number, rounds), begin)
            models, tensors = self._final()
            self.writer.model(tensors, {"round": str(rounds), "format": "dure 1"})
            self.writer.status("complete", rounds)
        except BaseException as error:
            self.writer.fail(error, number)
            raise
        self.writer.close()
        return self.writer.run(model=models)

    def _round(self, number: int) -> dict[str, Any]:
        asking = Round(number, self.groups, self.method, self.public, self.chosen.seed)
        models = self.method.round(asking.begin(self.prototypes), asking)
        self.prototypes = asking.end(models)
        for group in self.groups:
            check(group.engine.task, number, self.data)
        asked = asking.asked()
        self.uplink += int(asked.uplink.sum())
        self.downlink += int(asked.downlink.sum())
        taught = [float(x) for x in asking.taught]
        columns = asked._asdict()
        for name in ("uplink", "downlink"):
            columns.pop(name)
        self.writer.participation(number, columns)
        return {**record(number, asked, self.data, taught), **self._cumulative()}

    def _cumulative(self) -> dict[str, int]:
        return {"cumulative_uplink_bytes": self.uplink, "cumulative_downlink_bytes": self.downlink}

    def _write(self, record: dict[str, Any], begin: float) -> None:
        self.writer.round(record)
        seconds = time.perf_counter() - begin
        self.writer.timing({"round": record["round"], "seconds": seconds})
        if self.on_round is not None:
            self.on_round({**record, "seconds": seconds})

    # ----- evaluation -----------------------------------------------------------------------------------

    def _evaluate(self, number: int, rounds: int) -> dict[str, float]:
        last = number == rounds
        found: dict[str, float] = {}
        central: dict[str, np.ndarray] = {}
        if self.central is not None and (last or number % (self.every or 1) == 0):
            central = self._central()
            found |= {f"test_{name}": float(np.mean(x)) for name, x in central.items()}
            for a, group in enumerate(self.groups):
                for name, x in central.items():
                    found[f"test_{name}_architecture{a}"] = float(np.mean(x[group.ids]))
        if self.own is not None and (last or (self.clients_every and number % self.clients_every == 0)):
            found |= self._clients(number, central)
        return found

    def _models(self, a: int) -> np.ndarray:
        """The models that architecture a's clients use, (1, s) where it is one and the same."""
        return self.prototypes[a][None] if self.method.prototypes else self.groups[a].rows()

    def _central(self) -> dict[str, np.ndarray]:
        """Measure → (N,), each client's model on the central test set."""
        assert self.central is not None
        found: dict[str, np.ndarray] = {}
        for a, group in enumerate(self.groups):
            models = self._models(a)
            spans = np.tile([[0, self.central.rows]], (len(models), 1))
            for name, x in self.central.measure(group, models, spans).items():
                found.setdefault(name, np.full(self.data.clients, np.nan))[group.ids] = x
        return found

    def _clients(self, number: int, central: dict[str, np.ndarray]) -> dict[str, float]:
        """Every client's model on the client's own test rows: rows for clients.jsonl, and the summary."""
        assert self.own is not None
        offsets = np.asarray(self.data.client_test_offsets)
        values: dict[str, np.ndarray] = {}
        architecture = np.zeros(self.data.clients, np.int64)
        sizes = np.zeros(self.data.clients, np.int64)
        for a, group in enumerate(self.groups):
            at = group.ids % self.data.stored
            spans = np.stack([offsets[at], offsets[at + 1] - offsets[at]], 1)
            architecture[group.ids], sizes[group.ids] = a, spans[:, 1]
            models = np.broadcast_to(self._models(a), (len(group.ids), group.size))
            for name, x in self.own.measure(group, models, spans).items():
                values.setdefault(name, np.full(self.data.clients, np.nan))[group.ids] = x
        known = np.flatnonzero(sizes)
        columns = {
            "client": known,
            "name": [self.data.client_name(int(k)) for k in known],
            "architecture": architecture[known],
            "examples": sizes[known],
            **{name: x[known] for name, x in values.items()},
            **{f"test_{name}": x[known] for name, x in central.items()},
        }
        self.writer.clients(number, columns)
        return {
            f"client_{name}_{what}": number
            for name, x in values.items()
            for what, number in spread(x, self.better[name]).items()
        }

    def _final(self) -> tuple[list[Any], dict[str, np.ndarray]]:
        """`run.model`, and the tensors by name."""
        if self.method.prototypes:
            rows = [(g, f"architecture{a}", self.prototypes[a]) for a, g in enumerate(self.groups)]
        else:
            own = {int(k): (g, row) for g in self.groups for k, row in zip(g.ids, g.rows(), strict=True)}
            rows = [(own[k][0], f"client{k}", own[k][1]) for k in sorted(own)]
        tensors: dict[str, np.ndarray] = {}
        for group, prefix, row in rows:
            tensors |= group.tensors(row, prefix)
        return [group.params(row) for group, _, row in rows], tensors
