"""Two groups are seen where there are two, split as k-means splits them."""

import numpy as np
import pytest
from sklearn.cluster import KMeans

from dure.aggregation.gap import _spreads, upper_group

RNG = np.random.default_rng(16)


def test_two_means_are_exact() -> None:
    values = RNG.normal(size=(20, 15)) * 3
    one, two, count = _spreads(values)
    for row, a, b, low in zip(values, one, two, count, strict=True):
        every = [
            sum(((part - part.mean()) ** 2).sum() for part in np.split(np.sort(row), [k]))
            for k in range(1, 15)
        ]
        assert a == pytest.approx(((row - row.mean()) ** 2).sum())
        assert b == pytest.approx(min(every))
        assert low == 1 + np.argmin(every)
        assert b <= KMeans(2, n_init=3, random_state=0).fit(row[:, None]).inertia_ * (1 + 1e-12)


@pytest.mark.parametrize("size", [10, 30])
def test_groups_are_seen_where_they_are(size: int) -> None:
    seen = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)
        assert not upper_group(np.full(size, 0.3), rng).any()
        seen += upper_group(rng.random(size), rng).any()
        values = np.concatenate([rng.normal(1.0, 0.05, size - 3), rng.normal(2.0, 0.05, 3)])
        np.testing.assert_array_equal(upper_group(values, rng), np.arange(size) >= size - 3)
    assert seen <= 15  # uniform numbers are what the samples are


def test_two_values_and_nothing_between() -> None:
    values = np.array([0.0, 0.0, 0.0, 1.0])
    np.testing.assert_array_equal(upper_group(values, np.random.default_rng(0)), [0, 0, 0, 1])
