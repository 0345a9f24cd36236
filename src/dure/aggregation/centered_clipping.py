"""Centred clipping (Karimireddy, He and Jaggi, ICML 2021)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite, checked_vector
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half
from dure.errors import DataError


@dataclass(frozen=True)
class CenteredClipping(Rule):
    """v ← v + Σ α_i (x_i − v) min(1, τ/‖x_i − v‖), `steps` times, with α_i = w_i / W.

    Where v starts: `center` is the point that updates are measured from (0 for differences), and the memory
    `state["previous"]` (d,) is the last aggregate as a difference from its `center`. So v starts at `center` in the
    first round and at `center` + previous from then on: at the last aggregate where updates are differences. What the
    coefficients of the updates leave up to 1 belongs to that start. No client moves it by more than τ per step.

    The theorem needs few hostile clients, about n/10; beyond that an aggregate carries a flag. The right τ is of the
    size of the honest updates' distances from each other, and scales with the learning rate and √d.

    `details`: `clipped`, how many updates the last step shortened. `scores`: distances from v before the last step.

    Args:
        radius: τ > 0, in units of the updates' length.
        steps: L, at least 1.
        f: hostile updates to reckon with, 2f < n.
    """

    radius: float
    steps: int = 1
    f: int = 0
    citation: ClassVar[str] = "Karimireddy et al., ICML 2021"
    weighting: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        checked_finite(self, "radius", self.radius, above=0)
        checked_count(self, "steps", self.steps, 1)
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        centre = np.zeros(rows.d) if rows.centre is None else rows.centre
        previous = self._previous(call, rows.d)
        gram = rows.about(centre + previous) if previous.any() else rows.inner
        lengths, weights = np.diag(gram), call.weights / call.weights.sum()
        shares = np.zeros(rows.n)  # v − v₀ = Σ shares_i (x_i − v₀)
        for _ in range(self.steps):
            mixed = gram @ shares
            away = np.sqrt(np.maximum(lengths - 2.0 * mixed + shares @ mixed, 0.0))
            kept = weights * (self.radius / np.maximum(away, self.radius))
            shares = shares * (1.0 - kept.sum()) + kept
        rest = 1.0 - float(shares.sum())
        vector = rows.combine(shares)
        if previous.any():
            vector = (vector.astype(np.float64) + rest * previous).astype(vector.dtype)
        wide = np.float64 if rows.dtype == np.float64 else np.float32
        memory = {"previous": (vector.astype(np.float64) - centre).astype(wide)}
        flags = ("f is more than n/10: centred clipping promises nothing",) if 10 * call.f > rows.n else ()
        details = {"clipped": int((away > self.radius).sum())}
        return Decision(vector, shares, scores=away, state=memory, flags=flags, details=details)

    def _previous(self, call: Call, d: int) -> np.ndarray:
        if call.state is None:
            return np.zeros(d)
        if set(call.state) != {"previous"}:
            raise DataError(
                f"state has the keys {sorted(call.state)}: CenteredClipping returns and takes 'previous' alone."
            )
        found = checked_vector('state["previous"]', call.state["previous"], d)
        assert found is not None
        return found
