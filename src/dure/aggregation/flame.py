"""FLAME (Nguyen et al., USENIX Security 2022)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite
from dure.aggregation.clipping import clip_factors
from dure.aggregation.cosines import cosine_distances
from dure.aggregation.noise import noised
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half


@dataclass(frozen=True)
class FLAME(Rule):
    """The noised mean of the largest cluster of directions, every update in it clipped to the median length.

    HDBSCAN on cosine distances, with clusters of more than half of the updates; what belongs to none is left out
    (all are kept if none does). S, the median length of all updates, is the bound of clipping, and every
    coordinate of the result gets N(0, (noise · S)²).

    Args:
        f: hostile updates to reckon with, 2f < n.
        noise: λ of the paper, at least 0; needs a key if more.
    """

    f: int = 0
    noise: float = 0.001
    citation: ClassVar[str] = "Nguyen et al., USENIX Security 2022"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)
        checked_finite(self, "noise", self.noise, least=0)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        kept = _largest_cluster(cosine_distances(rows.inner))
        lengths = rows.lengths()
        median = float(np.median(lengths))
        factors = clip_factors(lengths, median)
        coefficients = np.zeros(rows.n)
        coefficients[kept] = call.weights[kept] / call.weights[kept].sum() * factors[kept]
        vector = noised(rows.combine(coefficients), self.noise * median, self, call)
        details = {"norm": median, "noise": self.noise * median, "clip_factors": call.at_given(factors)}
        return Decision(vector, coefficients, kept, details=details)


def _largest_cluster(distances: np.ndarray) -> np.ndarray:
    n = len(distances)
    if n < 3:
        return np.arange(n)
    from sklearn.cluster import HDBSCAN

    clusters = HDBSCAN(
        min_cluster_size=n // 2 + 1,
        min_samples=1,
        metric="precomputed",
        allow_single_cluster=True,
        copy=True,
    )
    labels = clusters.fit(distances).labels_
    kept = np.flatnonzero(labels >= 0)  # there is room for one cluster only
    return kept if len(kept) else np.arange(n)
