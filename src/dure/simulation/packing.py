"""One client's state as one float32 row, whatever pytree the algorithm keeps it in."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dure.algorithms.base import Algorithm
from dure.errors import ConfigError


class Kept(NamedTuple):
    """What is kept for a client between rounds: the algorithm's state and, where they are private, buffers.

    `ints` are the counters as float32 (2, c), see `halves`; where nothing is private, `floats` and `ints` are None.
    """

    state: Any
    floats: Any = None
    ints: Any = None


def keep(algorithm: Algorithm, state: Any, floats: Any, ints: Any) -> Kept:
    """What is kept of a client's state, float buffers (b,) and counters (c,)."""
    return Kept(state, floats, halves(ints)) if algorithm.private_buffers else Kept(state)


def halves(ints: Any) -> Array:
    """int32 (c,) as two float32 numbers each (2, c): exact, and never a NaN as their bits would be."""
    return jnp.stack([ints >> 16, ints & 0xFFFF]).astype(jnp.float32)


def whole(halves: Array) -> Array:
    """The int32 numbers (c,) behind `halves`."""
    high, low = halves.astype(jnp.int32)
    return jnp.asarray((high << 16) | low)


def client_state_shape(algorithm: Algorithm, w: Any, floats: Any, ints: Any) -> Any:
    """The structure of what is kept for one client, hashable, or None for a method without.

    `w`: a client's private parameters at first, all where none are private.

    Raises:
        ConfigError: the state holds something else than float32 arrays.
    """
    example = jax.eval_shape(
        lambda w, *given: keep(algorithm, algorithm.init_client(w), *given), w, floats, ints
    )
    leaves, structure = jax.tree.flatten(example)
    if not leaves:
        return None
    for leaf in leaves:
        if leaf.dtype != jnp.float32:
            raise ConfigError(
                f"{type(algorithm).__name__}.init_client returned {leaf.dtype}; client state is kept as float32."
            )
    return structure, tuple(leaf.shape for leaf in leaves)


def own_part(algorithm: Algorithm, shape: Any) -> np.ndarray:
    """(s,) bool: which numbers of the packed row are the client's own business (`Algorithm.own`)."""
    structure, shapes = shape
    tree = jax.tree.unflatten(structure, shapes_as_leaves(shapes))
    marks = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, _Size)):
        names = [getattr(part, "name", None) for part in path]
        own = names[0] != "state" or "*" in algorithm.own or any(n in algorithm.own for n in names[1:2])
        marks.append(np.full(leaf.number, own))
    return np.concatenate(marks)


class _Size(NamedTuple):
    number: int


def shapes_as_leaves(shapes: Any) -> list[_Size]:
    """Numbers of elements, in the places of arrays."""
    return [_Size(int(np.prod(s, dtype=np.int64))) for s in shapes]


def check_proposed(algorithm: Any, shape: Any, proposed: Kept) -> None:
    """A proposed state must have the structure of the initial one.

    Raises:
        ConfigError: it has another.
    """
    leaves, structure = jax.tree.flatten(proposed)
    found = (structure, tuple(leaf.shape for leaf in leaves)) if leaves else None
    if found != shape:
        raise ConfigError(
            f"{type(algorithm).__name__}.local proposed a client state of structure {found}, but init_client "
            f"made {shape}. Return the same structure and shapes."
        )


def state_size(shape: Any) -> int:
    """Numbers in one client's packed state."""
    return 0 if shape is None else sum(int(np.prod(s, dtype=np.int64)) for s in shape[1])


def unpack(shape: Any, packed: Any) -> Kept:
    """What a packed row (s,) holds; nothing for a method without client state."""
    if shape is None:
        return Kept(None)
    structure, shapes = shape
    ends = np.cumsum([int(np.prod(s, dtype=np.int64)) for s in shapes])
    parts = [
        packed[e - int(np.prod(s, dtype=np.int64)) : e].reshape(s) for e, s in zip(ends, shapes, strict=True)
    ]
    kept: Kept = jax.tree.unflatten(structure, parts)
    return kept


def pack(state: PyTree) -> Array:
    """The row (s,) of a state."""
    return jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(state)])


def pack_initial(algorithm: Algorithm, w: Any, floats: Any, ints: Any) -> np.ndarray:
    """What is kept for a client before its first round, packed (s,)."""
    w, floats, ints = map(jnp.asarray, (w, floats, ints))
    return np.asarray(pack(keep(algorithm, algorithm.init_client(w), floats, ints)), np.float32)
