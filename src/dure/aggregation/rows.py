"""The updates of a round as a rule sees them: rows, their distances, and combinations of them.

Distances are computed once, in float64, from one pass over the data (`Rows.distances`). Pre-aggregators don't
make a new matrix: they leave a small one that says how the rows are mixed, and distances follow from it. So a
pipeline reads the data twice, for the distances and for the result.
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dure.aggregation.blocks import SEGMENT, pieces
from dure.aggregation.kernels import device, networks

#: Larger magnitudes count as not finite: squares of what is below can be summed in float64.
LARGEST = 2.0**500
_LIMIT = {np.float32: float(np.finfo(np.float32).max), np.float64: LARGEST}
#: A squared distance this much smaller than the squared lengths it is a difference of has lost its digits.
_CANCELLED = 1e-7
#: Rows this near to each other may be equal.
_EQUAL = 1e-12


class Rows:
    """Updates (n, d) of n clients, and the point they are measured from.

    Args:
        source: a numpy or JAX array (N, d), or `Blocks`. It is never written to.
        centre: (d,), where lengths and directions are measured from; None: 0, the rows are differences already.
        index: which rows of the source these are; None: all.
        mixing: (n, len(index)): these rows are combinations of those; what is missing in the sum of a row of it
            is taken of the centre.
    """

    def __init__(
        self,
        source: Any,
        centre: np.ndarray | None = None,
        index: np.ndarray | None = None,
        mixing: np.ndarray | None = None,
    ):
        self.source, self.centre, self.mixing = source, centre, mixing
        self.index = np.arange(source.shape[0]) if index is None else index
        self.n = len(self.index) if mixing is None else len(mixing)
        self.d = int(source.shape[1])
        self.dtype = source.dtype
        self._before: tuple[Rows, np.ndarray] | None = None

    # ----- new rows from these ------------------------------------------------------------------------

    def take(self, chosen: np.ndarray) -> "Rows":
        """Only these rows."""
        if self.mixing is not None:
            return self.mixed(np.eye(self.n)[chosen])
        rows = Rows(self.source, self.centre, self.index[chosen])
        for name in ("_points", "distances", "inner"):
            if name in self.__dict__:
                most = np.append(chosen, self.n) if name == "_points" else chosen
                rows.__dict__[name] = self.__dict__[name][np.ix_(most, most)]
        return rows

    def mixed(self, mixing: np.ndarray) -> "Rows":
        """Rows mixing (k, n) · these, what is missing in the sum of a row of it taken of the centre."""
        whole = mixing if self.mixing is None else mixing @ self.mixing
        rows = Rows(self.source, self.centre, self.index, whole)
        rows._before = (self, mixing)
        return rows

    # ----- geometry -----------------------------------------------------------------------------------

    @cached_property
    def inner(self) -> np.ndarray:
        """(n, n) inner products of x_i − centre, in float64."""
        if self._before is not None:
            rows, mixing = self._before
            return _congruent(mixing, rows.inner)
        n = len(self.index)
        found: np.ndarray = self._sum(
            np.zeros((n, n)), lambda k, x, rows, at, total: k.gram(x, rows, at(self.centre), None, total)
        )
        return found

    @cached_property
    def _points(self) -> np.ndarray:
        """(n + 1, n + 1) inner products of the rows and, last, the centre, about an origin that suits distances."""
        if self._before is not None:
            rows, mixing = self._before
            _ = rows.distances  # chooses the origin
            affine = np.hstack([mixing, 1.0 - mixing.sum(1, keepdims=True)])
            return _congruent(np.vstack([affine, np.eye(1, rows.n + 1, rows.n)]), rows._points)
        return np.pad(self.inner, (0, 1))

    def _gram(self, origin: np.ndarray) -> np.ndarray:
        """As `_points`, about the origin (d,)."""
        n = len(self.index)
        zero = np.zeros(self.d) if self.centre is None else self.centre
        return self._sum(
            np.zeros((n + 1, n + 1)),
            lambda k, x, rows, at, total: k.gram(x, rows, at(origin), at(zero), total),
        )

    @cached_property
    def distances(self) -> np.ndarray:
        """(n, n) ‖x_i − x_j‖² in float64, never negative, 0 on the diagonal and between equal rows."""
        found = _apart(self._points)
        if self.mixing is None and self._near(found, _CANCELLED).any():
            # The rows are close together and far from the centre: about their median nothing cancels, and
            # no single client can move it.
            self.__dict__["_points"] = self._gram(np.asarray(self.median(), np.float64))
            self._unite(self._near(_apart(self._points), _EQUAL))
            found = _apart(self._points)
        return np.asarray(found[:-1, :-1])

    def _near(self, apart: np.ndarray, share: float) -> np.ndarray:
        """(n, n) bool, below the diagonal: pairs that are closer than `share` of their lengths' squares."""
        lengths = np.diag(self._points)[:-1]
        return np.asarray(np.tril(apart[:-1, :-1] <= share * (lengths[:, None] + lengths[None]), -1))

    def _unite(self, near: np.ndarray) -> None:
        """Equal rows get the same inner products, to the last bit."""
        for i in np.flatnonzero(near.any(1)):
            j = int(np.flatnonzero(near[i])[0])
            if all(np.array_equal(x[self.index[i]], x[self.index[j]]) for _, x in self._pieces()):
                points = self._points
                points[i], points[:, i] = points[j], points[:, j]
                points[i, i] = points[i, j] = points[j, i] = points[j, j]

    @property
    def from_centre(self) -> np.ndarray:
        """(n,) ‖x_i − centre‖², in float64."""
        return np.asarray(np.maximum(np.diag(self.inner), 0.0))

    def lengths(self) -> np.ndarray:
        """(n,) ‖x_i − centre‖ in float64: without a Gram matrix, where none is there yet."""
        if self.mixing is not None or "inner" in self.__dict__:
            return np.asarray(np.sqrt(self.from_centre))
        return np.asarray(np.sqrt(self.squared_to(np.zeros(self.d) if self.centre is None else self.centre)))

    def along(self, vector: np.ndarray) -> np.ndarray:
        """(n,) inner products of x_i − centre with a vector (d,), in float64, by a pass over the data."""
        found = self._sum(
            np.zeros(len(self.index)),
            lambda k, x, rows, at, total: k.along(x, rows, at(self.centre), at(vector), total),
        )
        return found if self.mixing is None else np.asarray(self.mixing @ found)

    @property
    def products(self) -> np.ndarray:
        """(n, n) inner products about an origin near the rows that no single client can move.

        For what depends on differences only: Σ β_i x_i with Σ β_i = 1 is ‖·‖² = βᵀ G β from that origin.
        """
        _ = self.distances
        return np.asarray(self._points[:-1, :-1])

    def about(self, point: np.ndarray) -> np.ndarray:
        """(n, n) inner products of x_i − point, in float64, by a pass over the data."""
        base = self._gram(np.asarray(point, np.float64))
        if self.mixing is None:
            return base[:-1, :-1]
        affine = np.hstack([self.mixing, 1.0 - self.mixing.sum(1, keepdims=True)])
        return np.asarray(affine @ base @ affine.T)

    def squared_to(self, point: np.ndarray) -> np.ndarray:
        """(n,) ‖x_i − point‖² in float64, by a pass over the data."""
        if self.mixing is not None:
            return np.maximum(np.diag(self.about(point)), 0.0)
        point = np.asarray(point, np.float64)
        return self._sum(
            np.zeros(self.n), lambda k, x, rows, at, total: k.squared_to(x, rows, at(point), total)
        )

    # ----- results ------------------------------------------------------------------------------------

    def combine(self, coefficients: np.ndarray) -> np.ndarray:
        """Σ c_i x_i + (1 − Σ c_i) centre, (d,) in float64 arithmetic, in the dtype of the rows."""
        whole = coefficients if self.mixing is None else coefficients @ self.mixing
        return self._assemble(
            lambda x, at, out: _host().combined(x, self.index, whole, at(self.centre), out),
            lambda x, at: device.combined(x, whole[None], self.centre)[0],
        )

    def matrix(self) -> np.ndarray:
        """These rows as a new array (n, d) in the dtype of the source."""
        wide = np.dtype(self.dtype).itemsize >= 4 or self.mixing is None
        out = np.empty((self.n, self.d), self.dtype if wide else np.float32)
        for low, x in self._pieces():
            here = slice(low, low + x.shape[1])
            if self.mixing is None:
                for i, row in enumerate(self.index):
                    out[i, here] = x[row]
            else:
                _host().mixed(x, self.index, self.mixing, self._part(self.centre, here), out[:, here])
        return self._rounded(out)

    def median(self, weights: np.ndarray | None = None) -> np.ndarray:
        """(d,) the median of every column, of an even number the midpoint; with weights, by mass."""
        if weights is not None:
            return self._weighted(weights, -1.0)
        return self.ranks((self.n - 1) // 2, self.n // 2)

    def trimmed_mean(self, mass: float, weights: np.ndarray) -> np.ndarray:
        """(d,) the weighted mean of every column without the mass `mass` at either end."""
        return self._weighted(weights, mass)

    def ranks(self, first: int, last: int) -> np.ndarray:
        """(d,) the mean of the ranks first … last of every column, counted from 0."""
        network = networks.pruned(self.n, range(first, last + 1))
        kernel = _kernels().middle
        return self._columns(
            lambda x, rows, low, high, out: kernel(x, rows, low, high, network, first, last, out),
            lambda x: device.middle(x, first, last),
        )

    def around_median(self, keep: int) -> np.ndarray:
        """(d,) the mean of the `keep` values nearest the median of every column."""
        network = networks.pruned(self.n, range(self.n))
        kernel = _kernels().around
        return self._columns(
            lambda x, rows, low, high, out: kernel(x, rows, low, high, network, keep, out),
            lambda x: device.around(x, keep),
        )

    def per_column(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """(d,) `function` of blocks of columns (n, w) → (w,), for rules that need nothing faster."""
        out = np.empty(self.d, np.float64)
        for low, x in self._pieces(SEGMENT):
            out[low : low + x.shape[1]] = function(self._tile(low, x))
        return out

    def votes(self) -> np.ndarray:
        """(d,) Σ_i sign(x_i − centre) of every column, an integer from −n to n; sign(0) = 0."""
        out = np.empty(self.d, np.int64)
        for low, x in self._pieces(SEGMENT):
            here = slice(low, low + x.shape[1])
            point = 0 if self.centre is None else self.centre[here]
            tile = self._tile(low, x)
            out[here] = (tile > point).sum(0) - (tile < point).sum(0)
        return out

    def _tile(self, low: int, x: np.ndarray) -> np.ndarray:
        """(n, w) these rows in a piece of the source that begins at column `low`."""
        if self.mixing is None:
            return np.asarray(x[self.index])
        tile = self.mixing @ x[self.index].astype(np.float64)
        if self.centre is not None:
            tile += (1.0 - self.mixing.sum(1, keepdims=True)) * self.centre[low : low + x.shape[1]]
        return np.asarray(tile)

    def some_columns(self, chosen: np.ndarray) -> np.ndarray:
        """(n, b) the chosen columns (ascending) in float64."""
        if self._on_device:
            found = [np.asarray(self.source[self.index][:, chosen]).astype(np.float64)]
        else:
            found = self._gathered(chosen)
        base = np.hstack(found)
        if self.mixing is None:
            return base
        rest = 0.0 if self.centre is None else np.outer(1.0 - self.mixing.sum(1), self.centre[chosen])
        return np.asarray(self.mixing @ base + rest)

    def _gathered(self, chosen: np.ndarray) -> list[np.ndarray]:
        found = [np.zeros((len(self.index), 0))]
        for low, x in self._pieces():
            here = chosen[(chosen >= low) & (chosen < low + x.shape[1])] - low
            found.append(x[np.ix_(self.index, here)].astype(np.float64))
        return found

    def broken(self) -> np.ndarray:
        """(n,) bool: which rows hold a number that is not finite (in float64: or beyond 2⁵⁰⁰)."""
        if self._on_device:
            return device.broken(self.source[self.index])
        found = np.zeros(len(self.index), bool)
        for _, x in self._pieces():
            found |= _host().broken(x, self.index, _LIMIT[x.dtype.type])
        return found

    def broken_rows(self, geometric: bool) -> np.ndarray:
        """As `broken`; where distances are asked for anyway, by their pass."""
        if not geometric or self.dtype == np.float64 or not self.d:
            return self.broken()
        with np.errstate(invalid="ignore"):
            return np.asarray(~np.isfinite(np.diag(self.inner)))

    # ----- passes -------------------------------------------------------------------------------------

    @property
    def _on_device(self) -> bool:
        return isinstance(self.source, jax.Array) and _accelerated(self.source)

    def _pieces(self, width: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
        return pieces(self.source, width)

    def _part(self, vector: np.ndarray | None, here: slice) -> np.ndarray | None:
        return None if vector is None else vector[here]

    def _sum(self, total: np.ndarray, work: Callable[..., Any]) -> np.ndarray:
        """work(kernels, x, rows, at, total) adds a piece; at(vector) is the piece's part of a (d,) vector."""
        if self._on_device:
            return np.asarray(work(_OnDevice, self.source[self.index], None, lambda v: v, total))
        for low, x in self._pieces():
            here = slice(low, low + x.shape[1])
            work(_host(), x, self.index, lambda v, here=here: self._part(v, here), total)
        return total

    def _assemble(self, on_host: Callable[..., None], on_device: Callable[..., Any]) -> np.ndarray:
        if self._on_device:
            return self._rounded(on_device(self.source[self.index], None))
        out = np.empty(self.d, np.float64 if self.dtype == np.float64 else np.float32)
        for low, x in self._pieces():
            here = slice(low, low + x.shape[1])
            on_host(x, lambda v, here=here: self._part(v, here), out[here])
        return self._rounded(out)

    def _columns(self, kernel: Callable[..., None], on_device: Callable[[Any], Any]) -> np.ndarray:
        def moved(x: Any, at: Any) -> Any:
            return on_device(x if self.mixing is None else device.combined(x, self.mixing, self.centre))

        return self._assemble(
            lambda x, at, out: _host().over_columns(kernel, x, self.index, self.mixing, at(self.centre), out),
            moved,
        )

    def _weighted(self, weights: np.ndarray, trim: float) -> np.ndarray:
        bound, kernel = float(np.sum(weights)), _kernels().weighted
        moved = (
            Rows(np.asarray(self.source), self.centre, self.index, self.mixing) if self._on_device else self
        )
        return moved._columns(
            lambda x, rows, low, high, out: kernel(x, rows, low, high, weights, bound, trim, out),
            lambda x: x,
        )

    def _rounded(self, vector: Any) -> np.ndarray:
        return np.asarray(vector).astype(self.dtype, copy=False)


class _OnDevice:
    """The device's sums with the host's arguments."""

    @staticmethod
    def gram(x: Any, rows: None, origin: Any, more: Any, total: np.ndarray) -> np.ndarray:
        return device.gram(x, origin, more)

    @staticmethod
    def squared_to(x: Any, rows: None, point: Any, total: np.ndarray) -> np.ndarray:
        return device.squared_to(x, jnp.asarray(point))

    @staticmethod
    def along(x: Any, rows: None, origin: Any, vector: Any, total: np.ndarray) -> np.ndarray:
        return device.along(x, origin, vector)


def _apart(points: np.ndarray) -> np.ndarray:
    """Squared distances from inner products, never negative, 0 on the diagonal."""
    lengths = np.diag(points)
    found = np.maximum(lengths[:, None] + lengths[None] - 2.0 * points, 0.0)
    np.fill_diagonal(found, 0.0)
    return np.asarray(found)


def _congruent(mixing: np.ndarray, products: np.ndarray) -> np.ndarray:
    """M P Mᵀ, symmetric; equal rows of M give equal numbers to the last bit."""
    found = mixing @ products @ mixing.T
    _, first, which = np.unique(mixing, axis=0, return_index=True, return_inverse=True)
    same = first[which.reshape(-1)]
    return np.asarray(((found + found.T) / 2)[np.ix_(same, same)])


def _accelerated(array: jax.Array) -> bool:
    return all(d.platform != "cpu" for d in array.devices())


def _host() -> Any:
    from dure.aggregation.kernels import host  # numba takes a second to import

    return host


def _kernels() -> Any:
    from dure.aggregation.kernels import columns

    return columns
