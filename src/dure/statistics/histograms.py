"""Histograms, and quantiles from counts in ever narrower ranges of the numbers that a computer has."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.statistics.asking import Message, Result, Survey, whole_number


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
    rounds: int = 6,
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> Quantiles:
    """Quantiles of every number of a column over all clients' rows: `numpy.quantile(…, method="inverted_cdf")`.

    Columns hold 32-bit numbers, which have an order and so can be numbered: at most 2³² of them. Each round counts in
    `bins` cells of equally many neighbouring numbers and keeps the cell that holds the quantile, so that after r rounds
    at most ⌈2³²/binsʳ⌉ numbers are left, whatever the scale of the column and however far out single rows are. With 64
    bins six rounds find the quantile itself (`error` 0); four leave 256 neighbours, which of float32 are 3·10⁻⁵ of the
    value apart. The search ends when all are found. A quantile is the value of one row: somebody's. Few rounds tell
    less. Missing values don't count.

    Args:
        data: the federated data set; its training rows are asked about.
        q: numbers in [0, 1]; of 0 and 1 the smallest and the largest value is found.
        column: name of the column (n, …).
        bins: cells of a round, at least 2.
        rounds: most rounds r, at least 1.
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows.

    Raises:
        ConfigError: an impossible argument.
        DataError: an unknown column, or too few clients or rows.
    """
    asked = _shares(q)
    whole_number("bins", bins, 2)
    whole_number("rounds", rounds, 1)
    survey = Survey(data, (column,), minimum_clients, minimum_examples, missing=True)
    values = data.columns[column]
    numbers = int(np.prod(values.shape[1:]))
    least, most = _ends(values.dtype)
    low = np.full((len(asked), numbers), least - 1)
    high = np.full((len(asked), numbers), most)
    count: Any = None
    for _ in range(rounds):
        inner = low[..., None] + (high - low)[..., None] * np.arange(1, bins) // bins
        present, not_above = _counts(survey, inner, values.dtype, first=count is None)
        count = present if count is None else count
        n = np.maximum(count, 1)
        rank = np.clip(np.ceil(asked[:, None] * n), 1, n)
        cell = (not_above < rank[..., None]).sum(-1)[..., None]
        ends = np.concatenate([low[..., None], inner, high[..., None]], -1)
        low, high = (np.take_along_axis(ends, cell + i, -1)[..., 0] for i in (0, 1))
        if (high - low == 1)[:, count > 0].all():
            break
    bottom, top = _number_of(low + 1, values.dtype), _number_of(high, values.dtype)
    bottom = np.where(count > 0, bottom, np.nan)
    shape = (len(asked), *values.shape[1:])
    return Quantiles(
        survey.cost, asked, ((bottom + top) / 2).reshape(shape), ((top - bottom) / 2).reshape(shape)
    )


def _shares(q: Any) -> np.ndarray:
    try:
        asked = np.atleast_1d(np.asarray(q, np.float64))
    except (TypeError, ValueError):
        asked = np.array([np.nan])
    if asked.ndim != 1 or not ((asked >= 0) & (asked <= 1)).all():
        raise ConfigError(f"q={q!r} is not allowed: quantiles are numbers in [0, 1].")
    return asked


def _counts(survey: Survey, inner: np.ndarray, kind: np.dtype[Any], first: bool) -> tuple[Any, np.ndarray]:
    """One round: (F,) values that are there (at first), and how many (Q, F, bins − 1) are not above `inner`.

    What several quantiles ask for is sent once.
    """
    asked = [np.unique(inner[:, f], return_inverse=True) for f in range(inner.shape[1])]
    starts = np.cumsum([0, *(len(places) for places, _ in asked)])

    def question(x: np.ndarray) -> Message:
        flat = x.reshape(len(x), -1)
        ordered = np.sort(_place_of(flat, kind), 0)
        found = [np.searchsorted(ordered[:, f], p, side="right") for f, (p, _) in enumerate(asked)]
        answer: dict[str, np.ndarray] = {"not_above": np.concatenate(found).astype(np.int64)}
        if first:
            answer["count"] = (~np.isnan(flat)).sum(0)
        return answer

    answers = survey.ask(question)
    total = np.asarray(sum(a["not_above"] for a in answers))
    shape = (inner.shape[0], inner.shape[2])
    counts = [total[starts[f] + back.reshape(shape)] for f, (_, back) in enumerate(asked)]
    present = np.asarray(sum(a["count"] for a in answers)) if first else None
    return present, np.stack(counts, 1)


# The bits of a float32 without its sign, read as a whole number, rise with its size (IEEE 754).


def _ends(kind: np.dtype[Any]) -> tuple[int, int]:
    """Places of the smallest and the largest number."""
    if kind.kind == "i":
        return int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    largest = int(np.finfo(np.float32).max.view(np.int32))
    return -largest, largest


def _place_of(x: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """int64 place of every number in the order of all; NaN is behind them."""
    if kind.kind == "i":
        return x.astype(np.int64)
    size = np.abs(x).astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(np.isnan(x), 2**31, np.where(x < 0, -size, size))


def _number_of(place: np.ndarray, kind: np.dtype[Any]) -> np.ndarray:
    """The number at a place, as float64."""
    if kind.kind == "i":
        return place.astype(np.float64)
    size = np.abs(place).astype(np.int32).view(np.float32)
    return np.asarray(np.where(place < 0, -size, size), np.float64)
