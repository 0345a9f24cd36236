"""Cosines are those of scikit-learn, and defined for rows of length 0."""

import numpy as np
from sklearn.metrics import pairwise

from dure.aggregation import FLAME
from dure.aggregation.cosines import cosine_distances, cosines

RNG = np.random.default_rng(22)


def test_cosines_of_any_lengths() -> None:
    x = RNG.normal(size=(8, 30)) * np.geomspace(1e-70, 1e70, 8)[:, None]
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(cosines(x @ x.T), pairwise.cosine_similarity(unit), atol=1e-14)
    apart = cosine_distances(x @ x.T)
    np.testing.assert_allclose(apart, pairwise.cosine_distances(unit), atol=1e-14)
    np.testing.assert_array_equal(apart, apart.T)
    assert not np.diag(apart).any()


def test_zero_rows_point_nowhere_and_are_equal_to_each_other() -> None:
    x = np.vstack([np.zeros((2, 5)), RNG.normal(size=(2, 5))])
    found = cosines(x @ x.T)
    np.testing.assert_array_equal(found[:2], [[1, 0, 0, 0], [0, 1, 0, 0]])
    apart = cosine_distances(x @ x.T)
    np.testing.assert_array_equal(apart[:2], [[0, 0, 1, 1], [0, 0, 1, 1]])
    idle = np.vstack([np.zeros((6, 5)), RNG.normal(size=(1, 5)) + 0.1 * RNG.normal(size=(4, 5))])
    np.testing.assert_array_equal(FLAME(noise=0.0)(idle).selected, np.arange(6))
