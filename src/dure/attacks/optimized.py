"""Attacks that try the server's own rule and keep what hurts most (as in ByzFL; Allouah et al., AISTATS 2023)."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite
from dure.attacks.base import Attack, Scene, Sent, sent
from dure.attacks.known import deviation, known, mean
from dure.errors import ConfigError, DomainError


def line_search(
    value: Callable[[float], float], start: float = 0.0, step: float = 10.0, evaluations: int = 20
) -> tuple[float, float]:
    """Where a function of one number is large, to the right of `start`: (the place, the value there).

    The step doubles as long as it leads to larger values; then it shrinks by a fifth each time, whether or not it
    led to a larger one. Values that are NaN are never taken.

    Args:
        value: the function.
        start: where the search begins. Nothing left of it is ever tried.
        step: the first step, above 0.
        evaluations: how often the function is called in all, at least 1.
    """
    best, highest = start, value(start)
    if np.isnan(highest):
        highest = -np.inf
    growing = True
    for _ in range(evaluations - 1):
        tried = value(best + step)
        better = tried > highest
        if better:
            best, highest = best + step, tried
        growing = growing and better
        step *= 2.0 if growing else 0.8
    return best, float(highest)


@dataclass(frozen=True)
class _Optimized(Attack):
    """The place on a line through the honest mean m that moves the server's aggregate furthest from m.

    All attackers send the same. What the fields mean is said in the attacks themselves.
    """

    start: float = 0.0
    step: float = 10.0
    evaluations: int = 20
    candidates: tuple[float, ...] = ()
    knowledge = "rule"

    def __post_init__(self) -> None:
        checked_finite(self, "start", self.start)
        checked_finite(self, "step", self.step, above=0)
        checked_count(self, "evaluations", self.evaluations, 1)
        for tau in self.candidates:
            checked_finite(self, "candidates", tau)

    def craft(self, scene: Scene) -> Sent:
        assert scene.rule is not None  # `updates` has seen to it
        rule, rows = scene.rule, known(scene)
        m = mean(rows)
        base, direction = self.line(rows, m)
        whole = np.concatenate([scene.honest, scene.own])  # the server sees it in this form, to the last bit

        def damage(tau: float) -> float:
            whole[len(scene.honest) :] = sent(scene, base + tau * direction).rows
            try:
                moved = np.asarray(rule(whole.copy()), np.float64) - m
            except DomainError:
                return -np.inf  # the server won't aggregate this cohort either, whatever is sent
            return float(moved @ moved)

        best, highest = line_search(damage, self.start, self.step, self.evaluations)
        for tau in self.candidates:
            tried = damage(tau)
            if tried > highest:
                best, highest = tau, tried
        return sent(scene, base + best * direction)

    def line(self, rows: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(base, direction), (d,) each: sent is base + τ · direction."""
        raise NotImplementedError


@dataclass(frozen=True)
class OptimizedIPM(_Optimized):
    """−τm with the τ that moves the server's aggregate furthest from the mean m of the honest updates.

    All attackers send the same. The rule, pre-aggregators included, is called once for every τ that is tried.

    Args:
        start: the first τ that is tried. The search goes to the right only, so it matters.
        step: the first step, above 0.
        evaluations: how often the rule is called in the search, at least 1.
        candidates: further τ that are tried in any case. The search alone is enough for rules that are moved the
            further the larger τ is (median, trimmed mean); for those that set far rows aside (Krum, NNM) it often
            misses the τ that hurts most, so try a grid too, such as (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5).
    """

    citation = "C. Xie, O. Koyejo, I. Gupta. Fall of Empires: Breaking Byzantine-tolerant SGD. UAI 2019."

    def line(self, rows: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: D102
        return np.zeros_like(m), -m


@dataclass(frozen=True)
class OptimizedALIE(_Optimized):
    """m ± τσ with the τ that moves the server's aggregate furthest from the mean m of the honest updates.

    All attackers send the same. The rule, pre-aggregators included, is called once for every τ that is tried.

    Args:
        start: the first τ that is tried. The search goes to the right only, so it matters.
        step: the first step, above 0.
        evaluations: how often the rule is called in the search, at least 1.
        candidates: further τ that are tried in any case. The search alone is enough for rules that are moved the
            further the larger τ is (median, trimmed mean); for those that set far rows aside (Krum, NNM) it often
            misses the τ that hurts most, so try a grid too, such as (0.1, 0.2, 0.5, 1, 1.5, 2, 3, 5).
        sign: 1 adds, as in ByzFL; −1 subtracts.
        ddof: σ has the divisor h − ddof for h honest updates; 0 where there are no more than ddof of them.
    """

    sign: int = 1
    ddof: int = 1
    citation = "G. Baruch, M. Baruch, Y. Goldberg. A Little Is Enough. NeurIPS 2019."

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sign not in (-1, 1):
            raise ConfigError(f"OptimizedALIE(sign={self.sign!r}) is not allowed: it must be −1 or 1.")
        checked_count(self, "ddof", self.ddof)

    def line(self, rows: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:  # noqa: D102
        return m, self.sign * deviation(rows, self.ddof)
