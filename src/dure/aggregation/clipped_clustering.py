"""Clipped clustering (Li, Ngai and Voigt, IEEE Transactions on Big Data 2024)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count, checked_state
from dure.aggregation.clipping import clip_factors
from dure.aggregation.cosines import cosine_distances
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half


@dataclass(frozen=True)
class ClippedClustering(Rule):
    """The mean of the larger of two clusters of directions, clipped to the median of all lengths so far.

    Clusters by average linkage on cosine distances; of two equally large ones the one with the first update.

    State: "norms" (t,), the lengths of all updates of all rounds, one number for each update.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int = 0
    citation: ClassVar[str] = "Li et al., IEEE Transactions on Big Data 2024"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        lengths = rows.lengths()
        state = checked_state(self, call.state, "norms")
        norms = np.concatenate([state["norms"], lengths]) if state else lengths
        bound = float(np.median(norms))
        kept = _larger_cluster(cosine_distances(rows.inner))
        coefficients = np.zeros(rows.n)
        shares = call.weights[kept] / call.weights[kept].sum()
        coefficients[kept] = shares * clip_factors(lengths[kept], bound)
        return Decision(
            coefficients=coefficients, selected=kept, state={"norms": norms}, details={"norm": bound}
        )


def _larger_cluster(distances: np.ndarray) -> np.ndarray:
    if len(distances) < 2:
        return np.arange(len(distances))
    from sklearn.cluster import AgglomerativeClustering

    labels = AgglomerativeClustering(metric="precomputed", linkage="average").fit(distances).labels_
    first = labels == labels[0]
    return np.flatnonzero(first if 2 * first.sum() >= len(labels) else ~first)
