"""CHOCO-SGD: gossip with compressed messages that still finds the mean.

Koloskova, Stich, Jaggi: Decentralized Stochastic Optimization and Gossip Algorithms with Compressed
Communication, ICML 2019.

    y_i  = x_i − η g_i(x_i)                            (local steps; CHOCO-Gossip without)
    q_i  = C(y_i − x̂_i)                                what is sent
    x̂_i ← x̂_i + q_i                                    everyone who holds x̂_i: i and its neighbours
    x_i  = y_i + γ Σ_j W_ij (x̂_j − x̂_i)

What compression left out stays in y − x̂ and is sent later, and as W is symmetric the mean of the models moves
by the local steps alone. Gossip of C(x_i) without the replicas x̂ stops short of the mean.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.decentralized.base import Method, Nodes, disagreement
from dure.decentralized.compressors import Compressor
from dure.errors import ConfigError


class Replicated(NamedTuple):
    """Models and their replicas x̂ at the neighbours, (N, d) each."""

    x: Array
    replica: Array


@dataclass(frozen=True)
class Choco(Method):
    """CHOCO-SGD. A replica is the sum of all that was sent, so no message may be lost.

    Attributes:
        compressor: C, a contraction, such as `TopK(100)`.
        gamma: γ in (0, 1], the consensus step. Small for strong compression: with the largest of 5 entries γ = 1
            diverges and 0.3 converges on a ring of ten.

    Raises:
        ConfigError: γ out of its range, something that isn't a compressor; later, a compressor that isn't a
            contraction for the model's size.
    """

    citation: ClassVar[str] = (
        "A. Koloskova, S. U. Stich, M. Jaggi. Decentralized Stochastic Optimization and Gossip Algorithms with "
        "Compressed Communication. ICML 2019."
    )
    mixing: ClassVar[str] = "symmetric"
    reliable: ClassVar[bool] = True
    compressor: Compressor
    gamma: float = 0.3

    def __post_init__(self) -> None:
        check.number(self, "gamma", 0, 1, open_low=True)
        if not isinstance(self.compressor, Compressor):
            raise ConfigError(
                f"Choco(compressor={self.compressor!r}) is not allowed: give TopK(k), RandomK(k) or an object with "
                "contraction, encode and decode."
            )

    def init(self, x: Float[Array, "N d"]) -> Replicated:  # noqa: D102
        self.compressor.contraction(x.shape[1])  # an error if it is none
        return Replicated(x, jnp.zeros_like(x))

    def step(self, state: Replicated, mixing: Float[Array, "N N"], nodes: Nodes) -> Replicated:  # noqa: D102
        y = nodes.solve(state.x)
        replica = state.replica + jax.vmap(self._sent)(y - state.replica, nodes.keys)
        return Replicated(y - self.gamma * disagreement(mixing, replica), replica)

    def _sent(self, v: Array, key: Array) -> Array:
        """C(v) for one node: what its neighbours decode from the message."""
        return self.compressor.decode(self.compressor.encode(v, key), key, v.shape[0])

    def message(self, d: int) -> dict[str, Any]:  # noqa: D102
        return dict(jax.eval_shape(self.compressor.encode, jnp.zeros(d, jnp.float32), jax.random.key(0)))
