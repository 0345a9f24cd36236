"""FedMD: clients with models of their own say what they think of public inputs, and learn the mean opinion.

Li, Wang: FedMD: Heterogenous Federated Learning via Model Distillation, NeurIPS 2019 workshop, Algorithm 1.

    communicate:  client k sends its logits f_k(x) on the round's public inputs x
    aggregate:    f̄(x) = Σ_k p_k f_k(x)                       logits are averaged; p_k = 1/m, or n_k/n
    digest:       w_k ← E_p epochs on the public inputs of    |f(x) − f̄(x)|, mean over classes ("l1"), or
                                                              T² KL(σ(f̄/T) ‖ σ(f/T)) ("kl")
    revisit:      w_k ← E epochs on the client's own data

A client that comes for the first time trains on its own data before it speaks. (In the paper it trains on the
public set before that: here the public set has no labels.)
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.distillation.base import Clients, Method
from dure.distillation.losses import kl, l1


@dataclass(frozen=True)
class FedMD(Method):
    """FedMD. `loss` of the digest: "l1" or "kl"; `temperature` T > 0 of "kl"; see `Method` for the others."""

    citation: ClassVar[str] = (
        "D. Li, J. Wang. FedMD: Heterogenous Federated Learning via Model Distillation. NeurIPS 2019 Workshop "
        "on Federated Learning for Data Privacy and Confidentiality."
    )
    loss: str = "l1"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(self, "loss", ("l1", "kl"))
        check.number(self, "temperature", 0, open_low=True)

    def lesson(  # noqa: D102
        self, outputs: Float[Array | np.ndarray, "B c"], targets: Float[Array | np.ndarray, "B c"]
    ) -> Float[Array, " B"]:
        return l1(outputs, targets) if self.loss == "l1" else kl(outputs, targets, self.temperature)

    def round(self, models: Any, clients: Clients) -> Any:  # noqa: D102
        models = clients.train(models, newcomers=True)
        consensus = clients.mean(models)
        models = clients.digest(models, consensus)
        return clients.train(models)
