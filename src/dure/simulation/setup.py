"""What an engine needs before its first round: columns on the devices, a place for the clients' state."""

from typing import Any

import numpy as np
from jax.sharding import Mesh

from dure import devices
from dure.algorithms.base import Algorithm
from dure.errors import ConfigError, DataError
from dure.oracles.task import Task
from dure.simulation.packing import pack_initial, state_size
from dure.simulation.settings import Settings
from dure.simulation.store import ClientStore

#: Client state beyond this many bytes for the whole population goes to disk unless told otherwise.
HOST_STATE_LIMIT = 4 * 2**30


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
        columns[name] = devices.replicate(data.columns[name], mesh)
    if len(data.columns[task.input]) >= 2**31:
        raise DataError("More than 2³¹ − 1 rows in one data set are not supported.")
    return columns


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
        ConfigError: it is to be on disk and there is no directory.
    """
    if shape is None:
        return None
    placement = settings.client_state
    if placement == "auto":
        whole = 4 * state_size(shape) * clients
        placement = "host" if whole <= HOST_STATE_LIMIT or directory is None else "disk"
    if placement == "disk" and directory is None:
        raise ConfigError("client_state='disk' needs a directory for the run: give directory=.")
    initial = pack_initial(algorithm, *at_first)
    return ClientStore(clients, initial, placement, directory)
