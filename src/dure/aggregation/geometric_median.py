"""Geometric median, exactly, and RFA, a few smoothed steps towards it (Pillutla, Kakade, Harchaoui, IEEE TSP 2022)."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half
from dure.errors import ConfigError

#: Rounds after which the search for the minimum ends, with a flag. A few dozen are usual.
_MOST_ROUNDS = 1000
#: The length of the gradient at which it has converged; the sum of the weights is 1.
_CONVERGED = 1e-13
#: A vertex whose pull is balanced this well is the minimum.
_BALANCED = 1e-12
#: Rows count as lying on a line where 1 − cos² is less than this.
_STRAIGHT = 1e-9


@dataclass(frozen=True)
class GeometricMedian(Rule):
    """argmin_z Σ α_i ‖z − x_i‖ with α_i = w_i / W, to the precision of float64.

    First the row with the smallest sum of distances is tried: it is the minimum exactly where the pull of the others,
    ‖Σ α_i (x_i − x_k)/‖x_i − x_k‖‖, is not larger than its own weight. Otherwise Weiszfeld's iteration (by Vardi and
    Zhang, PNAS 2000, away from that row), sped up by Newton steps where they bring it nearer, all with inner products
    of the rows, so that the updates are read twice whatever the number of steps. It starts at the best row and every
    Weiszfeld step lowers the sum, so that it can't meet another row on its way; and where it starts doesn't matter,
    as it goes on until the gradient vanishes. Updates on one line can have a whole interval of minima: its midpoint.

    `details`: `residual`, the length of the gradient (0 … 1) that is left; `iterations`.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int = 0
    citation: ClassVar[str] = "Weber 1909; Pillutla et al., IEEE TSP 2022"
    weighting: ClassVar[str] = "mass"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def kappa(self, n: int, f: int) -> float | None:
        return None if self.needs(n, f) else 4.0 * (1.0 + f / (n - 2 * f)) ** 2

    def decide(self, rows: Rows, call: Call) -> Decision:
        weights = call.weights / call.weights.sum()
        far = np.sqrt(rows.distances)
        best = _best_row(far, rows.products, weights)
        here = far[best] == 0.0
        gram = _about_row(rows, best, here)
        own = float(weights[here].sum())
        pulls = np.divide(weights, far[best], out=np.zeros(rows.n), where=~here)
        pull = _length(gram, pulls)
        if pull <= own + _BALANCED:
            shares = _interval(gram, pulls, far[best], pull >= own - _STRAIGHT)
            found = _State(shares, far[best], max(pull - own, 0.0))
            rounds = 0
        else:
            start = (1.0 - own / pull) * pulls / pulls.sum()
            found, rounds = _descend(gram, weights, far[best], here, start)
        coefficients = np.where(here, 0.0, found.shares)
        coefficients[best] = 1.0 - coefficients.sum()
        flags = () if found.residual < 1e-6 else ("the geometric median was not reached",)
        details = {"residual": found.residual, "iterations": rounds}
        return Decision(coefficients=coefficients, scores=found.distances, flags=flags, details=details)


class _State(NamedTuple):
    """A point z = x_best + Σ shares_i (x_i − x_best), its distances to the rows, and its gradient's length."""

    shares: np.ndarray
    distances: np.ndarray
    residual: float


def _best_row(far: np.ndarray, products: np.ndarray, weights: np.ndarray) -> int:
    first = int(np.argmin(far @ weights))
    # One row that is very far away takes the digits of those sums; differences of sums keep them.
    lengths = np.diag(products)
    gains = (lengths - lengths[first])[:, None] - 2.0 * (products - products[first])
    both = far + far[first]
    changes = np.divide(gains, both, out=np.zeros_like(far), where=both > 0.0) @ weights
    changes[first] = 0.0
    return int(np.argmin(changes))


def _about_row(rows: Rows, best: int, here: np.ndarray) -> np.ndarray:
    """Inner products of x_i − x_best: near that row distances keep all their digits."""
    products = rows.products
    gram = products - products[best] - products[:, best, None] + products[best, best]
    gram[here], gram[:, here] = 0.0, 0.0
    np.fill_diagonal(gram, rows.distances[best])
    return np.asarray(gram)


def _length(gram: np.ndarray, shares: np.ndarray) -> float:
    return float(np.sqrt(max(shares @ gram @ shares, 0.0)))


def _interval(gram: np.ndarray, pulls: np.ndarray, away: np.ndarray, balanced: bool) -> np.ndarray:
    """Shares of the minimum where it is at the best row: none, or half the way to the other end of an interval."""
    shares = np.zeros(len(pulls))
    there = away > 0.0
    if balanced and there.any():
        end = int(np.argmax(away))
        cosines = np.zeros(len(pulls))
        cosines[there] = gram[end, there] / away[end] / away[there]
        if (1.0 - cosines[there] ** 2 < _STRAIGHT).all():
            side = np.sign(gram[end] @ pulls)
            ahead = np.flatnonzero(cosines * side > 0.0)
            shares[ahead[np.argmin(away[ahead])]] = 0.5
    return shares


