"""APFL: each client uses a mixture of its own model and the global one.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020. With v̄ = α_k v_k + (1 − α_k) w, every
local step on one minibatch B:

    w   ← w − η ∇F_B(w)
    v_k ← v_k − η α_k ∇F_B(v̄)
    α_k ← clip(α_k − η_α ⟨v_k − w, ∇F_B(v̄)⟩, 0, 1)

    server:  w ← w + Σ p_k (y_k − w)                   y_k: the client's last w

Models are mixed, not outputs, and v_k is never overwritten by v̄. All three steps use the old values. The
personal model is v̄ with the received w. Learning rates are the method's own; `optimizer` plays no part.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


class Mixed(NamedTuple):
    """The client's own model (d,) and its share α in the mixture."""

    v: Array
    alpha: Array


class _Walk(NamedTuple):
    w: Array
    own: Mixed


@dataclass(frozen=True)
class APFL(Algorithm):
    """APFL. `learning_rate` η > 0, `alpha` α in [0, 1] at first, `alpha_lr` η_α ≥ 0 (0: α is fixed)."""

    citation: ClassVar[str] = (
        "Y. Deng, M. M. Kamani, M. Mahdavi. Adaptive Personalized Federated Learning. arXiv:2003.13461, 2020."
    )
    needs: ClassVar[Needs] = Needs(personal=True)
    own: ClassVar[tuple[str, ...]] = ("*",)
    learning_rate: float = 0.1
    alpha: float = 0.5
    alpha_lr: float = 0.0

    def __post_init__(self) -> None:
        check.number(self, "learning_rate", 0, open_low=True)
        check.number(self, "alpha", 0, 1)
        check.number(self, "alpha_lr", 0)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def init_client(self, w: Float[Array, " d"]) -> Mixed:  # noqa: D102
        return Mixed(w, jnp.full((), self.alpha, w.dtype))

    def local(self, server: Server, own: Mixed, oracle: Oracle) -> tuple[Update, Mixed]:  # noqa: D102
        def step(state: _Walk, batch: Any) -> _Walk:
            w, (v, alpha) = state
            g_w, g_mixed = batch.gradient(w), batch.gradient(alpha * v + (1 - alpha) * w)
            new_alpha = jnp.clip(alpha - self.alpha_lr * jnp.vdot(v - w, g_mixed), 0, 1)
            new_v = v - self.learning_rate * alpha * g_mixed
            return _Walk(w - self.learning_rate * g_w, Mixed(new_v, new_alpha))

        end = oracle.walk(_Walk(server.w, own), step)
        return Update(end.w - server.w), end.own

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)

    def personal(self, server: Server, own: Mixed, oracle: Oracle) -> Array:  # noqa: D102
        return own.alpha * own.v + (1 - own.alpha) * server.w
