"""Coordinate-wise trimmed mean (Yin, Chen, Ramchandran and Bartlett, ICML 2018)."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count, checked_number
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half
from dure.errors import ConfigError


@dataclass(frozen=True)
class TrimmedMean(Rule):
    """The mean of every coordinate without its f smallest and its f largest values.

    With weights the mass F of the f largest weights is cut off either end, splitting the value on the boundary.

    Args:
        f: values to cut off either end, 2f < n.
        fraction: in [0, 1/2), instead of f: ⌈fraction · m⌉ of m updates, so that a small fraction never cuts nothing.
    """

    f: int | None = None
    fraction: float | None = None
    citation: ClassVar[str] = "Yin et al., ICML 2018"
    weighting: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        if (self.f is None) == (self.fraction is None):
            raise ConfigError(
                f"TrimmedMean(f={self.f!r}, fraction={self.fraction!r}): give one of them, how many values are cut off "
                "either end or which share."
            )
        if self.f is not None:
            checked_count(self, "f", self.f)
        elif self.fraction != 0:
            checked_number(self, "fraction", self.fraction, 0.0, np.nextafter(0.5, 0.0), "in [0, 1/2)")

    def hostile(self, m: int) -> int:
        if self.fraction is None:
            return int(self.f or 0)
        return ceil(Fraction(str(self.fraction)) * m)  # 0.29 is meant as written: ⌈0.29 · 100⌉ is 29

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def kappa(self, n: int, f: int) -> float | None:
        if self.needs(n, f) is not None:
            return None
        ratio = f / (n - 2 * f)
        return 6.0 * ratio * (1.0 + ratio)

    def decide(self, rows: Rows, call: Call) -> Decision:
        if call.equal:
            return Decision(vector=rows.ranks(call.f, rows.n - call.f - 1))
        heaviest = float(np.sort(call.weights)[rows.n - call.f :].sum())
        return Decision(vector=rows.trimmed_mean(heaviest, call.weights))
