"""Principal components from one round of sums."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.statistics.asking import Result, Survey, matrix_column, rows_of, whole_number
from dure.statistics.moments import merge_scatter, scatter_of


@dataclass(frozen=True, repr=False)
class PCA(Result):
    """The K directions of largest variance.

    Attributes:
        count: n rows.
        mean: (F,).
        components: (K, F) orthonormal rows; the entry of largest size of each is positive.
        explained_variance: (K,) variances along them, with divisor n − 1.
        explained_variance_ratio: (K,) their shares of the whole variance.
    """

    count: int
    mean: np.ndarray
    components: np.ndarray
    explained_variance: np.ndarray
    explained_variance_ratio: np.ndarray

    def transform(self, x: np.ndarray) -> np.ndarray:
        """(B, K) coordinates of rows (B, F).

        Raises:
            ConfigError: rows of another shape.
            DataError: rows with NaN or infinity.
        """
        return np.asarray((rows_of(x, len(self.mean)) - self.mean) @ self.components.T)


def pca(
    data: Any,
    components: int | None = None,
    *,
    column: str = "x",
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> PCA:
    """Principal component analysis of all clients' rows, in one round: a client sends F (F + 1)/2 sums and F means.

    Args:
        data: the federated data set; its training rows are asked about.
        components: K between 1 and F; None: F.
        column: name of the column (n, F).
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows.

    Raises:
        ConfigError: K out of range.
        DataError: an unknown column, or too few clients or rows; at least two rows are needed.
    """
    matrix_column(data, column)
    survey = Survey(data, (column,), minimum_clients, minimum_examples)
    width = data.columns[column].shape[1]
    kept = width if components is None else components
    whole_number("components", kept, 1)
    if kept > width:
        raise ConfigError(f"components={components} of {width} columns: there are no more than these.")
    n, mean, scatter = merge_scatter(survey.ask(scatter_of))
    if n < 2:
        raise ConfigError("One row has no variance: principal components need at least two.")
    values, vectors = np.linalg.eigh(scatter / (n - 1))
    values, rows = np.maximum(values[::-1], 0), vectors.T[::-1]
    largest = rows[np.arange(width), np.abs(rows).argmax(1)]
    rows = rows * np.where(largest < 0, -1, 1)[:, None]
    share = values / values.sum() if values.sum() > 0 else np.full(width, np.nan)
    return PCA(survey.cost, n, mean, rows[:kept], values[:kept], share[:kept])
