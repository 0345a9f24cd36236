"""k-means: Lloyd's algorithm, a round of sums for every step."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dure import keys
from dure.errors import ConfigError
from dure.statistics.asking import Message, Result, Survey, matrix_column, rows_of, whole_number
from dure.statistics.moments import merge_squares, squares_of


@dataclass(frozen=True, repr=False)
class KMeans(Result):
    """K centres, and what they are like for the rows.

    Attributes:
        centres: (K, F).
        counts: (K,) rows that are nearest to each.
        inertia: sum over all rows of the squared distance to the nearest centre.
        converged: whether the centres had come to rest.
    """

    centres: np.ndarray
    counts: np.ndarray
    inertia: float
    converged: bool

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(B,) number of the nearest centre of rows (B, F).

        Raises:
            ConfigError: rows of another shape.
            DataError: rows with NaN or infinity.
        """
        return np.asarray(_distances(rows_of(x, self.centres.shape[1]), self.centres).argmin(1))


def kmeans(
    data: Any,
    clusters: int,
    *,
    rounds: int = 100,
    tolerance: float = 1e-4,
    initial: np.ndarray | None = None,
    seed: int = 0,
    column: str = "x",
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> KMeans:
    """Lloyd's algorithm on all clients' rows.

    The first centres are drawn from a normal distribution with the columns' mean and variance, which one round finds:
    nobody's row is looked at. Then in every round a client sends for each centre the number of its nearest rows, the
    sum of their offsets from it and of their squared distances. A centre that nobody is near to is moved beside the
    centre with the largest sum of squares, which so is divided. As always with k-means the start matters: keep the
    result of least `inertia` of several seeds.

    Args:
        data: the federated data set; its training rows are asked about.
        clusters: K, at least 1.
        rounds: most steps.
        tolerance: it has come to rest when the centres' squared moves add up to no more than this share of the mean
            variance of the columns.
        initial: (K, F) first centres in the place of drawn ones.
        seed: of the draws.
        column: name of the column (n, F).
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows (of whatever cluster).

    Raises:
        ConfigError: an impossible argument.
        DataError: an unknown column, or too few clients or rows.
    """
    whole_number("clusters", clusters, 1)
    whole_number("rounds", rounds, 1)
    if not tolerance >= 0:
        raise ConfigError(f"tolerance={tolerance!r} is not allowed: it must be at least 0.")
    matrix_column(data, column)
    survey = Survey(data, (column,), minimum_clients, minimum_examples)
    n, mean, squares = merge_squares(survey.ask(squares_of))
    draws = keys.generator(seed, "k-means")
    if initial is None:
        centres = mean + np.sqrt(squares / n) * draws.normal(size=(clusters, len(mean)))
    else:
        centres = np.array(initial, np.float64)
        if centres.shape != (clusters, len(mean)) or not np.isfinite(centres).all():
            raise ConfigError(
                f"initial has shape {centres.shape}: {clusters} centres of {len(mean)} finite numbers are needed."
            )
    rest = max(tolerance, 1e-24) * float(np.mean(squares / n))  # what rounding does is rest
    converged = False
    counts, offsets, apart = _ask(survey, centres)
    for _ in range(rounds):
        moved = _next(centres, counts, offsets, apart, draws)
        converged = bool(np.square(moved - centres).sum() <= rest)
        centres = moved
        counts, offsets, apart = _ask(survey, centres)
        if converged:
            break
    return KMeans(survey.cost, centres, counts.astype(np.int64), float(apart.sum()), converged)


def _ask(survey: Survey, centres: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each centre: (K,) nearest rows, (K, F) sum of their offsets from it, (K,) sum of squared distances."""

    def question(x: np.ndarray) -> Message:
        distances = _distances(x, centres)
        nearest = distances.argmin(1)
        offsets = np.zeros_like(centres)
        np.add.at(offsets, nearest, x - centres[nearest])
        return {
            "counts": np.bincount(nearest, minlength=len(centres)).astype(np.int64),
            "offsets": offsets,
            "squares": np.bincount(nearest, distances.min(1), len(centres)),
        }

    answers = survey.ask(question)
    counts, offsets, apart = (
        np.asarray(sum(a[name] for a in answers)) for name in ("counts", "offsets", "squares")
    )
    return counts, offsets, apart


def _next(
    centres: np.ndarray,
    counts: np.ndarray,
    offsets: np.ndarray,
    apart: np.ndarray,
    draws: np.random.Generator,
) -> np.ndarray:
    moved: np.ndarray = centres + offsets / np.maximum(counts, 1)[:, None]
    apart = apart.copy()
    for k in np.flatnonzero(counts == 0):
        wide = int(apart.argmax())
        spread = np.sqrt(apart[wide] / max(counts[wide], 1) / centres.shape[1])
        moved[k] = moved[wide] + 0.5 * spread * draws.normal(size=centres.shape[1])
        apart[wide] /= 2  # so that several lonely centres don't all go to one place
    return moved


def _distances(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """(n, K) squared distances, from differences: no cancelling of large squares."""
    return np.stack([np.square(x - c).sum(1) for c in centres], 1)
