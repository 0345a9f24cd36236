"""One round as one XLA program: local work of all clients, validation, exact sums, the server's step.

Clients are dealt to the devices of a mesh, each device works through its chunks. With width 1 a chunk is one
client (schedule "sequential"); with width V it is V clients under `vmap` ("vectorised"). The sums are exact,
so none of this can be seen in the aggregate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, PyTree

from dure.aggregation import mean
from dure.algorithms.base import RoundInfo
from dure.errors import ConfigError
from dure.oracles.layout import Layout
from dure.oracles.local import ClientPlan, JaxOracle, Shared
from dure.oracles.task import Task
from dure.simulation import hyper
from dure.simulation.packing import check_proposed, pack, state_size, unpack
from dure.simulation.places import Clients, Places
from dure.simulation.verdict import judge

AXIS = "devices"

#: Below every counter; stands for a client that was not used.
_NO_COUNT = np.iinfo(np.int32).min


class Model(NamedTuple):
    """What the server holds: the algorithm's state, float buffers (b,), counters (c,)."""

    server: PyTree
    floats: Array
    ints: Array


class Report(NamedTuple):
    """What is recorded of each client: (devices, chunks, width) each."""

    verdict: Array
    loss: Array
    steps: Array
    norm: Array


class Outcome(NamedTuple):
    """What is recorded of the round: numbers of accepted clients, 2-norm of the model's move."""

    accepted: Array
    move: Array


@dataclass(frozen=True)
class Statics:
    """All that shapes the program; equal statics share one compiled program."""

    algorithm: Any  # hyper.Structure
    optimizer: Any  # hyper.Structure
    task: Task
    layout: Layout
    client_state: Any  # tree structure with shapes, or None
    mesh: Mesh
    width: int
    batch_size: int
    max_steps: int
    block: int
    population: int
    places: Places
    ratio: bool
    cpu: bool
    eager: bool


class Payload(NamedTuple):
    """What is averaged: the algorithm's update and the float buffers."""

    update: PyTree
    floats: Array | None


def round_function(statics: Statics) -> Callable[..., Any]:
    """`f(model, numbers, columns, packed, state) -> (model, client state, Report, Outcome)`.

    `numbers` are the hyper-parameters that `hyper.split` took out of (algorithm, optimizer); `packed` is what
    `Places.pack` makes; `state` (devices, chunks, width, s) the packed client state, or None.
    """

    def function(
        model: Model, numbers: Array, columns: Mapping[str, Array], packed: Array, state: Any
    ) -> Any:
        algorithm, _ = _things(statics, numbers)
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
            algorithm, optimizer = _things(statics, numbers)
            own = None if state is None else state[0]
            round, order, clients = statics.places.unpack(packed[0], own)
            shared = Shared(
                statics.task,
                statics.layout,
                optimizer,
                columns,
                order,
                floats,
                ints,
                round,
                statics.batch_size,
                statics.max_steps,
                statics.block,
                statics.width > 1,
                statics.cpu,
            )
            sums, ints, accepted, state, report = _work(statics, algorithm, broadcast, shared, clients)
            if statics.mesh.size > 1:
                with jax.enable_x64(True):
                    sums = jax.tree.map(lambda x: lax.psum(x, AXIS), sums)
                ints, accepted = lax.pmax(ints, AXIS), lax.psum(accepted, AXIS)
            return sums, ints, accepted, round, jax.tree.map(lambda x: x[None], (state, report))

        arguments = (numbers, broadcast, model.floats, model.ints, columns, packed, state)
        if statics.mesh.size > 1:
            whole, split = PartitionSpec(), PartitionSpec(AXIS)
            on_device = jax.shard_map(
                on_device,
                mesh=statics.mesh,
                in_specs=(whole,) * 5 + (split, split),
                out_specs=(whole, whole, whole, whole, split),
                check_vma=False,
            )
        sums, ints, accepted, round, (state, report) = on_device(*arguments)
        new, outcome = _apply(statics, algorithm, model, sums, ints, accepted, round)
        return new, state, report, outcome

    return function


@lru_cache(maxsize=64)
def compiled_round(statics: Statics) -> Any:
    """The jitted round. The old model's memory is given to the new one."""
    return jax.jit(round_function(statics), donate_argnums=(0,))


@lru_cache(maxsize=64)
def measured_round(statics: Statics) -> Any:
    """The jitted round that leaves its arguments alone, to measure schedules with."""
    return jax.jit(round_function(statics))


def _things(statics: Statics, numbers: Array) -> tuple[Any, Any]:
    values = iter([numbers[i] for i in range(numbers.shape[0])])
    return hyper.join(statics.algorithm, values), hyper.join(statics.optimizer, values)


