"""`fit`: the rounds of federated boosting."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from dure.boosting.bagging import Bagged, XGBoostBagging, bag
from dure.boosting.clients import Client
from dure.boosting.losses import LogLoss, SquaredError
from dure.boosting.model import Boosted
from dure.boosting.settings import GradientBoosting
from dure.boosting.trees import Grower, Sums, Tree
from dure.channel import wire
from dure.errors import ConfigError, DataError
from dure.statistics.asking import Cost, Message, Survey, every_class, matrix_column, target_column
from dure.statistics.histograms import quantiles


@overload
def fit(
    settings: GradientBoosting,
    data: Any,
    *,
    features: str = "x",
    target: str = "y",
    edges: Sequence[Any] | None = None,
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> Boosted: ...


@overload
def fit(
    settings: XGBoostBagging,
    data: Any,
    *,
    features: str = "x",
    target: str = "y",
    edges: Sequence[Any] | None = None,
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> Bagged: ...


def fit(
    settings: GradientBoosting | XGBoostBagging,
    data: Any,
    *,
    features: str = "x",
    target: str = "y",
    edges: Sequence[Any] | None = None,
    minimum_clients: int = 1,
    minimum_examples: int = 1,
) -> Boosted | Bagged:
    """Gradient boosting on all clients' rows: the trees are exactly those of the pooled rows in the same bins.

    The bins' edges are federated quantiles (`dure.statistics.quantiles`), or given. Then every level of a tree is one
    round: each client sends, for every node, feature and bin, how many of its rows are there and the sums of their
    first and second derivatives. These are whole numbers (derivatives are rounded to multiples of a power of two, about
    n · 2⁻⁶¹ of their largest sum), so that their sums are exact: how the rows are divided among clients changes
    nothing, in no digit. Histograms of small nodes say much about single rows: no noise is added, and nothing is
    encrypted here.

    Args:
        settings: hyper-parameters; with `XGBoostBagging` clients send trees of their own instead, and what comes out
            is not the pooled model.
        data: the federated data set; in columns that it declares `missing`, NaN is a missing value. For these a split
            learns a side; where none was missing in training they go with the larger part.
        features: column (n, F).
        target: column of labels 0 … C − 1 or of real targets (n,).
        edges: for every feature its inner bin edges, rising (not for bagging): a value is in the first bin whose edge
            is not below it.
        minimum_clients: nobody is asked when fewer clients have rows.
        minimum_examples: nobody is asked when a client has fewer rows.

    Raises:
        ConfigError: edges that don't fit the columns.
        DataError: an unknown column, targets of the wrong kind, a class without rows, or too few clients or rows.
    """
    if not isinstance(settings, GradientBoosting | XGBoostBagging):
        raise ConfigError(f"settings={settings!r}: give dure.boosting.GradientBoosting(…).")
    matrix_column(data, features)
    target_column(data, target)
    guard = {"minimum_clients": minimum_clients, "minimum_examples": minimum_examples}
    survey = Survey(data, (features, target), **guard, missing=True)
    if isinstance(settings, XGBoostBagging):
        if edges is not None:
            raise ConfigError(
                "edges= has no meaning for bagging: XGBoost makes its own bins on every client."
            )
        return bag(settings, data, (features, target), survey, _begin(settings, data, target, survey)[:2])
    found = quantile_edges(data, settings.max_bins, features, guard) if edges is None else None
    inner = _given_edges(edges, data.columns[features].shape[1]) if found is None else found[0]
    loss, baseline, scales = _begin(settings, data, target, survey)
    crew = Crew(data, survey, (features, target), inner, loss, baseline, scales)
    units = (1 / scales[0], 1 / scales[1])
    trees, history = [], []
    for _ in range(settings.trees):
        crew.tell(Client.begin)
        history.append(crew.ask(Client.loss, round=False)["loss"] / survey.rows)
        trees.append(_grow(settings, crew, inner, units, loss.outputs))
        crew.tell(lambda client: client.end(trees[-1]))
    history.append(crew.ask(Client.loss)["loss"] / survey.rows)
    cost = _together(survey.cost, crew.cost, None if found is None else found[1])
    classes = loss.classes if isinstance(loss, LogLoss) else None
    return Boosted(settings, classes, len(inner), baseline, trees, np.array(history, np.float64), cost)


class Crew:
    """All clients that have rows, and what they have sent."""

    def __init__(
        self,
        data: Any,
        survey: Survey,
        names: tuple[str, str],
        edges: Sequence[np.ndarray],
        loss: Any,
        baseline: np.ndarray,
        scales: tuple[float, float],
    ):
        self._clients = []
        for k in survey.clients:
            x, y = (np.asarray(data.client(k)[name], np.float64) for name in names)
            self._clients.append(Client(x, y, edges, loss, baseline, scales))
        self._sent, self._rounds = [0] * len(self._clients), 0

    def tell(self, what: Callable[[Client], None]) -> None:
        """Every client does this."""
        for client in self._clients:
            what(client)

    def ask(
        self, question: Callable[[Client], Mapping[str, np.ndarray]], round: bool = True
    ) -> dict[str, Any]:
        """The sums of all clients' answers, exact for whole numbers; `round`: not on the way with another answer."""
        self._rounds += round
        total: dict[str, Any] = {}
        for k, client in enumerate(self._clients):
            answer = question(client)
            self._sent[k] += wire.size(answer)
            for name, part in answer.items():
                total[name] = total.get(name, 0) + (part.astype(np.int64) if part.dtype.kind == "i" else part)
        return total

    @property
    def cost(self) -> Cost:
        """What was sent until now."""
        return Cost(self._rounds, max(self._sent), len(self._clients))


