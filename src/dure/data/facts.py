"""Facts about columns: their fingerprint, and how often each class occurs on each client."""

import hashlib
from collections.abc import Mapping

import numpy as np
from jaxtyping import Int32, Int64


def fingerprint(clients: int, tables: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """SHA-256 (hexadecimal) of the client count and of each array's name, type, shape and bytes.

    The same on machines of either byte order, and for every order of the columns.
    """
    sha = hashlib.sha256(f"{clients}".encode())
    for table, columns in tables.items():
        for name in sorted(columns):
            array = np.ascontiguousarray(columns[name])
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            sha.update(f"|{table}/{name}:{little.dtype.str}{array.shape}".encode())
            sha.update(little.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def class_counts(
    labels: Int32[np.ndarray, "n ..."], offsets: Int64[np.ndarray, "bounds"], classes: int
) -> Int64[np.ndarray, "clients {classes}"]:
    """Labels of each class on each client; negative labels (positions without a target) don't count."""
    clients = len(offsets) - 1
    width = int(np.prod(labels.shape[1:]))
    owner = np.repeat(np.arange(clients), np.diff(offsets) * width)
    flat = labels.reshape(-1)
    cell = (owner * classes + flat)[flat >= 0]
    return np.bincount(cell, minlength=clients * classes).reshape(clients, classes).astype(np.int64)
