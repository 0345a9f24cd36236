"""Push-sum, stochastic gradient push: directed graphs, where no node knows who doesn't hear it.

Kempe, Dobra, Gehrke: Gossip-Based Computation of Aggregate Information, FOCS 2003; Assran, Loizou, Ballas,
Rabbat: Stochastic Gradient Push for Distributed Deep Learning, ICML 2019.

    z_i = x_i / w_i                                    w_i = 1 at the beginning
    x_i ← Σ_j P_ij (x_j − η g_j(z_j))
    w_i ← Σ_j P_ij w_j                                 columns of P sum to 1: mass moves, none is lost

Without the weights w the nodes would end at means in which some of them count more than others.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.decentralized.base import Method, Nodes, mix, tensor


class Mass(NamedTuple):
    """What the nodes hold of the sum, `x` (N, d), and of the weight, `w` (N,)."""

    x: Array
    w: Array


@dataclass(frozen=True)
class PushSum(Method):
    """Stochastic gradient push, with the local steps of `simulate`'s optimizer."""

    citation: ClassVar[str] = (
        "M. Assran, N. Loizou, N. Ballas, M. Rabbat. Stochastic Gradient Push for Distributed Deep Learning. "
        "ICML 2019."
    )
    mixing: ClassVar[str] = "column stochastic"

    def init(self, x: Float[Array, "N d"]) -> Mass:  # noqa: D102
        return Mass(x, jnp.ones_like(x[:, 0]))

    def step(self, state: Mass, mixing: Float[Array, "N N"], nodes: Nodes) -> Mass:  # noqa: D102
        z = self.models(state)
        return Mass(mix(mixing, state.x + (nodes.solve(z) - z)), mix(mixing, state.w))

    def models(self, state: Mass) -> Float[Array, "N d"]:  # noqa: D102
        return state.x / state.w[:, None]

    def message(self, d: int) -> dict[str, Any]:  # noqa: D102
        return {"x": tensor(d), "w": tensor()}
