"""The weighted mean as a rule: no defence, the yardstick of all others."""

from dataclasses import dataclass
from typing import ClassVar

from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule


@dataclass(frozen=True)
class Mean(Rule):
    """Σ w_i x_i / Σ w_i (McMahan et al., AISTATS 2017). One hostile client moves it wherever it likes."""

    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
    weighting: ClassVar[str] = "mass"

    def decide(self, rows: Rows, call: Call) -> Decision:
        return Decision(coefficients=call.weights / call.weights.sum())
