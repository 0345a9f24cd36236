"""Every client's model on the central test set and on the client's own test rows, compiled."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from dure import devices
from dure.distillation.group import Group
from dure.oracles.layout import Layout, Variables
from dure.oracles.task import Task
from dure.simulation.evaluate import span_sums
from dure.simulation.statics import AXIS

BLOCK = 256


class Evaluation:
    """One set of test rows, on the devices.

    Args:
        columns: rows (n, …) of each column.
        mesh: devices.
        task: whose columns are read.
    """

    def __init__(self, columns: Mapping[str, np.ndarray], mesh: Mesh, task: Task):
        self.rows = len(columns[task.target])
        self._mesh = mesh
        self._columns = {n: devices.replicate(columns[n], mesh) for n in (task.input, task.target)}

    def measure(self, group: Group, models: np.ndarray, spans: np.ndarray) -> dict[str, np.ndarray]:
        """Measures of some models of one architecture.

        Args:
            group: their architecture.
            models: (K, s) packed models.
            spans: (K, 2) first row and number of rows that each one is measured on.

        Returns:
            measure → (K,) float64; NaN where there are no rows.
        """
        count = len(models)
        padded = np.resize(np.arange(count), -(-count // self._mesh.size) * self._mesh.size)
        split = NamedSharding(self._mesh, PartitionSpec(AXIS))
        given = jax.device_put((models[padded], spans[padded].astype(np.int32)), split)
        block = min(BLOCK, max(int(spans[:, 1].max()), 1))
        program = _program(group.task, group.layout, self._mesh, block)
        sums = jax.device_get(program(group.engine.model.ints, self._columns, *given))
        totals = {name: np.asarray(x, np.float64)[:count] for name, x in sums.items()}
        return {name: np.asarray(x, np.float64) for name, x in group.task.values(totals).items()}


@lru_cache(maxsize=64)
def _program(task: Task, layout: Layout, mesh: Mesh, block: int) -> Any:
    """`f(counters, columns, models, spans) -> measure → (K, …) sums over each model's rows`."""

    def one(ints: Array, columns: Mapping[str, Array], model: Array, span: Array) -> dict[str, Array]:
        params = layout.unflatten_params(model[: layout.size])
        variables = Variables(params, layout.unflatten_buffers(model[layout.size :], ints))
        return span_sums(task, variables, columns, span, block, span[1])

    def on_device(ints: Array, columns: Mapping[str, Array], models: Array, spans: Array) -> Any:
        return lax.map(lambda given: one(ints, columns, *given), (models, spans))

    if mesh.size == 1:
        return jax.jit(on_device)
    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(
            on_device, mesh=mesh, in_specs=(whole, whole, split, split), out_specs=split, check_vma=False
        )
    )
