"""LEAF's JSON format: a dictionary of users, each with lists x and y (also used by FedProx)."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dure.data.federated import Federated
from dure.errors import ConfigError, DataError


def leaf_json(
    path: str | os.PathLike[str],
    *,
    test: str | os.PathLike[str] | None = None,
    shape: Sequence[int] | None = None,
    vocabulary: str | None = None,
    name: str | None = None,
) -> Federated:
    """Reads data in the format of LEAF (Caldas et al. 2018): {"users", "num_samples", "user_data"}.

    Each user is a client; users of the test files that have no training rows are clients too. Texts are
    encoded by characters: x becomes (n, T) int32, a one-character y a label.

    Args:
        path: a file, a folder of .json files, or a folder with the sub-folders `train` and `test`.
        test: the test file or folder, when it is not the sub-folder.
        shape: shape of one x, such as (28, 28, 1) for FEMNIST; as stored when not given.
        vocabulary: the characters in the order of their numbers; those that occur, sorted, when not given.
        name: a word for reports; the folder's or file's name when not given.

    Returns:
        x float32 (int32 for text), y int32 or float32, with test rows on every client when there are any.

    Raises:
        DataError: no such file, not this format, a user whose x, y and num_samples disagree, texts of
            different lengths, a character outside the vocabulary.
        ConfigError: a shape that does not fit.
    """
    place = Path(path)
    if place.is_dir() and (place / "train").is_dir():
        test = place / "test" if test is None and (place / "test").is_dir() else test
        name, place = name or place.name, place / "train"
    parts = {"train": _read(place), **({} if test is None else {"test": _read(Path(test))})}
    text = {c: any(isinstance(rows[0], str) for _, _, r in _users(parts) if (rows := r[c])) for c in "xy"}
    if any(text.values()) and vocabulary is None:
        seen = (value for _, _, rows in _users(parts) for c in "xy" if text[c] for value in rows[c])
        vocabulary = "".join(sorted({character for value in seen for character in value}))
    columns: dict[str, dict[str, np.ndarray]] = {}
    owners: dict[str, np.ndarray] = {}
    for part, users in parts.items():
        columns[part] = {c: _column(c, users, text[c], vocabulary or "") for c in "xy"}
        columns[part]["x"] = _shaped(columns[part]["x"], shape)
        owners[part] = np.repeat(
            np.array(list(users), dtype=str), [len(rows["y"]) for rows in users.values()]
        )
    return Federated.from_arrays(
        columns["train"], owners["train"], client_test=columns.get("test"), test_client=owners.get("test"),
        classes=len(vocabulary) if text["y"] and vocabulary else None,
        class_names=list(vocabulary) if text["y"] and vocabulary else None,
        name=name or place.stem, source=f"LEAF JSON, {place}",
        licence="as the data set's own; LEAF's code is BSD-2",
        citation="Caldas, S. et al. (2018). LEAF: A Benchmark for Federated Settings. arXiv:1812.01097",
    )  # fmt: skip


Rows = dict[str, list[Any]]


def _users(parts: Mapping[str, Mapping[str, Rows]]) -> list[tuple[str, str, Rows]]:
    return [(part, user, rows) for part, users in parts.items() for user, rows in users.items()]


def _read(place: Path) -> dict[str, Rows]:
    """All users of one file, or of the .json files of a folder in the order of their names."""
    files = sorted(place.glob("*.json")) if place.is_dir() else [place]
    if not files:
        raise DataError(f"The folder {place} has no .json file.")
    users: dict[str, Rows] = {}
    for file in files:
        for user, rows in _read_file(file).items():
            if user in users:  # one user's rows may be spread over files
                rows = {c: users[user][c] + rows[c] for c in "xy"}
            users[user] = rows
    if not any(rows["y"] for rows in users.values()):
        raise DataError(f"{place} has no examples.")
    return {user: rows for user, rows in users.items() if rows["y"]}


def _read_file(file: Path) -> dict[str, Rows]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error}.") from error
    except ValueError as error:
        raise DataError(f"{file} is not JSON: {error}.") from error
    if not isinstance(content, dict) or not {"users", "user_data"} <= set(content):
        raise DataError(f'{file} is not in LEAF\'s format: it needs the keys "users" and "user_data".')
    counts = content.get("num_samples", [None] * len(content["users"]))
    if len(counts) != len(content["users"]):
        raise DataError(f"{file} has {len(content['users'])} users but {len(counts)} entries in num_samples.")
    users: dict[str, Rows] = {}
    for user, count in zip(content["users"], counts, strict=True):
        rows = content["user_data"].get(user)
        if not isinstance(rows, dict) or not {"x", "y"} <= set(rows):
            raise DataError(f"{file}: the user {user!r} has no lists x and y in user_data.")
        lengths = len(rows["x"]), len(rows["y"])
        if len({*lengths, *([] if count is None else [count])}) > 1:
            raise DataError(f"{file}: user {user!r} has {lengths[0]} x, {lengths[1]} y, num_samples {count}.")
        users[str(user)] = {c: list(rows[c]) for c in "xy"}
    return users


def _column(name: str, users: Mapping[str, Rows], text: bool, vocabulary: str) -> np.ndarray:
    values = [value for rows in users.values() for value in rows[name]]
    if text:
        return _encoded(name, values, users, vocabulary)
    try:
        array = np.array(values)
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "iufb":
        raise DataError(f"Column {name!r} is not numbers (or lists of numbers of one length) for every user.")
    return array.astype(np.float32) if name == "x" else array


def _encoded(name: str, values: list[str], users: Mapping[str, Rows], vocabulary: str) -> np.ndarray:
    code = {character: number for number, character in enumerate(vocabulary)}
    length = len(values[0])
    owners = [user for user, rows in users.items() for _ in rows[name]]
    for user, value in zip(owners, values, strict=True):
        if not isinstance(value, str) or len(value) != length:
            raise DataError(
                f"User {user!r} has {name} = {value!r}, not a text of {length} characters as others."
            )
        if unknown := set(value) - set(code):
            raise DataError(
                f"User {user!r} has the character {min(unknown)!r}, which is not in the vocabulary."
            )
    table = np.array([[code[character] for character in value] for value in values], np.int32)
    return table[:, 0] if name == "y" and length == 1 else table


def _shaped(x: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    if shape is None:
        return x
    if int(np.prod(shape)) != int(np.prod(x.shape[1:])):
        raise ConfigError(f"shape={tuple(shape)} does not fit entries of shape {x.shape[1:]}.")
    return x.reshape(len(x), *shape)
