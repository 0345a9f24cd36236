"""The robust rules' lines of `pitfalls.py`: variants as they are found in the wild, on random heavy-tailed updates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dure.aggregation import Bulyan, GeometricMedian, Krum, Median, TrimmedMean

INPUTS = 2000
Choice = Callable[[np.ndarray], set[int]]


def updates(n: int) -> list[np.ndarray]:
    """Updates of n clients in five dimensions, Student's t with two degrees of freedom."""
    rng = np.random.default_rng(0)
    return [rng.standard_t(2, size=(n, 5)) for _ in range(INPUTS)]


def apart(x: np.ndarray) -> np.ndarray:
    """(n, n) squared distances, formed from differences."""
    return ((x[:, None] - x[None]) ** 2).sum(2)


def scores(x: np.ndarray, f: int, power: float = 1.0, more: int = 0) -> np.ndarray:
    """Krum's scores by its definition; `power` of the squared distances, `more` neighbours."""
    far = np.sort(apart(x) ** power, axis=1)[:, 1:]  # without the distance to itself
    return far[:, : len(x) - f - 2 + more].sum(1)


def differs(n: int, first: Choice, second: Choice) -> float:
    """The share of the inputs for which two rules choose other clients."""
    return float(np.mean([first(x) != second(x) for x in updates(n)]))


def picks(power: float = 1.0, more: int = 0) -> Choice:
    return lambda x: {int(np.argmin(scores(x, 3, power, more)))}


def selected(rule: Krum | Bulyan) -> Choice:
    return lambda x: set(np.asarray(rule(x).selected).tolist())


def one_by_one(x: np.ndarray) -> set[int]:
    """Bulyan's selection by its definition, f = 3: Krum again and again on what is left."""
    left, chosen = list(range(len(x))), set[int]()
    for _ in range(len(x) - 6):
        few = np.sort(apart(x[left]), axis=1)[:, 1 : 1 + max(1, len(left) - 5)].sum(1)
        chosen.add(left.pop(int(np.argmin(few))))
    return chosen


def at_once(x: np.ndarray) -> set[int]:
    return set(np.argsort(scores(x, 3), kind="stable")[: len(x) - 6].tolist())


FAR = np.array([[1.0], [1.1], [0.9], [1.2], [0.8], [50.0]])  # five alike, one far off
NINE = np.random.default_rng(1).normal(size=(9, 2))


def overwritten() -> float:
    """Weiszfeld's steps with weights that are multiplied into each other."""
    weights, z = np.full(len(NINE), 1 / len(NINE)), NINE.mean(0)
    for _ in range(100):
        weights = weights / np.maximum(np.linalg.norm(NINE - z, axis=1), 1e-6)
        weights = weights / weights.sum()
        z = weights @ NINE
    return total(z)


def total(z: np.ndarray) -> float:
    """The sum of distances that the geometric median makes smallest."""
    return float(np.linalg.norm(NINE - z, axis=1).sum())


OTHER = f"share of {INPUTS:,} random inputs with another choice than the paper's"
#: what, setting, measured, wrong, here
ROBUST = (
    ("Krum: distances squared twice", "n = 11, f = 3", OTHER,
     lambda: differs(11, picks(), picks(power=2.0)), lambda: differs(11, picks(), selected(Krum(3)))),
    ("Krum: distances not squared", "n = 11, f = 3", OTHER,
     lambda: differs(11, picks(), picks(power=0.5)), lambda: differs(11, picks(), selected(Krum(3)))),
    ("Krum: one neighbour more", "n = 11, f = 3", OTHER,
     lambda: differs(11, picks(), picks(more=1)), lambda: differs(11, picks(), selected(Krum(3)))),
    ("Bulyan: the best θ at once", "n = 15, f = 3", OTHER,
     lambda: differs(15, one_by_one, at_once), lambda: differs(15, one_by_one, selected(Bulyan(3)))),
    ("Median: the lower of the middle two", "five updates about 1, one of 50", "distance from the midpoint 1.05",
     lambda: float(abs(np.sort(FAR[:, 0])[2] - 1.05)), lambda: float(abs(Median(1)(FAR).vector[0] - 1.05))),
    ("Trimmed mean: a fraction that rounds down", "10 % of the same six", "distance from 1",
     lambda: float(abs(FAR.mean() - 1)), lambda: float(abs(TrimmedMean(fraction=0.1)(FAR).vector[0] - 1))),
    ("Geometric median: weights overwritten in the loop", "nine points in the plane", "sum of distances",
     overwritten, lambda: total(GeometricMedian(1)(NINE).vector)),
)  # fmt: skip
