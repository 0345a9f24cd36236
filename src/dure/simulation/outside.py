"""Models that another framework trains: bound to the run's rows, and what went wrong while they worked."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from dure.errors import ConfigError, RunError, sentence
from dure.oracles.layout import Layout
from dure.oracles.optimizer import as_optimizer
from dure.oracles.task import Task
from dure.simulation.plan import Work
from dure.simulation.results import RoundResult
from dure.simulation.settings import Settings

#: Why a model leaves no room for the run's own steps.
_WHY = {
    "epochs": "has an optimizer and batches of its own",
    "exact": "is solved exactly",
    "own": "trains in its own way",
}


def local_work(task: Any, settings: Settings) -> Settings:
    """The settings, where the model's own way of working leaves no room for the run's steps, with its own.

    Raises:
        ConfigError: epochs, steps, batch size or an optimizer are given, and would be ignored.
    """
    outside = task.model.outside
    if outside is None or outside.local_work == "steps":
        return settings
    only_epochs = outside.local_work == "epochs"
    work, allowed = settings.work, settings.work.epochs if only_epochs else 1
    if work != Work(allowed, None, 10) or settings.optimizer != as_optimizer(0.1):
        unused = ("" if only_epochs else "epochs, ") + "steps, batch_size and optimizer"
        why = _WHY[outside.local_work]
        raise ConfigError(f"{unused} have no meaning: {task.model.name} {why}. Leave them out.")
    return replace(settings, work=Work(work.epochs, None, None))


def bound(task: Task, data: Any, layout: Layout, executor: str = "local") -> Task:
    """The task with its model bound to the training rows, where its framework wants that.

    Raises:
        ConfigError: a model that JAX computes is to be computed by another executor, the executor isn't there,
            several processes would train one that JAX doesn't compute, or it is made for another number of clients.
    """
    outside = task.model.outside
    if outside is not None and outside.clients not in (None, data.clients):
        raise ConfigError(
            f"{task.name!r} is made for {outside.clients} clients (partitions={outside.clients}), and the data have "
            f"{data.clients}: give flower.task(…, partitions={data.clients}), or the data of all clients."
        )
    if outside is None and executor != "local":
        raise ConfigError(
            f"executor={executor!r} is for PyTorch models and functions, and JAX computes {task.model.name!r}: its "
            "rounds use all devices of this machine, and with jax.distributed those of several (docs/clusters.md). "
            "Leave executor out."
        )
    if outside is not None and jax.process_count() > 1:
        raise ConfigError(
            f"{jax.process_count()} processes run this together (jax.distributed), and {task.model.name!r} is trained "
            "outside JAX: start one process, and let executor='ray' use other machines."
        )
    if outside is None or not {task.input, task.target} <= set(data.columns):
        return task
    return replace(
        task, model=replace(task.model, outside=outside.bind(task, data.columns, layout, executor))
    )


def failed(task: Task) -> list[Any]:
    """What has failed outside since this was last asked."""
    return [] if task.model.outside is None else task.model.outside.failed(task)


def client_error(failures: Sequence[Any], round: int, data: Any) -> RunError:
    """The first failure as an error that names the client, the stage and the round, with its own traceback."""
    first = min(failures, key=lambda f: -1 if f.client is None else f.client)
    who = "A client" if first.client is None else f"Client {data.client_name(first.client)}"
    others = len({f.client for f in failures}) - 1
    more = f" ({others} more failed)" if others else ""
    error = RunError(
        f"{who} failed in round {max(round, 1)} ({first.stage}){more}: {sentence(first.message)} Mend it, or give "
        "client_errors='set aside' to go on without such clients."
    )
    if first.trace:
        error.add_note(first.trace)
    return error


def check(task: Task, round: int, data: Any, client_errors: str = "raise") -> None:
    """Nothing may have failed outside, such as an evaluation; with "set aside" single clients' work may have.

    Raises:
        RunError: something has.
    """
    failures = [f for f in failed(task) if f.client is None or client_errors == "raise"]
    if failures:
        raise client_error(failures, round, data)


def with_failures(result: RoundResult, failures: Sequence[Any]) -> RoundResult:
    """The round's result, its statuses saying what was raised in place of the NaN that came of it."""
    messages = {f.client: f"raised {f.message}" for f in failures if f.client is not None}
    if not messages:
        return result
    status = [messages.get(int(k), s) for k, s in zip(result.ids, result.status, strict=True)]
    return result._replace(status=status)
