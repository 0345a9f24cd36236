"""Attacks that need no search: reversed and scaled updates, noise, broken numbers, flipped labels, false sizes."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dure.aggregation.checking import checked_finite
from dure.attacks.around import Around
from dure.attacks.base import Attack, Scene, Sent, sent
from dure.attacks.known import known, mean
from dure.attacks.labels import checked_class, checked_labels, relabelled
from dure.errors import ConfigError
from dure.keys import generator


@dataclass(frozen=True)
class SignFlip(Attack):
    """Minus the mean of the honest updates, or minus the attacker's own update.

    Args:
        of: "mean": −m, as in ByzFL; "own": every attacker negates what its own training gave and knows nothing of
            the others ("bit flip" in Karimireddy, He and Jaggi, ICLR 2022).
    """

    of: Literal["mean", "own"] = "mean"
    citation = (
        "S. P. Karimireddy, L. He, M. Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets. ICLR 2022."
    )

    def __post_init__(self) -> None:
        if self.of not in ("mean", "own"):
            raise ConfigError(f"SignFlip(of={self.of!r}) is not allowed: it must be 'mean' or 'own'.")
        object.__setattr__(self, "knowledge", "own" if self.of == "own" else "updates")

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        return sent(scene, -scene.own if self.of == "own" else -mean(known(scene)))


@dataclass(frozen=True)
class IPM(Attack):
    """Inner-product manipulation ("fall of empires"): −ε times the mean m of the honest updates.

    Args:
        scale: ε. 0.1 stays inside the cloud of honest updates, where distances don't betray it; above h/b, with h
            honest clients and b attackers, the mean of all points the other way.
    """

    scale: float = 0.1
    citation = "C. Xie, O. Koyejo, I. Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD. UAI 2019."
    knowledge = "updates"

    def __post_init__(self) -> None:
        checked_finite(self, "scale", self.scale)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        return sent(scene, -self.scale * mean(known(scene)))


@dataclass(frozen=True)
class Gaussian(Attack):
    """Noise N(mean, std²) in every coordinate, drawn anew by every attacker in every round.

    Args:
        mean: of the noise.
        std: its standard deviation, at least 0.
    """

    mean: float = 0.0
    std: float = 1.0
    citation = "P. Blanchard et al. Machine Learning with Adversaries. NeurIPS 2017."

    def __post_init__(self) -> None:
        checked_finite(self, "mean", self.mean)
        checked_finite(self, "std", self.std, least=0)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        noise = generator(scene.key, "gaussian attack").standard_normal(scene.own.shape)
        return sent(scene, self.mean + self.std * noise)


@dataclass(frozen=True)
class Zero(Attack):
    """An update of zeros: the client took its place in the round and gives nothing."""

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        return sent(scene, np.zeros(scene.own.shape[1]))


@dataclass(frozen=True)
class Huge(Attack):
    """A finite number that overflows when it is squared in float32.

    Args:
        value: of every coordinate. Above 3.4e38 a float32 update holds infinity.
    """

    value: float = 1e38

    def __post_init__(self) -> None:
        checked_finite(self, "value", self.value)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        return sent(scene, np.full(scene.own.shape[1], self.value))


@dataclass(frozen=True)
class NotFinite(Attack):
    """NaN or infinity in every coordinate.

    Args:
        value: "nan", "inf" or "-inf".
    """

    value: Literal["nan", "inf", "-inf"] = "nan"

    def __post_init__(self) -> None:
        if self.value not in ("nan", "inf", "-inf"):
            raise ConfigError(f"NotFinite({self.value!r}) is not allowed: it must be 'nan', 'inf' or '-inf'.")

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        return sent(scene, np.full(scene.own.shape[1], float(self.value)))


@dataclass(frozen=True)
class LabelFlip(Attack):
    """The attackers train on wrong labels: y becomes C − 1 − y, or one class becomes another.

    Args:
        source: the class to relabel; None: all of them, to C − 1 − y.
        target: the label that it gets; given together with `source`.
    """

    source: int | None = None
    target: int | None = None
    citation = "V. Tolpegin et al. Data Poisoning Attacks Against Federated Learning Systems. ESORICS 2020."
    poisons = True

    def __post_init__(self) -> None:
        if (self.source is None) != (self.target is None):
            raise ConfigError(
                f"LabelFlip(source={self.source!r}, target={self.target!r}): give both (one class becomes another) "
                "or none (y becomes C − 1 − y)."
            )

    def poison(  # noqa: D102
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        client_key: int,
        classes: int | None,
        attacker: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        labels, classes = checked_labels(self, targets, classes)
        if self.source is None or self.target is None:
            return inputs.copy(), relabelled(self, targets, classes - 1 - labels)
        source = checked_class(self, "source", self.source, classes)
        target = checked_class(self, "target", self.target, classes)
        return inputs.copy(), relabelled(self, targets, np.where(labels == source, target, labels))


@dataclass(frozen=True)
class DataSizeLie(Around):
    """The attackers claim `factor` times the examples they have, so that a weighted mean listens to them.

    Args:
        factor: positive and finite.
        attack: what they do besides; by default honest work.
    """

    factor: float = 1000.0
    attack: Attack = field(default_factory=Attack)
    within = "attack"

    def __post_init__(self) -> None:
        checked_finite(self, "factor", self.factor, above=0)
        if not isinstance(self.attack, Attack):
            raise ConfigError(
                f"DataSizeLie(attack={self.attack!r}) is no attack: give one, such as SignFlip()."
            )
        for name in ("knowledge", "poisons", "radius"):
            object.__setattr__(self, name, getattr(self.attack, name))

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        return self.attack.updates(scene)

    def weights(self, weights: np.ndarray) -> np.ndarray:  # noqa: D102
        return np.asarray(super().weights(weights) * self.factor)
