"""How many threads linear algebra may use: one, so that no bit of a result depends on how many there are."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any


class _OneThread:
    """The limit holds for the whole process: the first one inside sets it, and the last one out lifts it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._libraries: Any = None
        self._limit: Any = None

    def enter(self) -> None:
        with self._lock:
            if self._libraries is None:
                from threadpoolctl import ThreadpoolController

                self._libraries = ThreadpoolController()
            if not self._inside:
                self._limit = self._libraries.limit(limits=1, user_api="blas")
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


_ONE_THREAD = _OneThread()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within it BLAS and LAPACK have one thread: for small matrices that is faster too."""
    _ONE_THREAD.enter()
    try:
        yield
    finally:
        _ONE_THREAD.leave()
