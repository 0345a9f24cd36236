"""A client of federated boosting: its rows in bins, their predictions, and the sums that it sends."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dure.boosting.trees import Split, Tree

_LOW = 26  # bits of the low half of a whole number, so that float64 sums of both halves are exact


def exact_sums(index: np.ndarray, values: np.ndarray, length: int) -> np.ndarray:
    """(length,) int64 sums of int64 values by index: of at most 2²⁶ values each, whose sizes add up to at most 2⁶¹."""
    low = np.bincount(index, values & ((1 << _LOW) - 1), length).astype(np.int64)
    high = np.bincount(index, values >> _LOW, length).astype(np.int64)
    return (high << _LOW) + low


def in_bins(x: np.ndarray, edges: Sequence[np.ndarray]) -> np.ndarray:
    """(n, F) bin numbers of rows (n, F): how many edges are below the value; a missing value is in the last bin.

    The last bin has the same number for all features: one more than the most edges.
    """
    last = max(len(e) for e in edges) + 1
    bins = np.empty(x.shape, np.int64)
    for f, inner in enumerate(edges):
        bins[:, f] = np.where(np.isnan(x[:, f]), last, np.searchsorted(inner, x[:, f], side="left"))
    return bins


class Client:
    """One client: knows its own rows, and tells sums over them in whole numbers of units.

    Args:
        x: (n, F) float64, NaN where a value is missing.
        y: (n,) float64.
        edges: of every feature's bins.
        loss: see `losses`.
        baseline: (outputs,) first raw prediction.
        scales: of gradients and second derivatives: 1/unit, powers of two.
    """

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        edges: Sequence[np.ndarray],
        loss: Any,
        baseline: np.ndarray,
        scales: tuple[float, float],
    ):
        self._bins, self._y, self._loss, self._scales = in_bins(x, edges), y, loss, scales
        self._width = max(len(e) for e in edges) + 2
        self._raw = np.repeat(baseline[None], len(x), 0)
        self._node = np.zeros(self._raw.shape, np.int64)

    def begin(self) -> None:
        """A new boosting round: derivatives at the present predictions, all rows at the roots."""
        first, second = self._loss.derivatives(self._raw, self._y)
        self._gradient = np.rint(first * self._scales[0]).astype(np.int64)
        self._hessian = None if second is None else np.rint(second * self._scales[1]).astype(np.int64)
        self._node[...] = 0

    def loss(self) -> Mapping[str, np.ndarray]:
        """The sum of the rows' losses at the present predictions."""
        return {"loss": np.asarray(self._loss.losses(self._raw, self._y).sum())}

    def histograms(self, active: Sequence[Sequence[int]]) -> Mapping[str, np.ndarray]:
        """Count and derivatives' sums of the rows in every bin, (m, F, B + 1) each, m active nodes of all trees."""
        parts: list[list[np.ndarray]] = [self._of_tree(c, nodes) for c, nodes in enumerate(active) if nodes]
        names = ("counts", "gradients", "hessians")
        return {
            name: np.concatenate(rows) for name, rows in zip(names, zip(*parts, strict=True), strict=False)
        }

    def _of_tree(self, c: int, nodes: Sequence[int]) -> list[np.ndarray]:
        features = self._bins.shape[1]
        seat = np.full(self._node[:, c].max(initial=max(nodes)) + 1, -1)
        seat[list(nodes)] = np.arange(len(nodes))
        rows = np.flatnonzero(seat[self._node[:, c]] >= 0)
        place = seat[self._node[rows, c]][:, None] * features + np.arange(features)
        index = (place * self._width + self._bins[rows]).reshape(-1)
        length = len(nodes) * features * self._width
        found = [np.bincount(index, minlength=length).astype(np.int32)]
        for values in (self._gradient, self._hessian):
            if values is not None:
                found.append(exact_sums(index, np.repeat(values[rows, c], features), length))
        return [sums.reshape(len(nodes), features, self._width) for sums in found]

    def split(self, c: int, splits: Sequence[Split]) -> None:
        """Rows of tree c's split nodes go to the children."""
        node = self._node[:, c]
        before = node.copy()
        for s in splits:
            rows = np.flatnonzero(before == s.node)
            bins = self._bins[rows, s.feature]
            left = np.where(bins == self._width - 1, s.missing_left, bins <= s.bin)
            node[rows] = np.where(left, s.left, s.right)

    def end(self, trees: Sequence[Tree]) -> None:
        """The round's trees are added to the predictions."""
        for c, tree in enumerate(trees):
            self._raw[:, c] += tree.value[self._node[:, c]]