def _grow(
    settings: GradientBoosting,
    crew: Crew,
    edges: list[np.ndarray],
    units: tuple[float, float],
    outputs: int,
) -> list[Tree]:
    """One tree for every output, all grown together: a round for every level."""
    growers = [Grower(settings, edges, units) for _ in range(outputs)]
    while any(grower.active for grower in growers):
        active = [list(grower.active) for grower in growers]
        total = crew.ask(partial(Client.histograms, active=active))
        counts = total["counts"]
        sums = Sums(counts, total["gradients"], total.get("hessians", counts))
        first = 0
        for c, grower in enumerate(growers):
            if not active[c]:
                continue
            splits = grower.grow(sums.at(slice(first, first + len(active[c]))))
            first += len(active[c])
            crew.tell(partial(Client.split, c=c, splits=splits))
    return [grower.tree() for grower in growers]


def _begin(
    settings: GradientBoosting | XGBoostBagging, data: Any, target: str, survey: Survey
) -> tuple[Any, np.ndarray, tuple[float, float]]:
    """The loss, the first prediction, and the scales that make derivatives whole numbers."""
    labels = data.columns[target].dtype.kind == "i" and (target != "y" or data.classes is not None)
    kind = settings.loss or ("log_loss" if labels else "squared_error")
    bits = 61 - math.ceil(math.log2(max(survey.rows, 2)))
    if kind == "log_loss":
        loss = LogLoss(_classes(data, target))
        counts = sum(
            a["counts"]
            for a in survey.ask(
                lambda x, y: {
                    "counts": np.bincount(y.astype(np.int64), minlength=loss.classes).astype(np.int64)
                }
            )
        )
        every_class(np.asarray(counts), target)
        return loss, loss.baseline(np.asarray(counts)), (2.0**bits, 2.0**bits)
    # Least squares can only fall, so √(Σ g²) ≤ √(Σ y²) at all times and Σ |g| ≤ n max |y|.
    sizes = survey.ask(lambda x, y: {"exponent": np.array(np.frexp(np.abs(y).max())[1], np.int32)})
    exponent = max(int(a["exponent"]) for a in sizes)
    scale = 2.0 ** (bits - exponent)

    def whole(x: np.ndarray, y: np.ndarray) -> Message:
        return {"sum": np.rint(y * scale).astype(np.int64).sum(keepdims=True)}

    total = sum(int(a["sum"][0]) for a in survey.ask(whole))
    return SquaredError(), np.array([total / scale / survey.rows]), (scale, 1.0)


def _classes(data: Any, target: str) -> int:
    labels = data.columns[target]
    if labels.dtype.kind != "i":
        raise DataError(f"log_loss needs labels 0 … C − 1, and column {target!r} holds {labels.dtype}.")
    classes = data.classes if target == "y" and data.classes is not None else int(labels.max()) + 1
    if classes < 2 or labels.min() < 0:
        raise DataError(
            f"Column {target!r} holds labels {labels.min()} … {labels.max()}: log_loss needs two classes."
        )
    return int(classes)


def quantile_edges(
    data: Any, max_bins: int, column: str = "x", guard: Mapping[str, int] | None = None
) -> tuple[list[np.ndarray], Cost]:
    """For every feature at most max_bins − 1 inner edges at its quantiles, and what it cost to find them.

    The edges are values of rows, whatever the scale, so that few-valued columns are divided between their values and
    a rising function of a column makes the same bins.
    """
    q = np.arange(1, max_bins) / max_bins
    found = quantiles(data, q, column=column, bins=64, rounds=6, **(guard or {}))
    return [np.unique(values[np.isfinite(values)]) for values in found.values.T], found.cost


def _given_edges(edges: Any, features: int) -> list[np.ndarray]:
    try:
        found = [np.asarray(e, np.float64) for e in edges]
    except (TypeError, ValueError):
        raise ConfigError(
            f"edges={edges!r} is not allowed: give for every feature a list of its inner edges, such as "
            f"[[0.5, 1.5]] * {features}; max_bins= of GradientBoosting is their number."
        ) from None
    if len(found) != features:
        raise ConfigError(f"edges are given for {len(found)} features, and the column has {features}.")
    for f, inner in enumerate(found):
        if inner.ndim != 1 or not np.isfinite(inner).all() or not (np.diff(inner) > 0).all():
            raise ConfigError(f"edges of feature {f} are {inner}: they must be finite and rise.")
    return found


def _together(*costs: Cost | None) -> Cost:
    there = [c for c in costs if c is not None]
    return Cost(sum(c.rounds for c in there), sum(c.bytes_per_client for c in there), there[0].clients)
