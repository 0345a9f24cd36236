"""Digits by writer: the facts about the blocks, and the reference split."""

import numpy as np
import pytest

from dure.data import digits
from dure.errors import ConfigError

SIZES = [130, 126, 130, 130, 130, 130, 130, 123, 128, 130, 128, 130, 122, 130]


def test_blocks_are_the_writers():
    from sklearn.datasets import load_digits

    data = digits(test_fraction=0)
    assert data.sizes.tolist() == SIZES
    assert data.examples == 1797
    counts = data.class_counts()
    exact = np.flatnonzero((counts == 13).all(axis=1))
    assert exact.tolist() == [0, 3, 4, 5, 6, 9, 11, 13]
    assert counts.min() >= 9
    np.testing.assert_array_equal(data.columns["x"] * 16, load_digits().data)
    np.testing.assert_array_equal(data.columns["y"], load_digits().target)
    assert data.client_test is None


def test_the_split_is_the_reference_split():
    whole, data = digits(test_fraction=0), digits()
    rng = np.random.default_rng(0)
    for k in range(14):
        block = whole.client(k)
        order = rng.permutation(np.arange(whole.offsets[k], whole.offsets[k + 1])) - whole.offsets[k]
        kept = (7 * len(order)) // 10  # ⌊0.7 n⌋ in integers
        np.testing.assert_array_equal(data.client(k)["x"], block["x"][order[:kept]])
        np.testing.assert_array_equal(data.client_test_rows(k)["y"], block["y"][order[kept:]])
    assert digits(seed=1).fingerprint() != data.fingerprint()
    assert digits().fingerprint() == data.fingerprint()


def test_it_says_what_it_is():
    data = digits()
    assert (data.clients, data.classes, data.name) == (14, 10, "digits")
    assert "CC BY 4.0" in data.licence
    assert data.columns["x"].min() >= 0
    assert data.columns["x"].max() == 1


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_bad_fraction(fraction):
    with pytest.raises(ConfigError, match="test_fraction"):
        digits(test_fraction=fraction)
