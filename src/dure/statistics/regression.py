"""Linear and ridge regression from one round of sums."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError, DataError
from dure.statistics.asking import Result, Survey, matrix_column, rows_of, target_column
from dure.statistics.moments import merge_scatter, scatter_of

#: Eigenvalues of the correlation matrix below this say that columns are combinations of each other.
SINGULAR = 1e-12


@dataclass(frozen=True, repr=False)
class LinearRegression(Result):
    """Least squares over all rows.

    Attributes:
        count: n rows.
        coefficients: (F,).
        intercept: 0 where it was not fitted.
        standard_errors: (F,) of the coefficients under independent errors of equal variance; NaN with a penalty, or
            with no more rows than unknowns.
        r_squared: share of the target's variance that is explained (of its square without an intercept).
    """

    count: int
    coefficients: np.ndarray
    intercept: float
    standard_errors: np.ndarray
    r_squared: float

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(B,) predictions for rows (B, F).

        Raises:
            ConfigError: rows of another shape.
            DataError: rows with NaN or infinity.
        """
        return np.asarray(rows_of(x, len(self.coefficients)) @ self.coefficients + self.intercept)


def linear_regression(
    data: Any,
    *,
    alpha: float = 0.0,
    fit_intercept: bool = True,
    features: str = "x",
    target: str = "y",
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> LinearRegression:
    """The minimiser of ‖y − X w − b‖² + alpha ‖w‖² over all clients' rows, in one round.

    Args:
        data: the federated data set; its training rows are asked about.
        alpha: strength of the penalty, at least 0; the intercept has none.
        fit_intercept: whether there is a b.
        features: column X (n, F).
        target: column y (n,).
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows.

    Raises:
        ConfigError: a negative or infinite alpha.
        DataError: an unknown column, too few clients or rows, or columns that determine no minimum (constant, or
            combinations of each other) where alpha is 0.
    """
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number) or not 0 <= alpha < np.inf:
        raise ConfigError(f"alpha={alpha!r} is not allowed: it must be at least 0 and finite.")
    matrix_column(data, features)
    target_column(data, target)
    survey = Survey(data, (features, target), minimum_clients, minimum_examples)
    answers = survey.ask(lambda x, y: scatter_of(np.concatenate([x, y[:, None]], 1)))
    n, mean, scatter = merge_scatter(answers)
    if not fit_intercept:
        scatter = scatter + n * np.outer(mean, mean)
    xx, xy, yy = scatter[:-1, :-1], scatter[:-1, -1], scatter[-1, -1]
    inverse = _inverse(xx + alpha * np.eye(len(xx)))
    w = inverse @ xy
    rest = max(float(yy - 2 * w @ xy + w @ xx @ w), 0.0)
    freedom = n - len(w) - fit_intercept
    errors = np.full(len(w), np.nan)
    if alpha == 0 and freedom > 0:
        errors = np.sqrt(rest / freedom * np.diag(inverse))
    intercept = float(mean[-1] - mean[:-1] @ w) if fit_intercept else 0.0
    return LinearRegression(survey.cost, n, w, intercept, errors, 1 - rest / float(yy) if yy > 0 else np.nan)


def _inverse(h: np.ndarray) -> np.ndarray:
    """Inverse of a positive definite matrix, whatever the scale of its rows."""
    constant = np.flatnonzero(np.diag(h) <= 0)
    if len(constant):
        raise DataError(f"Feature {constant[0]} is the same in all rows: drop it, or give alpha > 0.")
    scale = 1 / np.sqrt(np.diag(h))
    values, vectors = np.linalg.eigh(h * scale[:, None] * scale)
    if values[0] <= SINGULAR * values[-1]:
        worst = np.argsort(-np.abs(vectors[:, 0]))[:3]
        raise DataError(
            f"The features are combinations of each other (look at {', '.join(map(str, sorted(worst)))}), or there are "
            "fewer rows than features: drop some, or give alpha > 0."
        )
    return np.asarray(scale[:, None] * ((vectors / values) @ vectors.T) * scale)
