"""Clipped clustering keeps the larger of two clusters and remembers all lengths."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

from dure.aggregation import ClippedClustering
from dure.errors import DataError, DomainError

RNG = np.random.default_rng(15)
COMMON = RNG.normal(size=60)


def rows(scale: float = 1.0) -> np.ndarray:
    honest = (COMMON + 0.5 * RNG.normal(size=(6, 60))) * RNG.uniform(0.5, 2, (6, 1))
    return scale * np.vstack([-5.0 * COMMON + RNG.normal(size=(3, 60)), honest])


def naive(x: np.ndarray, norms: list[float]) -> tuple[np.ndarray, np.ndarray]:
    labels = fcluster(linkage(pdist(x, "cosine"), "average"), 2, "maxclust")
    kept = np.flatnonzero(labels == np.bincount(labels).argmax())
    bound = np.median(norms)
    return np.mean([x[i] * min(1.0, bound / np.linalg.norm(x[i])) for i in kept], 0), kept


def test_three_rounds_and_a_resumed_one() -> None:
    norms: list[float] = []
    state, states, rounds = None, [], [rows(1.0), rows(0.1), rows(0.01)]
    for x in rounds:
        norms += list(np.linalg.norm(x, axis=1))
        found = ClippedClustering(f=3)(x, state=state)
        vector, kept = naive(x, norms)
        np.testing.assert_allclose(found.vector, vector, rtol=1e-9)
        np.testing.assert_array_equal(found.selected, kept)
        assert not set(kept) & {0, 1, 2}
        first = found if state is None else first
        state = found.state
        assert state is not None
        np.testing.assert_allclose(state["norms"], norms)
        states.append({k: v.copy() for k, v in state.items()})
    again = ClippedClustering(f=3)(rounds[2], state=states[1])
    np.testing.assert_array_equal(again.vector, found.vector)
    assert first.state is not None
    np.testing.assert_array_equal(first.state["norms"], states[0]["norms"])
    alone = ClippedClustering(f=3)(rounds[0])
    assert np.linalg.norm(alone.vector) > 0
    assert np.linalg.norm(found.vector) < np.linalg.norm(alone.vector) / 50


def test_weights_only_average() -> None:
    x, weights = rows(), RNG.uniform(1, 5, 9)
    found = ClippedClustering(f=3)(x, weights)
    kept = found.selected
    assert kept is not None
    lengths = np.linalg.norm(x, axis=1)
    clipped = x * np.minimum(1.0, np.median(lengths) / lengths)[:, None]
    np.testing.assert_allclose(found.vector, weights[kept] @ clipped[kept] / weights[kept].sum(), rtol=1e-10)


def test_ties_few_rows_equal_rows_and_the_condition() -> None:
    x = np.vstack([np.eye(4)[:1], np.eye(4)[:1], -np.eye(4)[:2]])
    x[3] = -np.eye(4)[0]
    np.testing.assert_array_equal(ClippedClustering()(x).selected, [0, 1])  # two and two: the first's
    np.testing.assert_array_equal(ClippedClustering()(x[:1]).selected, [0])
    np.testing.assert_allclose(ClippedClustering()(np.ones((5, 3))).vector, 1.0)
    assert not ClippedClustering()(np.zeros((5, 3))).vector.any()
    ClippedClustering(f=2)(rows()[:5])
    with pytest.raises(DataError, match="ClippedClustering returns and takes"):
        ClippedClustering()(rows(), state={"history": np.zeros(3)})
    with pytest.raises(DomainError, match="2f < n"):
        ClippedClustering(f=2)(rows()[:4])
