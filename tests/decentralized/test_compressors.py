"""What compressors promise: contraction, unbiasedness, and messages of the length that is counted."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.channel import wire
from dure.decentralized import Choco, RandomK, TopK
from dure.errors import ConfigError

V = np.array([0.5, -3.0, 0.0, 2.0, -0.25, 3.0], np.float32)


def compressed(compressor: Any, v: Any, key: int = 0) -> np.ndarray:
    k = jax.random.key(key)
    return np.asarray(compressor.decode(compressor.encode(jnp.asarray(v), k), k, len(v)))


def test_top_k_keeps_the_largest() -> None:
    np.testing.assert_array_equal(compressed(TopK(1), V), [0, -3, 0, 0, 0, 0])  # of equal ones the first
    np.testing.assert_array_equal(compressed(TopK(3), V), [0, -3, 0, 2, 0, 3])
    np.testing.assert_array_equal(compressed(TopK(6), V), V)


def many(compressor: Any, v: np.ndarray, draws: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(1), draws)
    once = lambda key: compressor.decode(compressor.encode(jnp.asarray(v), key), key, len(v))  # noqa: E731
    return np.asarray(jax.vmap(once)(keys), np.float64)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_random_k_is_unbiased_where_it_says_so_and_chooses_evenly(k: int) -> None:
    """Over 4000 draws within five standard errors; the spread is (d/k − 1) v², and without the factor k/d v."""
    draws = many(RandomK(k, unbiased=True), V, 4000)
    share = k / 6
    error = 5 * np.abs(V) * np.sqrt((1 / share - 1) / 4000)
    assert (np.abs(draws.mean(0) - V) <= error + 1e-7).all()
    assert ((draws != 0).sum(1) <= k).all()
    plain = many(RandomK(k), V, 4000)
    assert (np.abs(plain.mean(0) - share * V) <= share * error + 1e-7).all()


@settings(max_examples=25, deadline=None)
@given(
    v=st.lists(st.floats(-100, 100, width=32), min_size=6, max_size=6),
    k=st.integers(1, 6),
    key=st.integers(0, 9),
)
def test_top_k_is_a_contraction(v: list[float], k: int, key: int) -> None:
    x = np.array(v)
    left = np.sum((compressed(TopK(k), x.astype(np.float32), key) - x) ** 2)
    assert left <= (1 - TopK(k).contraction(6)) * np.sum(x**2) * (1 + 1e-5) + 1e-30


@pytest.mark.parametrize("compressor", [RandomK(2), RandomK(5), RandomK(4, unbiased=True)])
def test_random_k_contracts_by_what_it_says(compressor: Any) -> None:
    """E‖C(v) − v‖² = (1 − δ)‖v‖², over 4000 draws to 5 %."""
    left = ((many(compressor, V, 4000) - V) ** 2).sum(1).mean()
    assert left == pytest.approx((1 - compressor.contraction(6)) * (V**2).sum(), rel=0.05)


@pytest.mark.parametrize(("compressor", "names"), [(TopK(2), ["values", "places"]), (RandomK(2), ["values"])])
def test_the_counted_message_is_the_encoded_one(compressor: Any, names: list[str]) -> None:
    message = {n: np.asarray(t) for n, t in compressor.encode(jnp.asarray(V), jax.random.key(0)).items()}
    assert list(message) == names
    length = len(wire.encode(wire.Message(3, 1, 0.0, message)))
    assert wire.size(Choco(compressor).message(6)) == length


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(0), r"TopK\(k=0\).*at least 1"),
        (lambda: RandomK(-1), r"RandomK\(k=-1\)"),
        (lambda: TopK(7).contraction(6), r"TopK\(k=7\) can't choose 7 of 6 entries"),
        (lambda: RandomK(3, unbiased=True).contraction(6), r"not a contraction.*1 ‖v‖².*k > d / 2"),
        (lambda: Choco(TopK(1), gamma=0.0), r"Choco\(gamma=0.0\).*\(0, 1\]"),
        (lambda: Choco(TopK(1), gamma=1.5), r"gamma=1.5"),
        (lambda: Choco(TopK(9)).init(jnp.zeros((3, 6))), r"can't choose 9 of 6"),
    ],
)
def test_bad_compressors_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
