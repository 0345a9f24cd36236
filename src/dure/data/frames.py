"""Data frames: pandas, Polars and Arrow tables as arrays, with errors that name the column and the row."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dure.errors import DataError, did_you_mean

KINDS = ("pandas", "polars", "pyarrow")


def table(frame: Any, what: str = "frame") -> dict[str, np.ndarray]:
    """The columns of a pandas or Polars data frame, an Arrow table or record batch, as NumPy arrays.

    Missing numbers become NaN, missing text None; categories become their values.

    Raises:
        DataError: another type (a Polars LazyFrame has to be collected first).
    """
    kind = type(frame).__module__.partition(".")[0]
    if kind == "polars" and hasattr(frame, "collect"):
        raise DataError(f"The {what} is a Polars LazyFrame; call .collect() first.")
    if kind == "pandas" and hasattr(frame, "columns"):
        twice = frame.columns[frame.columns.duplicated()]
        if len(twice):
            raise DataError(f"The {what} has two columns named {twice[0]!r}; rename one.")
        return {str(name): _pandas(frame[name]) for name in frame.columns}
    if kind == "polars" and hasattr(frame, "get_columns"):
        return {column.name: column.to_numpy() for column in frame.get_columns()}
    if kind == "pyarrow" and hasattr(frame, "column_names"):
        return {name: _arrow(frame.column(name)) for name in frame.column_names}
    if kind == "pyarrow" and hasattr(frame, "schema"):
        return {name: _arrow(frame.column(k)) for k, name in enumerate(frame.schema.names)}
    raise DataError(
        f"The {what} is a {type(frame).__name__}; give a pandas or Polars data frame or an Arrow table, or "
        "use Federated.from_arrays for a mapping of arrays."
    )


def _pandas(series: Any) -> np.ndarray:
    if hasattr(series.dtype, "categories"):
        series = series.astype(series.dtype.categories.dtype)
    if getattr(series.dtype, "kind", "O") in "iufb" and series.isna().any():
        return np.asarray(series.to_numpy(dtype=np.float64, na_value=np.nan))
    array = series.to_numpy(dtype=getattr(series.dtype, "numpy_dtype", None))
    return np.asarray(array)


def _arrow(column: Any) -> np.ndarray:
    if hasattr(column, "combine_chunks"):
        column = column.combine_chunks()
    if hasattr(column, "dictionary_decode"):
        column = column.dictionary_decode()
    return np.asarray(column.to_numpy(zero_copy_only=False))


def pick(columns: Mapping[str, np.ndarray], name: str, what: str) -> np.ndarray:
    """One column by name.

    Raises:
        DataError: no such column; the message has the nearest name.
    """
    if name not in columns:
        raise DataError(f"There is no column {name!r} for the {what}. {did_you_mean(name, columns)}")
    return columns[name]


def feature_matrix(columns: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    """Number columns side by side, (n, F) float32; or one column of equal-length lists, (n, …).

    Raises:
        DataError: no feature, an unknown name, text or dates among the features, lists of several lengths.
    """
    if not names:
        raise DataError("There is no feature column beside the client and the target.")
    arrays = [pick(columns, name, "features") for name in names]
    if len(names) == 1 and arrays[0].dtype.kind == "O":
        return _stacked(names[0], arrays[0])
    for name, values in zip(names, arrays, strict=True):
        if values.dtype.kind not in "iufb":
            example = values[0] if len(values) else None
            raise DataError(
                f"Feature {name!r} has dtype {values.dtype} (first value {example!r}), not numbers. "
                "Encode it (one-hot: pandas.get_dummies, polars to_dummies), fill its missing values, or "
                "choose features=[…]."
            )
    with np.errstate(over="ignore"):  # an overflow shows as an infinity, which Federated reports
        return np.stack([values.astype(np.float32) for values in arrays], axis=-1)


def _stacked(name: str, values: np.ndarray) -> np.ndarray:
    shapes = {np.shape(value) for value in values}
    if len(shapes) != 1 or () in shapes:
        raise DataError(
            f"Feature {name!r} holds {sorted(map(str, shapes))[:3]} shaped values; as a single column it "
            "must hold numbers, or lists of numbers that all have one shape."
        )
    stacked = np.stack([np.asarray(value) for value in values])
    if stacked.dtype.kind not in "iufb":
        raise DataError(f"Feature {name!r} holds lists of {stacked.dtype}, not of numbers.")
    return stacked.astype(np.float32)


def target_codes(tables: Sequence[np.ndarray], name: str) -> tuple[list[np.ndarray], list[str] | None]:
    """Targets of several tables on one scale: numbers stay, text becomes 0..C−1 in sorted order with names.

    Raises:
        DataError: a missing target, or one that is neither a number nor text.
    """
    if all(values.dtype.kind in "iufb" for values in tables):
        return [np.asarray(v, np.int32) if v.dtype.kind == "b" else v for v in tables], None
    for values in tables:
        for row, value in enumerate(values):
            if value is None or value != value:
                raise DataError(
                    f"The target {name!r} is missing at row {row}. Drop the rows without a target."
                )
            if not isinstance(value, str):
                raise DataError(
                    f"The target {name!r} is {value!r} ({type(value).__name__}) at row {row}; targets are "
                    "numbers or text."
                )
    names = sorted({str(value) for values in tables for value in values})
    code = {value: number for number, value in enumerate(names)}
    return [np.array([code[str(value)] for value in values], np.int32) for values in tables], names
