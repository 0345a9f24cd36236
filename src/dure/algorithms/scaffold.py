"""SCAFFOLD: control variates take the clients' drift out of the local steps.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning, ICML 2020, Algorithm 1.

    client k:  y_k ≈ argmin F_k(y) + ⟨c − c_k, y⟩               from y = w
               c_k⁺ = ∇F_k(w)                                   option I
               c_k⁺ = c_k − c + (w − y_k) / gain                option II; gain = Σ η_s for SGD
    server:    w ← w + η_g Σ_S p_k (y_k − w) / Σ_S p_k
               c ← c + Σ_S p_k (c_k⁺ − c_k)                     with 1/N each: |S|/N times the mean

All controls start at zero, so c = Σ p_k c_k over all clients after every round.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo


class Controlled(NamedTuple):
    """The model and the server's control, (d,) each."""

    w: Array
    c: Array


class ControlledUpdate(NamedTuple):
    """A client's update and the change of its control, (d,) each."""

    delta: Array
    control: Array


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD. `server_lr` η_g > 0; `option` 1 (a full local gradient) or 2 (from the local steps)."""

    citation: ClassVar[str] = (
        "S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. SCAFFOLD: Stochastic "
        "Controlled Averaging for Federated Learning. ICML 2020."
    )
    needs: ClassVar[Needs] = Needs(uplink=2, downlink=2, gain=True, mean_of_states=True)
    server_lr: float = 1.0
    option: int = 2

    def __post_init__(self) -> None:
        check.number(self, "server_lr", 0, open_low=True)
        check.one_of(self, "option", (1, 2))

    def init(self, w: Float[Array, " d"]) -> Controlled:  # noqa: D102
        return Controlled(w, jnp.zeros_like(w))

    def init_client(self, w: Float[Array, " d"]) -> Array:  # noqa: D102
        return jnp.zeros_like(w)

    def local(self, server: Controlled, c_k: Array, oracle: Oracle) -> tuple[ControlledUpdate, Array]:  # noqa: D102
        y = oracle.solve(server.w, linear=server.c - c_k)
        new = oracle.gradient(server.w) if self.option == 1 else c_k - server.c + (server.w - y.w) / y.gain
        return ControlledUpdate(y.w - server.w, new - c_k), new

    def apply(self, server: Controlled, mean: ControlledUpdate, round: RoundInfo) -> Controlled:  # noqa: D102
        return Controlled(server.w + self.server_lr * mean.delta, server.c + round.share * mean.control)
