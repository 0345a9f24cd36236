"""Robust learning rate (Ozdayi, Kantarcioglu and Gel, AAAI 2021)."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dure.aggregation.average import Mean
from dure.aggregation.checking import checked_count, checked_finite
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule
from dure.errors import ConfigError


@dataclass(frozen=True)
class RLR(Rule):
    """ρ ⊙ (another rule's aggregate), ρ_j = lr where |Σ_i sign(x_ij)| ≥ threshold and −lr elsewhere.

    Against backdoors: coordinates that only few clients push move the other way. Signs, and the aggregate, are
    measured from the centre of the call. A vote counts the same whatever its client's weight is; the inner rule
    treats weights as it does.

    Args:
        threshold: θ, an integer with f + 1 ≤ θ ≤ n − f.
        inner: the rule whose aggregate is turned; the mean if none is given.
        f: hostile updates to reckon with.
        lr: η, more than 0.
    """

    threshold: int
    inner: Rule = field(default_factory=Mean)
    f: int = 0
    lr: float = 1.0
    citation: ClassVar[str] = "Ozdayi et al., AAAI 2021"

    def __post_init__(self) -> None:
        checked_count(self, "threshold", self.threshold, 1)
        checked_count(self, "f", self.f)
        checked_finite(self, "lr", self.lr, above=0)
        if not isinstance(self.inner, Rule):
            raise ConfigError(f"RLR(inner={self.inner!r}) is not allowed: it must be a rule, such as Mean().")
        for name in ("weighting", "geometric", "draws", "by_client"):
            object.__setattr__(self, name, getattr(self.inner, name))

    def hostile(self, m: int) -> int:
        return max(self.f, self.inner.hostile(m))

    def needs(self, n: int, f: int) -> str | None:
        if not f + 1 <= self.threshold <= n - f:
            return f"f + 1 ≤ threshold ≤ n − f (threshold={self.threshold})"
        failed = self.inner.needs(n, max(self.inner.hostile(n) + f - self.hostile(n), 0))
        return None if failed is None else f"{failed} for {type(self.inner).__name__}"

    def _admit(self, n: int, call: Call) -> None:
        self.check(n, call.f)
        self.inner._admit(n, call.of(self.inner))

    def decide(self, rows: Rows, call: Call) -> Decision:
        found = self.inner.decide(rows, call.of(self.inner))
        vector = found.vector
        if vector is None:
            shares = found.shares(call.weights)
            assert shares is not None
            vector = rows.combine(shares)
        centre = 0.0 if rows.centre is None else rows.centre
        sign = np.where(np.abs(rows.votes()) >= self.threshold, 1, -1).astype(np.int8)
        turned = centre + self.lr * sign * (vector.astype(np.float64) - centre)
        return found._replace(
            vector=turned.astype(rows.dtype),
            coefficients=None,
            details=dict(found.details) | {"lr_sign": sign},
        )
