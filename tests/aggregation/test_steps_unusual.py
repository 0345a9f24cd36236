"""Every rule and pre-aggregator here, on updates that are broken, huge, equal, few, or of any dtype."""

from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dure.aggregation import (
    ARC,
    FLAME,
    NNM,
    RLR,
    Blocks,
    Bucketing,
    ClippedClustering,
    Clipping,
    FLDetector,
    FLTrust,
    FoolsGold,
    Krum,
    Mean,
    Median,
    NormClipping,
    OrElse,
    SignGuard,
    TrimmedMean,
    chain,
)
from dure.errors import DataError

RNG = np.random.default_rng(21)
SERVER = RNG.normal(size=33)
X = (SERVER + RNG.normal(size=(9, 33))).astype(np.float32)


def rules(f: int) -> dict[str, Any]:
    return {
        "NNM": chain(NNM(f=f), TrimmedMean(f=f)),
        "Bucketing": chain(Bucketing(2), Median(f=f)),
        "Clipping": chain(Clipping(4.0), Mean()),
        "ARC": chain(ARC(f=f), NNM(f=f), Krum(f=f)),
        "FLTrust": FLTrust(),
        "FoolsGold": FoolsGold(),
        "FLAME": FLAME(f=f),
        "SignGuard": SignGuard(f=f),
        "ClippedClustering": ClippedClustering(f=f),
        "FLDetector": FLDetector(),
        "RLR": RLR(threshold=5, f=f),
        "NormClipping": NormClipping(4.0, noise=0.01),
        "OrElse": OrElse(Krum(f=f), Median(f=f)),
    }


RULES = rules(2)
STEPS = {"NNM": NNM(f=2), "Bucketing": Bucketing(2), "Clipping": Clipping(4.0), "ARC": ARC(f=2)}
each_rule = pytest.mark.parametrize("name", list(RULES))
BROKEN = {"nan": np.nan, "inf": np.inf, "-inf": -np.inf}


def call(rule: Any, x: Any, **more: Any) -> Any:
    return rule(x, key=7, **({"server": SERVER} if not hasattr(rule, "mixing") else {}), **more)


@each_rule
def test_broken_and_misshapen_clients_are_dropped_and_named(name: str) -> None:
    rule, left = RULES[name], np.delete(np.arange(9), [2, 6])
    clean = call(rules(0)[name], X[left], clients=left)  # two of two are found already
    for one in BROKEN.values():
        x = X.copy()
        x[2, 5], x[6, 32] = one, np.nan
        listed = list(X)
        listed[2], listed[6] = X[2, :-1], X[6].astype(np.float64)
        for given in (x, listed):
            found = call(rule, given)
            np.testing.assert_array_equal(found.dropped, [2, 6])
            assert found.vector.dtype == np.float32
            np.testing.assert_allclose(found.vector, clean.vector, rtol=1e-5, atol=1e-6)
            for values in (found.weights_used, found.scores):
                assert values is None or values.shape == (9,)
            if found.weights_used is not None:
                assert not found.weights_used[[2, 6]].any()
                np.testing.assert_allclose(found.weights_used[left], clean.weights_used, atol=1e-9)
            if found.selected is not None:
                np.testing.assert_array_equal(found.selected, left[clean.selected])


@each_rule
def test_huge_but_finite_clients_break_nothing(name: str) -> None:
    x = X.copy()
    x[3] *= np.float32(1e38) / np.abs(x[3]).max()
    found = call(RULES[name], x)
    assert np.isfinite(found.vector).all()
    assert not len(found.dropped)
    if name not in ("FLDetector", "RLR", "FoolsGold"):  # which don't claim to bound one client in one call
        assert np.linalg.norm(found.vector - X.mean(0)) < 10


@pytest.mark.parametrize("name", ["FoolsGold", "FLDetector", "ClippedClustering"])
@pytest.mark.parametrize(("dtype", "huge"), [(np.float32, 3e38), (np.float64, 2.0**499)])
def test_huge_clients_break_no_memory(name: str, dtype: Any, huge: float) -> None:
    rule = FLDetector(window=2) if name == "FLDetector" else RULES[name]
    x, state = X.astype(dtype), None
    for t in range(8):
        x[:2] = dtype(huge)
        x[1] *= (-1) ** t
        found = call(rule, x, state=state)
        state = found.state
        assert not len(found.dropped)
        assert np.isfinite(found.vector).all()
        for value in (found.scores, *state.values()):
            assert value is None or np.isfinite(value).all()


