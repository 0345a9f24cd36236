"""pFedMe: clients step along the gradient of their Moreau envelope.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. For every local step:

    θ ≈ argmin F_B(θ) + (λ/2) ‖θ − w_k‖²         `inner_steps` gradient steps on one minibatch B, from w_k
    w_k ← w_k − η λ (w_k − θ)

    server:    w ← (1 − β) w + β Σ p_k w_k

The personal model is θ, made from the received w. Learning rates are the method's own; `optimizer` plays no
part.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """pFedMe. `lam` λ > 0, `eta` η > 0, `inner_lr` > 0, `inner_steps` ≥ 1, `beta` β > 0 of the server."""

    citation: ClassVar[str] = (
        "C. T. Dinh, N. H. Tran, T. D. Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020."
    )
    needs: ClassVar[Needs] = Needs(personal=True)
    lam: float = 15.0
    eta: float = 0.005
    inner_lr: float = 0.01
    inner_steps: int = 5
    beta: float = 1.0

    def __post_init__(self) -> None:
        for name in ("lam", "eta", "inner_lr", "beta"):
            check.number(self, name, 0, open_low=True)
        check.count(self, "inner_steps")

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def _near(self, w: Array, theta: Array, batch: Any) -> Array:
        for _ in range(self.inner_steps):
            theta = theta - self.inner_lr * (batch.gradient(theta) + self.lam * (theta - w))
        return theta

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        def step(w: Array, batch: Any) -> Array:
            theta = self._near(w, w, batch)
            return w - self.eta * self.lam * (w - theta)

        return Update(oracle.walk(server.w, step) - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + self.beta * mean.delta)

    def personal(self, server: Server, client: Any, oracle: Oracle) -> Array:  # noqa: D102
        theta: Array = oracle.walk(server.w, lambda theta, batch: self._near(server.w, theta, batch))
        return theta
