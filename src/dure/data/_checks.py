"""What makes columns usable: one dtype per kind, finite numbers, labels in range, offsets that fit.

Each check raises `DataError` that names the column, the first bad row, its client and the value.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dure.errors import DataError

LABEL = "y"
_CHUNK = 1 << 20  # numbers looked at in one go, so that a check needs little memory beside the data


class Places:
    """Says where a row is: a client for each row, by offsets (grouped rows) or by one id per row."""

    def __init__(
        self,
        what: str = "training rows",
        offsets: np.ndarray | None = None,
        names: Sequence[str] | None = None,
        client: np.ndarray | None = None,
    ) -> None:
        self.what, self.offsets, self.names, self.client = what, offsets, names, client

    def __call__(self, row: int) -> str:
        """For example "row 17 of the training rows (client 3, 'Switzerland', its example 2)"."""
        text = f"row {row} of the {self.what}"
        if self.client is not None:  # the ids aren't checked yet: there may be too few
            return (
                f"{text} (client {np.asarray(self.client[row]).tolist()!r})"
                if row < len(self.client)
                else text
            )
        if self.offsets is None:
            return text
        k = int(np.searchsorted(self.offsets, row, "right")) - 1
        name = f" {self.names[k]!r}" if self.names is not None else ""
        return f"{text} (client {k}{name}, its example {row - int(self.offsets[k])})"


def columns_of(
    columns: Mapping[str, Any], places: Places, missing: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Columns as float32 and int32 arrays of one length, read-only, finite.

    Floats of every width become float32, integers int32, booleans int32 in the label column "y" and
    float32 elsewhere. Arrays that are right already are not copied. In the columns `missing` NaN may stand for a value
    that is not there.

    Raises:
        DataError: no columns, lengths that differ, a dtype that is not a number, an integer outside
            int32, a NaN or an infinity.
    """
    if not columns:
        raise DataError(
            f"The {places.what} have no columns. Give for example {{'x': features, 'y': labels}}."
        )
    out = {name: _convert(name, values, places) for name, values in columns.items()}
    lengths = {name: len(values) for name, values in out.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r}: {length}" for name, length in lengths.items())
        raise DataError(
            f"Columns of the {places.what} differ in length ({listed}). "
            "Every column needs one entry per example."
        )
    for name, values in out.items():
        if values.dtype.kind == "f":
            _finite(name, values, places, name in missing)
        values.flags.writeable = False
    return out


def _convert(name: str, values: Any, places: Places) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError as error:  # ragged lists
        raise DataError(
            f"Column {name!r} of the {places.what} is not a rectangular array: {error}."
        ) from None
    if array.ndim == 0:
        raise DataError(f"Column {name!r} of the {places.what} is a single value, not one entry per example.")
    kind = "f" if array.dtype.name == "bfloat16" else array.dtype.kind
    if kind == "f":
        with np.errstate(over="ignore"):  # an overflow shows as an infinity in the check that follows
            return array.astype(np.float32, copy=False).view()
    if kind == "b":
        return array.astype(np.int32 if name == LABEL else np.float32)
    if kind in "iu":
        _int32(name, array, places)
        return array.astype(np.int32, copy=False).view()
    raise DataError(
        f"Column {name!r} of the {places.what} has dtype {array.dtype}; only numbers can be trained on. "
        "Encode text as integers and put missing values right first."
    )


def _int32(name: str, array: np.ndarray, places: Places) -> None:
    if array.size == 0 or np.can_cast(array.dtype, np.int32):
        return
    bounds = np.iinfo(np.int32)
    if array.min() >= bounds.min and array.max() <= bounds.max:
        return
    row = np.argwhere((array < bounds.min) | (array > bounds.max))[0]
    raise DataError(
        f"Column {name!r} has {array[tuple(row)]} at {places(int(row[0]))}, which does not fit int32. "
        "Renumber the values (np.unique with return_inverse=True)."
    )


