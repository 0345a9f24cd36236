"""Backdoors with the attacker's hand on the model: scaled, within a norm, projected, in coordinates nobody uses.

They combine: `Backdoor` adds to poisoned data (`PixelTrigger`, `DBA`, `EdgeCase`, `AdaptiveTrigger`, also `LabelFlip`)
a factor, a norm budget, a ball and a mask. The named attacks are `Backdoor` with one of these set; the others can be
set with them.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from dure.aggregation.checking import checked_finite, checked_number
from dure.attacks.around import Around
from dure.attacks.base import Attack, Scene, Sent, sent
from dure.errors import ConfigError, DataError


@dataclass(frozen=True)
class Backdoor(Around):
    """Poisoned data, and what the attacker does with the model that comes of them.

    Args:
        data: how the training data are poisoned.
        scale: what is sent is `scale` times the update; None: 1/(share · b) for b attackers in the round, each of
            them counting for `share` of the mean: where the others stand still the server's mean becomes the mean of
            the attackers' updates. 1 sends what training gave.
        norm: afterwards an update that is longer (2-norm) is shortened to this; None: it isn't.
        radius: the local model is projected to this distance (2-norm) from the round's start while it trains (PGD);
            None: it isn't.
        keep: only this share of the coordinates, rounded up, is trained: those in which the last aggregate is
            smallest (Neurotoxin), all of them in the first round; None: all.
    """

    data: Attack
    scale: float | None = 1.0
    norm: float | None = None
    radius: float | None = None
    keep: float | None = None
    poisons = True
    within = "data"

    def __post_init__(self) -> None:
        if not isinstance(self.data, Attack) or not self.data.poisons or isinstance(self.data, Backdoor):
            raise ConfigError(
                f"{type(self).__name__}(data={self.data!r}) poisons no data: give one that does, such as "
                "PixelTrigger(target=7)."
            )
        if self.scale is not None:
            checked_finite(self, "scale", self.scale)
        for name in ("norm", "radius"):
            if getattr(self, name) is not None:
                checked_finite(self, name, getattr(self, name), above=0)
        if self.keep is not None:
            checked_number(self, "keep", self.keep, 0.0, 1.0, "in (0, 1], or None")

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        scale = self.scale
        if scale is None:
            if not 0 < scene.share <= 1:
                raise DataError(
                    f"share={scene.share!r} is not in (0, 1]: one update can't count for that much."
                )
            scale = 1 / (scene.share * len(scene.own))
        rows = scale * scene.own.astype(np.float64)
        if self.norm is not None:
            # A little less than the budget, so that rounding to float32 stays within it.
            lengths = np.linalg.norm(rows, axis=1, keepdims=True)
            rows *= np.divide(
                self.norm * (1 - 1e-6), lengths, out=np.ones_like(lengths), where=lengths > self.norm
            )
        return sent(scene, rows, scene.state)

    def mask(self, previous: np.ndarray) -> np.ndarray | None:  # noqa: D102
        if self.keep is None:
            return super().mask(previous)
        if not previous.any():
            return np.ones(len(previous), bool)  # nothing was seen yet
        kept = np.zeros(len(previous), bool)
        order = np.argsort(np.abs(previous), kind="stable")  # NaN comes last
        kept[order[: ceil(Fraction(str(self.keep)) * len(previous))]] = True
        return kept


@dataclass(frozen=True)
class ModelReplacement(Backdoor):
    """The update is scaled so that the mean becomes the backdoored model (Bagdasaryan et al.).

    With a norm budget this is their "train and scale": as much as passes a bound on the norm.

    Args:
        data: how the training data are poisoned.
        scale: None: 1/(share · b), see `Backdoor`.
        norm: the budget, a 2-norm; None: no bound.
        radius: see `Backdoor`.
        keep: see `Backdoor`.
    """

    scale: float | None = None
    citation = "E. Bagdasaryan et al. How To Backdoor Federated Learning. AISTATS 2020."


@dataclass(frozen=True)
class PGD(Backdoor):
    """The attackers' models are projected to a ball around the global model while they train (Wang et al.).

    Args:
        data: how the training data are poisoned.
        scale: see `Backdoor`; None for PGD with replacement.
        norm: see `Backdoor`.
        radius: of the ball (2-norm).
        keep: see `Backdoor`.
    """

    radius: float | None = 2.0
    citation = (
        "H. Wang et al. Attack of the Tails: Yes, You Really Can Backdoor Federated Learning. NeurIPS 2020."
    )


@dataclass(frozen=True)
class Neurotoxin(Backdoor):
    """The backdoor is trained into coordinates that the honest clients hardly change, where it lasts (Zhang et al.).

    Args:
        data: how the training data are poisoned.
        scale: see `Backdoor`.
        norm: see `Backdoor`; 0.2 on CIFAR in the paper.
        radius: see `Backdoor`.
        keep: the share of the coordinates that is trained.
    """

    keep: float | None = 0.95
    citation = "Z. Zhang et al. Neurotoxin: Durable Backdoors in Federated Learning. ICML 2022."