def _work(statics: Statics, algorithm: Any, broadcast: PyTree, shared: Shared, clients: Clients) -> Any:
    """All chunks of one device."""

    def one(plan: ClientPlan, weight: Array, packed: Any, turns: Array, blocks: Array) -> Any:
        oracle = JaxOracle(shared, plan, turns, blocks)
        state = unpack(statics.client_state, packed)
        update, proposed = algorithm.local(broadcast, state, oracle)
        _check_update(algorithm, update)
        seen = oracle.observed
        payload = Payload(update, seen.floats if statics.layout.buffer_size else None)
        norm, verdict = judge(payload, seen.loss, weight)
        verdict = jnp.where(weight > 0, verdict, 0)
        used = (verdict == 0) & (weight > 0) & (seen.steps > 0)
        ints = jnp.where(used, seen.ints, _NO_COUNT)
        report = Report(verdict, seen.loss, seen.steps, norm)
        kept = None if packed is None else jnp.where(used, pack(proposed), packed)
        return payload, jnp.where(used, weight, 0.0), ints, used.astype(jnp.int32), report, kept

    arguments = (clients.plan, clients.weight, clients.state)
    first = jax.tree.map(lambda x: x[0, 0], arguments)
    example = _shapes(statics, one, *first, clients.turns[0], clients.blocks[0])
    sums = mean.start(example[0])
    ints = jnp.full_like(shared.ints, _NO_COUNT)
    reports = jax.tree.map(lambda x: jnp.zeros(clients.weight.shape, x.dtype), example[4])
    carry = (jnp.int32(0), sums, ints, jnp.int32(0), reports, clients.state)

    def chunk(carry: Any) -> Any:
        c, sums, ints, accepted, reports, states = carry
        plan, weight, packed = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, c, 0, keepdims=False),
            (clients.plan, clients.weight, states),
        )
        turns, blocks = clients.turns[c], clients.blocks[c]
        if statics.width == 1:
            plan, weight, packed = jax.tree.map(lambda x: x[0], (plan, weight, packed))
            payload, used, own, count, report, kept = one(plan, weight, packed, turns, blocks)
            sums = mean.add(sums, payload, used)
            ints = jnp.maximum(ints, own)
            report, kept = jax.tree.map(lambda x: x[None], (report, kept))
        else:
            payload, used, own, count, report, kept = jax.vmap(lambda p, w, s: one(p, w, s, turns, blocks))(
                plan, weight, packed
            )
            sums = mean.add_rows(sums, payload, used)
            ints = jnp.maximum(ints, own.max(0))
        reports, states = jax.tree.map(
            lambda whole, part: lax.dynamic_update_index_in_dim(whole, part, c, 0),
            (reports, states),
            (report, kept),
        )
        return c + 1, sums, ints, accepted + count.sum(), reports, states

    _, sums, ints, accepted, reports, states = lax.while_loop(lambda k: k[0] < clients.chunks, chunk, carry)
    return sums, ints, accepted, states, reports


def _apply(
    statics: Statics,
    algorithm: Any,
    model: Model,
    sums: mean.Sums,
    ints: Array,
    accepted: Array,
    round: Array,
) -> tuple[Model, Outcome]:
    """The server's step; with nobody accepted the model stays as it is."""
    average = mean.ratio(sums) if statics.ratio else mean.total(sums)
    info = RoundInfo(round, accepted, accepted.astype(jnp.float32) / statics.population)
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
    happened = accepted > 0
    new = Model(server, floats, ints)
    new = jax.tree.map(lambda n, o: jnp.where(happened, n, o), new, model)
    move = jnp.linalg.norm(new.server.w - model.server.w)
    return new, Outcome(accepted, move)


def _check_update(algorithm: Any, update: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(update):
        if leaf.dtype != jnp.float32:
            raise ConfigError(
                f"{type(algorithm).__name__}.local returned {leaf.dtype} in update"
                f"{jax.tree_util.keystr(path)}; updates are float32."
            )


def update_shape(statics: Statics, model: Model, numbers: Any, columns: Mapping[str, Any]) -> PyTree:
    """The shapes of what one client sends."""

    def send(
        model: Model, numbers: Array, columns: Mapping[str, Array], order: Array, plan: ClientPlan
    ) -> Any:
        algorithm, optimizer = _things(statics, numbers)
        shared = Shared(
            statics.task,
            statics.layout,
            optimizer,
            columns,
            order,
            model.floats,
            model.ints,
            jnp.int32(1),
            statics.batch_size,
            statics.max_steps,
            statics.block,
            False,
            False,
        )
        oracle = JaxOracle(shared, plan, plan.steps, plan.steps)
        state = unpack(statics.client_state, jnp.zeros(state_size(statics.client_state)))
        update, proposed = algorithm.local(algorithm.broadcast(model.server), state, oracle)
        _check_update(algorithm, update)
        check_proposed(algorithm, statics.client_state, proposed)
        return update

    zero, one = jnp.int32(0), jnp.int32(1)
    plan = ClientPlan(zero, one, zero, one, jnp.zeros(2, jnp.uint32))
    order = jnp.zeros(max(statics.batch_size, 1), jnp.int32)
    return _shapes(statics, send, model, numbers, columns, order, plan)


def _shapes(statics: Statics, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function would return, in shapes. Eager mode computes it: there, code may ask for values."""
    if not statics.eager:
        return jax.eval_shape(function, *arguments)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), function(*arguments))
