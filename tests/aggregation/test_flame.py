"""FLAME keeps the majority's cluster of directions and clips each of its updates by its own length."""

import numpy as np
import pytest
from sklearn.cluster import HDBSCAN
from sklearn.metrics.pairwise import cosine_distances

from dure.aggregation import FLAME
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(13)
COMMON = RNG.normal(size=100)
HONEST = (COMMON + 0.5 * RNG.normal(size=(7, 100))) * RNG.uniform(0.3, 3.0, (7, 1))
FAR = -20.0 * (COMMON + 0.1 * RNG.normal(size=(3, 100)))
X = np.vstack([FAR[:2], HONEST, FAR[2:]])  # hostile ones first, so that positions and indices differ


def naive(x: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n = len(x)
    labels = HDBSCAN(
        min_cluster_size=n // 2 + 1, min_samples=1, metric="precomputed", allow_single_cluster=True, copy=True
    ).fit_predict(cosine_distances(x))
    kept = [i for i in range(n) if labels[i] == 0] or list(range(n))
    median = np.median(np.sqrt((x**2).sum(1)))
    total = np.zeros(x.shape[1])
    for i in kept:
        total += weights[i] * x[i] * min(1.0, median / np.sqrt((x[i] ** 2).sum()))
    return total / weights[kept].sum(), np.array(kept)


@pytest.mark.parametrize("weights", [None, RNG.uniform(0.5, 3, 10)])
def test_clipped_mean_of_the_cluster(weights: np.ndarray | None) -> None:
    found = FLAME(f=3, noise=0.0)(X, weights)
    vector, kept = naive(X, np.ones(10) if weights is None else weights)
    np.testing.assert_allclose(found.vector, vector, rtol=1e-10)
    np.testing.assert_array_equal(found.selected, kept)
    assert found.weights_used is not None
    np.testing.assert_allclose(found.weights_used @ X, found.vector, rtol=1e-10)


def test_a_far_cluster_is_dropped() -> None:
    found = FLAME(f=3, noise=0.0)(X)
    assert found.selected is not None
    assert not {0, 1, 9} & set(found.selected)
    assert len(found.selected) >= 5
    assert found.vector @ COMMON > 0 > X.mean(0) @ COMMON


def test_every_kept_row_has_its_own_clip_factor() -> None:
    """The public code takes the factors of the first rows, whoever was kept."""
    found = FLAME(f=3, noise=0.0)(X)
    lengths = np.linalg.norm(X, axis=1)
    median = np.median(lengths)
    assert found.weights_used is not None
    assert found.selected is not None
    moved = found.weights_used[found.selected, None] * X[found.selected] * len(found.selected)
    np.testing.assert_allclose(
        np.linalg.norm(moved, axis=1), np.minimum(lengths[found.selected], median), rtol=1e-10
    )
    wrong = np.array([X[i] * min(1.0, median / lengths[p]) for p, i in enumerate(found.selected)]).mean(0)
    assert np.linalg.norm(wrong - found.vector) > 0.01 * np.linalg.norm(found.vector)


def test_the_median_length_is_that_of_all_updates() -> None:
    assert FLAME(f=3, noise=0.0)(X).details["norm"] == pytest.approx(np.median(np.linalg.norm(X, axis=1)))


def test_noise() -> None:
    x = np.tile(X, (1, 200)).astype(np.float32)
    quiet = FLAME(f=3, noise=0.0)(x)
    loud = FLAME(f=3, noise=0.01)(x, key=4)
    scale = 0.01 * quiet.details["norm"]
    drawn = (loud.vector - quiet.vector) / scale
    assert drawn.std() == pytest.approx(1.0, rel=0.03)
    np.testing.assert_array_equal(loud.vector, FLAME(f=3, noise=0.01)(x, key=4).vector)
    assert (FLAME(f=3, noise=0.01)(x, key=5).vector != loud.vector).any()
    assert loud.vector.dtype == np.float32
    with pytest.raises(ConfigError, match="give key="):
        FLAME(f=3)(x)


def test_equal_rows_zero_rows_and_a_few() -> None:
    same = np.repeat(X[:1], 5, 0)
    np.testing.assert_allclose(FLAME(noise=0.0)(same).vector, X[0], rtol=1e-12)
    assert not FLAME(noise=0.0)(np.zeros((5, 4))).vector.any()
    x = np.vstack([np.zeros((4, 100)), HONEST[:1]])
    found = FLAME(f=2, noise=0.0)(x)
    assert np.isfinite(found.vector).all()
    for few in (1, 2):
        np.testing.assert_array_equal(FLAME(noise=0.0)(X[:few]).selected, np.arange(few))


def test_condition() -> None:
    FLAME(f=2, noise=0.0)(X[:5])
    with pytest.raises(DomainError, match="FLAME needs 2f < n"):
        FLAME(f=2, noise=0.0)(X[:4])
