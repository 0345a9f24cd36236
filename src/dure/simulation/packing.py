"""One client's state as one float32 row, whatever pytree the algorithm keeps it in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dure.errors import ConfigError


def client_state_shape(algorithm: Any, w: Any) -> Any:
    """The structure of one client's state, hashable, or None for a method without.

    Raises:
        ConfigError: the state holds something else than float32 arrays.
    """
    example = jax.eval_shape(algorithm.init_client, w)
    leaves, structure = jax.tree.flatten(example)
    if not leaves:
        return None
    for leaf in leaves:
        if leaf.dtype != jnp.float32:
            raise ConfigError(
                f"{type(algorithm).__name__}.init_client returned {leaf.dtype}; client state is kept as float32."
            )
    return structure, tuple(leaf.shape for leaf in leaves)


def check_proposed(algorithm: Any, shape: Any, proposed: Any) -> None:
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


def unpack(shape: Any, packed: Any) -> Any:
    """The pytree of a packed row (s,); None for a method without client state."""
    if shape is None:
        return None
    structure, shapes = shape
    ends = np.cumsum([int(np.prod(s, dtype=np.int64)) for s in shapes])
    parts = [
        packed[e - int(np.prod(s, dtype=np.int64)) : e].reshape(s) for e, s in zip(ends, shapes, strict=True)
    ]
    return jax.tree.unflatten(structure, parts)


def pack(state: PyTree) -> Array:
    """The row (s,) of a state."""
    return jnp.concatenate([x.reshape(-1) for x in jax.tree.leaves(state)])


def pack_initial(algorithm: Any, w: Any) -> np.ndarray:
    """One client's state before its first round, packed (s,)."""
    return np.asarray(pack(algorithm.init_client(jnp.asarray(w))), np.float32)
