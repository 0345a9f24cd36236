"""Krum and Multi-Krum (Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule
from dure.errors import ConfigError


def krum_scores(distances: np.ndarray, neighbours: int) -> np.ndarray:
    """(n,) s_i = Σ of the `neighbours` smallest squared distances D_ij, j ≠ i."""
    apart = distances + np.diag(np.full(len(distances), np.inf))
    return np.asarray(np.sort(apart, axis=1)[:, :neighbours].sum(1))


def _scores(rows: Rows, f: int, neighbours: str) -> np.ndarray:
    return krum_scores(rows.distances, rows.n - f - (1 if neighbours == "n-f-1" else 2))


def _check(rule: object, f: int, neighbours: str) -> None:
    checked_count(rule, "f", f)
    if neighbours not in ("n-f-2", "n-f-1"):
        raise ConfigError(
            f"{type(rule).__name__}(neighbours={neighbours!r}) is not allowed: it is 'n-f-2', as in the paper, or "
            "'n-f-1', as in ByzFL."
        )


def _needs(n: int, f: int) -> str | None:
    return None if n >= 2 * f + 3 else "n ≥ 2f + 3"


@dataclass(frozen=True)
class Krum(Rule):
    """The update with the smallest sum of squared distances to its n − f − 2 nearest others.

    Equal scores go to the first.

    Args:
        f: hostile updates to reckon with, n ≥ 2f + 3.
        neighbours: how many others count: "n-f-2", as in the paper, or "n-f-1", for which a κ is known.
    """

    f: int
    neighbours: str = "n-f-2"
    citation: ClassVar[str] = "Blanchard et al., NeurIPS 2017"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self, self.f, self.neighbours)

    def needs(self, n: int, f: int) -> str | None:
        return _needs(n, f)

    def kappa(self, n: int, f: int) -> float | None:
        known = self.neighbours == "n-f-1" and self.needs(n, f) is None
        return 6.0 * (1.0 + f / (n - 2 * f)) if known else None

    def decide(self, rows: Rows, call: Call) -> Decision:
        scores = _scores(rows, call.f, self.neighbours)
        return Decision(selected=np.array([np.argmin(scores)]), scores=scores)


@dataclass(frozen=True)
class MultiKrum(Rule):
    """The mean of the m updates with the smallest Krum scores.

    The paper has m ≤ n − f − 2. ByzFL's rule of this name is `MultiKrum(f, m="n-f", neighbours="n-f-1")`.

    Args:
        f: hostile updates to reckon with, n ≥ 2f + 3.
        m: how many are averaged: "n-f-2", "n-f", or a number, 1 ≤ m ≤ n − f.
        neighbours: as for `Krum`.
    """

    f: int
    m: int | str = "n-f-2"
    neighbours: str = "n-f-2"
    citation: ClassVar[str] = "Blanchard et al., NeurIPS 2017"
    weighting: ClassVar[str] = "selection"
    geometric: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check(self, self.f, self.neighbours)
        if self.m not in ("n-f-2", "n-f"):
            checked_count(self, "m", self.m, 1)

    def _averaged(self, n: int, f: int) -> int:
        return self.m if not isinstance(self.m, str) else n - f - (2 if self.m == "n-f-2" else 0)

    def needs(self, n: int, f: int) -> str | None:
        if self._averaged(n, f) > n - f:
            return f"m ≤ n − f (m={self.m})"
        return _needs(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        scores = _scores(rows, call.f, self.neighbours)
        best = np.argsort(scores, kind="stable")[: self._averaged(rows.n, call.f)]
        return Decision(selected=best, scores=scores)
