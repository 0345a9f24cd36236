"""What a method of distillation is: hyper-parameters, and one round written down line by line.

A method never sees data, nor a single client's predictions: it asks all clients of the round at once, and gets
means. Models are opaque to it: one bundle for each architecture, on the devices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Float

from dure.algorithms import _checks as check

WEIGHTINGS = ("uniform", "examples")


@runtime_checkable
class Clients(Protocol):
    """What a method may ask in a round. `models` are the clients', `prototypes` one for each architecture."""

    def train(self, models: Any, *, newcomers: bool = False) -> Any:
        """The models after each client's local work on its own data; of newcomers only, if so asked."""
        ...

    def mean(self, models: Any, of: Callable[[Array], Array] | None = None) -> Float[Array, "r c"]:
        """The weighted mean of `of(logits (r, C))` over clients of all architectures; `of` None: the logits.

        r are the public inputs of the round. Predictions that are not finite are set aside, and named.
        """
        ...

    def digest(self, models: Any, targets: Float[Array, "r c"]) -> Any:
        """The clients' models after `public_epochs` over the public inputs with the method's `lesson`."""
        ...

    def send(self, prototypes: Any) -> Any:
        """Clients' models that are their architecture's prototype."""
        ...

    def average(self, models: Any, prototypes: Any) -> Any:
        """The prototypes w_a + Σ n_k (w_k − w_a) / Σ n_k, sums over the clients of each architecture."""
        ...

    def teach(self, prototypes: Any, targets: Float[Array, "r c"]) -> Any:
        """`digest` on the server: the prototypes after `public_epochs` over the public inputs."""
        ...


@dataclass(frozen=True)
class Method:
    """Defaults that the methods share.

    Attributes:
        weighting: how clients count in the mean of predictions: "uniform" or "examples" (n_k).
        public_epochs: passes over the round's public inputs in each digest, at least 1.

    Class attributes:
        citation: the paper.
        prototypes: parameters travel, and a model for each architecture is kept on the server; otherwise
            predictions travel, and every client keeps a model of its own.
    """

    citation: ClassVar[str] = ""
    prototypes: ClassVar[bool] = False
    weighting: str = "uniform"
    public_epochs: int = 1

    def __post_init__(self) -> None:
        check.one_of(self, "weighting", WEIGHTINGS)
        check.count(self, "public_epochs")

    def lesson(
        self, outputs: Float[Array | np.ndarray, "B c"], targets: Float[Array | np.ndarray, "B c"]
    ) -> Float[Array, " B"]:
        """What a digest minimises: the loss (B,) of logits (B, C) against the round's targets (B, C)."""
        raise NotImplementedError(f"{type(self).__name__} has no lesson")

    def round(self, models: Any, clients: Clients) -> Any:
        """One round: the clients' models (or the prototypes) after it."""
        raise NotImplementedError(f"{type(self).__name__} has no round")
