"""Clipping shortens what is too long, about the centre; ARC finds out what that is by counting."""

import ml_dtypes
import numpy as np
import pytest

from dure.aggregation import ARC, NNM, Bucketing, Clipping, Mean, PreAggregator, chain
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(7)
X = RNG.normal(size=(9, 50)) * np.geomspace(1e-3, 1e3, 9)[:, None]


def naive(x: np.ndarray, most: float) -> np.ndarray:
    out = x.copy()
    for i, row in enumerate(x):
        length = np.sqrt((row**2).sum())
        if length > most:
            out[i] = row * (most / length)
    return out


@pytest.mark.parametrize("centre", [None, RNG.normal(size=50)])
def test_lengths_are_bounded_from_the_centre(centre: np.ndarray | None) -> None:
    origin = 0.0 if centre is None else centre
    found = Clipping(5.0)(X, center=centre)
    np.testing.assert_allclose(found.matrix, origin + naive(X - origin, 5.0), rtol=1e-10, atol=1e-10)
    clipped = chain(Clipping(5.0), Mean())(X, center=centre)
    np.testing.assert_allclose(clipped.vector, found.matrix.mean(0), rtol=1e-12, atol=1e-12)
    assert clipped.weights_used is not None
    rest = 1.0 - clipped.weights_used.sum()
    np.testing.assert_allclose(clipped.vector, clipped.weights_used @ X + rest * origin, atol=1e-11)


def test_short_and_zero_rows_are_left_alone_and_nothing_is_changed_in_place() -> None:
    x = np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
    given = x.copy()
    found = Clipping(5.0)(x)
    np.testing.assert_array_equal(found.matrix, [[3, 4], [0, 0], [3, 4]])
    np.testing.assert_array_equal(x, given)
    assert not np.shares_memory(found.matrix, x)


@pytest.mark.parametrize(("n", "f"), [(5, 0), (5, 1), (9, 4), (7, 2)])
def test_adaptive_clipping_counts(n: int, f: int) -> None:
    x = X[:n][RNG.permutation(n)]
    k = (2 * f * (n - f)) // n
    lengths = np.linalg.norm(x, axis=1)
    np.testing.assert_allclose(ARC(f=f)(x).matrix, naive(x, np.sort(lengths)[n - k - 1]), rtol=1e-12)


def test_the_count_is_an_integer_and_not_a_rounded_float() -> None:
    n, f = 242, 33
    assert int(2 * (f / n) * (n - f)) == 56  # what must not be used
    x = np.arange(1.0, n + 1)[:, None]
    found = ARC(f=f)(x)
    assert found.details["norm"] == n - 57
    assert (found.matrix[:, 0] < x[:, 0]).sum() == 57
    # whatever f is, never more than half of them, and as many as the fraction says
    for f in range(n // 2):
        assert (ARC(f=f)(x).details["clip_factors"] < 1).sum() == (2 * f * (n - f)) // n


def test_a_longest_length_of_zero() -> None:
    x = np.zeros((5, 3))
    x[2] = 1.0
    found = ARC(f=1)(x)
    np.testing.assert_array_equal(found.matrix, np.zeros((5, 3)))


def test_errors() -> None:
    with pytest.raises(DomainError, match="ARC needs 2f < n"):
        ARC(f=2)(X[:4])
    ARC(f=2)(X[:5])
    for norm in (0, -1.0, np.inf, np.nan, True):
        with pytest.raises(ConfigError, match="a finite number above 0"):
            Clipping(norm)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("step", [Clipping(5.0), ARC(2), NNM(2), Bucketing(3)])
def test_rows_of_half_precision_are_mixed_in_float32_and_rounded_once(
    step: PreAggregator, dtype: type
) -> None:
    x = X.astype(dtype)
    found, wide = step(x, key=1), step(x.astype(np.float32), key=1)
    assert found.matrix.dtype == dtype
    np.testing.assert_array_equal(found.matrix, wide.matrix.astype(dtype))
