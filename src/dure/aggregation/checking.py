"""Updates, weights and counts are checked before anything is computed (law 4 of the design)."""

from collections import Counter
from typing import Any

import jax
import numpy as np

from dure.aggregation.blocks import Blocks
from dure.aggregation.rows import LARGEST, Rows
from dure.errors import ConfigError, DataError

_KINDS = ("float16", "bfloat16", "float32", "float64")


def checked_count(rule: object, name: str, value: Any, least: int = 0) -> int:
    """An integer of at least `least`.

    Raises:
        ConfigError: it isn't.
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(
            f"{type(rule).__name__}({name}={value!r}) is not allowed: it must be an integer of at least {least}."
        )
    return int(value)


def checked_number(rule: object, name: str, value: Any, low: float, high: float, allowed: str) -> float:
    """A number with low < value ≤ high.

    Raises:
        ConfigError: it isn't.
    """
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not low < value <= high:
        raise ConfigError(f"{type(rule).__name__}({name}={value!r}) is not allowed: it must be {allowed}.")
    return float(value)


def checked_finite(
    rule: object, name: str, value: Any, above: float | None = None, least: float | None = None
) -> float:
    """A finite number: any, one `above` a number, or one of at least `least`.

    Raises:
        ConfigError: it isn't.
    """
    if above is not None:
        low, allowed = above, f"a finite number above {above:g}"
    elif least is not None:
        low, allowed = float(np.nextafter(least, -np.inf)), f"a finite number of at least {least:g}"
    else:
        low, allowed = -np.inf, "a finite number"
    return checked_number(rule, name, value, low, float(np.finfo(np.float64).max), allowed)


def checked_state(rule: object, state: dict[str, np.ndarray] | None, *names: str) -> dict[str, np.ndarray]:
    """The memory that a rule returned, or an empty one.

    Raises:
        DataError: it holds other things than the rule's.
    """
    if state is not None and set(state) != set(names):
        raise DataError(
            f"state has the keys {sorted(state)}: {type(rule).__name__} returns and takes {sorted(names)}."
        )
    return state or {}


def as_rows(updates: Any) -> tuple[Rows, np.ndarray]:
    """(rows that fit, (m,) bool: which of the updates don't).

    Raises:
        DataError: there are none, they are not floating-point, or no length is the most frequent one.
    """
    source: Any
    if isinstance(updates, Blocks):
        source = updates
    elif isinstance(updates, list | tuple):
        return _from_vectors(updates)
    elif isinstance(updates, np.ndarray | jax.Array):
        source = updates
    else:
        raise DataError(
            f"updates={type(updates).__name__} is not an array (clients, parameters), a list of vectors, or Blocks."
        )
    if _masked(source):
        raise DataError(
            "The updates are a masked array with masked entries: a rule would take what is behind the mask for "
            "numbers. Fill them in (updates.filled(0)), or leave those clients out."
        )
    if len(source.shape) != 2:
        raise DataError(f"The updates have shape {tuple(source.shape)}: it must be (clients, parameters).")
    if not source.shape[0]:
        raise DataError("There are no updates: the array has 0 rows.")
    _check_kind(source.dtype)
    return Rows(source), np.zeros(source.shape[0], bool)


def _masked(array: Any) -> bool:
    return isinstance(array, np.ma.MaskedArray) and bool(np.ma.getmaskarray(array).any())


def _check_kind(dtype: Any) -> None:
    if str(dtype) not in _KINDS:
        raise DataError(
            f"The updates are {dtype}: a rule takes floating-point updates ({', '.join(_KINDS)}). Integers such as "
            "step counters are not updates; they are carried by the maximum."
        )


def _from_vectors(updates: Any) -> tuple[Rows, np.ndarray]:
    if not updates:
        raise DataError("There are no updates: the list is empty.")
    vectors: list[Any] = []
    for update in updates:
        try:
            vector = np.asarray(update)
        except (ValueError, TypeError, RuntimeError):  # ragged, no numbers, or a tensor that is no array yet
            vector = np.empty((0, 0), object)
        vectors.append(np.empty((0, 0), object) if _masked(update) else vector)
    kinds = Counter((v.shape, str(v.dtype)) for v in vectors if v.ndim == 1 and str(v.dtype) in _KINDS)
    if not kinds:
        shapes = sorted({f"{v.dtype}{list(v.shape)}" for v in vectors})[:5]
        raise DataError(
            f"None of the {len(vectors)} updates is a floating-point vector: they are {', '.join(shapes)}."
        )
    kind, most = kinds.most_common(1)[0]
    if 2 * most <= len(vectors):
        raise DataError(
            f"No shape of update has a majority among {len(vectors)}: "
            + ", ".join(f"{count} × {d}{list(s)}" for (s, d), count in kinds.most_common(5))
            + ". Check what the clients send."
        )
    fits = np.array([(v.shape, str(v.dtype)) == kind for v in vectors])
    return Rows(np.stack([v for v, fit in zip(vectors, fits, strict=True) if fit])), ~fits


def checked_weights(weights: Any, m: int) -> np.ndarray:
    """(m,) float64, all 1 where none are given.

    Raises:
        DataError: naming the first that is wrong.
    """
    if weights is None:
        return np.ones(m)
    found = np.asarray(weights)
    if found.shape != (m,) or found.dtype.kind not in "iufb":
        raise DataError(
            f"weights has shape {found.shape} ({found.dtype}): it must be one number for each of the {m} updates."
        )
    found = found.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(wrong):
        raise DataError(
            f"weights[{wrong[0]}]={found[wrong[0]]} is not allowed: weights are finite and not negative."
        )
    if not found.any():
        raise DataError("All weights are 0: there is nothing to aggregate.")
    with np.errstate(over="ignore"):
        if not np.isfinite(found.sum()):
            raise DataError(
                f"The weights add up to more than float64 holds (the largest is {found.max():g}): give smaller ones, "
                "such as numbers of examples."
            )
    return found


def capped(weights: Any, cap: float) -> np.ndarray:
    """min(w_i, cap · median of the weights that are not 0), (m,) float64.

    What clients say of themselves, such as how many examples they have, must not decide alone: a client that
    claims a million examples gets `cap` times what the client in the middle gets.

    Args:
        weights: (m,) nonnegative.
        cap: at least 1.

    Raises:
        ConfigError: the cap is less than 1 or not finite.
        DataError: weights that are negative, not finite, or all 0.
    """
    if isinstance(cap, bool) or not isinstance(cap, int | float | np.number) or not 1 <= cap < np.inf:
        raise ConfigError(f"cap={cap!r} is not allowed: it must be a finite number of at least 1.")
    found = checked_weights(weights, np.size(weights))
    return np.asarray(np.minimum(found, cap * float(np.median(found[found > 0]))))


def checked_vector(name: str, vector: Any, d: int) -> np.ndarray | None:
    """(d,) finite and small enough for its square to be summed, or None.

    Raises:
        DataError: another shape, or a number that is not finite or beyond 2⁵⁰⁰.
    """
    if vector is None:
        return None
    found = np.asarray(vector)
    if found.shape != (d,) or (found.dtype.kind not in "iuf" and str(found.dtype) != "bfloat16"):
        raise DataError(f"{name} has shape {found.shape} ({found.dtype}): the updates need ({d},).")
    there: np.ndarray = found.astype(np.float64)
    if not np.isfinite(there).all():
        raise DataError(f"{name} is not finite at position {int(np.flatnonzero(~np.isfinite(there))[0])}.")
    if (np.abs(there) > LARGEST).any():
        at = int(np.flatnonzero(np.abs(there) > LARGEST)[0])
        raise DataError(
            f"{name} is {there[at]:g} at position {at}: beyond 2⁵⁰⁰ squares can't be summed in float64."
        )
    return there


def checked_clients(clients: Any, m: int) -> np.ndarray:
    """(m,) client numbers, 0 … m − 1 where none are given.

    Raises:
        DataError: there are others than one integer for each update.
    """
    if clients is None:
        return np.arange(m)
    found = np.asarray(clients)
    if found.shape != (m,):
        raise DataError(
            f"clients has shape {found.shape}: it must be one number for each of the {m} updates."
        )
    if found.dtype.kind not in "iu":
        raise DataError(
            f"clients holds {found.dtype}: client numbers are integers, such as positions in a list of names."
        )
    return found
