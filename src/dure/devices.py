"""The devices that clients are dealt to. Imported before JAX starts its backends.

On a CPU every core becomes one XLA device, so that clients run side by side; a user who has set
`jax_num_cpu_devices` (or started JAX already) keeps what is there.

After `jax.distributed.initialize` several processes run the same program, and the mesh is over the devices of all
of them: each gives all of an array and keeps its own devices' part, and what comes back is on every device.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dure.errors import ConfigError, DureError, RunError

_ALIGNMENT = 64
P = ParamSpec("P")
R = TypeVar("R")


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(len(os.sched_getaffinity(0)), 1)
    return os.cpu_count() or 1


def one_device_per_core() -> None:
    """Ask JAX for one CPU device per core, unless that was decided elsewhere."""
    asked = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if asked or getattr(jax.config, "jax_num_cpu_devices", -1) != -1:
        return
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # JAX has started: its devices are what they are
        return


def in_32_bits(function: Callable[P, R]) -> Callable[P, R]:
    """The function as if `jax_enable_x64` were off: models are float32 whatever the user's session is set to.

    Nor does it matter whether the session refuses `jax_numpy_rank_promotion`, for the code that runs is not its own.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(False), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return wrapped


def mesh(count: int | None = None) -> Mesh:
    """A one-dimensional mesh over `count` devices, all (those of other processes too) when None.

    Raises:
        ConfigError: there are fewer devices, or several processes and not all of them would take part.
    """
    available = jax.devices()
    if count not in (None, len(available)) and jax.process_count() > 1:
        raise ConfigError(
            f"devices={count!r} is not possible: {jax.process_count()} processes run this together, and all of their "
            f"{len(available)} devices take part. Leave devices out (and eager=True, which is for one process)."
        )
    whole = isinstance(count, int) and not isinstance(count, bool)
    if count is not None and not (whole and 1 <= count <= len(available)):
        raise ConfigError(
            f"devices={count!r} is not possible: JAX has {len(available)} ({available[0].platform}). "
            "Give a number up to that, or leave it out for all."
        )
    return Mesh(np.array(available[: count or len(available)]), ("devices",))


def replicate(array: np.ndarray, mesh: Mesh) -> Any:
    """The array on every device of the mesh. The CPU's devices share one copy, however many cores there are.

    The copy is ours (the caller may go on writing into the original) and aligned as XLA wants it, or every
    device would make its own.
    """
    everywhere = NamedSharding(mesh, PartitionSpec())
    if mesh.size == 1 or mesh.devices.flat[0].platform != "cpu" or array.size == 0:
        return put(array, everywhere)
    array = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
    raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    shared = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    shared[...] = array
    parts = [jax.device_put(shared, device, may_alias=True) for device in mesh.local_devices]
    return jax.make_array_from_single_device_arrays(array.shape, everywhere, parts)


# ----- several processes ----------------------------------------------------------------------------------


def put(tree: Any, sharding: NamedSharding) -> Any:
    """Arrays of the host on the devices of a sharding. Every process gives the same ones, whole."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def own_part(array: Any) -> Any:
        array = np.asarray(array)
        array = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(own_part, tree)


def for_all(mesh: Mesh) -> dict[str, Any]:
    """Keywords of `jax.jit` that put results where every process can read them."""
    return {"out_shardings": NamedSharding(mesh, PartitionSpec())} if mesh.is_multi_process else {}


def of_all(numbers: Any) -> np.ndarray:
    """(processes, …) the numbers that each process has given."""
    from jax.experimental.multihost_utils import process_allgather

    return np.asarray(process_allgather(np.asarray(numbers))).reshape(jax.process_count(), *np.shape(numbers))


def as_first(number: int) -> int:
    """The number that the first process has: the clock and the disk may tell others something else."""
    return int(of_all(np.int32(number))[0]) if jax.process_count() > 1 else number


def is_first() -> bool:
    """Whether this process is the one that writes and reports."""
    return jax.process_index() == 0


@contextmanager
def in_step() -> Iterator[None]:
    """What fails in one process fails in all, so that none waits for another that is gone.

    Raises:
        RunError: another process has failed.
    """
    failed: DureError | None = None
    try:
        yield
    except DureError as error:
        failed = error
    if jax.process_count() > 1:
        others = np.flatnonzero(of_all(np.int32(failed is not None)))
        if failed is None and len(others):
            raise RunError(f"Process {others[0]} of {jax.process_count()} failed; its own message says why.")
    if failed is not None:
        raise failed


def only_one_process(what: str) -> None:
    """For what has not been made for several processes.

    Raises:
        ConfigError: there are several.
    """
    if jax.process_count() > 1:
        raise ConfigError(
            f"{what} runs in one process, and {jax.process_count()} were started together (jax.distributed). "
            "dure.simulate and dure.Simulation take several, without an aggregator."
        )


one_device_per_core()
