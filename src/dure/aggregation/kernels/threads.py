"""How many threads linear algebra may use: one, so that no bit of a result depends on how many there are."""

from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any


def one_blas_thread() -> AbstractContextManager[Any]:
    """Within it BLAS and LAPACK have one thread: for small matrices that is faster too."""
    return _libraries().limit(limits=1, user_api="blas")  # type: ignore[no-any-return]


@lru_cache(maxsize=1)
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
