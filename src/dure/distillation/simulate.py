"""`dure.distillation.simulate`: clients of different architectures learn from each other's predictions."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dure.devices import in_32_bits, only_one_process
from dure.distillation.base import Method
from dure.distillation.describe import config
from dure.distillation.group import Group
from dure.distillation.loop import Loop, OnRound
from dure.distillation.setting import (
    check_assignment,
    check_count,
    check_method,
    check_public,
    check_sampler,
    check_tasks,
    public_set,
)
from dure.errors import ConfigError
from dure.oracles.task import Task
from dure.population.samplers import Sampler
from dure.run import Run, RunWriter, data_summary, environment
from dure.simulation import describe
from dure.simulation.settings import settings


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
    resume: bool = False,
    evaluate_every: int | None = 1,
    evaluate_clients_every: int | None = None,
    checkpoint_every: int | None = None,
    schedule: str = "auto",
    width: int | None = None,
    memory_budget: float = 2**30,
    devices: int | None = None,
    eager: bool = False,
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
        directory: where the run is kept; None keeps it in memory.
        resume: continue the run in `directory`; all arguments must be the same, only `rounds` may grow.
        evaluate_every: rounds between evaluations of every client's model on the central test set; None: never.
        evaluate_clients_every: the same on every client's own test rows; None: after the last round.
        checkpoint_every: rounds between checkpoints; None: one every ten seconds.
        schedule: see `dure.simulate`.
        width: see there.
        memory_budget: see there.
        devices: see there.
        eager: run without compilation, for prints and breakpoints.
        on_round: called with each round's record.

    Returns:
        The run. "test_accuracy" is the mean over clients of each one's model (of its architecture's prototype
        in FedDF) on the central test set, "test_accuracy_architecture0" over the clients of the first
        architecture; "client_accuracy_…" is of each client on its own test rows. `run.model` is a list of
        parameters: one for each architecture in FedDF, else one for each client.

    Raises:
        ConfigError: an argument has an impossible value, or the tasks, the assignment and the method don't fit.
        DataError: the data or the public set don't fit the tasks.
        RunError: the run can't be written, read or resumed.
    """
    check_method(method)
    check_count("rounds", rounds, optional=False)
    check_count("evaluate_every", evaluate_every)
    check_count("evaluate_clients_every", evaluate_clients_every)
    check_count("checkpoint_every", checkpoint_every)
    if resume and directory is None:
        raise ConfigError("resume=True needs the directory of the run: give directory=.")
    place = None if directory is None else Path(directory)
    stored = describe.stored_config(place) if resume and place is not None else None
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
        eager=eager,
    )
    check_sampler(method, chosen.sampler)
    digest = optimizer if public_optimizer is None else public_optimizer
    public = public_set(inputs, classes, public_per_round, public_batch_size, digest)
    groups: list[Group] = []
    for a, (task, kept) in enumerate(zip(tasks, _widths(stored, len(tasks)), strict=True)):
        columns = groups[0].engine.columns if groups else None
        groups.append(Group(task, data, architecture == a, chosen, columns, kept))
    now = config(method, groups, data, public, chosen, rounds)
    now["public"] |= {"assignment": describe.plain(architecture)}
    now["evaluation"] = {"every": evaluate_every, "clients_every": evaluate_clients_every}
    if stored is not None:
        describe.check_same(stored, now)
    writer = RunWriter(
        place,
        config=now,
        environment=environment(),
        data=data_summary(data),
        rounds=rounds,
        resume=resume,
    )
    return Loop(
        method,
        groups,
        data,
        public,
        chosen,
        writer,
        evaluate_every,
        evaluate_clients_every,
        checkpoint_every,
        on_round,
    ).run(rounds, resume)


def _widths(stored: Mapping[str, Any] | None, architectures: int) -> list[int | None]:
    """How many clients ran together in the run that is resumed: bits depend on it."""
    found = None if stored is None else stored.get("schedule", {}).get("width")
    return found if isinstance(found, list) and len(found) == architectures else [None] * architectures
