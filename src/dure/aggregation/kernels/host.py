"""Passes over updates in the host's memory, on all cores, with results that don't depend on how many.

Columns are dealt out in chunks that begin at multiples of `CHUNK` whatever the source looks like. What adds up
over columns (Gram matrices, squared distances) is summed per chunk and then over the chunks in their order, and
BLAS is held to one thread: neither the number of cores nor the blocks of the source can be seen in a bit.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from dure.aggregation.kernels import columns
from dure.aggregation.kernels.threads import one_blas_thread

#: Columns in one unit of work; a multiple of `columns.BLOCK`.
CHUNK = 1024
#: Rows that are mixed of so few others are summed one by one: clipping, buckets.
FEW = 4
#: Numbers in the results of chunks that a thread holds back.
HELD = 1 << 17


@lru_cache(maxsize=1)
def _pool(process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    )


def in_order(work: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
    """Results of `work` in the order of the items, computed by all cores, few of them at a time."""
    pool = _pool(os.getpid())  # a forked process has no threads of its parent's
    with one_blas_thread():
        waiting: deque[Any] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= 8:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _ranges(width: int, parts: int) -> list[tuple[int, int]]:
    """[0, width) in at most so many ranges that begin at multiples of `CHUNK`."""
    chunks = -(-width // CHUNK)
    each = -(-chunks // max(parts, 1)) * CHUNK
    return [(low, min(low + each, width)) for low in range(0, width, max(each, 1))]


def _all(work: Callable[[tuple[int, int]], Any], width: int, parts: int = 8) -> None:
    for _ in in_order(work, _ranges(width, parts)):
        pass


def add_chunks(part: Callable[[int], np.ndarray], width: int, total: np.ndarray) -> None:
    """Makes total ← total + Σ part(low), one chunk after the other in their order.

    A thread does several chunks at a call, for a chunk alone may take less time than handing it to a thread: as many
    as their results take `HELD` numbers, and so that there are eight calls for the threads to share.
    """
    each = CHUNK * max(1, min(16, HELD // max(total.size, 1), width // (8 * CHUNK)))
    tasks = range(0, width, each)
    for pieces in in_order(
        lambda first: [part(x) for x in range(first, min(first + each, width), CHUNK)], tasks
    ):
        for piece in pieces:
            total += piece


def over_columns(
    kernel: Callable[..., None],
    x: np.ndarray,
    rows: np.ndarray,
    mixing: np.ndarray | None,
    centre: np.ndarray | None,
    out: np.ndarray,
) -> None:
    """Makes out (w,) ← kernel(matrix, its rows, low, high, its part of out) over all columns of x[rows].

    With `mixing` (k, n) the matrix is mixing · x[rows], what is missing in a row's sum times the centre (w,).
    """
    if mixing is None:
        _all(lambda r: kernel(x, rows, r[0], r[1], out), x.shape[1])
        return
    every = np.arange(len(mixing))

    def part(here: tuple[int, int]) -> None:
        for low in range(*here, CHUNK):
            tile = _mixed(x, rows, mixing, centre, slice(low, low + CHUNK))
            kernel(tile, every, 0, tile.shape[1], out[low : low + CHUNK])

    _all(part, x.shape[1])


def _mixed(
    x: np.ndarray, rows: np.ndarray, mixing: np.ndarray, centre: np.ndarray | None, here: slice
) -> np.ndarray:
    found = mixing @ x[rows, here].astype(np.float64)
    if centre is not None:
        found += (1.0 - mixing.sum(1, keepdims=True)) * centre[here]
    return np.asarray(found)


def combined(
    x: np.ndarray, rows: np.ndarray, coefficients: np.ndarray, centre: np.ndarray | None, out: np.ndarray
) -> None:
    """Makes out (w,) ← Σ coefficients x[rows] + (1 − Σ coefficients) centre."""
    used = np.flatnonzero(coefficients)
    rest = 0.0 if centre is None else 1.0 - float(np.sum(coefficients))
    point = np.zeros(1, x.dtype) if centre is None else centre
    chosen, factors = rows[used], coefficients[used]
    _all(lambda r: columns.combined(x, chosen, r[0], r[1], factors, point, rest, out), x.shape[1])


def broken(x: np.ndarray, rows: np.ndarray, limit: float) -> np.ndarray:
    """(n,) bool: rows with a number that is not finite or beyond `limit`."""
    whole = np.int32 if x.dtype == np.float32 else np.int64
    bits, mask = x.view(whole), whole(np.iinfo(whole).max)  # all but the sign
    most: np.ndarray = np.asarray(limit, x.dtype).view(whole)

    def part(here: tuple[int, int]) -> np.ndarray:
        magnitudes: np.ndarray = np.zeros(len(rows), whole)
        columns.largest(bits, rows, *here, mask, magnitudes)
        return np.asarray(magnitudes > most)

    found = np.zeros(len(rows), bool)
    for piece in in_order(part, _ranges(x.shape[1], 8)):
        found |= piece
    return found


def gram(
    x: np.ndarray, rows: np.ndarray, origin: np.ndarray | None, more: np.ndarray | None, total: np.ndarray
) -> None:
    """Makes total (n, n) ← total + Y Yᵀ in float64 for Y = x[rows] − origin, with the vector `more` as one more row."""
    every = np.array_equal(rows, np.arange(x.shape[0]))

    def part(low: int) -> np.ndarray:
        here = slice(low, low + CHUNK)
        y = np.empty((len(total), min(CHUNK, x.shape[1] - low)))
        y[: len(rows)] = x[:, here] if every else x[rows, here]
        if more is not None:
            y[-1] = more[here]
        if origin is not None:
            y -= origin[here]
        with np.errstate(invalid="ignore"):  # a row that is not finite is found by what comes of it
            return np.asarray(y @ y.T)

    add_chunks(part, x.shape[1], total)


def squared_to(x: np.ndarray, rows: np.ndarray, point: np.ndarray, total: np.ndarray) -> None:
    """Makes total (n,) ← total + ‖x[row] − point‖² in float64."""

    def part(low: int) -> np.ndarray:
        found = np.zeros(len(rows))
        columns.squared_to(x, rows, low, min(low + CHUNK, x.shape[1]), point, found)
        return found

    add_chunks(part, x.shape[1], total)


def along(
    x: np.ndarray, rows: np.ndarray, origin: np.ndarray | None, vector: np.ndarray, total: np.ndarray
) -> None:
    """Makes total (n,) ← total + (x[rows] − origin) · vector, in float64."""

    def part(low: int) -> np.ndarray:
        here = slice(low, low + CHUNK)
        y = x[rows, here].astype(np.float64)
        if origin is not None:
            y -= origin[here]
        return np.asarray(y @ vector[here])

    add_chunks(part, x.shape[1], total)


def mixed(
    x: np.ndarray, rows: np.ndarray, mixing: np.ndarray, centre: np.ndarray | None, out: np.ndarray
) -> None:
    """Makes out (k, w) ← mixing (k, n) · x[rows], what is missing in a row's sum times the centre."""
    if np.count_nonzero(mixing, axis=1).max(initial=0) <= FEW:
        used = [np.flatnonzero(row) for row in mixing]
        rest = np.zeros(len(mixing)) if centre is None else 1.0 - mixing.sum(1)
        point = np.zeros(1, x.dtype) if centre is None else centre

        def few(here: tuple[int, int]) -> None:
            for i, own in enumerate(used):
                columns.combined(x, rows[own], *here, mixing[i, own], point, rest[i], out[i])

        _all(few, x.shape[1])
        return

    def part(here: tuple[int, int]) -> None:
        for low in range(*here, CHUNK):
            out[:, low : low + CHUNK] = _mixed(x, rows, mixing, centre, slice(low, low + CHUNK))

    _all(part, x.shape[1])
