"""A regression tree, and how the server grows one from summed histograms."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dure.boosting.settings import GradientBoosting


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree of M nodes; node 0 is the root.

    Attributes:
        feature: (M,) which feature is asked; −1 in a leaf.
        threshold: (M,) a row goes left if its value is at most this.
        missing_left: (M,) whether a missing value goes left.
        left, right: (M,) the children; 0 in a leaf.
        value: (M,) what a leaf adds to the raw prediction, with the learning rate; 0 elsewhere.
        gain: (M,) what the split gained; 0 in a leaf.
        examples: (M,) training rows that came here.
    """

    feature: np.ndarray
    threshold: np.ndarray
    missing_left: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray
    gain: np.ndarray
    examples: np.ndarray

    def apply(self, x: np.ndarray) -> np.ndarray:
        """(B,) the leaves that rows (B, F) come to."""
        node = np.zeros(len(x), np.int64)
        moving = np.flatnonzero(self.feature[node] >= 0)
        while len(moving):
            at = node[moving]
            values = x[moving, self.feature[at]]
            left = np.where(np.isnan(values), self.missing_left[at], values <= self.threshold[at])
            node[moving] = np.where(left, self.left[at], self.right[at])
            moving = moving[self.feature[node[moving]] >= 0]
        return node

    def predict(self, x: np.ndarray) -> np.ndarray:
        """(B,) what the tree adds for rows (B, F)."""
        return np.asarray(self.value[self.apply(x)])

    def __eq__(self, other: object) -> bool:
        """Equal in every number."""
        if not isinstance(other, Tree):
            return NotImplemented
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in self.__dataclass_fields__)

    __hash__ = object.__hash__


class Sums(NamedTuple):
    """Sums over rows: how many, and first and second derivatives."""

    examples: np.ndarray
    gradient: np.ndarray
    hessian: np.ndarray

    def __add__(self, other: "Sums") -> "Sums":  # type: ignore[override]
        return Sums(*(a + b for a, b in zip(self, other, strict=True)))

    def __sub__(self, other: "Sums") -> "Sums":
        return Sums(*(a - b for a, b in zip(self, other, strict=True)))

    def at(self, *index: Any) -> "Sums":
        """The same part of each."""
        return Sums(*(part[index] for part in self))


class Split(NamedTuple):
    """A node's split: rows of `feature` in bins up to `bin` go left, those without a value too if `missing_left`."""

    node: int
    feature: int
    bin: int
    missing_left: bool
    left: int
    right: int


class Grower:
    """One tree while it grows.

    Sums are whole numbers in units of 2⁻ˢ, so they are exact and do not depend on who holds which rows.

    Args:
        settings: of the boosting.
        edges: of every feature's bins.
        units: of gradients and second derivatives, powers of two.
    """

    def __init__(self, settings: GradientBoosting, edges: list[np.ndarray], units: tuple[float, float]):
        self._settings, self._edges, self._units = settings, edges, units
        self._nodes: list[dict[str, float]] = []
        self.depth = 0
        self.active = [self._add()]

    def _add(self) -> int:
        self._nodes.append(dict.fromkeys(Tree.__dataclass_fields__, 0.0) | {"feature": -1.0})
        return len(self._nodes) - 1

    def grow(self, histograms: Sums) -> list[Split]:
        """Split the active nodes, whose histograms (m, F, B + 1) are given; the last bin is for missing values.

        Returns:
            the splits; the new nodes are active, unless they are as deep as allowed.
        """
        splits, children = [], []
        totals = Sums(*(part[:, 0].sum(-1) for part in histograms))  # every row is in one bin of each feature
        gains, left = self._candidates(histograms, totals)
        for i, node in enumerate(self.active):
            feature, way, bin_ = (int(n) for n in np.unravel_index(gains[i].argmax(), gains[i].shape))
            gain = float(gains[i, feature, way, bin_])
            total = totals.at(i)
            if self.depth == 0:
                self._leaf(node, total)
            if not gain > self._settings.minimum_gain:
                continue
            one = left.at(i, feature, way, bin_)
            other = total - one
            missing_left = bool(way)
            if histograms.examples[i, feature, -1] == 0:  # nobody is missing here: with the larger part
                missing_left = bool(one.examples > other.examples)
            a, b = self._add(), self._add()
            self._leaf(a, one)
            self._leaf(b, other)
            inner = self._edges[feature]
            self._nodes[node] |= {
                "feature": float(feature),
                "threshold": float(inner[bin_]) if bin_ < len(inner) else np.inf,
                "missing_left": float(missing_left),
                "left": float(a),
                "right": float(b),
                "value": 0.0,
                "gain": gain,
            }
            splits.append(Split(node, feature, bin_, missing_left, a, b))
            children += [a, b]
        self.depth += 1
        self.active = children if self.depth < self._settings.depth else []
        return splits

    def _leaf(self, node: int, sums: Sums) -> None:
        g, h = float(sums.gradient) * self._units[0], float(sums.hessian) * self._units[1]
        self._nodes[node]["value"] = -self._settings.learning_rate * g / (h + self._settings.l2 + 1e-15)
        self._nodes[node]["examples"] = float(sums.examples)

    def _candidates(self, histograms: Sums, totals: Sums) -> tuple[np.ndarray, Sums]:
        """(gains (m, F, 2, B), left sums of the same shape): missing values go right, then left."""
        settings = self._settings
        values = Sums(*(np.cumsum(part[..., :-1], -1)[:, :, None] for part in histograms))
        missing = Sums(*(part[:, :, None, -1:] for part in histograms))
        ways = np.array([0, 1])[:, None]
        left = Sums(*(v + ways * m for v, m in zip(values, missing, strict=True)))
        whole = Sums(*(part[:, None, None, None] for part in totals))
        right = whole - left
        gains = self._score(left) + self._score(right) - self._score(whole)
        allowed = np.ones(gains.shape, bool)
        for side in (left, right):
            allowed &= side.examples >= settings.minimum_examples
            allowed &= side.hessian * self._units[1] >= settings.minimum_hessian
        return np.where(allowed, gains, -np.inf), left

    def _score(self, sums: Sums) -> np.ndarray:
        g, h = sums.gradient * self._units[0], sums.hessian * self._units[1]
        return np.asarray(g * g / (h + self._settings.l2 + 1e-15))

    def tree(self) -> Tree:
        """The tree as it is."""
        types = {"threshold": np.float64, "value": np.float64, "gain": np.float64, "missing_left": np.bool_}
        columns: dict[str, Any] = {
            name: np.array([node[name] for node in self._nodes]).astype(types.get(name, np.int64))
            for name in Tree.__dataclass_fields__
        }
        return Tree(**columns)
