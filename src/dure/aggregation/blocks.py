"""Updates that need not be in memory at once, and how any updates are read: some columns of all clients at a time."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from dure.errors import DataError

#: Columns that are taken out of a source at a time, where it isn't one float32 or float64 array.
SEGMENT = 2**16


class Blocks:
    """Updates (n, d) as blocks of columns, such as one matrix for each layer, that need not be in memory at once.

    Args:
        parts: arrays (n, d_b), or a function without arguments that gives an iterator of them, anew at every call.

    Raises:
        DataError: arrays that don't fit together; in a pass over the blocks, others than before, or none (an
            iterator, which can be read only once).
    """

    def __init__(self, parts: Sequence[Any] | Callable[[], Iterable[Any]]):
        self._parts = parts
        shapes, dtypes = [], set()
        for part in self._read():
            if isinstance(part, np.ma.MaskedArray):
                raise DataError("A block of updates is a masked array: fill it in (block.filled(0)).")
            if part.ndim != 2:
                raise DataError(f"A block of updates has shape {part.shape}: it must be (clients, columns).")
            shapes.append(part.shape)
            dtypes.add(str(part.dtype))
        if not shapes:
            raise DataError("There are no blocks: give at least one array (clients, columns).")
        if len({n for n, _ in shapes}) > 1 or len(dtypes) > 1:
            raise DataError(
                f"The blocks have shapes {shapes[:5]} and dtypes {sorted(dtypes)}: they must agree in the clients "
                "and in the dtype."
            )
        self.shape = (shapes[0][0], sum(width for _, width in shapes))
        self.dtype = np.dtype(part.dtype)

    def _read(self) -> Iterator[Any]:
        return map(np.asanyarray, self._parts() if callable(self._parts) else self._parts)

    def __iter__(self) -> Iterator[Any]:
        n, columns = self.shape
        low = 0
        for part in self._read():
            low += part.shape[1] if part.ndim == 2 else 0
            if part.ndim != 2 or len(part) != n or low > columns or part.dtype != self.dtype:
                raise DataError(
                    f"A block is {part.dtype}{list(part.shape)} now, and ends at column {low}: the blocks were "
                    f"{self.dtype}[{n}, {columns}] in all when they were first read. Give the same ones every time."
                )
            yield np.asarray(part)
        if low < columns:
            raise DataError(
                f"The blocks end after {low} columns, and had {columns} when they were first read: give a list, or a "
                "function that begins anew at every call."
            )


def pieces(source: Any, width: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
    """(first column, float32 or float64 array of all the source's rows), in the order of the columns.

    All but the last are multiples of the kernels' unit of work wide, whatever the source's blocks are. An array of
    float32 or float64 comes whole, unless a `width` is given.
    """
    if not isinstance(source, Blocks):
        whole = np.asarray(source)
        if whole.dtype in (np.float32, np.float64) and width is None:
            yield 0, whole
            return
        for low in range(0, whole.shape[1], width or SEGMENT):
            yield low, _wide_enough(whole[:, low : low + (width or SEGMENT)])
        return
    low, waiting, columns = 0, [], 0
    for block in source:
        at = 0
        while at < block.shape[1]:
            part = block[:, at : at + SEGMENT - columns]
            waiting.append(part)
            at, columns = at + part.shape[1], columns + part.shape[1]
            if columns == SEGMENT:
                yield low, _wide_enough(np.hstack(waiting))
                low, waiting, columns = low + columns, [], 0
    if waiting:
        yield low, _wide_enough(np.hstack(waiting))


def _wide_enough(x: np.ndarray) -> np.ndarray:
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