def _finite(name: str, values: np.ndarray, places: Places, missing: bool) -> None:
    width = max(1, int(np.prod(values.shape[1:])))
    step = max(1, _CHUNK // width)
    for start in range(0, len(values), step):
        part = values[start : start + step]
        bad = np.isinf(part) if missing else ~np.isfinite(part)
        if bad.any():
            index = np.argwhere(bad)[0]
            row = start + int(index[0])
            value = values[(row, *index[1:])]
            inside = (
                f" (position {tuple(int(i) for i in index[1:])} inside the row)" if len(index) > 1 else ""
            )
            raise DataError(
                f"Column {name!r} is {value} at {places(row)}{inside}. "
                "Fill in or drop missing and infinite values (beyond float32 counts as infinite)."
                + (
                    ""
                    if name == LABEL
                    else f" For dure.boosting, which takes missing ones: missing=({name!r},)."
                )
            )


def offsets_of(offsets: Any, rows: int, what: str = "offsets") -> np.ndarray:
    """Offsets as a read-only int64 array that starts at 0, never falls and ends at the number of rows.

    Raises:
        DataError: none of that, or no client at all.
    """
    array = np.asarray(offsets)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DataError(f"{what} must be a vector of integers, not {array.dtype} of shape {array.shape}.")
    if len(array) < 2:
        raise DataError(
            f"{what} has {len(array)} entries: an empty population. N clients need N + 1 offsets."
        )
    array = array.astype(np.int64)
    if array[0] != 0 or array[-1] != rows:
        raise DataError(
            f"{what} goes from {array[0]} to {array[-1]}, but must go from 0 to {rows}, the number of rows."
        )
    falls = np.flatnonzero(np.diff(array) < 0)
    if falls.size:
        k = int(falls[0])
        raise DataError(f"{what} falls from {array[k]} to {array[k + 1]} at client {k}; it must never fall.")
    array.flags.writeable = False
    return array


def labels_of(
    tables: Sequence[tuple[Mapping[str, np.ndarray] | None, Places]], classes: int | None
) -> int | None:
    """The number of classes, given or found, after checking every integer label against it.

    One label per example must lie in [0, classes). Sequences of labels, (n, T), may also hold −1, which
    marks a position without a target.

    Raises:
        DataError: a label out of range, with its place and value.
    """
    found = [(t[LABEL], places) for t, places in tables if t is not None and LABEL in t and len(t[LABEL])]
    found = [(labels, places) for labels, places in found if labels.dtype.kind == "i"]
    if not found:
        if classes is not None and not any(t is not None and LABEL in t for t, _ in tables):
            raise DataError(f"classes={classes} was given, but there is no label column {LABEL!r}.")
        return classes
    lowest = -1 if found[0][0].ndim > 1 else 0
    if classes is None:
        classes = max(int(labels.max()) for labels, _ in found) + 1
    for labels, places in found:
        if labels.min() >= lowest and labels.max() < classes:
            continue
        index = np.argwhere((labels < lowest) | (labels >= classes))[0]
        raise DataError(
            f"Label {labels[tuple(index)]} at {places(int(index[0]))} is out of range: labels must be in "
            f"[{lowest}, {classes}). Renumber the labels, give classes=, or make {LABEL!r} a float column "
            "for regression."
        )
    return classes


def same_columns(train: Mapping[str, np.ndarray], test: Mapping[str, np.ndarray], what: str) -> None:
    """Test rows must have the columns of the training rows: names, kinds and shapes of an entry.

    Raises:
        DataError: which column is missing, unexpected, or of another shape or kind.
    """
    if set(train) != set(test):
        raise DataError(
            f"The {what} have columns {sorted(test)}, the training rows {sorted(train)}. "
            "They must be the same."
        )
    for name, values in train.items():
        if values.shape[1:] != test[name].shape[1:] or values.dtype != test[name].dtype:
            raise DataError(
                f"Column {name!r}: an entry of the {what} is {test[name].dtype} of shape "
                f"{test[name].shape[1:]}, of the training rows {values.dtype} of shape {values.shape[1:]}. "
                "They must be the same."
            )


def one_id_per_row(client: Any, rows: int | None = None) -> tuple[np.ndarray, list[str]]:
    """Client codes 0..N−1 in the sorted order of the ids, and the ids as text.

    Args:
        client: (n,) integers or strings (whole floats count as integers), in any order.
        rows: the number of examples, checked against the number of ids.

    Raises:
        DataError: not one id per row, a missing id, or a mixture of types.
    """
    ids = np.asarray(client)
    if ids.ndim != 1:
        raise DataError(f"The client ids have shape {ids.shape}; give one id per example, shape (n,).")
    if rows is not None and len(ids) != rows:
        raise DataError(f"There are {len(ids)} client ids for {rows} examples. Give one id per example.")
    if len(ids) == 0:
        raise DataError("There are no examples, so there is no client: an empty population.")
    if ids.dtype.kind == "O":
        ids = _plain(ids)
    if ids.dtype.kind == "f":
        whole = np.isfinite(ids) & (ids == np.floor(ids))
        if not whole.all():
            row = int(np.flatnonzero(~whole)[0])
            raise DataError(
                f"The client id at row {row} is {ids[row]}; ids are integers or strings, none missing."
            )
        ids = ids.astype(np.int64)
    if ids.dtype.kind not in "iuUSb":
        raise DataError(f"Client ids have dtype {ids.dtype}; they must be integers or strings.")
    values, codes = np.unique(ids, return_inverse=True)
    names = [v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist()]
    return codes.astype(np.int64), names


def _plain(ids: np.ndarray) -> np.ndarray:
    for row, value in enumerate(ids):
        if value is None or value != value:
            raise DataError(
                f"The client id at row {row} is missing ({value!r}). Every example needs a client."
            )
    kinds = {type(value).__name__ for value in ids}
    if kinds <= {"str", "str_"}:
        return ids.astype(str)
    if all(isinstance(value, int | np.integer) for value in ids):
        return ids.astype(np.int64)
    raise DataError(f"Client ids mix the types {sorted(kinds)}. Make them all strings or all integers.")


def group(
    columns: Mapping[str, Any], codes: np.ndarray, clients: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Rows sorted by client, keeping their order inside each client, and the offsets of the clients."""
    order = np.argsort(codes, kind="stable")
    offsets = np.zeros(clients + 1, np.int64)
    np.cumsum(np.bincount(codes, minlength=clients), out=offsets[1:])
    return {name: np.asarray(values)[order] for name, values in columns.items()}, offsets
