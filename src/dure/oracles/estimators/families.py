"""The losses of generalised linear models as functions of the linear predictor η, with slope and curvature.

All are written so that what is left of an almost perfect fit is not rounded away: 1 − σ(40) is 4e-18 and not 0, and
a problem without a minimum (separable classes) does not look solved.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: The Hessian's weight (n,) between outputs i and j.
Weights = Callable[[int, int], np.ndarray]


@dataclass(frozen=True)
class Family:
    """The loss of one example given η (n, C); C is 1 but for softmax."""

    def loss(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n,) losses."""
        raise NotImplementedError

    def slope(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(n, C) derivatives of the losses."""
        raise NotImplementedError

    def weights(self, eta: np.ndarray, y: np.ndarray) -> Weights:
        """The second derivatives."""
        raise NotImplementedError


class SquaredError(Family):
    """(η − y)²."""

    def loss(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        return np.asarray(np.square(eta[:, 0] - y))

    def slope(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        return np.asarray(2 * (eta - y[:, None]))

    def weights(self, eta: np.ndarray, y: np.ndarray) -> Weights:
        """See `Family`."""
        two = np.full(len(eta), 2.0)
        return lambda i, j: two


class Logistic(Family):
    """log(1 + exp(−η)) of label 1, log(1 + exp(η)) of label 0."""

    def loss(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        return np.logaddexp(0, np.where(y > 0, -eta[:, 0], eta[:, 0]))

    def slope(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        return np.where(y[:, None] > 0, -_sigmoid(-eta), _sigmoid(eta))

    def weights(self, eta: np.ndarray, y: np.ndarray) -> Weights:
        """See `Family`."""
        curvature = (_sigmoid(eta) * _sigmoid(-eta))[:, 0]
        return lambda i, j: curvature


class Softmax(Family):
    """−log softmax(η)[y]."""

    def loss(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        z = eta - eta[np.arange(len(y)), y][:, None]
        z[np.arange(len(y)), y] = -np.inf
        largest = np.maximum(z.max(1), 0)
        return np.asarray(largest + np.log1p(np.exp(z - largest[:, None]).sum(1) + np.expm1(-largest)))

    def slope(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        p = _softmax(eta)
        there = np.arange(len(y)), y
        p[there] = 0
        p[there] = -p.sum(1)
        return p

    def weights(self, eta: np.ndarray, y: np.ndarray) -> Weights:
        """See `Family`."""
        p = _softmax(eta)
        top = np.arange(len(p)), p.argmax(1)
        others = p.copy()
        others[top] = 0
        rest = 1 - p
        rest[top] = others.sum(1)
        return lambda i, j: p[:, i] * rest[:, i] if i == j else -p[:, i] * p[:, j]


class Poisson(Family):
    """Half of the deviance with a log link: exp(η) − yη, and y log y − y."""

    def loss(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(eta[:, 0]) - y * eta[:, 0] + y * np.log(np.where(y > 0, y, 1)) - y)

    def slope(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        return np.asarray(np.exp(eta) - y[:, None])

    def weights(self, eta: np.ndarray, y: np.ndarray) -> Weights:
        """See `Family`."""
        mean = np.exp(eta[:, 0])
        return lambda i, j: mean


class Gamma(Family):
    """Half of the deviance with a log link: y exp(−η) + η, and −log y − 1."""

    def loss(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        with np.errstate(over="ignore"):
            return np.asarray(y * np.exp(-eta[:, 0]) + eta[:, 0] - np.log(y) - 1)

    def slope(self, eta: np.ndarray, y: np.ndarray) -> np.ndarray:
        """See `Family`."""
        return np.asarray(1 - y[:, None] * np.exp(-eta))

    def weights(self, eta: np.ndarray, y: np.ndarray) -> Weights:
        """See `Family`."""
        ratio = y * np.exp(-eta[:, 0])
        return lambda i, j: ratio


def _sigmoid(z: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(z))
    return np.asarray(np.where(z >= 0, 1, small) / (1 + small))


def _softmax(eta: np.ndarray) -> np.ndarray:
    p: np.ndarray = np.exp(eta - eta.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return p
