"""Rounds as attackers see them, for the tests of attacks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from dure.attacks import Scene


def scene(honest: Any, attackers: int = 1, dtype: Any = np.float64, **known: Any) -> Scene:
    """A round with these honest rows and some attackers' own, which are random unless given as `own`."""
    honest = np.asarray(honest, dtype)
    rng = np.random.default_rng(99)
    own = known.pop("own", rng.normal(size=(attackers, honest.shape[1])))
    fields = {
        "honest": honest,
        "own": np.asarray(own, dtype),
        "previous": np.zeros(honest.shape[1], dtype),
        "rule": None,
        "round": 1,
        "key": 7,
        "state": None,
        "share": 1 / (len(honest) + len(own) or 1),
    }
    return Scene(**{**fields, **known})


def cloud(h: int, d: int, seed: int = 0) -> np.ndarray:
    """Honest rows about a mean that is not 0."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(h, d)) + rng.normal(size=d)


def rule_mean(rows: np.ndarray) -> np.ndarray:
    return rows.mean(0)


Rule = Callable[[np.ndarray], np.ndarray]
