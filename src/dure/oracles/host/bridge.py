"""From the compiled round to a host and back: one callback for all clients that run together."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.buffer_callback import buffer_callback
from jaxtyping import Array

from dure.errors import DureError
from dure.oracles.host import worker
from dure.oracles.host.base import Workers
from dure.oracles.host.pool import pool

FLOAT = jnp.float32
_shapes_only: ContextVar[bool] = ContextVar("shapes_only", default=False)


@contextmanager
def shapes_only() -> Iterator[None]:
    """No host is asked: the answers are zeros of the shapes that are wanted.

    For code that is run without compilation to see its shapes: a host's work is the user's (a function, a client) and
    may only be done where it counts, on the rows that it is for.
    """
    token = _shapes_only.set(True)
    try:
        yield
    finally:
        _shapes_only.reset(token)


def shape(shape: tuple[int, ...], dtype: Any = FLOAT) -> jax.ShapeDtypeStruct:
    """What is wanted of an answer."""
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True)
class Failure:
    """A client's work that raised, or all that was asked together.

    Attributes:
        client: its number; None where the question was not about clients.
        stage: what was done, such as "solve".
        message: the error.
        trace: its traceback, from the process where it happened.
    """

    client: int | None
    stage: str
    message: str
    trace: str


@dataclass(eq=False)
class Handle:
    """A host and where it is asked.

    Attributes:
        host: see `dure.oracles.pytorch.host`.
        here: ask in this process (a GPU's model), one question at a time.
        workers: who answers otherwise, see `executors.workers`.
        failures: what has failed and wasn't looked at yet.
    """

    host: Any
    here: bool = False
    workers: Callable[[], Workers] = pool
    failures: list[Failure] = field(default_factory=list)
    _lock: Any = field(default_factory=Lock)

    def ask(self, job: Any, given: dict[str, np.ndarray], wanted: dict[str, np.ndarray], here: bool) -> None:
        """Write the answer for each row into `wanted`: NaN for what failed."""
        clients = given.get("client")
        try:
            if here or self.here:
                with self._lock:
                    failed = worker.answer(self.host, job, given, wanted)
            else:
                failed = self.workers().ask(self.host, job, given, wanted)
        except DureError as error:
            for array in wanted.values():
                array[...] = np.nan if array.dtype.kind == "f" else 0
            failed = [(-1, str(error), "")]
        stage = type(job).__name__.lower()
        for row, message, trace in failed:
            rows = range(len(clients)) if clients is not None and row < 0 else [row]
            for k in rows:
                client = None if clients is None else int(clients.reshape(-1)[k])
                self.failures.append(Failure(client, stage, message, trace))

    def taken(self) -> list[Failure]:
        """What has failed since this was last asked."""
        found, self.failures = self.failures, []
        return found


@dataclass(frozen=True)
class _Question:
    """What the callback does: rows of clients under any number of `vmap`s become the rows of one question."""

    handle: Handle
    job: Any
    ranks: tuple[tuple[str, int], ...]
    result_ranks: tuple[tuple[str, int], ...]

    def __call__(self, context: Any, out: Any, given: Any) -> None:
        results = {name: np.asarray(out[name]) for name, _ in self.result_ranks}
        some, rank = self.result_ranks[0]
        lead = results[some].shape[: results[some].ndim - rank]
        arrays = {name: _rows(np.asarray(given[name]), rank, lead) for name, rank in self.ranks}
        wanted = {
            name: results[name].reshape(-1, *results[name].shape[len(lead) :])
            for name, _ in self.result_ranks
        }
        self.handle.ask(self.job, arrays, wanted, here=False)


def _rows(array: np.ndarray, rank: int, lead: tuple[int, ...]) -> np.ndarray:
    """(1, …) where all clients share it, else (m, …)."""
    own = array.shape[array.ndim - rank :]
    found = array.shape[: array.ndim - rank]
    if all(n == 1 for n in found):
        return array.reshape(1, *own)
    return np.broadcast_to(array, (*lead, *own)).reshape(-1, *own)


def ask(
    handle: Handle, job: Any, given: Mapping[str, Any], wanted: Mapping[str, jax.ShapeDtypeStruct]
) -> dict[str, Array]:
    """Ask the host about one client; under `vmap` about all of them at once.

    Outside a compiled function it is asked in this process, where prints and breakpoints work; under `shapes_only` it
    is not asked.

    Args:
        handle: whom.
        job: the question; hashable.
        given: arrays that go with it.
        wanted: shapes and dtypes of the answer. Something must be wanted.
    """
    arrays = {name: jnp.asarray(x) for name, x in given.items() if np.size(x) or jnp.ndim(x) == 0}
    wanted = {name: x for name, x in wanted.items() if all(x.shape)}
    if _shapes_only.get():
        return {name: jnp.zeros(x.shape, x.dtype) for name, x in wanted.items()}
    if not any(isinstance(x, jax.core.Tracer) for x in arrays.values()):
        results = {name: np.zeros((1, *x.shape), x.dtype) for name, x in wanted.items()}
        handle.ask(job, {name: np.asarray(x)[None] for name, x in arrays.items()}, results, here=True)
        return {name: jnp.asarray(x[0]) for name, x in results.items()}
    question = _Question(
        handle,
        job,
        tuple((name, x.ndim) for name, x in arrays.items()),
        tuple((name, len(x.shape)) for name, x in wanted.items()),
    )
    call = buffer_callback(question, dict(wanted), vmap_method="expand_dims")
    answer: dict[str, Array] = call(arrays)
    return answer
