"""What a user gives to `dure.flower`, checked and brought into one form."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.oracles.host.function import Shape

#: Keys of a client's configuration that dure fills in.
_OURS = ("server-round", "seed")


def arrays_of(name: str, given: Any) -> Any:
    """A list of arrays or name → array, of either or of an ArrayRecord.

    Raises:
        ConfigError: something else, by its name.
    """
    if hasattr(given, "to_numpy_ndarrays"):  # an ArrayRecord
        return {name: array.numpy() for name, array in given.items()}
    if not isinstance(given, Mapping | list | tuple):
        raise ConfigError(f"{name} is a {type(given).__name__}: give a list of arrays, or name → array.")
    return given


def initial_arrays(initial: Any) -> Any:
    """What a training starts from: a list of arrays, or name → array.

    Raises:
        ConfigError: something else; integers, or values that aren't finite.
    """
    initial = arrays_of("initial", initial)
    named = isinstance(initial, Mapping)
    arrays = {n: np.asarray(a) for n, a in (initial.items() if named else enumerate(initial))}
    whole = [name for name, array in arrays.items() if array.dtype.kind in "iub"]
    if whole:
        raise ConfigError(
            f"initial has integers in {', '.join(map(repr, whole))}, and a mean of them has no meaning. Send the float "
            "arrays only, such as a state dict without num_batches_tracked."
        )
    for name, array in arrays.items():
        finite(f"initial[{name!r}]", array)
    return arrays if named else list(arrays.values())


def finite(what: str, array: Any) -> Any:
    """The array.

    Raises:
        ConfigError: it has values that aren't finite.
    """
    if np.asarray(array).dtype.kind == "f" and not np.isfinite(array).all():
        raise ConfigError(f"{what} has values that are NaN or infinite: no training can start from them.")
    return array


def fitting(arrays: dict[str, np.ndarray], shape: Shape) -> dict[str, np.ndarray]:
    """The arrays, which are to be the task's.

    Raises:
        ConfigError: another number of them, or another shape.
    """
    if len(arrays) != len(shape.names):
        raise ConfigError(f"params has {len(arrays)} arrays, the clients' parameters are {len(shape.names)}.")
    wanted = {str(name): s for name, s in zip(shape.names, shape.shapes, strict=True)}
    for name, array in arrays.items():
        if array.shape != wanted[name]:
            raise ConfigError(f"params[{name!r}] has shape {array.shape}, the clients' have {wanted[name]}.")
    return arrays


def ids_of(ids: Any, partitions: int) -> list[int]:
    """Numbers of clients; all for None.

    Raises:
        ConfigError: they are none, or not there.
    """
    if ids is None:
        return list(range(partitions))
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise ConfigError(f"ids={ids!r} is not allowed: give a list of clients' numbers, such as [0, 2].")
    found = list(ids)
    for k in found:
        if isinstance(k, bool) or not isinstance(k, int | np.integer):
            raise ConfigError(f"ids has {k!r}: give clients' numbers, integers in [0, {partitions}).")
        if not 0 <= k < partitions:
            raise ConfigError(f"Client {k} is not there: ids are in [0, {partitions}).")
    return [int(k) for k in found]


def config_dict(name: str, config: Any) -> dict[str, Any]:
    """A dict of what is to be told; None is nothing.

    Raises:
        ConfigError: something else.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"{name}={config!r} is a {type(config).__name__}: give a dict, name → value.")
    return dict(config or {})


def fit_config(config: Any) -> dict[str, Any]:
    """What a user tells `fit`.

    Raises:
        ConfigError: not a dict, or it has a key that dure fills in.
    """
    found = config_dict("config", config)
    taken = [key for key in _OURS if key in found]
    if taken:
        raise ConfigError(f"config has {taken[0]!r}, which dure fills in: give it another name.")
    return found


def is_number(value: Any) -> bool:
    """Whether it is a single number, and no truth value."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)
