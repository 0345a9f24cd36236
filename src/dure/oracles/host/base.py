"""What every host has: a number that workers know it by, and its clients' rows in shared memory."""

import itertools
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from dure.oracles.host.channel import Arena, SharedColumns

_numbers = itertools.count()

#: Stands for a training loss that nobody reported, which is no reason to reject an update: NaN is. No loss is so low.
NOT_REPORTED = np.finfo(np.float32).min


class Host:
    """Answers questions about clients, in a worker or in this process.

    Args:
        columns: training rows of all clients, or None where no question is about them.
    """

    def __init__(self, columns: Mapping[str, np.ndarray] | None = None):
        self.number = next(_numbers)
        self.columns = columns
        self._shared: SharedColumns | None = None
        self.in_store: Any = None  # the columns where a cluster keeps them

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

    def groups(self, job: Any, given: Mapping[str, np.ndarray], rows: int) -> list[np.ndarray] | None:
        """Rows that must be asked about together for the answers to stay the same bit for bit; None: each alone."""
        return None

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: not the columns, which it finds in shared memory."""
        return {**self.__dict__, "columns": None, "_shared": None, "in_store": None}

    def answer(
        self, job: Any, given: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
    ) -> list[Any]:
        """Answer for each row of what is given; `worker.failure` of each client that raised."""
        raise NotImplementedError


class Workers(Protocol):
    """Whoever answers questions: processes of this machine (`pool`) or of a cluster (`ray`)."""

    def ask(
        self, host: Any, job: Any, given: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
    ) -> list[Any]:
        """Let `job` about `host` be answered, from any thread.

        Args:
            host: what is asked; workers get to know it once.
            job: the question, a small picklable object.
            given: arrays that go with it, (m, …), or (1, …) where all m rows share one.
            wanted: arrays (m, …) that the answer is written into.

        Returns:
            What failed, see `worker.answer`.

        Raises:
            RunError: workers died over it, or can't be reached.
        """
        ...

    def prepare(self, host: Any, count: int) -> None:
        """Get ready for questions about a host that come from so many devices at once.

        Raises:
            ConfigError: there are no workers, or the host can't be sent to them.
        """
        ...
