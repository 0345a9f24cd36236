"""Mean, variance and covariance, merged as Chan, Golub and LeVeque (1983) do: no difference of large numbers.

With n_k, m_k and S_k = Σ (x − m_k)² of client k:  m = Σ n_k m_k / n,  S = Σ S_k + Σ n_k (m_k − m)².
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.statistics.asking import Message, Result, Survey


@dataclass(frozen=True, repr=False)
class Moments(Result):
    """Mean and variance of every number of a column.

    Attributes:
        count: n rows.
        mean: the shape of one row.
        variance: the same; the sum of squared deviations divided by n − ddof.
    """

    count: int
    mean: np.ndarray
    variance: np.ndarray

    @property
    def standard_deviation(self) -> np.ndarray:
        """The square root of the variance."""
        return np.asarray(np.sqrt(self.variance))


def moments(
    data: Any, *, column: str = "x", ddof: int = 0, minimum_clients: int = 1, minimum_examples: int = 1
) -> Moments:
    """Mean and variance of every number of a column over all clients' rows, in one round.

    Args:
        data: the federated data set; its training rows are asked about.
        column: name of the column (n, …).
        ddof: the divisor of the variance is n − ddof: 0 as `numpy.var`, 1 for the unbiased estimate.
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows.

    Raises:
        ConfigError: ddof is not smaller than the number of rows.
        DataError: an unknown column, or too few clients or rows.
    """
    survey = Survey(data, (column,), minimum_clients, minimum_examples)
    n, mean, squares = merge_squares(survey.ask(squares_of))
    if not 0 <= ddof < n:
        raise ConfigError(f"ddof={ddof} with {n} rows: it must be at least 0 and smaller than that.")
    return Moments(survey.cost, n, mean, np.asarray(squares / (n - ddof)))


def squares_of(x: np.ndarray) -> Message:
    """A client's count, mean and sums of squared deviations from it."""
    mean = x.mean(0)
    return {
        "count": np.array(len(x)),
        "mean": np.asarray(mean),
        "squares": np.asarray(np.square(x - mean).sum(0)),
    }


def merge_squares(answers: Sequence[Message]) -> tuple[int, np.ndarray, np.ndarray]:
    """(n, mean, sum of squared deviations) of all rows together."""
    n, mean, counts, means = _merged_mean(answers)
    between = sum(c * np.square(m - mean) for c, m in zip(counts, means, strict=True))
    return int(n), mean, np.asarray(sum(a["squares"] for a in answers) + between)


def scatter_of(x: np.ndarray) -> Message:
    """A client's count, mean (F,) and the upper triangle of Σ (x − mean)(x − mean)ᵀ."""
    mean = x.mean(0)
    away = x - mean
    upper = np.triu_indices(x.shape[1])
    return {"count": np.array(len(x)), "mean": mean, "scatter": (away.T @ away)[upper]}


def merge_scatter(answers: Sequence[Message]) -> tuple[int, np.ndarray, np.ndarray]:
    """(n, mean (F,), Σ (x − mean)(x − mean)ᵀ (F, F)) of all rows together."""
    n, mean, counts, means = _merged_mean(answers)
    upper = np.zeros((len(mean), len(mean)))
    upper[np.triu_indices(len(mean))] = sum(a["scatter"] for a in answers)
    whole = upper + np.triu(upper, 1).T
    for c, m in zip(counts, means, strict=True):
        whole += c * np.outer(m - mean, m - mean)
    return int(n), mean, whole


def _merged_mean(answers: Sequence[Message]) -> tuple[Any, np.ndarray, list[np.ndarray], list[np.ndarray]]:
    counts, means = [a["count"] for a in answers], [a["mean"] for a in answers]
    n, near = sum(counts), means[0]
    away = sum(c * (m - near) for c, m in zip(counts, means, strict=True))
    return n, np.asarray(near + away / np.maximum(n, 1)), counts, means
