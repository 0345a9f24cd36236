"""The same passes for updates on an accelerator, in jax.numpy: only n × n matrices and results leave it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def _float64(x: Any) -> Any:
    return lax.convert_element_type(x, np.float64)


@partial(jax.jit, static_argnames=("first", "last"))
def _middle(x: Any, first: int, last: int) -> Any:
    ranked = _float64(jnp.sort(x, axis=0)[first : last + 1])
    return ranked[0] + (ranked - ranked[0]).sum(0) / (last - first + 1)


@partial(jax.jit, static_argnames=("keep",))
def _around(x: Any, keep: int) -> Any:
    n = x.shape[0]
    ranked = _float64(jnp.sort(x, axis=0))
    centre = ranked[(n - 1) // 2] + (ranked[n // 2] - ranked[(n - 1) // 2]) * 0.5
    windows = n - keep + 1
    reach = jnp.maximum(centre - ranked[:windows], ranked[keep - 1 :] - centre)
    first = jnp.argmin(reach, axis=0)
    at = first[None] + jnp.arange(keep)[:, None]
    chosen = jnp.take_along_axis(ranked, at, axis=0)
    return chosen[0] + (chosen - chosen[0]).sum(0) / keep


@jax.jit
def _combined(x: Any, coefficients: Any, centre: Any) -> Any:
    found = jnp.einsum("kn,nd->kd", coefficients, _float64(x), precision=lax.Precision.HIGHEST)
    return found + (1.0 - coefficients.sum(1, keepdims=True)) * _float64(centre)


@jax.jit
def _gram(y: Any) -> Any:
    found = jnp.einsum("id,jd->ij", y, y, precision=lax.Precision.HIGHEST)
    return (found + found.T) / 2.0  # symmetric to the last bit


def middle(x: Any, first: int, last: int) -> Any:
    """(w,) float64: mean of the ranks first … last of every column."""
    with jax.enable_x64(True):
        return _middle(x, first=first, last=last)


def around(x: Any, keep: int) -> Any:
    """(w,) float64: mean of the `keep` values nearest the median of every column."""
    with jax.enable_x64(True):
        return _around(x, keep=keep)


def combined(x: Any, coefficients: np.ndarray, centre: Any) -> Any:
    """(k, w) float64: coefficients (k, n) times the rows, the rest of each row's sum times the centre."""
    with jax.enable_x64(True):
        at = jnp.zeros(x.shape[1], np.float64) if centre is None else centre
        return _combined(x, jnp.asarray(coefficients, np.float64), at)


def gram(x: Any, origin: Any, more: Any) -> np.ndarray:
    """Y Yᵀ (n, n) in float64 for Y = x − origin, with the vector `more` (w,) as one more row if given."""
    with jax.enable_x64(True):
        y = _float64(x)
        if more is not None:
            y = jnp.concatenate([y, _float64(more)[None]])
        if origin is not None:
            y = y - _float64(origin)
        return np.asarray(_gram(y))


def broken(x: Any) -> np.ndarray:
    """(n,) bool: rows with a number that is not finite or, in float64, beyond 2⁵⁰⁰."""
    found = jnp.isfinite(x) if x.dtype != np.float64 else jnp.abs(x) <= 2.0**500
    return np.asarray(~found.all(1))


def squared_to(x: Any, point: Any) -> np.ndarray:
    """(n,) ‖row − point‖² in float64."""
    with jax.enable_x64(True):
        gap = _float64(x) - _float64(point)
        return np.asarray((gap * gap).sum(1))


def along(x: Any, origin: Any, vector: Any) -> np.ndarray:
    """(n,) (rows − origin) · vector, in float64."""
    with jax.enable_x64(True):
        y = _float64(x) if origin is None else _float64(x) - _float64(origin)
        return np.asarray(jnp.einsum("id,d->i", y, _float64(vector), precision=lax.Precision.HIGHEST))
