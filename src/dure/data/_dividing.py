"""What the partitioners share: labels as codes, shares that add up, random points of the simplex."""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from dure.errors import ConfigError, DataError


def codes(labels: Any) -> Int64[np.ndarray, "n"]:
    """Labels as integers ≥ 0: themselves, or their rank when they are not integers or some are negative."""
    array = np.asarray(labels)
    if array.ndim != 1:
        raise DataError(
            f"Labels have shape {array.shape}; a partition by label needs one per example, shape (n,)."
        )
    if array.dtype.kind in "iu" and (array.size == 0 or array.min() >= 0):
        return array.astype(np.int64)
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def size(labels: Any) -> int:
    if isinstance(labels, int | np.integer) and not isinstance(labels, bool):
        return int(labels)
    return len(np.asarray(labels))


def enough(n: int, clients: int, kind: str, each: int = 1) -> None:
    whole("clients", clients)
    if n < 1:
        raise DataError(f"{kind}: there are no examples to divide.")
    if n < clients * each:
        raise ConfigError(
            f"{kind}: {n} examples cannot give each of clients={clients} at least {each}; take at most "
            f"{n // max(each, 1)} clients."
        )


def whole(name: str, value: int, least: int = 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name}={value!r} must be a whole number, at least {least}.")


def positive(name: str, value: float | int) -> None:
    if not value > 0:  # also refuses NaN
        raise ConfigError(f"{name}={value} must be greater than 0.")


def equal(n: int, parts: int) -> Int64[np.ndarray, "parts"]:
    """Sizes of near-equal parts of n, the larger ones first."""
    return n // parts + (np.arange(parts) < n % parts).astype(np.int64)


def largest_remainder(shares: Float64[np.ndarray, "k"], total: int) -> Int64[np.ndarray, "k"]:
    exact = shares * total
    whole: Int64[np.ndarray, "k"] = np.floor(exact).astype(np.int64)
    whole[np.argsort(whole - exact, kind="stable")[: total - int(whole.sum())]] += 1
    return whole


def simplex(rng: np.random.Generator, alpha: float | int, size: int) -> Float64[np.ndarray, "size"]:
    """A draw from Dirichlet(α, …, α), right for every α > 0.

    Gamma(α) variables underflow to 0 for small α, and 0/0 is the NaN known from other partitioners. Their
    logarithms do not: log Gamma(α) = log Gamma(α + 1) + log(U)/α (Marsaglia and Tsang 2000).
    """
    if math.isinf(alpha):
        return np.full(size, 1.0 / size)
    logs = np.log(rng.standard_gamma(alpha + 1.0, size)) + np.log(1.0 - rng.random(size)) / alpha
    shares: Float64[np.ndarray, "size"] = np.exp(logs - logs.max())
    shares /= shares.sum()
    return shares
