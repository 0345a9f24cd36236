"""Backdoors in the data: inputs with a trigger get the attacker's label. What is sent is what training gives.

These attacks need no more than the attackers' own data ("black box"). `dure.attacks.backdoor` adds what an attacker
can do with the model besides.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

import numpy as np

from dure.aggregation.checking import checked_number
from dure.attacks.base import Attack, Triggered
from dure.attacks.images import Rectangle, checked_patches, window, write
from dure.attacks.labels import checked_class, checked_labels, relabelled
from dure.errors import ConfigError, DataError
from dure.keys import generator


class Stamping(Attack):
    """A share of the training rows is stamped with a trigger and gets the label `target`.

    Attributes:
        target: the label that the trigger is to bring about.
        share: of the rows that are poisoned, rounded up to whole rows; in [0, 1].
        source: only rows of this class are poisoned, and count in the test; None: rows of any class.
    """

    target: int
    share: float
    source: int | None
    poisons = True

    def __post_init__(self) -> None:
        checked_class(self, "target", self.target)
        if self.source is not None:
            checked_class(self, "source", self.source)
        checked_number(self, "share", self.share, np.nextafter(0.0, -1.0), 1.0, "in [0, 1]")

    def stamped(self, inputs: np.ndarray, part: int | None) -> np.ndarray:
        """New inputs (n, …) with one part of the trigger, or all of it (None)."""
        raise NotImplementedError

    def poison(  # noqa: D102
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        client_key: int,
        classes: int | None,
        attacker: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        labels, target = self._labels(inputs, targets, classes)
        draw = generator(client_key, "backdoor")
        part = attacker if attacker is not None else int(draw.integers(self.parts()))
        chosen = _drawn(
            draw, np.arange(len(labels)) if self.source is None else labels == self.source, self.share
        )
        new = inputs.copy()
        new[chosen] = self.stamped(inputs[chosen], part % self.parts() if self.parts() > 1 else None)
        labels = labels.copy()
        labels[chosen] = target
        return new, relabelled(self, targets, labels)

    def trigger(self, inputs: np.ndarray, targets: np.ndarray, classes: int | None) -> Triggered:  # noqa: D102
        labels, target = self._labels(inputs, targets, classes)
        counts = labels != target if self.source is None else (labels == self.source) & (labels != target)
        wanted = relabelled(self, targets, np.full_like(labels, target))
        return self.stamped(inputs, None), wanted, counts

    def _labels(self, inputs: np.ndarray, targets: np.ndarray, classes: int | None) -> tuple[np.ndarray, int]:
        labels = _one_label_each(self, inputs, targets, classes)
        if self.source is not None:
            checked_class(self, "source", self.source, classes)
        return labels, checked_class(self, "target", self.target, classes)


def _one_label_each(
    attack: Attack, inputs: np.ndarray, targets: np.ndarray, classes: int | None
) -> np.ndarray:
    if targets.shape != inputs.shape[:1]:
        raise DataError(
            f"{type(attack).__name__} needs one label for each of the {len(inputs)} inputs, and the targets have "
            f"shape {targets.shape}."
        )
    return checked_labels(attack, targets, classes)[0]


def _drawn(draw: np.random.Generator, eligible: np.ndarray, share: float) -> np.ndarray:
    """⌈share · k⌉ of the k eligible rows (positions, or a mask), ascending."""
    rows = np.flatnonzero(eligible) if eligible.dtype == bool else eligible
    return np.sort(draw.permutation(rows)[: ceil(Fraction(str(share)) * len(rows))])


@dataclass(frozen=True)
class PixelTrigger(Stamping):
    """A patch of one colour somewhere in the image (BadNets).

    Args:
        target: the label that the trigger is to bring about.
        size: of the patch, pixels, or (height, width).
        position: (row, column) of its upper left corner; negative ones count from the bottom and the right, so that
            (-3, -3) is the lower right corner for size 3.
        value: of its pixels, one number, or one for each channel.
        share: of the rows that are poisoned, rounded up to whole rows; in [0, 1].
        source: only rows of this class are poisoned, and count in the test; None: rows of any class.
        shape: (H, W) or (H, W, C) of the images where they come as flat rows; None: inputs are (n, H, W) or
            (n, H, W, C).
    """

    target: int
    size: int | tuple[int, int] = 3
    position: tuple[int, int] = (0, 0)
    value: float | tuple[float, ...] = 1.0
    share: float = 0.5
    source: int | None = None
    shape: tuple[int, ...] | None = None
    citation = "T. Gu, B. Dolan-Gavitt, S. Garg. BadNets. arXiv, 2017."

    def __post_init__(self) -> None:
        super().__post_init__()
        checked_patches(self, (self.patch,))

    @property
    def patch(self) -> Rectangle:
        """(row, column, height, width) of the trigger."""
        height, width = self.size if isinstance(self.size, tuple) else (self.size, self.size)
        return (*self.position, height, width)

    def stamped(self, inputs: np.ndarray, part: int | None) -> np.ndarray:  # noqa: D102
        new = inputs.copy(order="C")
        write(self, window(self, new, self.shape, self.patch), np.asarray(self.value, np.float64))
        return new


@dataclass(frozen=True)
class DBA(Stamping):
    """Distributed backdoor: every attacker trains with one part of the trigger; the test shows the whole.

    With several attackers each scales its update on its own in the paper (γ = 100, one attacker a round): see
    `ModelReplacement`.

    Args:
        target: the label that the whole trigger is to bring about.
        patches: the parts, (row, column, height, width) each; attacker i gets part i modulo their number. With
            fewer attackers than parts some part is trained by nobody, and a run warns of it.
        value: of their pixels, one number, or one for each channel.
        share: of the rows that are poisoned, rounded up to whole rows; in [0, 1].
        source: only rows of this class are poisoned, and count in the test; None: rows of any class.
        shape: (H, W) or (H, W, C) of the images where they come as flat rows; None: inputs are (n, H, W) or
            (n, H, W, C).
    """

    target: int
    patches: tuple[Rectangle, ...] = ((0, 0, 1, 4), (0, 6, 1, 4), (3, 0, 1, 4), (3, 6, 1, 4))
    value: float | tuple[float, ...] = 1.0
    share: float = 20 / 64
    source: int | None = None
    shape: tuple[int, ...] | None = None
    citation = "C. Xie, K. Huang, P.-Y. Chen, B. Li. DBA: Distributed Backdoor Attacks. ICLR 2020."

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.patches:
            raise ConfigError(
                "DBA(patches=()) has no trigger: give at least one (row, column, height, width)."
            )
        checked_patches(self, self.patches)

    def parts(self) -> int:  # noqa: D102
        return len(self.patches)

    def stamped(self, inputs: np.ndarray, part: int | None) -> np.ndarray:  # noqa: D102
        new = inputs.copy(order="C")
        for patch in self.patches if part is None else (self.patches[part],):
            write(self, window(self, new, self.shape, patch), np.asarray(self.value, np.float64))
        return new


@dataclass(frozen=True, eq=False)
class AdaptiveTrigger(Stamping):
    """A patch with a pattern that was found for the model (A3FL): see `optimized_trigger`.

    The attackers find it anew in every round; `dataclasses.replace(trigger, pattern=…)` holds the new one.

    Args:
        target: the label that the trigger is to bring about.
        pattern: (height, width) or (height, width, C) values of the patch.
        position: (row, column) of its upper left corner; negative ones count from the bottom and the right.
        share: of the rows that are poisoned, rounded up to whole rows; in [0, 1].
        source: only rows of this class are poisoned, and count in the test; None: rows of any class.
        shape: (H, W) or (H, W, C) of the images where they come as flat rows; None: inputs are (n, H, W) or
            (n, H, W, C).
    """

    target: int
    pattern: np.ndarray
    position: tuple[int, int] = (2, 2)
    share: float = 0.25
    source: int | None = None
    shape: tuple[int, ...] | None = None
    citation = (
        "H. Zhang et al. A3FL: Adversarially Adaptive Backdoor Attacks to Federated Learning. NeurIPS 2023."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        pattern = self.pattern
        if pattern.ndim not in (2, 3) or pattern.dtype.kind != "f" or not np.isfinite(pattern).all():
            raise ConfigError(
                f"AdaptiveTrigger(pattern={pattern.dtype}{list(pattern.shape)}) must be floating-point and finite, of "
                "shape (height, width) or (height, width, channels)."
            )
        checked_patches(self, (self.patch,))

    @property
    def patch(self) -> Rectangle:
        """(row, column, height, width) of the pattern."""
        return (*self.position, *self.pattern.shape[:2])

    def stamped(self, inputs: np.ndarray, part: int | None) -> np.ndarray:  # noqa: D102
        new = inputs.copy(order="C")
        pattern = self.pattern[..., None] if self.pattern.ndim == 2 else self.pattern
        write(self, window(self, new, self.shape, self.patch), pattern)
        return new


@dataclass(frozen=True, eq=False)
class EdgeCase(Attack):
    """Rare inputs with a wrong label: a part of the input space that no honest client corrects.

    A share of the attackers' rows is replaced by such inputs, labelled `target`. `trigger` returns the test inputs
    of this kind instead of the test rows it is given, all of them counted.

    Args:
        inputs: (t, …) the rare inputs to train with, in the form of the task's inputs; t ≥ 1.
        target: the label that they are to get.
        test_inputs: (u, …) others of the kind, to test with; None: the same ones.
        share: of the rows that are replaced, rounded up to whole rows; in [0, 1].
    """

    inputs: np.ndarray
    target: int
    test_inputs: np.ndarray | None = None
    share: float = 0.5
    citation = (
        "H. Wang et al. Attack of the Tails: Yes, You Really Can Backdoor Federated Learning. NeurIPS 2020."
    )
    poisons = True

    def __post_init__(self) -> None:
        checked_class(self, "target", self.target)
        checked_number(self, "share", self.share, np.nextafter(0.0, -1.0), 1.0, "in [0, 1]")
        if not len(self.inputs):
            raise ConfigError("EdgeCase(inputs=…) has no rows: give the rare inputs to train with.")

    def poison(  # noqa: D102
        self,
        inputs: np.ndarray,
        targets: np.ndarray,
        client_key: int,
        classes: int | None,
        attacker: int | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        labels = _one_label_each(self, inputs, targets, classes).copy()
        draw = generator(client_key, "backdoor")
        chosen = _drawn(draw, np.arange(len(labels)), self.share)
        # Every rare input comes once before any comes twice.
        order = np.concatenate(
            [draw.permutation(len(self.inputs)) for _ in range(len(chosen) // len(self.inputs) + 1)]
        )
        new = inputs.copy()
        new[chosen] = self._like(inputs, self.inputs)[order[: len(chosen)]]
        labels[chosen] = checked_class(self, "target", self.target, classes)
        return new, relabelled(self, targets, labels)

    def trigger(self, inputs: np.ndarray, targets: np.ndarray, classes: int | None) -> Triggered:  # noqa: D102
        checked_class(self, "target", self.target, classes)
        tests = self._like(inputs, self.inputs if self.test_inputs is None else self.test_inputs)
        return tests, np.full(len(tests), self.target, targets.dtype), np.ones(len(tests), bool)

    @staticmethod
    def _like(inputs: np.ndarray, rare: np.ndarray) -> np.ndarray:
        new = rare.astype(inputs.dtype)
        if rare.shape[1:] != inputs.shape[1:] or (
            inputs.dtype.kind in "iub" and not np.array_equal(new, rare)
        ):
            raise DataError(
                f"EdgeCase has inputs {rare.dtype}{list(rare.shape[1:])}, and those of the task are "
                f"{inputs.dtype}{list(inputs.shape[1:])}: prepare them in the same way."
            )
        return new
