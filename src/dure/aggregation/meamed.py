"""Mean around the median (Xie, Koyejo and Gupta, 2018)."""

from dataclasses import dataclass
from typing import ClassVar

from dure.aggregation.checking import checked_count
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half


@dataclass(frozen=True)
class MeaMed(Rule):
    """The mean, in every coordinate, of the n − f values nearest its median.

    They are neighbours in the sorted column; of two equally near windows the one with the smaller values counts.

    Args:
        f: hostile updates to reckon with, 2f < n.
    """

    f: int
    citation: ClassVar[str] = "Xie et al., arXiv:1802.10116"

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        return Decision(vector=rows.around_median(rows.n - call.f))
