"""Coordinate-wise median (Yin, Chen, Ramchandran and Bartlett, ICML 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from dure.aggregation.checking import checked_count
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half


@dataclass(frozen=True)
class Median(Rule):
    """The median of every coordinate; of an even number of updates the midpoint of the two in the middle.

    With weights it is the median of the mass: sorted by value, from the first whose cumulative weight reaches
    W/2 to the first whose cumulative weight exceeds it, and their midpoint.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int = 0
    citation: ClassVar[str] = "Yin et al., ICML 2018"
    weighting: ClassVar[str] = "mass"

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def kappa(self, n: int, f: int) -> float | None:
        return None if self.needs(n, f) else 4.0 * (1.0 + f / (n - 2 * f)) ** 2

    def decide(self, rows: Rows, call: Call) -> Decision:
        return Decision(vector=rows.median(None if call.equal else call.weights))
