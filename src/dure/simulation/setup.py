"""What an engine needs before its first round: columns on the devices, a place for the clients' state."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dure import devices
from dure.algorithms.base import Algorithm
from dure.errors import ConfigError, DataError
from dure.oracles.layout import Variables
from dure.oracles.metrics import softmax_cross_entropy
from dure.oracles.model import Model, comes_from_class
from dure.oracles.task import Task
from dure.simulation.packing import pack_initial, state_size
from dure.simulation.settings import Settings
from dure.simulation.store import ClientStore

#: Client state beyond this many bytes for the whole population goes to disk unless told otherwise.
HOST_STATE_LIMIT = 4 * 2**30


def check_parts(algorithm: Any, task: Any) -> None:
    """The things that were given must be what their places are for.

    Raises:
        ConfigError: saying what was given and what is wanted.
    """
    given = algorithm if isinstance(algorithm, type) else type(algorithm)
    if comes_from_class(given, "dure.boosting"):
        raise ConfigError(
            f"{given.__name__} is no method for rounds over a model's parameters: trees are trained by "
            f"dure.boosting.fit(dure.boosting.{given.__name__}(…), data)."
        )
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise ConfigError(
            f"algorithm={algorithm!r} is not a method: give an object such as dure.FedAvg(), with brackets."
        )
    if isinstance(task, type) and comes_from_class(task, "sklearn"):
        raise ConfigError(f"task={task.__name__} is a class: give an instance, such as {task.__name__}().")
    kind = task if isinstance(task, type) else type(task)
    if comes_from_class(kind, "dure.boosting"):
        raise ConfigError(
            f"{kind.__name__} is no task for rounds of a method: trees are trained by "
            f"dure.boosting.fit(dure.boosting.{kind.__name__}(…), data)."
        )
    if not isinstance(task, Task):
        raise ConfigError(
            f"task={task!r} is not a task: give one such as dure.classification(model) or dure.Task(…)."
        )


def check_adapters(algorithm: Algorithm, model: Model) -> None:
    """A method for adapters needs a model that has some.

    Raises:
        ConfigError: it has none, with the way to make some.
    """
    if algorithm.needs.adapters and not model.adapters:
        raise ConfigError(
            f"{type(algorithm).__name__} averages low-rank adapters, and model {model.name!r} has none. Give "
            'dure.lora(model, rank=8, alpha=16, targets=["*attention*"]), with names of your model\'s matrices. Of '
            "peft, plain LoRA on linear layers is known; other kinds (DoRA, LoRA on convolutions or embeddings, …) can "
            "be trained with FedAvg, which averages whatever is trained."
        )


def put_columns(task: Task, data: Any, mesh: Mesh) -> dict[str, Any]:
    """The columns that the task reads, on the devices.

    Raises:
        DataError: one is missing, or there are more rows than int32 can number.
    """
    columns = {}
    for name in (task.input, task.target):
        if name not in data.columns:
            raise DataError(
                f"The task reads column {name!r}, but the data have {', '.join(sorted(data.columns))}."
            )
        columns[name] = devices.replicate(data.complete(name, name == task.target), mesh)
    if len(data.columns[task.input]) >= 2**31:
        raise DataError("More than 2³¹ − 1 rows in one data set are not supported.")
    return columns


def check_model(task: Task, data: Any, variables: Variables) -> None:
    """The model must take the data's rows, and every label must be one of its outputs.

    Cross-entropy would silently have no target for a label beyond the outputs.

    Raises:
        ConfigError: the model has no parameters, or fails on a row.
        DataError: a label that the model has no output for, with the set that it is in and the way out.
    """
    if not jax.tree.leaves(variables.params):
        raise ConfigError(f"Model {task.model.name!r} has no parameters: there is nothing to train.")

    if task.model.outside is not None and not task.model.outside.predicts:
        return

    def outputs(x: Any) -> Any:
        return task.model.apply(variables, x, train=False, key=None, mask=None)[0]

    shape, dtype = _row(data.columns[task.input])
    try:
        found = jax.eval_shape(outputs, jax.ShapeDtypeStruct(shape, dtype))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"Model {task.model.name!r} fails on column {task.input!r}, of which a batch of one is "
            f"{dtype}{shape}: {error}"
        ) from error
    if task.loss is not softmax_cross_entropy:
        return
    classes = found.shape[-1]
    sets = {"training": data.columns, "central test": data.central_test, "clients' test": data.client_test}
    for name, columns in sets.items():
        if columns is None or not len(columns[task.target]):
            continue
        largest = int(np.max(columns[task.target]))
        if largest >= classes:
            raise DataError(
                f"Column {task.target!r} of the {name} rows holds label {largest}, and model "
                f"{task.model.name!r} has outputs for labels 0 … {classes - 1}. Give the model {largest + 1} "
                "classes, or correct the labels."
            )


def _row(column: Any) -> tuple[tuple[int, ...], Any]:
    return (1, *np.shape(column)[1:]), jax.dtypes.canonicalize_dtype(column.dtype)


def check_batches(task: Task, data: Any, settings: Settings) -> None:
    """A model whose batch statistics would see padding can't have short batches.

    Raises:
        ConfigError: it would have one, with the client's size and the way out.
    """
    if task.model.masked:
        return
    size = settings.work.batch_size
    sizes = np.unique(data.sizes)
    short = sizes[sizes % size != 0] if size else sizes[sizes != sizes[-1]]
    if len(short):
        raise ConfigError(
            f"Model {task.model.name!r} has batch statistics and does not take `mask`, and a client with "
            f"{short[0]} examples would give it a short batch at batch_size={size or 'inf'}. Give its apply "
            "a `mask` parameter, or a batch size that divides every client's number of examples."
        )


def make_store(
    algorithm: Algorithm,
    settings: Settings,
    clients: int,
    shape: Any,
    at_first: tuple[Any, ...],
    directory: Any,
) -> ClientStore | None:
    """Where the clients' state is kept, or None for a method without; `shape` and `at_first` of one client.

    Raises:
        ConfigError: it is to be on disk and there is no directory, or there are several processes.
    """
    if shape is None:
        return None
    placement = settings.client_state
    if placement == "disk" and jax.process_count() > 1:
        raise ConfigError(
            "client_state='disk' is for one process: several keep the clients' state in memory, each of them all of "
            "it. Leave client_state out."
        )
    if placement == "auto" and jax.process_count() > 1:
        placement = "host"
    elif placement == "auto":
        whole = 4 * state_size(shape) * clients
        placement = "host" if whole <= HOST_STATE_LIMIT or directory is None else "disk"
    if placement == "disk" and directory is None:
        raise ConfigError("client_state='disk' needs a directory for the run: give directory=.")
    initial = pack_initial(algorithm, *at_first)
    return ClientStore(clients, initial, placement, directory)