def _descend(
    gram: np.ndarray, weights: np.ndarray, away: np.ndarray, here: np.ndarray, shares: np.ndarray
) -> tuple[_State, int]:
    """Weiszfeld and Newton steps until the gradient vanishes or the digits are used up."""
    lengths, least = np.diag(gram), np.where(here, 1e-300, 1e-10 * away)

    def at(shares: np.ndarray) -> tuple[_State, np.ndarray, np.ndarray]:
        mixed = gram @ shares
        own = max(float(shares @ mixed), 0.0)
        distances = np.maximum(np.sqrt(np.maximum(lengths - 2.0 * mixed + own, 0.0)), least)
        pulls = weights / distances
        gap = pulls / pulls.sum() - shares
        return _State(shares, distances, _length(gram, gap) * float(pulls.sum())), pulls, mixed

    state, pulls, mixed = at(shares)
    best, rounds, idle = state, 0, 0
    while best.residual > _CONVERGED and rounds < _MOST_ROUNDS and idle < 10:
        rounds += 1
        now = at(pulls / pulls.sum())
        for jump in _newton(gram, state, pulls, mixed, weights):
            # A Weiszfeld step behind the jump writes it without shares that cancel each other.
            landed = at(jump)[1]
            other = at(landed / landed.sum())
            if other[0].residual < now[0].residual:
                now = other
                break
        state, pulls, mixed = now
        idle = 0 if state.residual < 0.9 * best.residual else idle + 1
        best = min(best, state, key=lambda s: s.residual)
    return best, rounds


def _newton(
    gram: np.ndarray, state: _State, pulls: np.ndarray, mixed: np.ndarray, weights: np.ndarray
) -> list[np.ndarray]:
    """Shares after a whole and a quarter Newton step.

    With unit vectors u_i from z to the rows the Hessian is Σ a_i (I − u_i u_iᵀ), a_i = α_i/‖x_i − z‖. In p = Σ t_i u_i
    the equation H p = Σ α_i u_i reads (Σ a) t − diag(a) U t = α with the cosines U = (u_i · u_j).
    """
    shares, distances = state.shares, state.distances
    cosines = gram - mixed[:, None] - mixed + float(shares @ mixed)
    cosines /= distances[:, None] * distances
    matrix = np.diag(np.full(len(pulls), pulls.sum())) - pulls[:, None] * cosines
    try:
        steps = np.linalg.solve(matrix, weights) / distances
    except np.linalg.LinAlgError:
        return []
    change = steps - steps.sum() * shares
    return [shares + change, shares + 0.25 * change] if np.isfinite(change).all() else []


@dataclass(frozen=True)
class RFA(Rule):
    """A fixed number of smoothed Weiszfeld steps: z ← Σ β_i x_i / Σ β_i with β_i = α_i / max(ν, ‖z − x_i‖).

    Not the geometric median: with few steps the start decides how robust it is. Rows at 10⁶ leave a start at the
    mean 10⁵ away from the honest ones. It is here to compare with; `GeometricMedian` is exact and not slower.

    Args:
        f: hostile updates to reckon with, 2f < n.
        steps: at least 1.
        smoothing: ν > 0.
        start: "median" of every coordinate; "mean", as in the authors' code; or "center", as in ByzFL.
    """

    f: int = 0
    steps: int = 4
    smoothing: float = 1e-5
    start: str = "median"
    citation: ClassVar[str] = "Pillutla et al., IEEE TSP 2022"
    weighting: ClassVar[str] = "mass"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)
        checked_count(self, "steps", self.steps, 1)
        checked_finite(self, "smoothing", self.smoothing, above=0)
        if self.start not in ("median", "mean", "center"):
            raise ConfigError(
                f"RFA(start={self.start!r}) is not allowed: it is 'median', 'mean' or 'center'."
            )

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        weights = call.weights / call.weights.sum()
        gram = rows.products

        def squared(shares: np.ndarray) -> np.ndarray:
            mixed = gram @ shares
            return np.asarray(np.maximum(np.diag(gram) - 2.0 * mixed + shares @ mixed, 0.0))

        if self.start == "median":
            away = rows.squared_to(rows.median(None if call.equal else call.weights))
        else:
            away = rows.from_centre if self.start == "center" else squared(weights)
        for step in range(self.steps):
            pulls = weights / np.maximum(np.sqrt(away), self.smoothing)
            shares = pulls / pulls.sum()
            if step + 1 < self.steps:
                away = squared(shares)
        return Decision(coefficients=shares, scores=np.sqrt(away))
