"""The devices that clients are dealt to. Imported before JAX starts its backends.

On a CPU every core becomes one XLA device, so that clients run side by side; a user who has set
`jax_num_cpu_devices` (or started JAX already) keeps what is there.
"""

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dure.errors import ConfigError

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
    """The function as if `jax_enable_x64` were off: models are float32 whatever the user's session is set to."""

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(False):
            return function(*args, **kwargs)

    return wrapped


def mesh(count: int | None = None) -> Mesh:
    """A one-dimensional mesh over `count` devices, all when None.

    Raises:
        ConfigError: there are fewer devices.
    """
    available = jax.local_devices()
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
        return jax.device_put(array, everywhere)
    array = np.asarray(array, jax.dtypes.canonicalize_dtype(array.dtype))
    raw = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    shared = raw[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    shared[...] = array
    parts = [jax.device_put(shared, device, may_alias=True) for device in mesh.devices.flat]
    return jax.make_array_from_single_device_arrays(array.shape, everywhere, parts)


one_device_per_core()
