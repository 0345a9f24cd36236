"""Gradient tracking: every node follows the mean gradient of all, and a constant step reaches the optimum.

Nedić, Olshevsky, Shi: Achieving Geometric Convergence for Distributed Optimization over Time-Varying Graphs
(DIGing), SIAM J. Optim. 2017; also Xu, Zhu, Soh, Xie 2015; Di Lorenzo, Scutari 2016.

    Y_0 = G(X_0)
    X_{t+1} = W X_t − η Y_t
    Y_{t+1} = W Y_t + G(X_{t+1}) − G(X_t)

Columns of W sum to 1, so 1ᵀ Y_t = 1ᵀ G(X_t) in every round, also when W changes. A tracker that begins at
Y_0 = 0 keeps the wrong sum for ever and never leaves the start's mean gradient.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.decentralized.base import Method, Nodes, mix, tensor


class Tracked(NamedTuple):
    """Models, trackers and the gradients that the trackers know of, (N, d) each."""

    x: Array
    y: Array
    g: Array


@dataclass(frozen=True)
class GradientTracking(Method):
    """Gradient tracking (DIGing). `learning_rate` η > 0; the optimizer of `simulate` plays no part.

    A node sends its model and its tracker: twice D-PSGD's bytes.
    """

    citation: ClassVar[str] = (
        "A. Nedić, A. Olshevsky, W. Shi. Achieving Geometric Convergence for Distributed Optimization over "
        "Time-Varying Graphs. SIAM Journal on Optimization 27(4), 2017."
    )
    learning_rate: float = 0.05

    def __post_init__(self) -> None:
        check.number(self, "learning_rate", 0, open_low=True)

    def init(self, x: Float[Array, "N d"]) -> Tracked:  # noqa: D102
        return Tracked(x, jnp.zeros_like(x), jnp.zeros_like(x))

    def step(self, state: Tracked, mixing: Float[Array, "N N"], nodes: Nodes) -> Tracked:  # noqa: D102
        # A round begins with the gradient at its start: from Y = G = 0 the first one makes Y_0 = G(X_0).
        x, y, before = state
        g = nodes.gradient(x)
        y = mix(mixing, y) + g - before
        return Tracked(mix(mixing, x) - self.learning_rate * y, y, g)

    def message(self, d: int) -> dict[str, Any]:  # noqa: D102
        return {"x": tensor(d), "y": tensor(d)}
