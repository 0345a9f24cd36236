"""What an attacker computes of the updates that it knows: in float64, over blocks of columns, without a copy of all."""

from collections.abc import Iterator

import numpy as np

from dure.attacks.base import Scene

_COLUMNS = 2**16
#: Squares of what is below can be summed in float64. The server's rules draw the line at the same place.
_LIMIT = 2.0**500


def known(scene: Scene) -> np.ndarray:
    """(k, d), k ≥ 1: the honest updates that the server will use, which are the finite ones.

    Where there is none the attackers' own updates stand in for them, as in the version of ALIE that knows no honest
    client (Baruch et al., NeurIPS 2019); where these aren't finite either, one row of zeros.
    """
    for rows in (scene.honest, scene.own):
        largest = np.maximum(rows.max(1), -rows.min(1)).astype(np.float64)
        sound = largest < _LIMIT  # NaN compares as false
        if sound.any():
            return rows if sound.all() else rows[sound]
    return np.zeros((1, scene.own.shape[1]))


def mean(rows: np.ndarray) -> np.ndarray:
    """(d,) float64."""
    return np.asarray(rows.mean(0, dtype=np.float64))


def deviation(rows: np.ndarray, ddof: int) -> np.ndarray:
    """(d,) standard deviation of every coordinate with divisor k − ddof; 0 where there are no more than ddof rows."""
    found = np.zeros(rows.shape[1])
    if len(rows) > ddof:
        for at in blocks(rows.shape[1]):
            found[at] = rows[:, at].astype(np.float64).std(0, ddof=ddof)
    return found


def blocks(d: int) -> Iterator[slice]:
    """The columns 0 … d − 1 in blocks."""
    for first in range(0, d, _COLUMNS):
        yield slice(first, min(first + _COLUMNS, d))


def products(rows: np.ndarray, origin: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    """(k + l, k + l) inner products of the rows minus the origin (d,), and of l further vectors (l, d) as they are.

    All cores work on it, and their number can't be seen in a bit.
    """
    from dure.aggregation.kernels.host import CHUNK, add_chunks  # needs numba, which takes a while to load

    extra = np.empty((0, rows.shape[1])) if others is None else others

    def part(first: int) -> np.ndarray:
        at = slice(first, first + CHUNK)
        piece = np.vstack([rows[:, at] - origin[at], extra[:, at]])
        return np.asarray(piece @ piece.T)

    found = np.zeros((len(rows) + len(extra),) * 2)
    add_chunks(part, rows.shape[1], found)
    return found


def distances(gram: np.ndarray) -> np.ndarray:
    """(k, k) squared distances from inner products (k, k): never negative, 0 on the diagonal."""
    lengths = np.diag(gram)
    found: np.ndarray = np.maximum(lengths[:, None] + lengths[None] - 2 * gram, 0.0)
    np.fill_diagonal(found, 0.0)
    return found
