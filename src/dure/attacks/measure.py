"""How well an attack worked: how far it moved the aggregate, and how often a backdoor opens."""

import numpy as np

from dure.errors import DataError

#: Columns in float64 at a time: they stay in the cache.
_COLUMNS = 4096


def honest_distance(aggregate: np.ndarray, honest: np.ndarray) -> float:
    """‖aggregate − m‖² over the mean of ‖x_i − m‖², m being the mean of the honest updates: κ of one round.

    A rule with a constant κ (`Rule.kappa`; Allouah et al., AISTATS 2023) promises that this is never above it.

    Args:
        aggregate: (d,) what the server made of the round.
        honest: (h, d) what the honest clients sent.

    Returns:
        At least 0. Where the honest updates are all equal: 0 if the aggregate is their mean, else infinity. NaN
        where something is not finite.

    Raises:
        DataError: no honest update, or shapes that don't fit.
    """
    if honest.ndim != 2 or not len(honest) or aggregate.shape != honest.shape[1:]:
        raise DataError(
            f"honest{list(honest.shape)} and aggregate{list(aggregate.shape)} don't fit: they must be (h, d) with "
            "h ≥ 1, and (d,)."
        )
    distance = variance = 0.0
    for first in range(0, honest.shape[1], _COLUMNS):
        at = slice(first, first + _COLUMNS)
        # Relative to one of the rows, equal rows have exactly that row as their mean.
        origin = honest[0, at].astype(np.float64)
        apart = honest[:, at] - origin
        m = apart.mean(0)
        moved = aggregate[at] - origin - m
        apart -= m
        distance += float(np.einsum("i,i", moved, moved))  # einsum adds up alike for any number of threads
        variance += float(np.einsum("ij,ij", apart, apart)) / len(honest)
    if variance == 0:
        return 0.0 if distance == 0 else float(distance * np.inf)
    return distance / variance


def attack_success_rate(predictions: np.ndarray, labels: np.ndarray, mask: np.ndarray) -> float:
    """The share of triggered test rows that the model gives the attacker's label.

    Args:
        predictions: (n,) predicted labels, for the inputs that `Attack.trigger` returned.
        labels: (n,) the labels that count as success, as it returned them.
        mask: (n,) which rows count, as it returned them.

    Returns:
        In [0, 1]; NaN where no row counts.

    Raises:
        DataError: shapes that don't fit.
    """
    if not predictions.shape == labels.shape == mask.shape or predictions.ndim != 1:
        raise DataError(
            f"predictions{list(predictions.shape)}, labels{list(labels.shape)} and mask{list(mask.shape)} must all "
            "be (n,): one predicted class for each row."
        )
    counted = mask.astype(bool)
    return float((predictions == labels)[counted].mean()) if counted.any() else float("nan")
