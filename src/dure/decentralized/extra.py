"""EXTRA: what D-PSGD's nodes disagree about is added up, and the sum cancels the error of its constant step.

Shi, Ling, Wu, Yin: EXTRA: An Exact First-Order Algorithm for Decentralized Consensus Optimization, SIAM J.
Optim. 2015.

    X_1     = W X_0 − η G(X_0)
    X_{t+2} = (I + W) X_{t+1} − ½ (I + W) X_t − η (G(X_{t+1}) − G(X_t))

Added up from the beginning, which is the form computed here:

    X_{t+1} = W X_t − η G(X_t) − D_t,    D_t = ½ Σ_{s<t} (I − W) X_s

The recursion itself adds its rounding errors to the mean, round after round: in float32 it drifts away from the
optimum. D is made of differences that vanish. Exact like gradient tracking, with D-PSGD's messages; W must be
symmetric.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.decentralized.base import Method, Nodes, disagreement


class Corrected(NamedTuple):
    """Models X and corrections D, (N, d) each. Columns of D sum to 0."""

    x: Array
    d: Array


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

    def init(self, x: Float[Array, "N d"]) -> Corrected:  # noqa: D102
        return Corrected(x, jnp.zeros_like(x))

    def step(self, state: Corrected, mixing: Float[Array, "N N"], nodes: Nodes) -> Corrected:  # noqa: D102
        x, d = state
        apart = disagreement(mixing, x)
        return Corrected(x - apart - self.learning_rate * nodes.gradient(x) - d, d + 0.5 * apart)
