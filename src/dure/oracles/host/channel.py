"""How arrays reach another process: messages on a socket, arrays in memory that both have mapped.

The memory is an unnamed file: nothing is left behind, however a process ends.
"""

import mmap
import os
import pickle
import socket
import struct
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dure.errors import RunError

_ALIGNMENT = 64
_LENGTH = struct.Struct("<Q")


class Place(NamedTuple):
    """Where an array lies in the shared memory."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class Arena:
    """Memory that two processes have mapped; only the owner makes it larger.

    Args:
        file: descriptor of a file that another process made; None makes one.
    """

    def __init__(self, file: int | None = None):
        self._owned = None
        if file is None:
            memory = Path("/dev/shm")
            self._owned = tempfile.TemporaryFile(dir=memory if memory.is_dir() else None)  # noqa: SIM115
            file = self._owned.fileno()
        self.file = file
        self._map: mmap.mmap | None = None
        self.size = 0

    def reserve(self, size: int) -> None:
        """Make it at least so many bytes long.

        Raises:
            RunError: there is no room.
        """
        if size <= self.size:
            return
        assert self._owned is not None
        size = max(size, 2 * self.size)
        _allocate(self._owned.fileno(), size)
        self._map, self.size = mmap.mmap(self.file, size), size

    def __del__(self) -> None:
        if self._owned is not None:
            self._owned.close()

    def follow(self, size: int) -> None:
        """Map what the owner has made of it."""
        if size > self.size:
            self.size = size
            self._map = mmap.mmap(self.file, size)

    def array(self, place: Place) -> np.ndarray:
        """The array at a place, in the shared memory itself."""
        assert self._map is not None
        return np.ndarray(place.shape, np.dtype(place.dtype), self._map, place.offset)

    def write(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Place]:
        """Copy arrays into the memory, from its beginning on."""
        places = lay_out(arrays, 0)[0]
        self.reserve(max([1, *(end(place) for place in places.values())]))  # columns may have no values
        for name, place in places.items():
            self.array(place)[...] = arrays[name]
        return places


def _allocate(file: int, size: int) -> None:
    """Room that is really there: writing to memory that isn't kills a process (SIGBUS)."""
    try:
        os.ftruncate(file, size)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
    except OSError as error:
        raise RunError(
            f"Shared memory has no room for {size / 1e6:.0f} MB ({error.strerror}): make /dev/shm larger (for a "
            "container: --shm-size), or train in this process with eager=True."
        ) from error


def lay_out(arrays: Mapping[str, Any], start: int) -> tuple[dict[str, Place], int]:
    """(places one behind the other from `start` on, end) for things with a shape and a dtype."""
    places = {}
    for name, array in arrays.items():
        dtype = np.dtype(array.dtype)
        place = Place(start, tuple(int(n) for n in array.shape), dtype.str)
        places[name] = place
        start = -(-end(place) // _ALIGNMENT) * _ALIGNMENT
    return places, start


def end(place: Place) -> int:
    """The first byte behind an array."""
    return place.offset + int(np.prod(place.shape, dtype=np.int64)) * np.dtype(place.dtype).itemsize


def send(to: socket.socket, message: Any) -> None:
    """One pickled message."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    to.sendall(_LENGTH.pack(len(content)) + content)


def receive(from_: socket.socket) -> Any:
    """The next message.

    Raises:
        EOFError: the other side is gone.
    """
    (length,) = _LENGTH.unpack(_exactly(from_, _LENGTH.size))
    return pickle.loads(_exactly(from_, length))


def _exactly(from_: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = from_.recv(min(count, 1 << 20))
        if not part:
            raise EOFError("the other process is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


_columns: "weakref.WeakValueDictionary[Any, SharedColumns]" = weakref.WeakValueDictionary()


class SharedColumns:
    """Columns in shared memory, copied once for all who have the same arrays."""

    def __init__(self, columns: Mapping[str, np.ndarray]):
        self.originals = dict(columns)  # which keeps their ids their own
        self.memory = Arena()
        self.places = self.memory.write(columns)

    @staticmethod
    def of(columns: Mapping[str, np.ndarray]) -> "SharedColumns":
        """Those of these arrays, made if they aren't there."""
        key = tuple(sorted((name, id(column)) for name, column in columns.items()))
        found = _columns.get(key)
        if found is None:
            found = _columns[key] = SharedColumns(columns)
        return found
