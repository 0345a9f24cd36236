"""Sums over chunks of columns: whatever a thread does at one call, they are added up one after the other."""

import numpy as np
import pytest

from dure.aggregation.kernels.host import CHUNK, add_chunks, gram


@pytest.mark.parametrize("size", [1, 3, 300])
@pytest.mark.parametrize("width", [0, 1, CHUNK, 7 * CHUNK + 5, 16 * CHUNK, 40 * CHUNK + 1, 500 * CHUNK - 1])
def test_every_chunk_is_added_once_and_in_order(width: int, size: int) -> None:
    """A call has one chunk, or up to sixteen; the last one may have fewer."""

    def part(low: int) -> np.ndarray:
        return np.sin(low + np.arange(size * size, dtype=np.float64)).reshape(size, size)

    expected = np.ones((size, size))
    for low in range(0, width, CHUNK):
        expected += part(low)
    total = np.ones((size, size))
    add_chunks(part, width, total)
    np.testing.assert_array_equal(total, expected)  # another order would round otherwise


def test_a_gram_matrix_of_long_rows() -> None:
    """Rows of integers: every sum is exact, so a chunk left out or taken twice is seen."""
    x = np.random.default_rng(0).integers(-4, 5, (5, 40 * CHUNK + 3)).astype(np.float32)
    total = np.zeros((5, 5))
    gram(x, np.arange(5), None, None, total)
    np.testing.assert_array_equal(total, x.astype(np.int64) @ x.astype(np.int64).T)
