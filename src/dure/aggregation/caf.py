"""Covariance-bound agnostic filter (Allouah, Guerraoui and Stephan, ICML 2025)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half
from dure.errors import ConfigError

#: Rounds after which a filter over all rows gives up, with a flag.
_MOST_ROUNDS = 1000


@dataclass(frozen=True)
class CAF(Rule):
    """A weighted mean: rows that stick out along the direction of largest variance lose weight, round after round.

    With weights c (all 1 at first), p = c/Σc, the mean μ = Σ p_i x_i and the top eigenpair (λ, v) of the covariance:
    τ_i = ((x_i − μ)·v)² and c_i ← c_i (1 − τ_i/τ_max), until Σc ≤ n − 2f. The mean with the smallest λ counts.

    `details`: `lambda_max`, that λ; `iterations`, how many means were looked at. `scores`: the weight that a row has
    lost in the mean that counts, 0 … 1.

    Args:
        f: hostile updates to reckon with, 2f < n.
        tau_max: "active": the largest τ among rows that have weight left, so that every round takes at least one row
            out. "all_rows": among all, as in the paper; a row that is out but far away then makes the rounds so
            small that there can be thousands, and after 1,000 of them the filter stops and flags it.
    """

    f: int
    tau_max: str = "active"
    citation: ClassVar[str] = "Allouah et al., ICML 2025"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)
        if self.tau_max not in ("active", "all_rows"):
            raise ConfigError(f"CAF(tau_max={self.tau_max!r}) is not allowed: it is 'active' or 'all_rows'.")

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        weights, best, least = np.ones(rows.n), np.ones(rows.n), np.inf
        rounds, flags = 0, tuple[str, ...]()
        while True:
            rounds += 1
            top, outlying = _spread(rows.distances, weights / weights.sum())
            if top < least:
                best, least = weights, top
            largest = float(outlying[weights > 0.0].max() if self.tau_max == "active" else outlying.max())
            if top <= 0.0 or largest <= 0.0:
                break
            weights = weights * (1.0 - outlying / largest)
            if weights.sum() <= rows.n - 2 * call.f:
                break
            if rounds == _MOST_ROUNDS:
                flags = (f"the filter was stopped after {_MOST_ROUNDS} rounds",)
                break
        return Decision(
            coefficients=best / best.sum(),
            scores=1.0 - best,
            flags=flags,
            details={"lambda_max": least, "iterations": rounds},
        )


def _spread(apart: np.ndarray, shares: np.ndarray) -> tuple[float, np.ndarray]:
    """(λ, (n,) τ) of the rows with weights `shares`, of which the sum is 1."""
    means = apart @ shares
    centred = 0.5 * (means[:, None] + means - apart - shares @ means)  # inner products of x_i − μ
    used = np.flatnonzero(shares)
    roots = np.sqrt(shares[used])
    values, vectors = np.linalg.eigh(roots[:, None] * centred[np.ix_(used, used)] * roots)
    top = max(float(values[-1]), 0.0)
    along = centred[:, used] @ (roots * vectors[:, -1])
    return top, along**2 / top if top else np.zeros(len(apart))
