"""One round as one XLA program: local work of all clients, validation, exact sums, the server's step.

Clients are dealt to the devices of a mesh, each device works through its chunks. With width 1 a chunk is one
client (schedule "sequential"); with width V it is V clients under `vmap` ("vectorised"). The sums are exact,
so none of this can be seen in the aggregate.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec
from jaxtyping import Array, PyTree

from dure import devices
from dure.aggregation import mean
from dure.algorithms.base import RoundInfo, has_survey
from dure.errors import ConfigError
from dure.simulation import phases
from dure.simulation.statics import AXIS, Model, Outcome, Payload, Statics, things


def round_function(statics: Statics) -> Callable[..., Any]:
    """`f(model, numbers, columns, packed, state) -> (model, client state, Report, Outcome)`.

    `numbers` are the hyper-parameters that `hyper.split` took out of (algorithm, optimizer); `packed` is what
    `Places.pack` makes; `state` (devices, chunks, width, s) the packed client state, or None.
    """

    def function(
        model: Model, numbers: Array, columns: Mapping[str, Array], packed: Array, state: Any
    ) -> Any:
        algorithm, _ = things(statics, numbers)
        broadcast = algorithm.broadcast(model.server)

        def on_device(
            numbers: Array,
            broadcast: PyTree,
            floats: Array,
            ints: Array,
            columns: Mapping[str, Array],
            packed: Array,
            state: Any,
        ) -> Any:
            algorithm, shared, unit, clients = phases.begin(
                statics, numbers, floats, ints, columns, packed, state
            )
            survey = None
            if has_survey(algorithm):
                asked = phases.all_clients(
                    statics, shared, clients, phases.ask(statics, algorithm, broadcast, shared)
                )
                survey = _average(statics, _sum_devices(statics, asked.sums)).update
                broadcast = algorithm.inform(broadcast, survey)
                clients = clients._replace(weight=jnp.where(asked.report.verdict == 0, clients.weight, 0.0))
            worked = phases.all_clients(
                statics, shared, clients, phases.work(statics, algorithm, broadcast, shared)
            )
            sums, ints, accepted, report, state = worked
            if has_survey(algorithm):
                report = report._replace(verdict=report.verdict | asked.report.verdict)
            sums = _sum_devices(statics, sums)
            if statics.mesh.size > 1:
                ints, accepted = lax.pmax(ints, AXIS), lax.psum(accepted, AXIS)
            split = jax.tree.map(lambda x: x[None], (state, report))
            return sums, survey, ints, accepted, (shared.round, unit), split

        arguments = (numbers, broadcast, model.floats, model.ints, columns, packed, state)
        if statics.mesh.size > 1:
            whole, split = PartitionSpec(), PartitionSpec(AXIS)
            on_device = jax.shard_map(
                on_device,
                mesh=statics.mesh,
                in_specs=(whole,) * 5 + (split, split),
                out_specs=(whole,) * 5 + (split,),
                check_vma=False,
            )
        sums, survey, ints, accepted, (round, unit), (state, report) = on_device(*arguments)
        new, outcome = _apply(statics, algorithm, model, sums, survey, ints, accepted, round, unit)
        return new, state, report, outcome

    return function


@lru_cache(maxsize=64)
def compiled_round(statics: Statics) -> Any:
    """The jitted round. The old model's memory is given to the new one."""
    return jax.jit(round_function(statics), donate_argnums=(0,), **devices.for_all(statics.mesh))


@lru_cache(maxsize=64)
def measured_round(statics: Statics) -> Any:
    """The jitted round that leaves its arguments alone, to measure schedules with."""
    return jax.jit(round_function(statics), **devices.for_all(statics.mesh))


def _sum_devices(statics: Statics, sums: mean.Sums) -> mean.Sums:
    if statics.mesh.size == 1:
        return sums
    with jax.enable_x64(True):
        whole: mean.Sums = jax.tree.map(lambda x: lax.psum(x, AXIS), sums)
    return whole


def _average(statics: Statics, sums: mean.Sums) -> Payload:
    average: Payload = mean.ratio(sums) if statics.ratio else mean.total(sums)
    return average


def _apply(
    statics: Statics,
    algorithm: Any,
    model: Model,
    sums: mean.Sums,
    survey: PyTree,
    ints: Array,
    accepted: Array,
    round: Array,
    unit: Array,
) -> tuple[Model, Outcome]:
    """The server's step; with nobody accepted, or a step that is not finite, the model stays as it is."""
    average = _average(statics, sums)
    share = mean.mass(sums) * unit if statics.ratio else unit
    info = RoundInfo(round, accepted, accepted.astype(jnp.float32) / statics.population, share, survey)
    server = algorithm.apply(model.server, average.update, info)
    found: Any = jax.tree.structure(server)
    expected: Any = jax.tree.structure(model.server)
    if found != expected:
        raise ConfigError(
            f"{type(algorithm).__name__}.apply returned {found}, but the server's state is {expected}. "
            "Return the same structure."
        )
    # Buffers are averaged whatever the estimator is; an estimate of a total would not be a statistic.
    averaged = mean.ratio(sums).floats
    floats = model.floats if averaged is None else averaged
    ints = model.ints if algorithm.private_buffers else ints
    # All that the server keeps: a broken control or momentum would break the model a round later.
    finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(server)]).all()
    happened = (accepted > 0) & finite
    new = Model(server, floats, ints)
    new = jax.tree.map(lambda n, o: jnp.where(happened, n, o), new, model)
    move = jnp.linalg.norm(algorithm.model(new.server) - algorithm.model(model.server))
    return new, Outcome(accepted, move, finite)
