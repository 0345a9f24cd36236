"""Asking every client for sums over its rows, and counting what they send."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dure.channel import wire
from dure.errors import ConfigError, DataError, did_you_mean

Message = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Cost:
    """What a result cost.

    Attributes:
        rounds: times that the clients were asked.
        bytes_per_client: bytes that a client sent in all rounds together, as encoded messages; the largest client's.
        clients: clients that were asked: those with rows.
    """

    rounds: int
    bytes_per_client: int
    clients: int


@dataclass(frozen=True, repr=False)
class Result:
    """A result with a short text: small arrays are shown, large ones by their shapes."""

    cost: Cost

    def __repr__(self) -> str:
        parts = [f"{f.name}{_shown(getattr(self, f.name))}" for f in fields(self) if f.name != "cost"]
        rounds = "1 round" if self.cost.rounds == 1 else f"{self.cost.rounds} rounds"
        sent = f"{rounds}, {self.cost.bytes_per_client} bytes per client"
        return f"{type(self).__name__}({', '.join(parts)}; {sent})"


def _shown(value: Any) -> str:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        return f"={value!r}"
    if array.size > 8:
        return f" of shape {array.shape}"
    return "=" + np.array2string(array, precision=4, separator=", ").replace("\n", "")


class Survey:
    """The clients of a data set that have rows, to be asked for sums over them.

    Args:
        data: the federated data set.
        names: columns that are asked about.
        minimum_clients: so many clients must have rows.
        minimum_examples: every client that has rows must have so many.
        missing: whether the questions can take missing values (NaN).

    Attributes:
        clients: numbers of those that have rows.
        rows: of all of them.

    Raises:
        ConfigError: an impossible argument.
        DataError: no federated data set, an unknown column, or too few clients or rows.
    """

    def __init__(
        self,
        data: Any,
        names: tuple[str, ...],
        minimum_clients: int = 1,
        minimum_examples: int = 1,
        missing: bool = False,
    ):
        federated(data)
        for name in names:
            if name not in data.columns:
                raise DataError(f"The data have no column {name!r}. {did_you_mean(name, data.columns)}")
            if 0 in data.columns[name].shape[1:]:
                shape = data.columns[name].shape[1:]
                raise DataError(
                    f"Column {name!r} has rows of shape {shape}: there is not one number in them."
                )
            if not missing:
                data.complete(name)
        whole_number("minimum_clients", minimum_clients, 1)
        whole_number("minimum_examples", minimum_examples, 1)
        self._data, self._names = data, names
        self.clients = [k for k in range(data.clients) if len(data.client(k)[names[0]])]
        sizes = {k: len(data.client(k)[names[0]]) for k in self.clients}
        self.rows = sum(sizes.values())
        if len(self.clients) < minimum_clients:
            raise DataError(
                f"{len(self.clients)} clients have rows, and minimum_clients={minimum_clients}: nobody was asked."
            )
        for k, rows in sizes.items():
            if rows < minimum_examples:
                raise DataError(
                    f"Client {data.client_name(k)} has {rows} rows, and minimum_examples={minimum_examples}: nobody "
                    "was asked. Leave it out with data.select(…)."
                )
        self._rounds = 0
        self._sent = dict.fromkeys(self.clients, 0)

    def ask(self, question: Callable[..., Message]) -> list[Message]:
        """Each client's answer: `question(*columns)` with its rows as float64 arrays."""
        self._rounds += 1
        answers = []
        for k in self.clients:
            rows = self._data.client(k)
            message = question(*(np.asarray(rows[name], np.float64) for name in self._names))
            self._sent[k] += wire.size(message)
            answers.append(message)
        return answers

    @property
    def cost(self) -> Cost:
        """What was sent until now."""
        return Cost(self._rounds, max(self._sent.values()), len(self.clients))


def every_class(counts: np.ndarray, target: str) -> None:
    """Every class 0 … C − 1 must have a row; counts (C,) of all clients' rows.

    Raises:
        DataError: one has none.
    """
    if not (counts > 0).all():
        raise DataError(
            f"No client has a row of class {int(np.argmin(counts > 0))} in column {target!r} ({len(counts)} classes): "
            "renumber the labels, or correct `classes`."
        )


def rows_of(x: Any, features: int) -> np.ndarray:
    """Rows (B, F) as float64, to predict for.

    Raises:
        ConfigError: another shape.
        DataError: NaN or infinity.
    """
    rows = np.asarray(x, np.float64)
    if rows.ndim != 2 or rows.shape[1] != features:
        raise ConfigError(f"Rows have shape {rows.shape}; this model takes (B, {features}).")
    if not np.isfinite(rows).all():
        row, feature = np.argwhere(~np.isfinite(rows))[0]
        raise DataError(
            f"Row {row} has {rows[row, feature]} in feature {feature}: fill in or drop missing and infinite values."
        )
    return rows


def federated(data: Any) -> None:
    """The data must be a federated data set.

    Raises:
        DataError: they are something else.
    """
    if not all(hasattr(data, name) for name in ("columns", "client", "clients", "complete")):
        raise DataError(
            f"data is a {type(data).__name__}: give a federated data set, such as "
            "dure.Federated({'x': features, 'y': targets}, offsets) or dure.Federated.from_arrays(columns, owner)."
        )


def matrix_column(data: Any, name: str) -> None:
    """The column must be a matrix (n, F), where it is there.

    Raises:
        DataError: it isn't.
    """
    federated(data)
    if name in data.columns and data.columns[name].ndim != 2:
        shape = data.columns[name].shape[1:]
        raise DataError(f"Column {name!r} has rows of shape {shape}; a matrix (n, F) is needed.")


def target_column(data: Any, name: str) -> None:
    """The column must hold one number for each row, none missing, where it is there.

    Raises:
        DataError: it doesn't.
    """
    federated(data)
    if name not in data.columns:
        return
    if data.columns[name].ndim != 1:
        shape = data.columns[name].shape[1:]
        raise DataError(f"Column {name!r} has rows of shape {shape}; one number for each row is needed.")
    data.complete(name, target=True)


def whole_number(name: str, value: Any, least: int) -> None:
    """ConfigError if it isn't a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be an integer of at least {least}.")
