"""Cosines of updates, defined for updates of length 0 too."""

import numpy as np


def cosines(inner: np.ndarray) -> np.ndarray:
    """(n, n) cosines from inner products, in [−1, 1]; 1 on the diagonal, 0 between a row of length 0 and any other."""
    lengths = np.sqrt(np.maximum(np.diag(inner), 0.0))
    scale = np.where(lengths > 0, lengths, 1.0)
    found = np.clip(inner / scale[:, None] / scale[None], -1.0, 1.0)
    found[lengths == 0], found[:, lengths == 0] = 0.0, 0.0
    np.fill_diagonal(found, 1.0)
    return np.asarray(found)


def cosine_distances(inner: np.ndarray) -> np.ndarray:
    """(n, n) 1 − cosine, symmetric, in [0, 2]; 0 on the diagonal and between two rows of length 0."""
    found = 1.0 - cosines(inner)
    zero = np.diag(inner) <= 0
    found[np.ix_(zero, zero)] = 0.0
    return np.asarray((found + found.T) / 2.0)
