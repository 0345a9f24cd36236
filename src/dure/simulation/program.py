"""One round as one XLA program: local work of all clients, validation, exact sums, the server's step.

Clients are dealt to the devices of a mesh, each device works through its chunks. With width 1 a chunk is one
client (schedule "sequential"); with width V it is V clients under `vmap` ("vectorised"). The sums are exact,
so none of this can be seen in the aggregate.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

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


class Worked(NamedTuple):
    """What all clients together did in a round.

    Attributes:
        sums: exact sums of what they sent, or None with `Statics.gather`.
        survey: the mean answer of a two-phase method, or None.
        ints, accepted, round, unit: see `Model`, `RoundInfo` and `RoundInputs`.
        state: (devices, chunks, width, s), or None.
        report: (devices, chunks, width) each.
        sent: with `Statics.gather` what each of them sent, a `Payload` of (devices, chunks, width, …).
    """

    sums: Any
    survey: Any
    ints: Array
    accepted: Array
    round: Array
    unit: Array
    state: Any
    report: Any
    sent: Any


def work_function(statics: Statics) -> Callable[..., Worked]:
    """`f(model, numbers, columns, packed, state) -> Worked`: the clients' part of a round.

    `numbers` are the hyper-parameters that `hyper.split` took out of (algorithm, optimizer); `packed` is what
    `Places.pack` makes; `state` (devices, chunks, width, s) the packed client state, or None.
    """

    def function(
        model: Model, numbers: Array, columns: Mapping[str, Array], packed: Array, state: Any
    ) -> Worked:
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
            sums, ints, accepted, report, state, sent = worked
            if has_survey(algorithm):
                report = report._replace(verdict=report.verdict | asked.report.verdict)
            sums = None if sums is None else _sum_devices(statics, sums)
            if statics.mesh.size > 1:
                ints, accepted = lax.pmax(ints, AXIS), lax.psum(accepted, AXIS)
            split = jax.tree.map(lambda x: x[None], (state, report, sent))
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
        sums, survey, ints, accepted, (round, unit), (state, report, sent) = on_device(*arguments)
        return Worked(sums, survey, ints, accepted, round, unit, state, report, sent)

    return function


def round_function(statics: Statics) -> Callable[..., Any]:
    """`f(model, numbers, columns, packed, state) -> (model, client state, Report, Outcome)`, see `work_function`."""
    work = work_function(statics)

    def function(
        model: Model, numbers: Array, columns: Mapping[str, Array], packed: Array, state: Any
    ) -> Any:
        worked = work(model, numbers, columns, packed, state)
        algorithm, _ = things(statics, numbers)
        average = _average(statics, worked.sums)
        # Buffers are averaged whatever the estimator is; an estimate of a total would not be a statistic.
        average = average._replace(floats=mean.ratio(worked.sums).floats)
        share = mean.mass(worked.sums) * worked.unit if statics.ratio else worked.unit
        new, outcome = _apply(statics, algorithm, model, average, share, worked)
        return new, worked.state, worked.report, outcome

    return function


def apply_function(statics: Statics) -> Callable[..., Any]:
    """`f(model, numbers, average, share, worked) -> (model, Outcome)`: the server's part, given the aggregate."""

    def function(model: Model, numbers: Array, average: Payload, share: Array, worked: Worked) -> Any:
        algorithm, _ = things(statics, numbers)
        return _apply(statics, algorithm, model, average, share, worked)

    return function


@lru_cache(maxsize=64)
def compiled_round(statics: Statics) -> Any:
    """The jitted round. The old model's memory is given to the new one."""
    return jax.jit(round_function(statics), donate_argnums=(0,), **devices.for_all(statics.mesh))


@lru_cache(maxsize=64)
def measured_round(statics: Statics) -> Any:
    """The jitted round that leaves its arguments alone, to measure schedules with."""
    return jax.jit(round_function(statics), **devices.for_all(statics.mesh))


@lru_cache(maxsize=64)
def compiled_work(statics: Statics) -> Any:
    """The clients' part of a round, jitted."""
    return jax.jit(work_function(statics), **devices.for_all(statics.mesh))


@lru_cache(maxsize=64)
def compiled_apply(statics: Statics) -> Any:
    """The server's part of a round, jitted."""
    return jax.jit(apply_function(statics), **devices.for_all(statics.mesh))


def _sum_devices(statics: Statics, sums: Any) -> Any:
    if statics.mesh.size == 1:
        return sums
    with jax.enable_x64(True):
        whole: mean.Sums = jax.tree.map(lambda x: lax.psum(x, AXIS), sums)
    return whole


def _average(statics: Statics, sums: Any) -> Payload:
    average: Payload = mean.ratio(sums) if statics.ratio else mean.total(sums)
    return average


def _apply(
    statics: Statics, algorithm: Any, model: Model, average: Payload, share: Array, worked: Worked
) -> tuple[Model, Outcome]:
    """The server's step; with nobody accepted, or a step that is not finite, the model stays as it is."""
    accepted, ints = worked.accepted, worked.ints
    info = RoundInfo(
        worked.round, accepted, accepted.astype(jnp.float32) / statics.population, share, worked.survey
    )
    server = algorithm.apply(model.server, average.update, info)
    found: Any = jax.tree.structure(server)
    expected: Any = jax.tree.structure(model.server)
    if found != expected:
        raise ConfigError(
            f"{type(algorithm).__name__}.apply returned {found}, but the server's state is {expected}. "
            "Return the same structure."
        )
    floats = model.floats if average.floats is None else average.floats
    ints = model.ints if algorithm.private_buffers else ints
    # All that the server keeps: a broken control or momentum would break the model a round later.
    finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(server)]).all()
    happened = (accepted > 0) & finite
    new = Model(server, floats, ints)
    new = jax.tree.map(lambda n, o: jnp.where(happened, n, o), new, model)
    move = jnp.linalg.norm(algorithm.model(new.server) - algorithm.model(model.server))
    return new, Outcome(accepted, move, finite)
