"""The federated data set: all clients' rows in a few long columns, and where each client's rows begin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Int, Int64

from dure.data import _checks, facts, frames
from dure.data._checks import LABEL, Places
from dure.data.partition import Partition
from dure.data.splitting import held_out
from dure.data.summary import Summary
from dure.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False, repr=False)
class Federated:
    """The rows of N clients, client by client (compressed sparse rows).

    Client k's training rows are `[offsets[k], offsets[k + 1])` of every column, so a client is a view,
    and a cohort of m clients is found in O(m) however many are registered.

    Attributes:
        columns: training rows of all clients, such as {"x": (n, …) float32, "y": (n,) int32}. Floats are
            stored as float32, integers as int32; arrays of that type are not copied.
        offsets: (N + 1,) int64, from 0 to n, never falling. A client may have no rows.
        test: a central test set with the same columns, or None.
        client_test: test rows of all clients, client by client, or None.
        client_test_offsets: (N + 1,) int64, for `client_test`.
        client_names: N names, or None.
        classes: number of labels C when "y" holds integers; found from the labels when not given.
        class_names: C names, or None.
        name: a word for reports.
        source: where the data come from.
        licence: licence and attribution.
        citation: how to cite them.
        registered: number of clients when it is not N: client k then has the rows of client k mod N
            (see `replicate`).
        missing: columns in which NaN stands for a missing value. Only `dure.boosting` (features, not targets) and
            `dure.statistics.quantiles` can read these.

    Raises:
        DataError: columns whose lengths differ, offsets that do not fit, labels out of range, NaN or
            infinity (column, row, client and value are named), no clients, no rows.
    """

    columns: Mapping[str, np.ndarray]
    offsets: np.ndarray
    test: Mapping[str, np.ndarray] | None = None
    client_test: Mapping[str, np.ndarray] | None = None
    client_test_offsets: np.ndarray | None = None
    client_names: Sequence[str] | None = None
    classes: int | None = None
    class_names: Sequence[str] | None = None
    name: str = "data"
    source: str = ""
    licence: str = ""
    citation: str = ""
    registered: int | None = None
    missing: Sequence[str] = ()

    def __post_init__(self) -> None:
        train = Places("training rows", self.offsets, self.client_names)
        central = Places("central test set")
        own = Places("clients' test rows", self.client_test_offsets, self.client_names)
        if isinstance(self.missing, str) or set(self.missing) - set(self.columns):
            raise DataError(f"missing={self.missing!r}: give names of columns, such as missing=('x',).")
        columns = _checks.columns_of(self.columns, train, self.missing)
        rows = len(next(iter(columns.values())))
        self._set(columns=columns, offsets=_checks.offsets_of(self.offsets, rows))
        if rows == 0:
            raise DataError(
                f"{self.name!r} has {self.stored} clients but not one example: nothing to train on."
            )
        if self.test is not None:
            self._set(test=_checks.columns_of(self.test, central, self.missing))
            _checks.same_columns(columns, self.test, central.what)
            if not len(next(iter(self.test.values()))):
                raise DataError(f"The central test set of {self.name!r} has no examples: give test=None.")
        if self.client_test is not None and self.client_test_offsets is not None:
            self._set(client_test=_checks.columns_of(self.client_test, own, self.missing))
            _checks.same_columns(columns, self.client_test, own.what)
            test_rows = len(next(iter(self.client_test.values())))
            name = "client_test_offsets"
            self._set(client_test_offsets=_checks.offsets_of(self.client_test_offsets, test_rows, name))
        tables = [(self.columns, train), (self.test, central), (self.client_test, own)]
        named = None if self.class_names is None else len(self.class_names)
        self._set(classes=_checks.labels_of(tables, named if self.classes is None else self.classes))
        self._check_counts()

    def _set(self, **fields: object) -> None:
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    def _check_counts(self) -> None:
        tests = self.client_test_offsets
        if (self.client_test is None) != (tests is None):
            raise DataError("client_test and client_test_offsets belong together: give both or neither.")
        if tests is not None and len(tests) != len(self.offsets):
            raise DataError(
                f"client_test_offsets is for {len(tests) - 1} clients, offsets for {self.stored}."
            )
        if self.client_names is not None and len(self.client_names) != self.stored:
            raise DataError(f"There are {len(self.client_names)} client names for {self.stored} clients.")
        if self.class_names is not None and len(self.class_names) != self.classes:
            raise DataError(f"There are {len(self.class_names)} class names for classes={self.classes}.")
        if self.registered is not None and self.registered < 1:
            raise DataError(
                f"registered={self.registered}: an empty population. At least one client is needed."
            )

    # ── the population ──────────────────────────────────────────────────────────────────────────

    @property
    def stored(self) -> int:
        """Clients whose rows are stored; fewer than `clients` after `replicate`."""
        return len(self.offsets) - 1

    @property
    def clients(self) -> int:
        """Number of registered clients N."""
        return self.stored if self.registered is None else self.registered

    @property
    def examples(self) -> int:
        """Number of training examples n of all registered clients."""
        cycles, rest = divmod(self.clients, self.stored)
        return cycles * int(self.offsets[-1]) + int(self.offsets[rest])

    def rows(self, ids: Int[np.ndarray, "m"]) -> tuple[Int64[np.ndarray, "m"], Int64[np.ndarray, "m"]]:
        """First row and number of rows of each client asked for, in O(m).

        Args:
            ids: client ids in [0, N), in any order, repeated or not.

        Raises:
            DataError: an id that is not registered.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= self.clients):
            wrong = ids[(ids < 0) | (ids >= self.clients)][0]
            raise DataError(f"Client {wrong} is not registered: ids are in [0, {self.clients}).")
        base = ids.astype(np.int64) % self.stored
        starts = self.offsets[base]
        return starts, self.offsets[base + 1] - starts

    def example_at(self, positions: Int[np.ndarray, "m"]) -> Int64[np.ndarray, "m"]:
        """The client that holds each of the n examples counted through all clients, in O(m log N).

        A uniform position gives client k with probability n_k/n: what weighted sampling needs.
        """
        if positions.size and (positions.min() < 0 or positions.max() >= self.examples):
            wrong = positions[(positions < 0) | (positions >= self.examples)][0]
            raise DataError(f"Example {wrong} does not exist: positions are in [0, {self.examples}).")
        cycle, inside = np.divmod(positions.astype(np.int64), self.offsets[-1])
        return cycle * self.stored + np.searchsorted(self.offsets, inside, side="right") - 1

    @property
    def sizes(self) -> Int64[np.ndarray, "clients"]:
        """Training examples of every client; O(N), for summaries, never used in a round."""
        return np.resize(np.diff(self.offsets), self.clients)

    def client(self, k: int) -> dict[str, np.ndarray]:
        """Client k's training rows as read-only views."""
        starts, sizes = self.rows(np.array([k]))
        return {name: values[starts[0] : starts[0] + sizes[0]] for name, values in self.columns.items()}

    def client_name(self, k: int) -> str:
        """Client k's name: the one given, or its number."""
        return str(k) if self.client_names is None or k >= self.stored else self.client_names[k]

    def complete(self, name: str, target: bool = False) -> np.ndarray:
        """The training rows' column, which must have no missing values.

        Args:
            name: of the column.
            target: whether it is what is to be predicted; only the message depends on it.

        Raises:
            DataError: it has some, with the first place.
        """
        values = self.columns[name]
        if name in self.missing and np.isnan(values).any():
            place = Places("training rows", self.offsets, self.client_names)(
                int(np.argwhere(np.isnan(values))[0][0])
            )
            if target:
                raise DataError(
                    f"Column {name!r} has missing values (first in {place}), and nothing can be learnt from rows "
                    "without a target: drop them."
                )
            raise DataError(
                f"Column {name!r} has missing values (first in {place}), which only dure.boosting and "
                "dure.statistics.quantiles can read. Fill them in."
            )
        return values

    # ── test rows ───────────────────────────────────────────────────────────────────────────────

    def client_test_rows(self, k: int) -> dict[str, np.ndarray]:
        """Client k's own test rows as read-only views.

        Raises:
            DataError: no such client, or the clients have no test rows.
        """
        if self.client_test is None or self.client_test_offsets is None:
            raise DataError(
                f"The clients of {self.name!r} have no test rows; make some with split(test_fraction)."
            )
        self.rows(np.array([k]))  # an error if there is no such client
        first, last = self.client_test_offsets[[k % self.stored, k % self.stored + 1]]
        return {name: values[first:last] for name, values in self.client_test.items()}

    @property
    def central_test(self) -> Mapping[str, np.ndarray] | None:
        """The central test set, or else the pooled test rows of all clients, or None."""
        return self.test if self.test is not None else self.client_test

    # ── what is in it ───────────────────────────────────────────────────────────────────────────

    def class_counts(self) -> Int64[np.ndarray, "clients classes"]:
        """Training labels of each class on each client; for sequences, positions with a target.

        Raises:
            DataError: the data have no class labels.
        """
        labels = self.columns.get(LABEL)
        if labels is None or self.classes is None or labels.dtype.kind != "i":
            raise DataError(f"{self.name!r} has no integer label column {LABEL!r}, so no classes to count.")
        counts = facts.class_counts(labels, self.offsets, self.classes)
        return counts[np.arange(self.clients) % self.stored]

    def summary(self) -> Summary:
        """Clients, sizes and the client × class counts, ready to print or draw."""
        labelled = LABEL in self.columns and self.classes is not None
        return Summary(
            title=f"{self.name}: {self.clients} clients, {self.examples} examples",
            sizes=self.sizes,
            counts=self.class_counts() if labelled else None,
            client_names=None if self.registered else self.client_names,
            class_names=self.class_names,
        )

    def fingerprint(self) -> str:
        """SHA-256 (hexadecimal) of every column's name, type, shape and bytes, and of the offsets."""
        tables = {"train": self.columns, "test": self.test or {}, "client_test": self.client_test or {}}
        offsets = {"train": self.offsets, "client_test": self.client_test_offsets}
        tables["offsets"] = {name: array for name, array in offsets.items() if array is not None}
        return facts.fingerprint(self.clients, tables)

    def __repr__(self) -> str:
        columns = ", ".join(f"{n}: {v.dtype}{list(v.shape[1:]) or ''}" for n, v in self.columns.items())
        classes = f", {self.classes} classes" if self.classes is not None else ""
        return (
            f"Federated({self.name!r}, {self.clients} clients, {self.examples} examples, {columns}{classes})"
        )

    # ── derived data sets ───────────────────────────────────────────────────────────────────────

    def split(self, test_fraction: float, seed: int = 0, stratify: bool = False) -> "Federated":
        """Holds out test rows on every client; they replace the clients' test rows there may have been.

        A client with n rows keeps max(⌊(1 − f)·n⌋, 1) for training (none if it has none). The rows are
        chosen by addressed randomness: one client's split does not depend on the others.

        Args:
            test_fraction: f in (0, 1).
            seed: of the choice.
            stratify: keep each label's share in the test rows within one row of f on every client.

        Raises:
            ConfigError: a fraction outside (0, 1).
            DataError: `stratify` without class labels.
        """
        if not 0 < test_fraction < 1:
            raise ConfigError(f"test_fraction={test_fraction} must lie between 0 and 1, such as 0.2.")
        labels = self.columns.get(LABEL) if stratify else None
        if stratify and (labels is None or labels.dtype.kind != "i" or labels.ndim != 1):
            raise DataError(f"stratify=True needs one integer label per example in column {LABEL!r}.")
        test = held_out(self.offsets, test_fraction, seed, labels)
        before = np.concatenate([[0], np.cumsum(test)])[self.offsets]  # test rows before each client
        return replace(
            self,
            columns={name: values[~test] for name, values in self.columns.items()},
            offsets=self.offsets - before,
            client_test={name: values[test] for name, values in self.columns.items()},
            client_test_offsets=before,
        )

    def replicate(self, clients: int) -> "Federated":
        """The same rows under more (or fewer) registered clients: client k has those of k mod N.

        Takes no memory however large `clients` is, so populations of 10⁷ can be tried on a laptop.
        """
        return replace(self, registered=clients)

    def select(self, ids: Int[np.ndarray, "m"]) -> "Federated":
        """The data set of some clients, in the order given; the central test set stays as it is."""
        base = ids.astype(np.int64) % self.stored
        fields: dict[str, Any] = {}
        self.rows(ids)  # an error if one is not registered
        tables = {
            "": (self.columns, self.offsets),
            "client_test_": (self.client_test, self.client_test_offsets),
        }
        for prefix, (columns, offsets) in tables.items():
            if columns is None or offsets is None:
                continue
            pieces = [np.arange(offsets[k], offsets[k + 1]) for k in base]
            rows = np.concatenate(pieces) if pieces else np.zeros(0, np.int64)
            fields[f"{prefix}offsets"] = np.cumsum([0] + [len(piece) for piece in pieces])
            fields[prefix.rstrip("_") or "columns"] = {name: values[rows] for name, values in columns.items()}
        names = None if self.client_names is None else [self.client_name(int(k)) for k in base]
        return replace(self, **fields, client_names=names, registered=None)

    # ── from other shapes ───────────────────────────────────────────────────────────────────────

    @classmethod
    def from_arrays(
        cls,
        columns: Mapping[str, Any],
        client: Any,
        *,
        test: Mapping[str, Any] | None = None,
        client_test: Mapping[str, Any] | None = None,
        test_client: Any = None,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        name: str = "data",
        source: str = "",
        licence: str = "",
        citation: str = "",
        missing: Sequence[str] = (),
    ) -> "Federated":
        """Groups rows by a client id per row; rows keep their order inside each client.

        Args:
            columns: arrays with one entry per example, in any order of clients.
            client: (n,) integer or string ids; clients are numbered in the sorted order of the ids.
            test: a central test set with the same columns.
            client_test: test rows that belong to clients, with their ids in `test_client`. A client that
                is only there has no training rows.
            test_client: (n_test,) ids for `client_test`.
            classes: number of labels, found when not given.
            class_names: their names.
            name: a word for reports.
            source: where the data come from.
            licence: licence and attribution.
            citation: how to cite them.
            missing: columns in which NaN stands for a missing value.

        Raises:
            DataError: as the class; also ids that are missing or not one per row.
        """
        checked = _checks.columns_of(columns, Places("training rows", client=np.asarray(client)), missing)
        rows = len(next(iter(checked.values())))
        if (client_test is None) != (test_client is None):
            raise DataError("client_test and test_client belong together: give both or neither.")
        ids = np.asarray(client)
        if client_test is None:
            codes, names = _checks.one_id_per_row(ids, rows)
        else:
            codes, names = _checks.one_id_per_row(np.concatenate([ids, np.asarray(test_client)]))
        grouped, offsets = _checks.group(checked, codes[:rows], len(names))
        own: dict[str, Any] = {}
        if client_test is not None:
            own["client_test"], own["client_test_offsets"] = _checks.group(
                client_test, codes[rows:], len(names)
            )
        return cls(
            grouped, offsets, test=test, **own, client_names=names, classes=classes, class_names=class_names,
            name=name, source=source, licence=licence, citation=citation, missing=missing,
        )  # fmt: skip

    @classmethod
    def from_partition(
        cls,
        columns: Mapping[str, Any],
        partition: Partition,
        *,
        test: Mapping[str, Any] | None = None,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        name: str = "data",
        source: str = "",
        licence: str = "",
        citation: str = "",
    ) -> "Federated":
        """Gives each example to the client that a partition names; a client may end up with none.

        Raises:
            DataError: as the class; also a partition of another number of examples.
        """
        checked = _checks.columns_of(columns, Places("training rows", client=partition.client))
        rows = len(next(iter(checked.values())))
        if rows != len(partition.client):
            raise DataError(f"The partition is of {len(partition.client)} examples, the columns have {rows}.")
        grouped, offsets = _checks.group(checked, partition.client, partition.clients)
        return cls(
            grouped, offsets, test=test, client_names=partition.names, classes=classes,
            class_names=class_names, name=name, source=source, licence=licence, citation=citation,
        )  # fmt: skip

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        client: str,
        target: str,
        features: Sequence[str] | None = None,
        test: Any = None,
        name: str = "data",
        source: str = "",
        licence: str = "",
        citation: str = "",
        missing: bool = False,
    ) -> "Federated":
        """Reads a pandas or Polars data frame or an Arrow table with one row per example.

        Features become x (F,) float32; a single feature column of equal-length lists becomes x with their
        shape. A text target becomes int32 classes in sorted order; a float target stays for regression.

        Args:
            frame: the table.
            client: name of the column that says whose row it is (integers or strings).
            target: name of the target column.
            features: names of the feature columns; all other columns when not given.
            test: a central test set: a frame with the same features and target.
            name: a word for reports.
            source: where the data come from.
            licence: licence and attribution.
            citation: how to cite them.
            missing: features may have missing values, which become NaN in x.

        Raises:
            DataError: an unknown column (the nearest name is given), features that are not numbers, missing
                values, or as the class.
        """
        columns = frames.table(frame)
        owners = frames.pick(columns, client, "client")
        frames.pick(columns, target, "target")
        chosen = [c for c in columns if c not in (client, target)] if features is None else list(features)
        tables = [columns] if test is None else [columns, frames.table(test, "test frame")]
        x = [frames.feature_matrix(table, chosen) for table in tables]
        y, names = frames.target_codes([frames.pick(table, target, "target") for table in tables], target)
        return cls.from_arrays(
            {"x": x[0], "y": y[0]}, owners, test=None if test is None else {"x": x[1], "y": y[1]},
            class_names=names, name=name, source=source, licence=licence, citation=citation,
            missing=("x",) if missing else (),
        )  # fmt: skip
