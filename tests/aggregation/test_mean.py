"""The weighted mean against exact rational arithmetic, and its independence of order, to the last bit."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dure.aggregation import exact, mean

VALUES = st.floats(-(2.0**30), 2.0**30, width=32, allow_subnormal=False)
WEIGHTS = st.floats(0, 512, width=32, allow_subnormal=False)


# Always the same shapes, compiled once: rows that are to be fewer have weight 0.
M = 8
PROBLEMS = st.tuples(
    hnp.arrays(np.float32, (M, 3), elements=VALUES), hnp.arrays(np.float32, M, elements=WEIGHTS)
)
weighted_mean, add, add_rows = jax.jit(mean.weighted_mean), jax.jit(mean.add), jax.jit(mean.add_rows)
ratio = jax.jit(mean.ratio)


def bits(x: object) -> bytes:
    return np.asarray(x, np.float32).tobytes()


def exact_mean(rows: np.ndarray, weights: np.ndarray) -> list[Fraction]:
    w = [Fraction(float(x)) for x in weights]
    if not sum(w):
        return [Fraction(0)] * rows.shape[1]
    return [sum(a * Fraction(float(x)) for a, x in zip(w, column, strict=True)) / sum(w) for column in rows.T]


def test_cancellation_keeps_the_small_client() -> None:
    rows = np.array([[1e8], [1.0], [-1e8]], np.float32)
    for order in ([0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 2, 1]):
        got = mean.weighted_mean(rows[order], np.ones(3, np.float32))
        assert np.asarray(got)[0] == np.float32(1 / 3)
    assert np.float32(rows.sum(dtype=np.float32) / 3) != np.float32(1 / 3), "or the test would show nothing"


@settings(deadline=None, max_examples=60)
@given(PROBLEMS)
def test_it_is_the_exact_mean_rounded_once(problem: tuple[np.ndarray, np.ndarray]) -> None:
    rows, weights = problem
    got = np.asarray(weighted_mean(rows, weights), np.float64)
    total = float(np.sum(weights, dtype=np.float64))
    for value, true in zip(got, exact_mean(rows, weights), strict=True):
        # Half a unit in the last place of float32, and what lies below 2⁻⁵⁷ in each product.
        allowed = 0.5001 * np.spacing(np.float32(abs(float(true)))) + M * 2.0**-57 / (total or 1)
        assert abs(Fraction(value) - true) <= Fraction(float(allowed))


@settings(deadline=None, max_examples=40)
@given(PROBLEMS, st.permutations(range(M)))
def test_order_and_chunks_cannot_be_seen(problem: tuple[np.ndarray, np.ndarray], order: list[int]) -> None:
    rows, weights = problem
    whole = bits(weighted_mean(rows, weights))
    rows, weights = rows[order], jnp.asarray(weights[order])
    assert bits(weighted_mean(rows, weights)) == whole
    empty = mean.start(rows[0])
    sums = empty  # one by one
    for row, weight in zip(rows, weights, strict=True):
        sums = add(sums, row, weight)
    assert bits(ratio(sums)) == whole
    half = M // 2  # two devices, whose accumulators are added
    with jax.enable_x64(True):
        both = jax.tree.map(
            lambda a, b: a + b,
            add_rows(empty, rows[:half], weights[:half]),
            add_rows(empty, rows[half:], weights[half:]),
        )
    assert bits(ratio(both)) == whole


def test_a_thousand_clients_in_any_order_give_the_same_bits() -> None:
    """Defect A9: with plain float32 sums 935 of 1000 values differ."""
    rng = np.random.default_rng(0)
    rows = rng.normal(1, 0.1, (1000, 50)).astype(np.float32)
    weights = rng.integers(1, 500, 1000).astype(np.float32)
    forward = mean.weighted_mean(rows, weights)
    assert bits(forward) == bits(mean.weighted_mean(rows[::-1].copy(), weights[::-1].copy()))
    w, x = weights.astype(np.longdouble), rows.astype(np.longdouble)
    true = (w[:, None] * x).sum(0) / w.sum()
    np.testing.assert_array_equal(np.asarray(forward), true.astype(np.float32))


def test_a_thousand_equal_clients_average_to_themselves() -> None:
    """Defect A8, and thirds, which no sum of roundings returns."""
    for value in (1.0, np.float32(1 / 3), np.float32(-0.1)):
        rows = np.full((1000, 1), value, np.float32)
        assert np.asarray(mean.weighted_mean(rows, np.full(1000, 7, np.float32)))[0] == np.float32(value)


def test_total_is_the_sum_itself() -> None:
    rows = np.array([[1.0, 2.0], [3.0, -4.0]], np.float32)
    weights = jnp.array([0.25, 2.0], jnp.float32)
    sums = mean.add_rows(mean.start(rows[0]), rows, weights)
    np.testing.assert_array_equal(mean.total(sums), [6.25, -7.5])
    np.testing.assert_array_equal(mean.ratio(sums), np.float32([6.25 / 2.25, -7.5 / 2.25]))


def test_weight_zero_adds_nothing_not_even_nan() -> None:
    """Defect A1 in the accumulator: what has no weight is not there; nothing at all gives 0, not NaN."""
    rows = np.array([[1.0, 2.0], [np.nan, np.inf]], np.float32)
    np.testing.assert_array_equal(mean.weighted_mean(rows, np.float32([3, 0])), rows[0])
    np.testing.assert_array_equal(mean.weighted_mean(rows, np.float32([0, 0])), [0, 0])


def test_updates_are_trees() -> None:
    rows = {"delta": np.arange(6, dtype=np.float32).reshape(2, 3), "control": np.float32([[10.0], [20.0]])}
    sums = mean.start(jax.tree.map(lambda x: x[0], rows))
    got = mean.ratio(mean.add_rows(sums, rows, jnp.float32([1, 3])))
    np.testing.assert_array_equal(got["delta"], [2.25, 3.25, 4.25])
    np.testing.assert_array_equal(got["control"], [17.5])


@pytest.mark.parametrize("value", [2.0**39, -(2.0**39), 2.0**-50, 3.0 * 2.0**-57, 0.0])
def test_the_whole_range_is_held(value: float) -> None:
    one = jnp.float32(1)
    total = exact.zeros(jax.ShapeDtypeStruct((), np.float32))
    for term in (value, 1.0, -1.0):
        total = exact.add(total, np.float32(term), one)
    wanted = round(value * 2**56) / 2**56  # the unit of the lowest limb
    assert float(exact.result(total)) == wanted


def test_many_large_terms_stay_exact() -> None:
    """Carries between limbs: 4096 terms of nearly the largest size, and one small one."""
    values = jnp.full(4096, np.float32(exact.LIMIT) * np.float32(0.99), jnp.float32)
    total = exact.add_all(exact.zeros(jax.ShapeDtypeStruct((), np.float32)), values)
    total = exact.add_all(total, -values)
    total = exact.add_all(total, jnp.float32([0.125]))
    assert float(exact.result(total)) == 0.125
