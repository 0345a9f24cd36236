"""SignGuard (Xu, Huang, Song and Lan, ICDCS 2022)."""

import warnings
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count, checked_number
from dure.aggregation.clipping import clip_factors
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half
from dure.errors import ConfigError
from dure.keys import generator


@dataclass(frozen=True)
class SignGuard(Rule):
    """The mean of updates that are neither short nor long nor of unusual signs, clipped to the median length.

    First those with low < ‖x‖ / median < high are kept. Then the shares of positive, zero and negative numbers in
    a run of columns that is drawn at random, each divided by the largest share, are clustered by mean shift, and
    the largest cluster is kept. What is in both is clipped to the median length and averaged. If nothing is in
    both, the first filter decides alone, and a flag says so.

    Args:
        f: hostile updates to reckon with, 2f < n.
        low, high: bounds of the length, in medians, 0 ≤ low < 1 < high.
        share: of the columns that are looked at, in (0, 1].
    """

    f: int = 0
    low: float = 0.1
    high: float = 3.0
    share: float = 0.1
    citation: ClassVar[str] = "Xu et al., ICDCS 2022"
    weighting: ClassVar[str] = "selection"
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)
        checked_number(self, "share", self.share, 0.0, 1.0, "in (0, 1]")
        if not 0 <= self.low < 1 < self.high < np.inf:
            raise ConfigError(
                f"SignGuard(low={self.low!r}, high={self.high!r}) is not allowed: 0 ≤ low < 1 < high is needed."
            )

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        lengths = rows.lengths()
        median = float(np.median(lengths))
        usual = (lengths == median) | ((self.low * median < lengths) & (lengths < self.high * median))
        alike = _largest_cluster(self._signs(rows, call))
        kept = usual & alike
        flags: tuple[str, ...] = ()
        if not kept.any():
            kept, flags = usual, ("no update passed both filters: lengths alone decided",)
        chosen = np.flatnonzero(kept)
        coefficients = np.zeros(rows.n)
        shares = call.weights[chosen] / call.weights[chosen].sum()
        coefficients[chosen] = shares * clip_factors(lengths[chosen], median)
        details = {
            "norm": median,
            "usual_length": np.sort(call.at[usual]),
            "usual_signs": np.sort(call.at[alike]),
        }
        return Decision(coefficients=coefficients, selected=chosen, flags=flags, details=details)

    def _signs(self, rows: Rows, call: Call) -> np.ndarray:
        """(n, 3) shares of positive, zero and negative numbers, each divided by the largest of its column."""
        width = max(int(self.share * rows.d), min(rows.d, 1))
        first = int(generator(call.seed(self), "columns").integers(rows.d - width + 1))
        chosen = np.arange(first, first + width)
        there = rows.some_columns(chosen)
        if rows.centre is not None:
            there -= rows.centre[chosen]
        signs = np.sign(there)
        shares = np.stack([(signs == s).sum(1) for s in (1, 0, -1)], 1) / max(width, 1)
        return np.asarray(shares / np.maximum(shares.max(0), np.finfo(np.float64).tiny))


def _largest_cluster(features: np.ndarray) -> np.ndarray:
    """(n,) bool: the rows in the largest cluster; the first of equally large ones."""
    if len(features) < 3:
        return np.ones(len(features), bool)
    from sklearn.cluster import MeanShift, estimate_bandwidth

    width = max(
        float(estimate_bandwidth(features, quantile=0.5)), 1e-6
    )  # 0: more than half of them are equal
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Binning data failed")  # every row is a seed then
        labels = MeanShift(bandwidth=width, bin_seeding=True, cluster_all=False).fit(features).labels_
    named = labels[labels >= 0]
    if not len(named):
        return np.ones(len(features), bool)
    return np.asarray(labels == np.bincount(named).argmax())
