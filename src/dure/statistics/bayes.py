"""Gaussian naive Bayes from one round of sums."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError, DataError
from dure.statistics.asking import Message, Result, Survey, every_class, matrix_column, rows_of, target_column
from dure.statistics.moments import merge_squares, squares_of


@dataclass(frozen=True, repr=False)
class NaiveBayes(Result):
    """One normal distribution for every class and feature.

    Attributes:
        counts: (C,) rows of each class 0 … C − 1.
        means: (C, F).
        variances: (C, F), with the smoothing.
        smoothing: what was added to every variance.
    """

    counts: np.ndarray
    means: np.ndarray
    variances: np.ndarray
    smoothing: float

    def log_probabilities(self, x: np.ndarray) -> np.ndarray:
        """(B, C) log of the probabilities of the classes for rows (B, F).

        Raises:
            ConfigError: rows of another shape.
            DataError: rows with NaN or infinity.
        """
        x = rows_of(x, self.means.shape[1])
        joint = np.log(self.counts / self.counts.sum()) - 0.5 * np.log(2 * np.pi * self.variances).sum(1)
        joint = joint - 0.5 * (np.square(x[:, None] - self.means) / self.variances).sum(2)
        largest = joint.max(1, keepdims=True)
        return np.asarray(joint - largest - np.log(np.exp(joint - largest).sum(1, keepdims=True)))

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(B,) labels for rows (B, F); raises as `log_probabilities`."""
        return np.asarray(self.log_probabilities(x).argmax(1))


def gaussian_naive_bayes(
    data: Any,
    *,
    features: str = "x",
    target: str = "y",
    smoothing: float = 1e-9,
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> NaiveBayes:
    """A Gaussian naive Bayes classifier of all clients' rows, in one round.

    Args:
        data: the federated data set; its training rows are asked about.
        features: column (n, F).
        target: column of labels 0 … C − 1 (n,).
        smoothing: this share of the largest feature's variance is added to all variances, as in scikit-learn.
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows (of whatever class).

    Raises:
        ConfigError: negative smoothing.
        DataError: an unknown column, no integer labels, a class without rows, or too few clients or rows.
    """
    if not smoothing >= 0:
        raise ConfigError(f"smoothing={smoothing!r} is not allowed: it must be at least 0.")
    matrix_column(data, features)
    target_column(data, target)
    survey = Survey(data, (features, target), minimum_clients, minimum_examples)
    labels = data.columns[target]
    if labels.dtype.kind != "i":
        raise DataError(f"Column {target!r} holds {labels.dtype}, and classes are integers 0 … C − 1.")
    classes = data.classes if target == "y" and data.classes is not None else int(labels.max()) + 1

    def question(x: np.ndarray, y: np.ndarray) -> Message:
        empty = {"count": np.array(0), "mean": np.zeros(x.shape[1]), "squares": np.zeros(x.shape[1])}
        parts = [squares_of(x[y == c]) if (y == c).any() else empty for c in range(classes)]
        return {name: np.stack([part[name] for part in parts]) for name in empty}

    answers = survey.ask(question)
    cells = [
        [{name: np.asarray(a[name][c]) for name in a} for a in answers if a["count"][c] > 0]
        for c in range(classes)
    ]
    every_class(np.array([len(cell) for cell in cells]), target)
    merged = [merge_squares(cell) for cell in cells]
    n, _, squares = merge_squares([part for cell in cells for part in cell])
    added = smoothing * float((squares / n).max())
    counts = np.array([m[0] for m in merged])
    means, variances = np.stack([m[1] for m in merged]), np.stack([m[2] / m[0] for m in merged]) + added
    if not (variances > 0).all():
        c, f = np.argwhere(variances <= 0)[0]
        raise DataError(f"Feature {f} is the same in all rows of class {c}: give smoothing > 0.")
    return NaiveBayes(survey.cost, counts, means, variances, added)
