"""FedDF: parameters are averaged within an architecture, then the ensemble of all clients teaches every average.

Lin, Kong, Stich, Jaggi: Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020,
Algorithms 1 and 3.

    client k:  w_k ← E epochs on its own data, from the prototype of its architecture a
    server:    w_a ← Σ_{k in a} n_k w_k / Σ_{k in a} n_k
               f̄(x) = Σ_k p_k f_k(x), over clients of all architectures: logits are averaged; p_k = 1/m, or n_k/n
               w_a ← E_p epochs on the public inputs of T² KL(σ(f̄/T) ‖ σ(f/T)),  T = 1 in the paper

The public inputs stay on the server; parameters travel, as in FedAvg. The paper teaches with Adam(1e-3) and
stops early on a labelled validation set; here the number of epochs is given.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.distillation.base import Clients, Method
from dure.distillation.losses import kl


@dataclass(frozen=True)
class FedDF(Method):
    """FedDF. `temperature` T > 0; see `Method` for the others."""

    citation: ClassVar[str] = (
        "T. Lin, L. Kong, S. U. Stich, M. Jaggi. Ensemble Distillation for Robust Model Fusion in Federated "
        "Learning. NeurIPS 2020."
    )
    prototypes: ClassVar[bool] = True
    temperature: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number(self, "temperature", 0, open_low=True)

    def lesson(  # noqa: D102
        self, outputs: Float[Array | np.ndarray, "B c"], targets: Float[Array | np.ndarray, "B c"]
    ) -> Float[Array, " B"]:
        return kl(outputs, targets, self.temperature)

    def round(self, models: Any, clients: Clients) -> Any:  # noqa: D102
        prototypes = models
        models = clients.train(clients.send(prototypes))
        ensemble = clients.mean(models)
        return clients.teach(clients.average(models, prototypes), ensemble)
