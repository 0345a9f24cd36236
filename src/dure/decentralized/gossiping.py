"""Gossip averaging: a method's exchange without learning, to find the mean of what the nodes hold."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from dure import keys
from dure.decentralized.base import Method
from dure.decentralized.dpsgd import DPSGD
from dure.decentralized.graph import graph_of
from dure.decentralized.mixing import mixing_for
from dure.errors import ConfigError


class Still:
    """Nodes that have nothing to learn: local work leads nowhere and gradients are 0. `keys`: (N,)."""

    def __init__(self, keys: Any):
        self.keys = keys

    def solve(self, start: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """Where it started."""
        return start

    def gradient(self, x: Float[Array, "N d"]) -> Float[Array, "N d"]:
        """0."""
        return jnp.zeros_like(x)


def gossip(
    values: Any,
    graph: Any,
    *,
    rounds: int,
    method: Method | None = None,
    mixing: Any = None,
    seed: int = 0,
) -> Float[Array, "N d"]:
    """What the nodes hold after some rounds of exchange: with time, everywhere the mean of all rows.

    Args:
        values: (N, d), what each node holds. float32, or float64 in JAX's 64-bit mode.
        graph: see `graph_of`.
        rounds: number of exchanges, at least 1.
        method: how: `DPSGD()` (None) is X ← W X; `PushSum()` for directed graphs; `Choco(…)` compresses.
        mixing: as in `simulate`.
        seed: of random compressors.

    Returns:
        (N, d).

    Raises:
        ConfigError: values that aren't one row of finite numbers for each node, or as `simulate`.
    """
    graph, method = graph_of(graph), method or DPSGD()
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise ConfigError(f"rounds={rounds!r} is not allowed: it must be an integer of at least 1.")
    x = jnp.asarray(values)
    if x.ndim != 2 or len(x) != graph.nodes or not jnp.issubdtype(x.dtype, jnp.floating):
        raise ConfigError(
            f"values are {x.dtype} of shape {x.shape}; {graph.name} needs floats, one row for each of its "
            f"{graph.nodes} nodes."
        )
    wrong = np.flatnonzero(~np.isfinite(np.asarray(x)).all(1))
    if len(wrong):
        raise ConfigError(
            f"values[{wrong[0]}] is not finite, and would soon be everywhere. Leave that node out."
        )
    weights = jnp.asarray(mixing_for(graph, method.mixing, mixing), x.dtype)
    key = keys.jax_key(seed, "gossip")

    def turn(t: Any, state: Any) -> Any:
        node_keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.fold_in(key, t), i))(jnp.arange(len(x)))
        return method.step(state, weights, Still(node_keys))

    return method.models(lax.fori_loop(0, rounds, turn, method.init(x)))