@each_rule
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_dtype_and_inputs_are_kept(name: str, dtype: Any) -> None:
    x = X.astype(dtype)
    given = x.copy()
    found = call(RULES[name], x)
    assert found.vector.dtype == dtype
    np.testing.assert_array_equal(x, given)
    assert not np.shares_memory(found.vector, x)
    wide = call(RULES[name], x.astype(np.float64)).vector
    eps = float(ml_dtypes.finfo(dtype).eps)
    np.testing.assert_allclose(found.vector.astype(np.float64), wide, rtol=2 * eps, atol=1e-6)


@each_rule
def test_jax_arrays_blocks_and_lists_give_the_same(name: str) -> None:
    plain = call(RULES[name], X).vector
    for same in (jnp.asarray(X), Blocks([X[:, :7], X[:, 7:]]), list(X)):
        np.testing.assert_array_equal(call(RULES[name], same).vector, plain)


@each_rule
def test_equal_rows_and_zero_rows(name: str) -> None:
    same = call(RULES[name], np.repeat(X[:1], 9, 0))
    if name == "FoolsGold":
        assert not same.vector.any()
    elif name == "Clipping":
        np.testing.assert_allclose(same.vector, X[0] * min(1, 4 / np.linalg.norm(X[0])), rtol=1e-6)
    elif name == "FLTrust":
        expected = X[0] * np.linalg.norm(SERVER) / np.linalg.norm(X[0])
        np.testing.assert_allclose(same.vector, expected, rtol=1e-6)
    elif name not in ("FLAME", "NormClipping"):  # which add noise
        np.testing.assert_allclose(same.vector, X[0], rtol=1e-6)
    zero = call(RULES[name], np.zeros((9, 33), np.float32))
    expected = SERVER if name == "FLTrust" else np.zeros(33)
    np.testing.assert_allclose(zero.vector, expected, atol=0.1 if name == "NormClipping" else 1e-6)


SINGLE = {
    "NNM": chain(NNM(f=0), TrimmedMean(f=0)),
    "Bucketing": chain(Bucketing(2), Median()),
    "ARC": chain(ARC(f=0), Mean()),
    "FoolsGold": FoolsGold(),
    "FLAME": FLAME(noise=0.0),
    "SignGuard": SignGuard(),
    "ClippedClustering": ClippedClustering(),
    "RLR": RLR(threshold=1),
    "NormClipping": NormClipping(1e9),
    "OrElse": OrElse(Krum(f=0), Median()),
}


@pytest.mark.parametrize("name", list(SINGLE))
def test_one_update_is_the_aggregate(name: str) -> None:
    np.testing.assert_allclose(call(SINGLE[name], X[:1]).vector, X[0], rtol=1e-6)


@each_rule
def test_no_columns_and_no_rows(name: str) -> None:
    assert RULES[name](np.zeros((9, 0), np.float32), key=7, server=np.zeros(0)).vector.shape == (0,)
    with pytest.raises(DataError, match="no updates"):
        call(RULES[name], X[:0])
    with pytest.raises(DataError, match="None of the 9 updates"):
        call(RULES[name], np.full((9, 33), np.nan, np.float32))
    with pytest.raises(DataError, match=r"int64|integer|float"):
        call(RULES[name], np.ones((9, 33), np.int64))


@pytest.mark.parametrize("name", list(STEPS))
def test_steps_drop_and_name_broken_clients_too(name: str) -> None:
    x = X.copy()
    x[2, 5], x[6, 32] = np.inf, np.nan
    given = x.copy()
    found = call(STEPS[name], x)
    np.testing.assert_array_equal(found.dropped, [2, 6])
    np.testing.assert_array_equal(x, given)
    assert np.isfinite(found.matrix).all()
    assert found.matrix.dtype == np.float32
    assert not found.weights_used[:, [2, 6]].any()
    left = np.nan_to_num(x.astype(np.float64), posinf=0.0)
    np.testing.assert_allclose(found.weights_used @ left, found.matrix, rtol=1e-5, atol=1e-6)
    x[[2, 6]] = X[[2, 6]]
    x[2] *= np.float32(1e37)
    assert np.isfinite(call(STEPS[name], x).matrix).all()
    assert not np.shares_memory(call(STEPS[name], X).matrix, X)


PERMUTED = [name for name in RULES if name not in ("Bucketing", "FLDetector")]


@pytest.mark.parametrize("name", PERMUTED)
def test_the_order_of_arrival_does_not_matter(name: str) -> None:
    order = RNG.permutation(9)
    one, two = call(RULES[name], X), call(RULES[name], X[order], clients=order)
    np.testing.assert_allclose(two.vector, one.vector, rtol=1e-5, atol=1e-6)
    if one.weights_used is not None:
        np.testing.assert_allclose(two.weights_used, one.weights_used[order], atol=1e-9)
