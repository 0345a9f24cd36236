"""Hugging Face data sets that are on disk already (written by save_to_disk) or in memory."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dure.data import frames
from dure.data.federated import Federated
from dure.data.pooled import Pooled
from dure.errors import DataError, did_you_mean


def huggingface(
    source: Any,
    *,
    client: str | None = None,
    target: str = "label",
    features: Sequence[str] | None = None,
    train: str = "train",
    test: str | None = None,
    name: str = "huggingface",
) -> Federated | Pooled:
    """Arrays from a `datasets.Dataset` or `DatasetDict`, given as object or as the folder of save_to_disk.

    Images become x (H, W, C) float32 in [0, 1] (bytes / 255), all of one size; a single column of
    equal-length lists keeps its shape; number columns are put side by side. Nothing is downloaded.

    Args:
        source: the data set, or the folder that `save_to_disk` wrote (this needs the package `datasets`).
        client: name of the column that says whose row it is; without it the result has no clients yet.
        target: name of the target column; a ClassLabel gives the class names.
        features: names of the feature columns; all but client and target when not given.
        train: name of the training split when the source has splits.
        test: name of the test split; "test" if there is one, when not given. With `client` its rows become
            the test rows of their clients where it has the client column, else the central test set.
        name: a word for reports.

    Returns:
        A `Federated` with `client`, otherwise a `Pooled` (use its `.partition`).

    Raises:
        DataError: no such folder, the package is missing, an unknown split or column, features that are not
            numbers, or as `Federated`.
    """
    splits = _splits(_opened(source), train)
    if test is None and "test" in splits and train != "test":
        test = "test"
    for wanted in [train] if test is None else [train, test]:
        if wanted not in splits:
            raise DataError(f"There is no split {wanted!r}. {did_you_mean(wanted, splits)}")
    parts = [splits[train]] if test is None else [splits[train], splits[test]]
    names = (
        [c for c in parts[0].column_names if c not in (client, target)]
        if features is None
        else list(features)
    )
    owners = None if client is None else _column(parts[0], client, "client")
    x = [_features(part, names) for part in parts]
    raw = [_column(part, target, "target") for part in parts]
    y, class_names = frames.target_codes(raw, target)
    class_names = getattr(parts[0].features[target], "names", None) or class_names
    tables = [{"x": features_, "y": target_} for features_, target_ in zip(x, y, strict=True)]
    held = tables[1] if len(tables) > 1 else None
    about: dict[str, Any] = {"class_names": class_names, "name": name, "source": "Hugging Face data set"}
    about["classes"] = len(class_names) if class_names else None
    about["licence"], about["citation"] = _about(parts[0])
    if client is None or owners is None:
        return Pooled(tables[0], held, **about)
    if held is not None and client in parts[1].column_names:
        theirs = _column(parts[1], client, "client")
        return Federated.from_arrays(tables[0], owners, client_test=held, test_client=theirs, **about)
    return Federated.from_arrays(tables[0], owners, test=held, **about)


def _opened(source: Any) -> Any:
    if not isinstance(source, str | os.PathLike):
        return source
    folder = Path(source)
    if not folder.is_dir():
        raise DataError(
            f"{folder} is not a folder. Give the folder that save_to_disk wrote; nothing is downloaded."
        )
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise DataError(
            "Opening a Hugging Face data set needs the package: pip install 'dure[datasets]'."
        ) from error
    try:
        return load_from_disk(str(folder))
    except (FileNotFoundError, ValueError) as error:
        raise DataError(f"{folder} was not written by save_to_disk: {error}.") from error


def _splits(source: Any, train: str) -> dict[str, Any]:
    if isinstance(source, dict) and all(hasattr(part, "features") for part in source.values()):
        return dict(source)
    if hasattr(source, "column_names") and hasattr(source, "features"):
        return {train: source}
    raise DataError(
        f"The source is a {type(source).__name__}; give a datasets.Dataset, a DatasetDict or the folder of "
        "one (a streamed data set has to be saved first)."
    )


def _column(part: Any, name: str, what: str) -> np.ndarray:
    if name not in part.column_names:
        raise DataError(
            f"There is no column {name!r} for the {what}. {did_you_mean(name, part.column_names)}"
        )
    values = part.with_format(None)[name][:]
    array = np.array(values)
    return array if array.dtype.kind in "iufb" else np.array(values, dtype=object)


def _features(part: Any, names: Sequence[str]) -> np.ndarray:
    if not names:
        raise DataError("There is no feature column beside the client and the target.")
    if len(names) > 1:
        return frames.feature_matrix({name: _column(part, name, "features") for name in names}, names)
    values = (
        part.with_format(None)[names[0]][:]
        if names[0] in part.column_names
        else _column(part, names[0], "features")
    )
    if type(part.features[names[0]]).__name__ == "Image":
        return _images(names[0], [np.asarray(image) for image in values])
    array = np.empty(len(values), dtype=object)
    array[:] = [np.asarray(value) for value in values]
    scalars = {np.shape(value) for value in array} == {()}
    return frames.feature_matrix({names[0]: np.array(values) if scalars else array}, names)


def _images(name: str, images: list[np.ndarray]) -> np.ndarray:
    shapes = sorted({str(image.shape) for image in images})
    if len(shapes) != 1:
        raise DataError(
            f"The images of {name!r} have several shapes ({', '.join(shapes[:3])}); resize them first."
        )
    stacked = np.stack(images).astype(np.float32)
    if images[0].dtype == np.uint8:
        stacked /= 255
    return stacked[..., None] if stacked.ndim == 3 else stacked


def _about(part: Any) -> tuple[str, str]:
    info = getattr(part, "info", None)
    return str(getattr(info, "license", "") or ""), str(getattr(info, "citation", "") or "")
