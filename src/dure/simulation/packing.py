"""One client's state as one float32 row, whatever pytree the algorithm keeps it in."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dure.algorithms.base import Algorithm
from dure.errors import ConfigError


class Kept(NamedTuple):
    """What is kept for a client between rounds: the algorithm's state and, where they are private, buffers."""

    state: Any
    floats: Any


def kept_at_first(algorithm: Algorithm, w: Any, floats: Any) -> Kept:
    """What a client has before its first round. `w`: its private parameters, all where none are private."""
    return Kept(algorithm.init_client(w), floats if algorithm.private_buffers else None)


def client_state_shape(algorithm: Algorithm, w: Any, floats: Any) -> Any:
    """The structure of what is kept for one client, hashable, or None for a method without.

    Raises:
        ConfigError: the state holds something else than float32 arrays.
    """
    example = jax.eval_shape(lambda *given: kept_at_first(algorithm, *given), w, floats)
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
        own = names[0] == "floats" or "*" in algorithm.own or any(n in algorithm.own for n in names[1:2])
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
        return Kept(None, None)
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


def pack_initial(algorithm: Algorithm, w: Any, floats: Any) -> np.ndarray:
    """What is kept for a client before its first round, packed (s,)."""
    return np.asarray(pack(kept_at_first(algorithm, jnp.asarray(w), jnp.asarray(floats))), np.float32)
