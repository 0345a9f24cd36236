"""What one client does in a round, and one pass of a device over all of its clients."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, PyTree

from dure.aggregation import mean
from dure.errors import ConfigError
from dure.oracles.local import JaxOracle
from dure.oracles.problem import ClientPlan, Shared
from dure.simulation.hostile import ATTACKERS, HostileOracle
from dure.simulation.packing import keep, own_part, pack, unpack, whole
from dure.simulation.places import Clients
from dure.simulation.statics import Payload, Phase, Report, Statics, shapes_of, things
from dure.simulation.verdict import TOO_LARGE, judge

#: Below every counter; stands for a client that was not used.
_NO_COUNT = np.iinfo(np.int32).min


def begin(
    statics: Statics,
    numbers: Array,
    floats: Array,
    ints: Array,
    columns: Mapping[str, Array],
    packed: Array,
    state: Any,
) -> tuple[Any, Shared, Array, Clients]:
    """(algorithm, what the clients share, unit, clients) of one device."""
    algorithm, optimizer = things(statics, numbers)
    own = None if state is None else state[0]
    round, unit, order, clients = statics.places.unpack(packed[0], own)
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
    return algorithm, shared, unit, clients


def client_of(
    statics: Statics, shared: Shared, plan: ClientPlan, packed: Any, turns: Array, blocks: Array
) -> tuple[Any, JaxOracle]:
    """(the algorithm's state of the client, its oracle)."""
    kept = unpack(statics.client_state, packed)
    if kept.floats is not None:
        shared = replace(shared, floats=kept.floats, ints=whole(kept.ints))
    oracle = JaxOracle if ATTACKERS not in shared.columns else HostileOracle
    return kept.state, oracle(shared, plan, turns, blocks)


def ask(statics: Statics, algorithm: Any, broadcast: PyTree, shared: Shared) -> Callable[..., Any]:
    """What one client answers in the survey, in the form that `all_clients` wants."""

    def one(plan: ClientPlan, weight: Array, packed: Any, turns: Array, blocks: Array) -> Any:
        state, oracle = client_of(statics, shared, plan, packed, turns, blocks)
        answer = algorithm.survey(algorithm.deliver(broadcast, plan.client), state, oracle)
        check_update(algorithm, "survey", answer)
        seen = oracle.observed
        payload = Payload(answer, None)
        norm, verdict = judge(payload, seen.loss, weight)
        verdict = jnp.where(weight > 0, verdict, 0)
        used = (verdict == 0) & (weight > 0)
        report = Report(verdict, seen.loss, seen.steps, norm)
        return payload, jnp.where(used, weight, 0.0), shared.ints, used.astype(jnp.int32), report, packed

    return one


def work(statics: Statics, algorithm: Any, broadcast: PyTree, shared: Shared) -> Callable[..., Any]:
    """One client's work, in the form that `all_clients` wants."""
    own = None
    if statics.client_state is not None and (algorithm.own or algorithm.private_buffers):
        own = own_part(algorithm, statics.client_state)

    def one(plan: ClientPlan, weight: Array, packed: Any, turns: Array, blocks: Array) -> Any:
        state, oracle = client_of(statics, shared, plan, packed, turns, blocks)
        update, proposed = algorithm.local(algorithm.deliver(broadcast, plan.client), state, oracle)
        update = algorithm.receive(update)
        check_update(algorithm, "local", update)
        seen = oracle.observed
        sends_buffers = statics.layout.buffer_size and not algorithm.private_buffers
        payload = Payload(update, seen.floats if sends_buffers else None)
        norm, verdict = judge(payload, seen.loss, weight)
        if statics.gather:  # the exact sums have a largest term, a rule that sees the rows has none
            verdict = verdict & ~TOO_LARGE
        verdict = jnp.where(weight > 0, verdict, 0)
        used = (verdict == 0) & (weight > 0) & (seen.steps > 0)
        sends_ints = used if not algorithm.private_buffers else jnp.bool_(False)
        ints = jnp.where(sends_ints, seen.ints, _NO_COUNT)
        report = Report(verdict, seen.loss, seen.steps, norm)
        kept = None
        if packed is not None:
            new = pack(keep(algorithm, proposed, seen.floats, seen.ints))
            takes = used
            if own is not None:
                # Nobody checks what doesn't travel: a personal model that broke would stay broken for ever.
                sound = (seen.steps > 0) & jnp.isfinite(jnp.where(own, new, 0.0)).all()
                takes = jnp.where(own, sound, used)
            kept = jnp.where(takes, new, packed)
        return payload, jnp.where(used, weight, 0.0), ints, used.astype(jnp.int32), report, kept

    return one


def all_clients(statics: Statics, shared: Shared, clients: Clients, one: Callable[..., Any]) -> Phase:
    """All chunks of one device through `one`: exact sums of what they send or, with `gather`, all of it."""
    arguments = (clients.plan, clients.weight, clients.state)
    first = jax.tree.map(lambda x: x[0, 0], arguments)
    example = shapes_of(statics, one, *first, clients.turns[0], clients.blocks[0])
    sums: Any = None if statics.gather else mean.start(example[0])
    sent = _room(example[0], clients.weight.shape) if statics.gather else None
    ints = jnp.full_like(shared.ints, _NO_COUNT)
    reports = jax.tree.map(lambda x: jnp.zeros(clients.weight.shape, x.dtype), example[4])
    carry = (jnp.int32(0), Phase(sums, ints, jnp.int32(0), reports, clients.state, sent))

    def chunk(carry: Any) -> Any:
        c, (sums, ints, accepted, reports, states, sent) = carry
        plan, weight, packed = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, c, 0, keepdims=False),
            (clients.plan, clients.weight, states),
        )
        turns, blocks = clients.turns[c], clients.blocks[c]
        if statics.width == 1:
            plan, weight, packed = jax.tree.map(lambda x: x[0], (plan, weight, packed))
            payload, used, own, count, report, kept = one(plan, weight, packed, turns, blocks)
            sums = None if statics.gather else mean.add(sums, payload, used)
            ints = jnp.maximum(ints, own)
            report, kept, payload = jax.tree.map(lambda x: x[None], (report, kept, payload))
        else:
            payload, used, own, count, report, kept = jax.vmap(lambda p, w, s: one(p, w, s, turns, blocks))(
                plan, weight, packed
            )
            sums = None if statics.gather else mean.add_rows(sums, payload, used)
            ints = jnp.maximum(ints, own.max(0))
        reports, states, sent = jax.tree.map(
            lambda whole, part: lax.dynamic_update_index_in_dim(whole, part, c, 0),
            (reports, states, sent),
            (report, kept, payload if statics.gather else None),
        )
        return c + 1, Phase(sums, ints, accepted + count.sum(), reports, states, sent)

    phase: Phase = lax.while_loop(lambda k: k[0] < clients.chunks, chunk, carry)[1]
    return phase


def _room(example: PyTree, places: tuple[int, ...]) -> PyTree:
    """Zeros for what a client in each place sends; `example` has the shapes of one client's."""
    return jax.tree.map(lambda x: jnp.zeros((*places, *x.shape), x.dtype), example)


def check_update(algorithm: Any, where: str, update: PyTree) -> None:
    """What is averaged must be float32.

    Raises:
        ConfigError: it isn't, with the method, the function and the tensor.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(update):
        if leaf.dtype != jnp.float32:
            raise ConfigError(
                f"{type(algorithm).__name__}.{where} returned {leaf.dtype} in update"
                f"{jax.tree_util.keystr(path)}; what is averaged is float32."
            )
