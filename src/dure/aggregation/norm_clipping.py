"""Norm clipping and weak noise against backdoors (Sun, Kairouz, Suresh and McMahan, 2019)."""

from dataclasses import dataclass
from typing import ClassVar

from dure.aggregation.checking import checked_finite
from dure.aggregation.clipping import clip_factors
from dure.aggregation.noise import noised
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule


@dataclass(frozen=True)
class NormClipping(Rule):
    """Σ w_i x_i min(1, norm / ‖x_i‖) / Σ w_i + N(0, noise²): no client moves the mean by more than norm · w_i / Σ w.

    A bound on what each client can do, and no guarantee against many of them. The noise is too little for
    differential privacy. The study of edge cases (Wang et al., NeurIPS 2020) has norm 2 and noise 0.025.

    Args:
        norm: the greatest length of an update, from the centre of the call; more than 0.
        noise: standard deviation of the noise in every coordinate of the result, at least 0; needs a key if more.
    """

    norm: float
    noise: float = 0.0
    citation: ClassVar[str] = "Sun et al., arXiv:1911.07963"
    weighting: ClassVar[str] = "mass"
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_finite(self, "norm", self.norm, above=0)
        checked_finite(self, "noise", self.noise, least=0)

    def decide(self, rows: Rows, call: Call) -> Decision:
        factors = clip_factors(rows.lengths(), self.norm)
        coefficients = call.weights / call.weights.sum() * factors
        vector = noised(rows.combine(coefficients), self.noise, self, call)
        return Decision(vector, coefficients, details={"clip_factors": call.at_given(factors)})
