"""What a distillation is given, checked before anything starts."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dure.distillation.base import Method
from dure.distillation.public import PublicSet
from dure.errors import ConfigError, DataError
from dure.oracles.optimizer import as_optimizer
from dure.oracles.task import Task


def check_tasks(tasks: Sequence[Task], data: Any, public: np.ndarray) -> int:
    """The number of classes C, the same for all architectures.

    Raises:
        ConfigError: no task, outputs that are not logits (B, C), other numbers of classes or other measures
            between architectures, or fewer classes than the data have.
    """
    if not tasks:
        raise ConfigError("tasks is empty: give one task for each architecture.")
    found = [_classes(task, public) for task in tasks]
    if len(set(found)) > 1:
        raise ConfigError(
            f"The architectures have different numbers of classes: "
            f"{', '.join(f'{t.model.name} {c}' for t, c in zip(tasks, found, strict=True))}. Predictions can "
            "only be averaged over one label space: give every model the same number of outputs."
        )
    classes = getattr(data, "classes", None)
    if classes is not None and classes > found[0]:
        raise ConfigError(
            f"The models have {found[0]} outputs and the data {classes} classes: give the models {classes} outputs."
        )
    measures = [[metric.name for metric in task.metrics] for task in tasks]
    if any(names != measures[0] for names in measures):
        raise ConfigError(f"The tasks have different metrics, {measures}: give all of them the same.")
    return found[0]


def _classes(task: Task, public: np.ndarray) -> int:
    variables = jax.eval_shape(task.model.init, jax.random.key(0))

    def forward(variables: Any, inputs: Any) -> Any:
        return task.model.apply(variables, inputs, train=False, key=None, mask=None)[0]

    outputs = jax.eval_shape(forward, variables, jax.ShapeDtypeStruct((2, *public.shape[1:]), public.dtype))
    shape = getattr(outputs, "shape", None)
    if shape is None or len(shape) != 2 or shape[0] != 2:
        raise ConfigError(
            f"Model {task.model.name!r} makes outputs of shape {shape} for 2 inputs; distillation needs logits "
            "(B, C). Use a classification task."
        )
    return int(shape[1])


def check_public(tasks: Sequence[Task], data: Any, public: Any) -> np.ndarray:
    """The public inputs (P, …) in the data's own type.

    Raises:
        DataError: another input shape than the data's, another kind of numbers, no inputs, NaN or infinity.
    """
    name = tasks[0].input if tasks else "x"
    if name not in data.columns:
        raise DataError(
            f"The task reads column {name!r}, but the data have {', '.join(sorted(data.columns))}."
        )
    column = data.columns[name]
    found = np.asarray(public)
    if found.shape[1:] != column.shape[1:] or found.ndim != column.ndim:
        raise DataError(
            f"The public set has shape {found.shape}, and the data's inputs {name!r} are {column.shape[1:]} each: "
            f"give public as (P, {', '.join(map(str, column.shape[1:]))}), prepared as the data are."
        )
    if len(found) == 0:
        raise DataError("The public set is empty: give at least one input.")
    if not (np.can_cast(found.dtype, column.dtype, "same_kind") and found.dtype != bool):
        raise DataError(
            f"The public set holds {found.dtype}, the data's inputs {name!r} {column.dtype}. Convert it."
        )
    finite = np.isfinite(found.reshape(len(found), -1)).all(1)
    if not finite.all():
        raise DataError(
            f"Public input {int(np.flatnonzero(~finite)[0])} holds NaN or infinity. Leave it out."
        )
    return np.ascontiguousarray(found, column.dtype)


def check_assignment(assignment: Any, architectures: int, clients: int) -> np.ndarray:
    """The architecture of each client, (N,) int64.

    Raises:
        ConfigError: not one integer for each client, an unknown architecture, or one that no client has.
    """
    found = np.asarray(assignment)
    if found.shape != (clients,) or not np.issubdtype(found.dtype, np.integer):
        raise ConfigError(
            f"assignment has shape {found.shape} and type {found.dtype}; it must be one integer for each of the "
            f"{clients} clients: the number of its architecture."
        )
    wrong = np.flatnonzero((found < 0) | (found >= architectures))
    if len(wrong):
        k = int(wrong[0])
        raise ConfigError(
            f"assignment[{k}]={found[k]} names no architecture: there are {architectures} tasks, numbered from 0."
        )
    empty = sorted(set(range(architectures)) - set(found.tolist()))
    if empty:
        raise ConfigError(
            f"Architecture {empty[0]} has no client: leave its task out, or assign a client to it."
        )
    return found.astype(np.int64)


def public_set(
    public: np.ndarray, classes: int, per_round: Any, batch_size: Any, optimizer: Any
) -> PublicSet:
    """The public set with how it is read.

    Raises:
        ConfigError: a number of rows or a batch size that is impossible.
    """
    if per_round is not None and not (_is_count(per_round) and per_round <= len(public)):
        raise ConfigError(
            f"public_per_round={per_round!r} is not allowed: it must be an integer from 1 to {len(public)}, the "
            "size of the public set, or None for all of it."
        )
    if not (_is_count(batch_size) or batch_size == math.inf):
        raise ConfigError(
            f"public_batch_size={batch_size!r} is not allowed: it must be an integer of at least 1 or math.inf."
        )
    rows = len(public) if per_round is None else int(per_round)
    batch = int(min(batch_size, rows))
    return PublicSet(
        public, classes, None if per_round is None else int(per_round), batch, as_optimizer(optimizer)
    )


def check_method(method: Any) -> None:
    """Refuse what is no method of distillation.

    Raises:
        ConfigError: it is none.
    """
    if not isinstance(method, Method):
        raise ConfigError(
            f"{type(method).__name__} is no method of distillation: give FedMD(), DSFL() or FedDF(). Methods "
            "that exchange parameters run with dure.simulate."
        )


def check_sampler(method: Method, sampler: Any) -> None:
    """Refuse clients that come once where each one keeps a model of its own (law 7 of the design).

    Raises:
        ConfigError: saying what to use instead.
    """
    if not method.prototypes and not getattr(sampler, "returning", True):
        raise ConfigError(
            f"{type(method).__name__} keeps a model with each client between rounds, and with the sampler "
            f"{sampler.describe()} a client comes once. Use FedDF, or a sampler whose clients come again."
        )


def check_count(name: str, value: Any, *, optional: bool = True) -> None:
    """Refuse what is neither an integer of at least 1 nor (where that is allowed) None.

    Raises:
        ConfigError: naming it.
    """
    if not (_is_count(value) or (optional and value is None)):
        raise ConfigError(f"{name}={value!r} is not allowed: it must be an integer of at least 1.")


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)
