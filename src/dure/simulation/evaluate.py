"""Evaluation, compiled: additive statistics of every row, summed on the host in float64 in a fixed order.

Rows are dealt to the devices in blocks; what comes back is one small array per measure, so that the central
test set and "every client's own test rows" are the same computation with different sums at the end.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from dure import devices
from dure.oracles.layout import Layout, Variables
from dure.oracles.task import Task
from dure.simulation.statics import AXIS, Model

BLOCK = 256


@lru_cache(maxsize=64)
def _program(task: Task, layout: Layout, mesh: Mesh) -> Any:
    def on_device(w: Array, floats: Array, ints: Array, columns: Mapping[str, Array]) -> Any:
        params = layout.unflatten_params(w)
        variables = Variables(params, layout.unflatten_buffers(floats, ints))
        rows = lax.map(lambda batch: task.row_sums(variables, batch), jax.tree.map(lambda x: x[0], columns))
        return jax.tree.map(lambda x: x[None], rows)

    if mesh.size == 1:
        return jax.jit(on_device)
    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(
            on_device, mesh=mesh, in_specs=(whole, whole, whole, split), out_specs=split, check_vma=False
        ),
        **devices.for_all(mesh),
    )


def span_sums(
    task: Task, variables: Variables, columns: Mapping[str, Array], span: Array, block: int, most: Array
) -> dict[str, Array]:
    """Additive statistics over rows [span[0], span[0] + span[1]) of the columns, `block` rows at a time.

    `most`: the largest span[1] of those that run together under `vmap`. Traceable; float32 sums.
    """
    last = columns[task.target].shape[0] - 1

    def sums(b: Array) -> dict[str, Array]:
        offset = b * block + jnp.arange(block, dtype=jnp.int32)
        there = offset < span[1]
        at = jnp.where(there, span[0] + offset, jnp.minimum(span[0], last))
        found = task.row_sums(variables, {name: column[at] for name, column in columns.items()})
        return {name: jnp.where(there[:, None], x, 0.0).sum(0) for name, x in found.items()}

    def turn(carry: Any) -> Any:
        b, total = carry
        return b + 1, jax.tree.map(jnp.add, total, sums(b))

    start = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(sums, jnp.int32(0)))
    total: dict[str, Array] = lax.while_loop(lambda c: c[0] * block < most, turn, (jnp.int32(0), start))[1]
    return total


class Evaluation:
    """One set of rows, on the devices, to be evaluated many times.

    Args:
        task: its model and measures.
        layout: of the model.
        mesh: devices.
        columns: rows, (n, …) each.
    """

    def __init__(self, task: Task, layout: Layout, mesh: Mesh, columns: Mapping[str, np.ndarray]):
        self._task, self._layout, self._mesh = task, layout, mesh
        self.rows = len(columns[task.target])
        block = min(BLOCK, max(self.rows, 1))
        blocks = max(-(-self.rows // (block * mesh.size)), 1)
        sharding = NamedSharding(mesh, PartitionSpec(AXIS))
        self._columns = {}
        for name in (task.input, task.target):
            values = np.asarray(columns[name])
            padded = np.zeros((mesh.size * blocks * block, *values.shape[1:]), values.dtype)
            padded[: self.rows] = values
            self._columns[name] = devices.put(
                padded.reshape(mesh.size, blocks, block, *values.shape[1:]), sharding
            )

    def start(self, w: Array | np.ndarray, model: Model) -> dict[str, Array]:
        """Begin the computation for w (d,) and the model's buffers; `totals` and `per_client` wait for it."""
        program = _program(self._task, self._layout, self._mesh)
        result: dict[str, Array] = program(w, model.floats, model.ints, self._columns)
        return result

    def _host_rows(self, started: Mapping[str, Array]) -> dict[str, np.ndarray]:
        host = jax.device_get(dict(started))
        return {
            name: np.asarray(x, np.float64).reshape(-1, x.shape[-1])[: self.rows] for name, x in host.items()
        }

    def totals(self, started: Mapping[str, Array]) -> dict[str, float]:
        """Measures over all rows."""
        sums = {name: rows.sum(0) for name, rows in self._host_rows(started).items()}
        return {name: float(value) for name, value in self._task.values(sums).items()}

    def per_client(self, started: Mapping[str, Array], offsets: np.ndarray) -> dict[str, np.ndarray]:
        """Measures of each client, (N,); NaN for a client without rows. `offsets`: (N + 1,) rows of each."""
        sizes = np.diff(offsets)
        sums = {}
        for name, rows in self._host_rows(started).items():
            sums[name] = np.zeros((len(sizes), rows.shape[1]))
            used = np.flatnonzero(sizes)
            if len(used):
                sums[name][used] = np.add.reduceat(rows, offsets[used], axis=0)
        return {name: np.asarray(value, np.float64) for name, value in self._task.values(sums).items()}


def spread(values: np.ndarray, higher_is_better: bool) -> dict[str, float]:
    """Mean, 10th percentile on the bad side, worst, and standard deviation over clients with test rows."""
    known = values[np.isfinite(values)]
    if not known.size:
        return {}
    bad = 10 if higher_is_better else 90
    return {
        "mean": float(known.mean()),
        "p10": float(np.percentile(known, bad)),
        "worst": float(known.min() if higher_is_better else known.max()),
        "spread": float(known.std()),
    }
