"""Histograms, and quantiles from histograms in ever narrower ranges."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.statistics.asking import Message, Result, Survey, whole_number
from dure.statistics.moments import merge_present, present_of


@dataclass(frozen=True, repr=False)
class Histogram(Result):
    """How many rows have a number in which bin.

    Attributes:
        counts: (…, B) for a column of rows (…).
        edges: (B + 1,); a bin has its lower edge, the last one both.
        below, above: (…) rows outside of the edges.
    """

    counts: np.ndarray
    edges: np.ndarray
    below: np.ndarray
    above: np.ndarray


def histogram(
    data: Any,
    bins: int | Sequence[float] | np.ndarray,
    *,
    range: tuple[float, float] | None = None,
    column: str = "x",
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> Histogram:
    """A histogram of every number of a column over all clients' rows, in one round.

    Args:
        data: the federated data set; its training rows are asked about.
        bins: number B ≥ 1 of bins of equal width in `range`, or their B + 1 rising edges.
        range: (lowest, highest) edge; the extremes of the data are nobody's to know, so it must be given.
        column: name of the column (n, …).
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows.

    Raises:
        ConfigError: edges that don't rise, or a number of bins without a range.
        DataError: an unknown column, or too few clients or rows.
    """
    edges = _edges(bins, range)
    survey = Survey(data, (column,), minimum_clients, minimum_examples)

    def question(x: np.ndarray) -> Message:
        flat = x.reshape(len(x), -1).T
        return {
            "counts": np.array([np.histogram(values, edges)[0] for values in flat], np.int64),
            "below": (flat < edges[0]).sum(1),
            "above": (flat > edges[-1]).sum(1),
        }

    answers = survey.ask(question)
    shape = data.columns[column].shape[1:]
    total = {name: np.asarray(sum(a[name] for a in answers)) for name in answers[0]}
    counts = total["counts"].reshape(*shape, len(edges) - 1)
    return Histogram(survey.cost, counts, edges, total["below"].reshape(shape), total["above"].reshape(shape))


def _edges(bins: Any, range: tuple[float, float] | None) -> np.ndarray:
    if np.ndim(bins) == 0:
        whole_number("bins", bins, 1)
        if range is None:
            raise ConfigError(
                f"bins={bins} needs range=(lowest, highest): the extremes of the data are nobody's to know. "
                "dure.statistics.moments and quantiles say where the data lie."
            )
        bins = np.linspace(*range, int(bins) + 1)
    elif range is not None:
        raise ConfigError("range= has no meaning where bins are given by their edges: leave it out.")
    edges = np.asarray(bins, np.float64)
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise ConfigError(f"bins={bins!r} with range={range}: give two or more edges that rise.")
    return edges


@dataclass(frozen=True, repr=False)
class Quantiles(Result):
    """Quantiles of every number of a column.

    Attributes:
        q: (Q,) as asked.
        values: (Q, …) for a column of rows (…); NaN where all values are missing.
        error: the same: the true quantile is at most so far away.
    """

    q: np.ndarray
    values: np.ndarray
    error: np.ndarray


def quantiles(
    data: Any,
    q: float | Sequence[float] | np.ndarray,
    *,
    column: str = "x",
    bins: int = 64,
    rounds: int = 4,
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> Quantiles:
    """Quantiles of every number of a column over all clients' rows: `numpy.quantile(…, method="inverted_cdf")`.

    One round finds mean μ and standard deviation σ, which bound every quantile without anybody's extremes
    (Cantelli's inequality): μ − σ√((1 − q)/q) ≤ Q_q, and the same upwards. Each further round counts in `bins` cells
    and keeps the one that holds the quantile. So |value − Q_q| ≤ error ≤ σ (√((1 − q)/q) + √(q/(1 − q))) / binsʳ
    after r rounds, where q = 0 counts as 1/n and 1 as 1 − 1/n. With many rounds the value of one row is found: a
    median is somebody's. Missing values don't count.

    Args:
        data: the federated data set; its training rows are asked about.
        q: numbers in [0, 1].
        column: name of the column (n, …).
        bins: cells of a round, at least 2.
        rounds: r, at least 1, behind the one for mean and variance.
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows.

    Raises:
        ConfigError: an impossible argument.
        DataError: an unknown column, or too few clients or rows.
    """
    asked = np.atleast_1d(np.asarray(q, np.float64))
    if asked.ndim != 1 or not ((asked >= 0) & (asked <= 1)).all():
        raise ConfigError(f"q={q!r} is not allowed: quantiles are numbers in [0, 1].")
    whole_number("bins", bins, 2)
    whole_number("rounds", rounds, 1)
    survey = Survey(data, (column,), minimum_clients, minimum_examples, missing=True)
    count, mean, squares = (part.reshape(-1) for part in merge_present(survey.ask(present_of)))
    n = np.maximum(count, 1)
    rank = np.clip(np.ceil(asked[:, None] * n), 1, n)
    low, high = _bracket(rank / n, (n - rank + 1) / n, mean, np.sqrt(squares / n))
    for _ in range(rounds):
        low, high = _narrower(survey, low, high, rank, bins)
    low = np.where(count > 0, low, np.nan)
    shape = (len(asked), *data.columns[column].shape[1:])
    return Quantiles(survey.cost, asked, ((low + high) / 2).reshape(shape), ((high - low) / 2).reshape(shape))


def _bracket(
    at_most: np.ndarray, at_least: np.ndarray, mean: np.ndarray, deviation: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(Q, F) bounds: below the quantile and not below it. Shares (Q, F) of rows at most and at least as large.

    They lie on a grid of powers of two, so that the rounding of the mean, which depends on how the rows are divided
    among the clients, can't be seen in the cells.
    """
    slack = 1e-9 * (np.abs(mean) + deviation) + 1e-30
    low = mean - deviation * np.sqrt((1 - at_most) / at_most) - slack
    high = mean + deviation * np.sqrt((1 - at_least) / at_least) + slack
    grid = np.exp2(np.floor(np.log2(high - low)) - 1)
    return np.floor(low / grid) * grid, np.ceil(high / grid) * grid


def _narrower(
    survey: Survey, low: np.ndarray, high: np.ndarray, rank: np.ndarray, bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """One round: the cell (lower, upper] that holds the value of the given rank, for each quantile and number."""
    inner = low[..., None] + (high - low)[..., None] * np.arange(1, bins) / bins

    def question(x: np.ndarray) -> Message:
        ordered = np.sort(x.reshape(len(x), -1), 0)
        counts = np.empty(inner.shape, np.int64)
        for f in range(inner.shape[1]):
            counts[:, f] = np.searchsorted(ordered[:, f], inner[:, f], side="right")
        return {"not_above": counts}

    counts = np.asarray(sum(answer["not_above"] for answer in survey.ask(question)))
    cell = (counts < rank[..., None]).sum(-1)[..., None]
    edges = np.concatenate([low[..., None], inner, high[..., None]], -1)
    return np.take_along_axis(edges, cell, -1)[..., 0], np.take_along_axis(edges, cell + 1, -1)[..., 0]
