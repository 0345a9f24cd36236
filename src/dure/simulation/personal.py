"""Evaluation of personal models: every client with the model that it would use, on its own test rows.

A method's `personal` makes the model of a client from what the server sends, the client's state and the
client's *training* rows (fine-tuning, one step of adaptation); it is then measured on the client's test rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array

from dure import devices
from dure.oracles.layout import Variables
from dure.population.samplers import Cohort
from dure.simulation.cohort import Room, plan_round
from dure.simulation.engine import Engine
from dure.simulation.evaluate import span_sums
from dure.simulation.phases import begin, client_of
from dure.simulation.places import put
from dure.simulation.statics import AXIS, Model, Statics

#: Clients that are evaluated in one call.
_TOGETHER = 1024
#: Added to the round's number where evaluation draws at random: not the numbers that training uses.
_APART = 2**30


class PersonalEvaluation:
    """Evaluates each client's own model; see `measure`."""

    def __init__(self, engine: Engine):
        self._engine = engine
        data, task = engine.data, engine.task
        self._columns = {
            name: devices.replicate(data.client_test[name], engine.mesh) for name in (task.input, task.target)
        }
        self._offsets = np.asarray(data.client_test_offsets)
        self._room = Room()

    def measure(self) -> dict[str, np.ndarray]:
        """Measure → (N,) float64 now; NaN for a client without test rows."""
        engine = self._engine
        ids = np.flatnonzero(np.diff(self._offsets))
        totals: dict[str, np.ndarray] = {}
        for begin_at in range(0, len(ids), _TOGETHER):
            some = ids[begin_at : begin_at + _TOGETHER]
            for name, sums in self._sums(some).items():
                whole = totals.setdefault(name, np.zeros((engine.data.clients, sums.shape[-1])))
                whole[some] = sums
        return {name: np.asarray(x, np.float64) for name, x in engine.task.values(totals).items()}

    def _sums(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        engine = self._engine
        settings = replace(engine.settings, sampler=_These(ids), work_limit=None, lost_uploads=0.0)
        inputs = plan_round(
            engine.data,
            settings,
            engine.round + _APART,
            engine.schedule.width,
            engine.mesh.size,
            engine.sizes,
            self._room,
        )
        self._room = Room(inputs.places.order, inputs.places.chunks, inputs.max_steps)
        statics = engine.statics(inputs.batch_size, inputs.max_steps, inputs.places)
        seats, shape = inputs.facts.seats, inputs.clients.weight.shape
        first, size = self._offsets[ids], np.diff(self._offsets)[ids]
        packed = inputs.places.pack(max(engine.round, 1), inputs.unit, inputs.order, inputs.clients)
        state = engine.states(ids, seats, shape)
        tests = np.stack([put(first, seats, shape, np.int32), put(size, seats, shape, np.int32)], -1)
        with engine.mode():
            program = _function(statics) if engine.settings.eager else _program(statics)
            found = program(
                engine.model,
                engine.numbers,
                engine.columns,
                self._columns,
                *engine.split((packed, state, tests)),
            )
        return {name: np.asarray(x)[seats].astype(np.float64) for name, x in jax.device_get(found).items()}


@dataclass(frozen=True, eq=False)
class _These:
    """Exactly these clients."""

    ids: np.ndarray

    def sample(self, seed: int, round: int, population: Any) -> Cohort:
        return Cohort(self.ids, np.ones(len(self.ids)), np.ones(len(self.ids), np.int64))

    def expected_size(self, population: Any) -> float:
        return float(len(self.ids))

    def describe(self) -> str:
        return "given clients"


@lru_cache(maxsize=16)
def _program(statics: Statics) -> Any:
    return jax.jit(_function(statics), **devices.for_all(statics.mesh))


def _function(statics: Statics) -> Any:
    """`f(model, numbers, columns, test columns, packed, state, tests) -> name → (devices, chunks, width, s)`."""

    def function(
        model: Model,
        numbers: Array,
        columns: Mapping[str, Array],
        test: Mapping[str, Array],
        packed: Array,
        state: Any,
        tests: Array,
    ) -> Any:
        def on_device(
            numbers: Array, model: Model, columns: Any, test: Any, packed: Array, state: Any, tests: Array
        ) -> Any:
            algorithm, shared, _, clients = begin(
                statics, numbers, model.floats, model.ints, columns, packed, state
            )
            broadcast = algorithm.broadcast(model.server)

            def one(plan: Any, kept: Any, rows: Array, turns: Array, blocks: Array, most: Array) -> Any:
                own, oracle = client_of(statics, shared, plan, kept, turns, blocks)
                w = oracle.whole(algorithm.personal(algorithm.deliver(broadcast, plan.client), own, oracle))
                layout, seen = statics.layout, oracle.observed  # the buffers behind the last solve, if any
                buffers = layout.unflatten_buffers(seen.floats, seen.ints)
                variables = Variables(layout.unflatten_params(w), buffers)
                return span_sums(statics.task, variables, test, rows, statics.block, most)

            def chunk(given: Any) -> Any:
                plan, kept, rows, turns, blocks = given
                most = rows[:, 1].max()
                if statics.width == 1:
                    plan, kept, rows = jax.tree.map(lambda x: x[0], (plan, kept, rows))
                    found = one(plan, kept, rows, turns, blocks, most)
                    return jax.tree.map(lambda x: x[None], found)
                return jax.vmap(lambda p, k, r: one(p, k, r, turns, blocks, most))(plan, kept, rows)

            found = lax.map(chunk, (clients.plan, clients.state, tests[0], clients.turns, clients.blocks))
            return jax.tree.map(lambda x: x[None], found)

        arguments = (numbers, model, columns, test, packed, state, tests)
        if statics.mesh.size > 1:
            whole, split = PartitionSpec(), PartitionSpec(AXIS)
            on_device = jax.shard_map(
                on_device,
                mesh=statics.mesh,
                in_specs=(whole,) * 4 + (split,) * 3,
                out_specs=split,
                check_vma=False,
            )
        return on_device(*arguments)

    return function
