"""The weighted mean of updates, as rows (m, d) and weights (m,) to one vector (d,)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float32, PyTree

from dure.aggregation import exact


class Sums(NamedTuple):
    """Running sums of a weighted mean: an exact accumulator per array of the update, and one for the weights."""

    values: PyTree
    weights: exact.Wide


def _is_wide(x: object) -> bool:
    return isinstance(x, exact.Wide)


def start(update: PyTree) -> Sums:
    """Empty sums for updates shaped like `update` (a pytree of float32 arrays)."""
    return Sums(jax.tree.map(exact.zeros, update), exact.zeros(jax.ShapeDtypeStruct((), np.float32)))


def _add_values(values: PyTree, update: PyTree, weight: Array) -> PyTree:
    return jax.tree.map(lambda total, x: exact.add(total, x, weight), values, update, is_leaf=_is_wide)


def add(sums: Sums, update: PyTree, weight: Float32[Array, ""]) -> Sums:
    """Add one client's update with its weight. The order of the calls doesn't matter, to the last bit."""
    return Sums(_add_values(sums.values, update, weight), exact.add(sums.weights, np.float32(1.0), weight))


def add_rows(sums: Sums, rows: PyTree, weights: Float32[Array, " m"]) -> Sums:
    """Add m clients at once: every array of `rows` has a leading axis of length m."""

    def body(i: Array, values: PyTree) -> PyTree:
        row = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, 0, keepdims=False), rows)
        return _add_values(values, row, weights[i])

    values = lax.fori_loop(0, weights.shape[0], body, sums.values)
    return Sums(values, exact.add_all(sums.weights, weights))


def ratio(sums: Sums) -> PyTree:
    """Σ w_k x_k / Σ w_k over what came back (McMahan et al. 2017); zeros when the total weight is 0."""
    return jax.tree.map(lambda total: exact.divide(total, sums.weights), sums.values, is_leaf=_is_wide)


def total(sums: Sums) -> PyTree:
    """Σ w_k x_k: the Horvitz–Thompson estimate when w_k = p_k / π_k (p_k sums to 1, π_k: inclusion)."""
    return jax.tree.map(lambda total: exact.divide(total, None), sums.values, is_leaf=_is_wide)


def mass(sums: Sums) -> Float32[Array, ""]:
    """Σ w_k of what came back."""
    return exact.divide(sums.weights, None)


def weighted_mean(
    rows: Float32[Array | np.ndarray, "m d"], weights: Float32[Array | np.ndarray, " m"]
) -> Float32[Array, " d"]:
    """The weighted mean of the rows, independent of their order bit for bit.

    Args:
        rows: finite updates, |weight · value| below `exact.LIMIT`.
        weights: nonnegative weights.
    """
    rows = jnp.asarray(rows)
    mean: Array = ratio(add_rows(start(rows[0]), rows, jnp.asarray(weights)))
    return mean
