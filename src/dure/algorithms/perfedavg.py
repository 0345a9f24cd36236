"""Per-FedAvg: a global model that is good after one gradient step at the client.

Fallah, Mokhtari, Ozdaglar: Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach, NeurIPS 2020. Every local step uses disjoint minibatches D, D′, D″:

    w̃ = w − a ∇F(w; D),    u = ∇F(w̃; D′)
    w ← w − η u                                                               first order
    w ← w − η (u − a (∇F(w + δu; D″) − ∇F(w − δu; D″)) / (2δ))                Hessian-free

    server:  w ← w + Σ p_k (y_k − w)

A client uses the model after one step of size a with all of its training data. Learning rates are the
method's own; `optimizer` plays no part.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update


@dataclass(frozen=True)
class PerFedAvg(Algorithm):
    """Per-FedAvg. `adaptation_lr` a ≥ 0 (0 is FedAvg), `learning_rate` η > 0, `hessian_free`, `delta` δ > 0."""

    citation: ClassVar[str] = (
        "A. Fallah, A. Mokhtari, A. Ozdaglar. Personalized Federated Learning with Theoretical Guarantees: A "
        "Model-Agnostic Meta-Learning Approach. NeurIPS 2020."
    )
    needs: ClassVar[Needs] = Needs(personal=True)
    learning_rate: float = 0.1
    adaptation_lr: float = 0.01
    hessian_free: bool = False
    delta: float = 1e-3

    def __post_init__(self) -> None:
        check.number(self, "learning_rate", 0, open_low=True)
        check.number(self, "adaptation_lr", 0)
        check.number(self, "delta", 0, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        a, delta = self.adaptation_lr, self.delta

        def step(w: Array, *batches: Any) -> Array:
            adapted = w - a * batches[0].gradient(w)
            u: Array = batches[1].gradient(adapted)
            if self.hessian_free:
                curved = batches[2].gradient(w + delta * u) - batches[2].gradient(w - delta * u)
                u = u - a * curved / (2 * delta)
            return w - self.learning_rate * u

        y = oracle.walk(server.w, step, batches=3 if self.hessian_free else 2)
        return Update(y - server.w), client

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        return Server(server.w + mean.delta)

    def personal(self, server: Server, client: Any, oracle: Oracle) -> Array:  # noqa: D102
        return server.w - self.adaptation_lr * oracle.gradient(server.w)
