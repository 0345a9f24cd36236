"""Losses: their derivatives for each row, and what sums over the rows say about the first prediction.

Everything here is done row by row in float64, in an order that does not depend on the other rows: a row has the same
derivatives wherever it is.
"""

from dataclasses import dataclass

import numpy as np

_EPS = np.finfo(np.float64).eps


@dataclass(frozen=True)
class SquaredError:
    """½ (raw − y)²."""

    outputs: int = 1

    def derivatives(self, raw: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, None]:
        """First derivatives (n, 1); the second ones are all 1, and their sum is the count."""
        return raw - y[:, None], None

    def losses(self, raw: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n,)."""
        return np.asarray(0.5 * np.square(raw[:, 0] - y))


@dataclass(frozen=True)
class LogLoss:
    """−log of the label's probability: logistic with two classes, softmax with more. raw (n, outputs)."""

    classes: int

    @property
    def outputs(self) -> int:
        """Trees of one boosting round."""
        return 1 if self.classes == 2 else self.classes

    def derivatives(self, raw: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and second derivatives (n, outputs); of the Hessian the diagonal."""
        p = probabilities(raw)[:, -self.outputs :]
        true = y[:, None] == (1 if self.outputs == 1 else np.arange(self.classes))
        return p - true, p * (1 - p)

    def losses(self, raw: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n,)."""
        own = probabilities(raw)[np.arange(len(y)), y.astype(np.int64)]
        return np.asarray(-np.log(np.maximum(own, _EPS)))

    def baseline(self, counts: np.ndarray) -> np.ndarray:
        """(outputs,) raw values that give the classes' shares, from the number of rows of each."""
        share = np.clip(counts / counts.sum(), _EPS, 1 - _EPS)
        if self.outputs == 1:
            return np.asarray(np.log(share[1:] / (1 - share[1:])))
        return np.asarray(np.log(share) - np.log(share).mean())


def probabilities(raw: np.ndarray) -> np.ndarray:
    """(n, C) probabilities from raw values (n, 1) of two classes or (n, C)."""
    if raw.shape[1] == 1:
        small = np.exp(-np.abs(raw))
        one = np.where(raw >= 0, 1.0, small) / (1.0 + small)
        return np.concatenate([1 - one, one], 1)
    powers = np.exp(raw - raw.max(1, keepdims=True))
    total = np.zeros(len(raw))
    for c in range(raw.shape[1]):  # in this order for every row
        total = total + powers[:, c]
    return np.asarray(powers / total[:, None])
