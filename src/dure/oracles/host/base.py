"""What every host has: a number that workers know it by, and its clients' rows in shared memory."""

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from dure.oracles.host.channel import Arena, SharedColumns

_numbers = itertools.count()


class Host:
    """Answers questions about clients, in a worker or in this process.

    Args:
        columns: training rows of all clients, or None where no question is about them.
    """

    def __init__(self, columns: Mapping[str, np.ndarray] | None = None):
        self.number = next(_numbers)
        self.columns = columns
        self._shared: SharedColumns | None = None

    def shared_columns(self) -> tuple[Any, int, Arena | None]:
        """(places, bytes, memory) of the columns, copied there once; (None, 0, None) without columns."""
        if self.columns is None:
            return None, 0, None
        if self._shared is None:
            self._shared = SharedColumns.of(self.columns)
        return self._shared.places, self._shared.memory.size, self._shared.memory

    def bind(self, columns: Mapping[str, np.ndarray]) -> None:
        """Read clients' rows from these columns."""
        self.columns = columns

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not the columns, which it finds in shared memory."""
        return {**self.__dict__, "columns": None, "_shared": None}

    def answer(
        self, job: Any, given: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
    ) -> list[Any]:
        """Answer for each row of what is given; `worker.failure` of each client that raised."""
        raise NotImplementedError
