"""What all aggregation rules have in common. A new rule is one line in RULES."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dure.aggregation import (
    CAF,
    CGE,
    MDA,
    NNM,
    RFA,
    SMEA,
    Blocks,
    Bulyan,
    CenteredClipping,
    Clipping,
    DnC,
    GeometricMedian,
    Krum,
    MeaMed,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
    Rule,
    TrimmedMean,
    chain,
)
from dure.aggregation.rule import Decision, received
from dure.errors import ConfigError, DataError, DomainError


@dataclass(frozen=True)
class Kind:
    """How a rule is made for n and f, the smallest n that it takes, and which of the properties it doesn't have.

    not_for: of "translation", "scale", "unanimity", "mean" (with f = 0), "bounded" (under f hostile
    ones), "majority" (follows hostile ones that are a majority).
    """

    make: Callable[[int, int], object]
    least: Callable[[int], int]
    not_for: frozenset = frozenset()


def half(f):
    return 2 * f + 1


#: The last client is trusted, so that MoNNA has an honest one.
RULES = {
    "Mean": Kind(lambda n, f: Mean(), lambda f: 1, frozenset({"unanimity", "bounded", "majority", "domain"})),
    "Median": Kind(lambda n, f: Median(f), half, frozenset({"mean"})),
    "TrimmedMean": Kind(lambda n, f: TrimmedMean(f), half),
    "MeaMed": Kind(lambda n, f: MeaMed(f), half),
    "Krum": Kind(lambda n, f: Krum(f), lambda f: 2 * f + 3, frozenset({"mean", "majority"})),
    "Krum, n-f-1": Kind(
        lambda n, f: Krum(f, neighbours="n-f-1"), lambda f: 2 * f + 3, frozenset({"mean", "majority"})
    ),
    "MultiKrum": Kind(lambda n, f: MultiKrum(f), lambda f: 2 * f + 3, frozenset({"mean", "majority"})),
    "MultiKrum, ByzFL": Kind(
        lambda n, f: MultiKrum(f, m="n-f", neighbours="n-f-1"),
        lambda f: 2 * f + 3,
        frozenset({"majority", "bounded"}),
    ),
    "Bulyan": Kind(lambda n, f: Bulyan(f), lambda f: 4 * f + 3, frozenset({"majority"})),
    "GeometricMedian": Kind(lambda n, f: GeometricMedian(f), half, frozenset({"mean"})),
    "RFA": Kind(
        lambda n, f: RFA(f),
        half,
        frozenset({"mean", "unanimity", "scale"}),
    ),
    "CenteredClipping": Kind(
        lambda n, f: CenteredClipping(2.0, steps=3, f=f),
        half,
        frozenset({"translation", "scale", "unanimity", "mean", "majority"}),
    ),
    "MDA": Kind(lambda n, f: MDA(f), half),
    "SMEA": Kind(lambda n, f: SMEA(f), half),
    "MoNNA": Kind(lambda n, f: MoNNA(f, trusted=n - 1), half, frozenset({"unanimity", "majority"})),
    "CGE": Kind(lambda n, f: CGE(f), lambda f: f + 1, frozenset({"translation", "unanimity", "majority"})),
    "CAF": Kind(lambda n, f: CAF(f), half, frozenset({"unanimity"})),
    "DnC": Kind(lambda n, f: DnC(f), half, frozenset({"unanimity"})),
    "NNM, TrimmedMean": Kind(lambda n, f: chain(NNM(f), TrimmedMean(f)), half),
    "NNM, GeometricMedian": Kind(lambda n, f: chain(NNM(f), GeometricMedian(f)), half),
}


def having(name):
    return [rule for rule, kind in RULES.items() if name not in kind.not_for]


def rows(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def large(kind, f):
    """More clients than the least, so that nothing is on the edge."""
    return max(kind.least(f) + 2, 4 * f + 4)


def call(rule, x, **more):
    return rule(x, key=7, **more)


def same(a, b):
    """Whether two aggregates agree to the last bit."""
    np.testing.assert_array_equal(a.vector, b.vector)
    for one, other in ((a.selected, b.selected), (a.scores, b.scores), (a.weights_used, b.weights_used)):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)


# ----- the domain -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", having("domain"))
@pytest.mark.parametrize("f", [0, 1, 2, 5])
def test_the_domain_begins_at_exactly_the_promised_n(name, f):
    kind = RULES[name]
    n = kind.least(f)
    assert np.isfinite(call(kind.make(n, f), rows(n, 3)).vector).all()
    if n > 1:
        with pytest.raises(DomainError) as caught:
            call(kind.make(n - 1, f), rows(n - 1, 3))
        assert (caught.value.n, caught.value.f) == (n - 1, f)
        assert f"n={n - 1}" in str(caught.value)
        with pytest.raises(DomainError):
            kind.make(n - 1, f).check(n - 1)


@pytest.mark.parametrize("name", RULES)
def test_a_negative_f_is_refused(name):
    if name == "Mean":
        pytest.skip("it has no f")
    with pytest.raises(ConfigError, match="f=-1"):
        RULES[name].make(9, -1)


@pytest.mark.parametrize("name", RULES)
def test_nothing_to_aggregate_is_an_error(name):
    rule = RULES[name].make(5, 0)
    for nothing in (np.zeros((0, 3)), [], np.zeros((5, 3), np.int64), np.zeros(5), "rows"):
        with pytest.raises(DataError):
            rule(nothing, key=1)
    with pytest.raises(DataError, match="None of the 5"):
        rule(np.full((5, 3), np.nan), key=1)


@pytest.mark.parametrize("name", RULES)
def test_arguments_that_cannot_be_used_are_named(name):
    rule, x = RULES[name].make(11, 2), rows(11, 4)
    far = np.zeros(4)
    far[2] = 1e200
    for wrong, said in (
        ({"center": far}, "center is 1e[+]200 at position 2"),
        ({"weights": np.full(11, 1e308)}, "add up to more"),
        ({"clients": list("abcdefghijk")}, "client numbers are integers"),
        ({"clients": np.arange(11) + 0.5}, "client numbers are integers"),
    ):
        with pytest.raises(DataError, match=said):
            call(rule, x, **wrong)


def test_memory_that_is_none_is_named():
    with pytest.raises(DataError, match="state=5 is not allowed"):
        received(Median(), rows(3, 2), None, None, 5, None, None, None)


@pytest.mark.parametrize("name", RULES)
def test_what_is_behind_a_mask_is_no_number(name):
    x = rows(11, 4)
    rule, hidden = RULES[name].make(11, 2), np.ma.masked_array(x, mask=np.zeros(x.shape, bool))
    same(call(rule, hidden), call(rule, x))
    hidden[3, 1] = np.ma.masked
    with pytest.raises(DataError, match="masked"):
        call(rule, hidden)
    assert call(rule, list(hidden)).dropped.tolist() == [3]


@pytest.mark.parametrize("name", RULES)
def test_no_columns_are_an_empty_aggregate(name):
    kind = RULES[name]
    n = large(kind, 1)
    found = call(kind.make(n, 1), np.zeros((n, 0), np.float32))
    assert found.vector.shape == (0,)


# ----- what goes in and comes out -------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_the_dtype_stays_and_nothing_is_changed(name, dtype):
    kind = RULES[name]
    n = large(kind, 1)
    x = rows(n, 5).astype(dtype)
    before = x.copy()
    found = call(kind.make(n, 1), x)
    assert found.vector.dtype == x.dtype
    assert found.vector.shape == (5,)
    assert not np.shares_memory(found.vector, x)
    np.testing.assert_array_equal(x, before)
    # Arithmetic is in float64: what comes out is what float64 says, rounded once (or twice, by the float32 kernels).
    exact = call(kind.make(n, 1), x.astype(np.float64))
    step = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(
        found.vector.astype(np.float64), exact.vector, rtol=1.01 * step, atol=step * 1e-2
    )
    if exact.selected is not None:
        np.testing.assert_array_equal(found.selected, exact.selected)


@pytest.mark.parametrize("name", RULES)
def test_jax_arrays_lists_and_blocks_are_the_same_rows(name):
    kind = RULES[name]
    n = large(kind, 1)
    x = rows(n, 301, 1).astype(np.float32)
    whole = call(kind.make(n, 1), x)
    same(whole, call(kind.make(n, 1), jnp.asarray(x)))
    same(whole, call(kind.make(n, 1), list(x)))
    same(whole, call(kind.make(n, 1), Blocks([x[:, :100], x[:, 100:101], x[:, 101:]])))
    same(whole, call(kind.make(n, 1), Blocks(lambda: (x[:, i : i + 7] for i in range(0, 301, 7)))))
    same(whole, call(kind.make(n, 1), np.asfortranarray(x)))


@pytest.mark.parametrize("name", ["CAF", "DnC", "GeometricMedian", "RFA", "CenteredClipping"])
def test_the_number_of_threads_cannot_be_seen(name):
    # So many rows that linear algebra would use more than one.
    kind, x = RULES[name], rows(300, 400, 19)
    with threadpool_limits(1):
        one = call(kind.make(300, 1), x)
    with threadpool_limits(4):
        same(one, call(kind.make(300, 1), x))


# ----- hostile input --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("bad", [[np.nan], [np.inf], [-np.inf, np.nan], ["shape"], ["shape", np.inf]])
def test_what_is_not_finite_is_dropped_and_counted_against_f(name, bad):
    kind, f = RULES[name], 2
    n = large(kind, f)
    x = rows(n, 4, 2).astype(np.float32)
    updates = list(x)
    for row, value in zip((1, 4), bad, strict=False):
        updates[row] = updates[row].copy()
        if value == "shape":
            updates[row] = updates[row][:3]
        else:
            updates[row][2] = value
    out = [1, 4][: len(bad)]
    rest = np.delete(np.arange(n), out)
    found = call(kind.make(n, f), updates)
    np.testing.assert_array_equal(found.dropped, out)
    kept = call(kind.make(n, f - len(bad) if name != "Mean" else 0), x[rest], clients=rest)
    np.testing.assert_array_equal(found.vector, kept.vector)
    if kept.selected is not None:
        np.testing.assert_array_equal(found.selected, rest[kept.selected])
    if "shape" not in bad:
        same(found, call(kind.make(n, f), np.stack(updates)))
    if found.scores is not None:
        assert np.isnan(found.scores[out]).all()
        assert np.isfinite(found.scores[rest]).all()


@pytest.mark.parametrize("name", RULES)
def test_more_dropped_than_f_is_said(name):
    kind = RULES[name]
    n = large(kind, 1) + 2
    x = rows(n, 3)
    x[[0, 2], 0] = np.nan
    found = call(kind.make(n, 1), x)
    assert ("more updates dropped than f" in found.flags) == (name != "Mean")


@pytest.mark.parametrize("name", having("bounded"))
@pytest.mark.parametrize("value", [3e38, -3e38, 1e20, 1e6])
def test_f_huge_rows_move_nothing_far(name, value):
    kind = RULES[name]
    for f in (1, 2):
        n = large(kind, f)
        x = rows(n, 4, 3).astype(np.float32)
        x[:f] = value
        vector = call(kind.make(n, f), x).vector
        assert np.linalg.norm(vector) < 2 * np.linalg.norm(x[f:], axis=1).max(), (f, vector)
        x[:f, 1:] = 0.0
        x[f - 1] = -x[0] * np.float32(0.9)
        vector = call(kind.make(n, f), x).vector
        assert np.linalg.norm(vector) < 2 * np.linalg.norm(x[f:], axis=1).max(), (f, vector)


def test_the_mean_is_broken_by_one():
    x = rows(9, 4).astype(np.float32)
    x[0] = 1e15
    assert np.linalg.norm(Mean()(x).vector) > 1e13


@pytest.mark.parametrize("name", having("majority"))
def test_hostile_ones_that_are_a_majority_have_their_way(name):
    # No rule can tell f + 1 of 2f + 1 that agree from honest ones: breakdown comes with the promised f, not before.
    kind = RULES[name]
    x = rows(5, 3, 4)
    x[:3] += 1e6
    assert np.linalg.norm(call(kind.make(5, 2), x).vector - 1e6) < 10
    x[2] -= 1e6
    if "bounded" not in kind.not_for:
        assert np.linalg.norm(call(kind.make(5, 2), x).vector) < 10


# ----- weights --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_equal_weights_are_no_weights(name):
    kind = RULES[name]
    n = large(kind, 1)
    x = rows(n, 3, 5)
    same(call(kind.make(n, 1), x), call(kind.make(n, 1), x, weights=np.full(n, 3.0)))


@pytest.mark.parametrize("name", RULES)
def test_unequal_weights_do_what_the_rule_says(name):
    kind = RULES[name]
    n = large(kind, 1)
    x, weights = rows(n, 3, 6), np.random.default_rng(0).integers(1, 3, n)
    rule = kind.make(n, 1)
    if rule.weighting == "none":
        with pytest.raises(ConfigError, match="unequal weights"):
            call(rule, x, weights=weights)
        return
    found = call(rule, x, weights=weights)
    if rule.weighting == "mass":  # a weight of 2 is two copies; the heaviest client is the hostile one
        copies = call(kind.make(n, 2), np.repeat(x, weights, axis=0))
        np.testing.assert_allclose(found.vector, copies.vector, atol=1e-12)
    else:
        np.testing.assert_array_equal(found.selected, call(rule, x).selected)
        chosen = found.selected
        mean = weights[chosen] @ x[chosen] / weights[chosen].sum()
        np.testing.assert_allclose(found.vector, mean, rtol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_weight_0_is_left_out_and_not_counted_against_f(name):
    kind = RULES[name]
    n = large(kind, 1)
    x, weights = rows(n + 1, 3, 7), np.ones(n + 1)
    weights[2] = 0.0
    x[2] = np.nan
    found = call(kind.make(n + 1, 1), x, weights=weights)
    rest = np.delete(np.arange(n + 1), 2)
    np.testing.assert_array_equal(found.vector, call(kind.make(n + 1, 1), x[rest], clients=rest).vector)
    assert not len(found.dropped)


# ----- equivariance ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_the_order_of_arrival_cannot_be_seen_in_a_bit(name):
    kind = RULES[name]
    n = large(kind, 2)
    x, order = rows(n, 5, 8), np.random.default_rng(1).permutation(n)
    found, other = call(kind.make(n, 2), x), call(kind.make(n, 2), x[order], clients=order)
    np.testing.assert_array_equal(found.vector, other.vector)
    if found.selected is not None:
        np.testing.assert_array_equal(found.selected, np.sort(order[other.selected]))
    for one, moved in ((found.scores, other.scores), (found.weights_used, other.weights_used)):
        if one is not None:
            np.testing.assert_array_equal(one[order], moved)


@pytest.mark.parametrize("name", having("translation"))
def test_a_common_shift_shifts_the_aggregate(name):
    kind = RULES[name]
    n = large(kind, 2)
    x, shift = rows(n, 5, 9), 10 * rows(1, 5, 10)[0]
    found, other = call(kind.make(n, 2), x), call(kind.make(n, 2), x + shift)
    np.testing.assert_allclose(found.vector + shift, other.vector, atol=1e-9)
    # Measured from that shift it is the same all the more.
    np.testing.assert_allclose(call(kind.make(n, 2), x + shift, center=shift).vector, other.vector, atol=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_models_are_their_differences_plus_the_centre(name):
    kind = RULES[name]
    n = large(kind, 2)
    x, shift = rows(n, 5, 9), 10 * rows(1, 5, 10)[0]
    found, other = call(kind.make(n, 2), x), call(kind.make(n, 2), x + shift, center=shift)
    np.testing.assert_allclose(found.vector + shift, other.vector, atol=1e-9)


@pytest.mark.parametrize("name", having("scale"))
@pytest.mark.parametrize("factor", [1e-6, 7.3, 1e9])
def test_a_common_factor_scales_the_aggregate(name, factor):
    kind = RULES[name]
    n = large(kind, 2)
    x = rows(n, 5, 11)
    found, other = call(kind.make(n, 2), x), call(kind.make(n, 2), factor * x)
    np.testing.assert_allclose(factor * found.vector, other.vector, rtol=1e-9)


@pytest.mark.parametrize("name", having("translation"))
def test_rows_close_together_and_far_from_0_keep_their_digits(name):
    # Offset 10⁴, spread 10⁻³ in float32: an inner product about 0 has no digit of a distance left.
    kind, f = RULES[name], 2
    n = large(kind, f)
    x = (1e4 + 1e-3 * np.random.default_rng(12).standard_t(3, size=(n, 60)) * 5).astype(np.float32)
    found, exact = call(kind.make(n, f), x), call(kind.make(n, f), x.astype(np.float64) - 1e4)
    np.testing.assert_allclose(found.vector - 1e4, exact.vector, atol=1e-3)
    if exact.selected is not None:
        np.testing.assert_array_equal(found.selected, exact.selected)


@pytest.mark.parametrize("name", [name for name in RULES if "NNM" not in name])
def test_mixed_rows_are_as_good_as_rows(name):
    # A pre-aggregator leaves coefficients, not rows: distances, sums and columns follow from them.
    kind = RULES[name]
    n = large(kind, 2)
    x, center = rows(n, 5, 18), np.full(5, 0.25)
    lengths = np.linalg.norm(x - center, axis=1, keepdims=True)
    # CGE leaves out the longest, and what is clipped has one length: just f of them.
    limit = float(np.sort(lengths[:, 0])[-3]) + 1e-3 if name == "CGE" else 1.5
    clipped = center + (x - center) * np.minimum(1.0, limit / lengths)
    rule = kind.make(n, 2)
    found = call(chain(Clipping(limit), rule), x, center=center)
    plain = call(rule, clipped, center=center)
    np.testing.assert_allclose(found.vector, plain.vector, atol=1e-9)
    if plain.selected is not None:
        np.testing.assert_array_equal(found.selected, plain.selected)


# ----- agreement ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
def test_equal_rows_are_their_aggregate(name):
    kind = RULES[name]
    n = large(kind, 2)
    x = np.tile([0.1, -0.3, 0.7], (n, 1))
    found = call(kind.make(n, 2), x)
    np.testing.assert_allclose(found.vector, x[0], rtol=1e-15 * n)
    x = np.tile(np.float32([1e4, -0.3, 0.7]), (n, 1))
    if name != "CenteredClipping":  # the centre is further away than the radius
        np.testing.assert_allclose(call(kind.make(n, 2), x).vector, x[0], rtol=1e-6)


@pytest.mark.parametrize("name", having("unanimity"))
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_n_minus_f_equal_rows_are_the_aggregate(name, scale):
    kind = RULES[name]
    for f in (1, 2, 3):
        n = large(kind, f)
        x = np.tile([0.1, -0.3, 0.7], (n, 1))
        x[:f] += scale * rows(f, 3, f)
        np.testing.assert_allclose(call(kind.make(n, f), x).vector, x[-1], rtol=1e-14)


@pytest.mark.parametrize("name", having("mean"))
def test_without_hostile_ones_it_is_the_mean(name):
    kind = RULES[name]
    for n in (kind.least(0), 8):
        x = rows(n, 4, 13)
        np.testing.assert_allclose(call(kind.make(n, 0), x).vector, x.mean(0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", RULES)
def test_duplicated_clients_change_no_promise(name):
    kind, f = RULES[name], 2
    n = large(kind, f)
    x = np.repeat(rows((n + 1) // 2, 3, 14), 2, axis=0)[:n]
    assert np.isfinite(call(kind.make(n, f), x).vector).all()


@pytest.mark.parametrize("name", RULES)
def test_the_coefficients_are_the_vector(name):
    kind = RULES[name]
    n = large(kind, 2)
    x, center = rows(n, 4, 15), np.full(4, 0.25)
    found = call(kind.make(n, 2), x, center=center)
    if found.weights_used is None:
        return
    whole = found.weights_used @ x + (1 - found.weights_used.sum()) * center
    np.testing.assert_allclose(whole, found.vector, atol=1e-12)


# ----- (f, κ)-robustness ----------------------------------------------------------------------------------


def worst_ratio(vector, x, f):
    """max over S of ‖vector − mean of S‖² / mean squared distance of S from its mean, where there is one."""
    n = len(x)
    sets = np.array(list(combinations(range(n), n - f)))
    inside = x[sets]
    means = inside.mean(1)
    spread = ((inside - means[:, None]) ** 2).sum(2).mean(1)
    error = ((vector - means) ** 2).sum(1)
    # What is left of equal rows is rounding.
    some = spread > 1e-20
    return float((error[some] / spread[some]).max()) if some.any() else 0.0


def with_kappa():
    return [name for name, kind in RULES.items() if kind.make(9, 1).kappa(9, 1) is not None]


@pytest.mark.parametrize("name", RULES)
def test_outside_of_its_domain_a_rule_promises_nothing(name):
    rule = RULES[name].make(9, 3)
    if name != "Mean":
        assert [rule.kappa(n, f) for n, f in ((6, 3), (5, 3), (0, 0))] == [None, None, None]


def test_these_rules_have_a_constant():
    assert {"Median", "TrimmedMean", "Krum, n-f-1", "GeometricMedian"} <= set(with_kappa())
    r = 2 / 5
    assert RULES["TrimmedMean"].make(9, 2).kappa(9, 2) == pytest.approx(6 * r * (1 + r))
    assert RULES["Median"].make(9, 2).kappa(9, 2) == pytest.approx(4 * (1 + r) ** 2)
    assert RULES["GeometricMedian"].make(9, 2).kappa(9, 2) == pytest.approx(4 * (1 + r) ** 2)
    assert RULES["Krum, n-f-1"].make(9, 2).kappa(9, 2) == pytest.approx(6 * (1 + r))
    assert RULES["Krum"].make(9, 2).kappa(9, 2) is None


@pytest.mark.parametrize("name", with_kappa())
def test_no_input_exceeds_the_constant(name):
    kind, rng, largest = RULES[name], np.random.default_rng(16), 0.0
    for _ in range(12):
        for n in (5, 7, 9):
            for f in range(1, (n - 1) // 2 + 1):
                if n < kind.least(f):
                    continue
                x = rng.normal(size=(n, int(rng.integers(1, 4))))
                x[:f] += rng.choice([0.0, 1.0, 3.0, 100.0]) * rng.normal(size=x.shape[1])
                x *= np.where(rng.random(n) < 0.3, 1e-2, 1.0)[:, None]
                rule = kind.make(n, f)
                share = worst_ratio(call(rule, x).vector, x, f) / rule.kappa(n, f)
                largest = max(largest, share)
                assert share <= 1.0, (n, f, x)
    assert largest > 0.05  # the inputs are hard ones


def test_the_mean_exceeds_all_of_these_constants():
    x = rows(9, 2, 17)
    x[0] += 1e3
    assert worst_ratio(Mean()(x).vector, x, 1) > 1e3


# ----- rules of one's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "said"),
    [
        (Decision(), "neither a vector"),
        (Decision(vector=np.zeros((1, 3))), r"shape \(1, 3\): it must be \(3,\)"),
    ],
)
def test_a_decision_that_is_none_is_an_error(decision, said):
    class Own(Rule):
        def decide(self, rows, call):
            return decision

    with pytest.raises(ConfigError, match=said):
        Own()(np.ones((4, 3)))
