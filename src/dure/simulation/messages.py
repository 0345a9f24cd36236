"""The bytes of a round's messages: the lengths that the wire encoding would give them (law 8 of the design)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dure.algorithms.base import Exchange, exchange
from dure.channel import wire
from dure.oracles.problem import ClientPlan
from dure.simulation.packing import check_proposed, keep, state_size
from dure.simulation.phases import begin, check_update, client_of
from dure.simulation.places import Clients
from dure.simulation.statics import Model, Statics, shapes_of


class Bytes(NamedTuple):
    """Bytes that one client receives (`down`) and sends (`up`) in a round."""

    down: int
    up: int


def _shapes(statics: Statics, model: Model, numbers: Any, columns: Mapping[str, Any]) -> Exchange:
    """The shapes of one client's messages."""

    def alone(model: Model, numbers: Array, columns: Mapping[str, Array], packed: Array, state: Any) -> Any:
        algorithm, shared, _, clients = begin(
            statics, numbers, model.floats, model.ints, columns, packed, state
        )
        plan = jax.tree.map(lambda x: x[0, 0], clients.plan)
        own = None if state is None else state[0, 0, 0]
        kept, oracle = client_of(statics, shared, plan, own, plan.steps, plan.steps)
        found = exchange(algorithm, model.server, kept, oracle)
        check_update(algorithm, "local", algorithm.receive(found.update))
        proposed = keep(algorithm, found.proposed, model.floats, model.ints)
        check_proposed(algorithm, statics.client_state, proposed)
        return found

    one = np.ones((1, 1, 1), np.int32)
    plan = ClientPlan(0 * one, one, 0 * one, one, np.zeros((1, 1, 1, 2), np.uint32), 0 * one)
    turns = np.ones((1, 1), np.int32)
    clients = Clients(plan, np.ones((1, 1, 1), np.float32), turns, turns, np.ones(1, np.int32))
    packed = statics.places.pack(1, 1.0, np.zeros(statics.places.order, np.int32), clients)
    size = state_size(statics.client_state)
    state = jnp.zeros((1, 1, 1, size)) if size else None
    shapes: Exchange = shapes_of(statics, alone, model, numbers, columns, jnp.asarray(packed), state)
    return shapes


def message_bytes(
    statics: Statics, model: Model, numbers: Any, columns: Mapping[str, Any], private_buffers: bool
) -> Bytes:
    """Bytes of one client's messages. The mean of a survey goes down as its own message."""
    received, answer, update, _ = _shapes(statics, model, numbers, columns)
    buffers = {} if private_buffers else {"buffers": model.floats, "counters": model.ints}
    buffers = {name: x for name, x in buffers.items() if x.size}
    survey = 0 if answer is None else wire.size(_named(answer))
    down, up = (_named(tree) | buffers for tree in (received, update))
    return Bytes(*((wire.size(message) if message else 0) + survey for message in (down, up)))


def _named(tree: PyTree) -> dict[str, Any]:
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in flat}
