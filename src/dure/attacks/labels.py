"""Labels are checked before an attack changes them."""

from typing import Any

import numpy as np

from dure.errors import ConfigError, DataError


def checked_labels(attack: object, targets: np.ndarray, classes: int | None) -> tuple[np.ndarray, int]:
    """(the labels as int64, the number of classes).

    Raises:
        DataError: there are no classes, or a label is not one of 0 … classes − 1, or targets look like
            one-hot rows.
    """
    name = type(attack).__name__
    if targets.ndim > 1 and targets.dtype.kind not in "iub":
        raise DataError(
            f"{name} changes labels, and the targets are {targets.dtype}{list(targets.shape)}: give class numbers "
            "(for one-hot rows: targets.argmax(-1))."
        )
    if classes is None or classes < 1:
        raise DataError(f"{name} changes labels, and the task has none (classes={classes!r}).")
    labels = targets.astype(np.int64) if targets.dtype.kind in "iufb" else None
    if labels is None or not np.array_equal(labels, targets):
        raise DataError(f"{name} changes labels, and the targets ({targets.dtype}) are no whole numbers.")
    if labels.size and not 0 <= labels.min() <= labels.max() < classes:
        wrong = labels[(labels < 0) | (labels >= classes)].flat[0]
        raise DataError(f"{name} found the label {wrong}: with {classes} classes they are 0 … {classes - 1}.")
    return labels, int(classes)


def checked_class(attack: object, name: str, value: Any, classes: int | None = None) -> int:
    """One of the classes.

    Raises:
        ConfigError: it isn't.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < 0 or (classes is not None and value >= classes):
        most = "" if classes is None else f": the task's classes are 0 … {classes - 1}"
        raise ConfigError(f"{type(attack).__name__}({name}={value!r}) is no class{most}.")
    return int(value)


def relabelled(attack: object, targets: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The new labels in the dtype of the old ones.

    Raises:
        DataError: they don't fit in it.
    """
    new = labels.astype(targets.dtype)
    if not np.array_equal(new, labels):
        raise DataError(
            f"{type(attack).__name__} gives the label {labels.max()}, too large for targets of {targets.dtype}: "
            "give them as int32."
        )
    return new
