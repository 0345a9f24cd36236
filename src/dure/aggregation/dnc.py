"""Divide and conquer (Shejwalkar and Houmansadr, NDSS 2021)."""

from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import ClassVar

import numpy as np

from dure import keys
from dure.aggregation.checking import checked_count, checked_finite
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half


@dataclass(frozen=True)
class DnC(Rule):
    """The mean of the updates that never stick out along the direction of largest variance.

    In every iteration some columns are drawn, the rows are centred by their mean, and the ⌊c f⌋ rows with the largest
    squared projections on the top right singular vector are out; equal ones from the last. Rows that were never out
    are averaged. If there are none, those that were out least often are, n − ⌊c f⌋ of them, and a flag says so.

    `scores`: a row's mean squared projection. With as many columns as there are, nothing is drawn: one iteration.

    Args:
        f: hostile updates to reckon with, 2f < n.
        iterations: at least 1; the authors' code has 1.
        columns: how many are drawn at a time, at least 1.
        c: how many rows are out for every hostile one, > 0 with c f < n.
    """

    f: int
    iterations: int = 5
    columns: int = 10_000
    c: float = 1.0
    citation: ClassVar[str] = "Shejwalkar and Houmansadr, NDSS 2021"
    weighting: ClassVar[str] = "selection"
    draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)
        checked_count(self, "iterations", self.iterations, 1)
        checked_count(self, "columns", self.columns, 1)
        checked_finite(self, "c", self.c, above=0)

    def _out(self, f: int) -> int:
        return floor(Fraction(str(self.c)) * f)  # c is meant as written: 0.29 · 100 is 29

    def needs(self, n: int, f: int) -> str | None:
        if self._out(f) >= n:
            return f"c f < n (c={self.c:g})"
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        keep = rows.n - self._out(call.f)
        drawn = [np.arange(rows.d)]
        if self.columns < rows.d:
            drawn = [
                np.sort(keys.generator(call.seed(self), "dnc", i).choice(rows.d, self.columns, replace=False))
                for i in range(self.iterations)
            ]
        kept, scores = np.zeros(rows.n, np.int64), np.zeros(rows.n)
        for columns in drawn:
            outlying = _outlying(rows.some_columns(columns))
            kept[np.argsort(outlying, kind="stable")[:keep]] += 1
            scores += outlying / len(drawn)
        selected, flags = np.flatnonzero(kept == len(drawn)), tuple[str, ...]()
        if not len(selected):
            selected = np.argsort(-kept, kind="stable")[:keep]
            flags = ("no update was kept in every iteration: those kept most often are averaged",)
        return Decision(selected=selected, scores=scores, flags=flags)


def _outlying(x: np.ndarray) -> np.ndarray:
    """(n,) squared projections of the centred rows on their top right singular vector: λ u_i² of the Gram matrix."""
    centred = x - x.mean(0)
    values, vectors = np.linalg.eigh(centred @ centred.T)
    return np.asarray(max(float(values[-1]), 0.0) * vectors[:, -1] ** 2)
