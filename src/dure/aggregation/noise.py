"""Normal noise that a rule adds to its result."""

import numpy as np

from dure.aggregation.rule import Call
from dure.keys import generator


def noised(vector: np.ndarray, scale: float, rule: object, call: Call) -> np.ndarray:
    """Vector + N(0, scale²) in every coordinate, drawn by the call's key; the vector itself where scale is 0."""
    if not scale:
        return vector
    drawn = generator(call.seed(rule), "noise of a rule").standard_normal(len(vector))
    return np.asarray((vector.astype(np.float64) + scale * drawn).astype(vector.dtype))
