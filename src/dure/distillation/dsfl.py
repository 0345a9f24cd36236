"""DS-FL: probabilities on public inputs are averaged and sharpened, and every client learns them.

Itahara, Nishio, Koda, Morikura, Yamamoto: Distillation-Based Semi-Supervised Federated Learning for
Communication-Efficient Collaborative Training with Non-IID Private Data, IEEE TMC 2021, Algorithm 1.

    update:      w_k ← E epochs on the client's own data
    predict:     client k sends the probabilities σ(f_k(x)) on the round's public inputs x
    aggregate:   p̄(x) = Σ_k p_k σ(f_k(x))                    probabilities are averaged; p_k = 1/m, or n_k/n
                 t = σ(p̄/T)                                  entropy reduction (ERA), T = 0.1
    distil:      w_k ← E_p epochs on the public inputs of    KL(t ‖ σ(f))   (no temperature, no T² here)

When clients hold few labels each, p̄ is nearly flat, whatever each of them is sure of: hence the sharpening.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.distillation.base import Clients, Method
from dure.distillation.losses import kl_to_probabilities, sharpened


@dataclass(frozen=True)
class DSFL(Method):
    """DS-FL. `reduction` with `temperature` T > 0: "softmax" (ERA), "power" or None, see `losses.sharpened`."""

    citation: ClassVar[str] = (
        "S. Itahara, T. Nishio, Y. Koda, M. Morikura, K. Yamamoto. Distillation-Based Semi-Supervised Federated "
        "Learning for Communication-Efficient Collaborative Training with Non-IID Private Data. IEEE "
        "Transactions on Mobile Computing 2021."
    )
    temperature: float = 0.1
    reduction: str | None = "softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.number(self, "temperature", 0, open_low=True)
        check.one_of(self, "reduction", ("softmax", "power", None))

    def lesson(  # noqa: D102
        self, outputs: Float[Array | np.ndarray, "B c"], targets: Float[Array | np.ndarray, "B c"]
    ) -> Float[Array, " B"]:
        return kl_to_probabilities(outputs, targets)

    def round(self, models: Any, clients: Clients) -> Any:  # noqa: D102
        models = clients.train(models)
        average = clients.mean(models, of=jax.nn.softmax)
        return clients.digest(models, sharpened(average, self.temperature, self.reduction))
