"""An attack that is put around another one: what it doesn't change itself is the other's."""

from dataclasses import replace
from typing import ClassVar

import numpy as np

from dure.attacks.base import Attack, Triggered, View


class Around(Attack):
    """Hands on to the attack within.

    Class attribute:
        within: the name of the field that holds the other attack.
    """

    within: ClassVar[str]

    @property
    def inner(self) -> Attack:
        """The attack within."""
        found: Attack = getattr(self, self.within)
        return found

    @property
    def adapts(self) -> bool:
        """Whether the attack within looks at the global model before a round."""
        return self.inner.adapts

    def adapt(self, view: View) -> "Around":
        """This attack around the one that the other becomes."""
        return replace(self, **{self.within: self.inner.adapt(view)})  # type: ignore[type-var]

    def snapshot(self) -> dict[str, np.ndarray]:
        """The other's."""
        return self.inner.snapshot()

    def restored(self, snapshot: dict[str, np.ndarray]) -> "Around":
        """This attack around the other with what `snapshot` gave."""
        return replace(self, **{self.within: self.inner.restored(snapshot)})  # type: ignore[type-var]

    def poison(
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        client_key: int,
        classes: int | None,
        attacker: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The other's."""
        return self.inner.poison(inputs, targets, client_key, classes, attacker)

    def parts(self) -> int:
        """The other's."""
        return self.inner.parts()

    def trigger(self, inputs: np.ndarray, targets: np.ndarray, classes: int | None) -> Triggered | None:
        """The other's."""
        return self.inner.trigger(inputs, targets, classes)

    def weights(self, weights: np.ndarray) -> np.ndarray:
        """The other's."""
        return self.inner.weights(weights)

    def mask(self, previous: np.ndarray) -> np.ndarray | None:
        """The other's."""
        return self.inner.mask(previous)
