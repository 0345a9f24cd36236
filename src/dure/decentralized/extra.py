"""EXTRA: two mixing matrices one behind the other cancel what D-PSGD's constant step leaves.

Shi, Ling, Wu, Yin: EXTRA: An Exact First-Order Algorithm for Decentralized Consensus Optimization, SIAM J.
Optim. 2015.

    X_1     = W X_0 − η G(X_0)
    X_{t+2} = (I + W) X_{t+1} − ½ (I + W) X_t − η (G(X_{t+1}) − G(X_t))

Exact like gradient tracking, with D-PSGD's messages: W X_t was heard a round ago. W must be symmetric.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.decentralized.base import Method, Nodes, mix


class Remembered(NamedTuple):
    """Models X, ½ (I + W) X of the round before, and its gradients, (N, d) each."""

    x: Array
    half: Array
    g: Array


@dataclass(frozen=True)
class Extra(Method):
    """EXTRA. `learning_rate` η > 0; the optimizer of `simulate` plays no part."""

    citation: ClassVar[str] = (
        "W. Shi, Q. Ling, G. Wu, W. Yin. EXTRA: An Exact First-Order Algorithm for Decentralized Consensus "
        "Optimization. SIAM Journal on Optimization 25(2), 2015."
    )
    mixing: ClassVar[str] = "symmetric"
    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        check.number(self, "learning_rate", 0, open_low=True)

    def init(self, x: Float[Array, "N d"]) -> Remembered:  # noqa: D102
        return Remembered(x, x, jnp.zeros_like(x))  # half = X_0 and g = 0 make the first step X_1

    def step(self, state: Remembered, mixing: Float[Array, "N N"], nodes: Nodes) -> Remembered:  # noqa: D102
        x, half, before = state
        g, mixed = nodes.gradient(x), mix(mixing, x)
        new = x + mixed - half - self.learning_rate * (g - before)
        return Remembered(new, 0.5 * (x + mixed), g)
