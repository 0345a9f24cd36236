"""A chain equals its steps, one after another, on matrices."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest

from dure.aggregation import (
    ARC,
    NNM,
    Bucketing,
    Clipping,
    FLDetector,
    FLTrust,
    FoolsGold,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
    TrimmedMean,
    chain,
)
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(8)
X = RNG.normal(size=(12, 5000)) * RNG.uniform(0.5, 4.0, (12, 1))
X[:2] += 30.0
CENTRE = RNG.normal(size=5000)

CHAINS = {
    "NNM, trimmed mean": chain(NNM(f=2), TrimmedMean(f=2)),
    "bucketing, Krum": chain(Bucketing(2), Krum(f=1)),
    "clipping, NNM, median": chain(Clipping(60.0), NNM(f=2), Median(f=2)),
    "ARC, NNM, geometric median": chain(ARC(f=2), NNM(f=2), GeometricMedian(f=2)),
    "NNM, bucketing, Multi-Krum": chain(NNM(f=2), Bucketing(2), MultiKrum(f=1)),
    "bucketing, clipping, mean": chain(Bucketing(3), Clipping(20.0), Mean()),
}


@pytest.mark.parametrize("centre", [None, CENTRE], ids=["about zero", "about a centre"])
@pytest.mark.parametrize("name", list(CHAINS))
def test_one_after_another(name: str, centre: np.ndarray | None) -> None:
    whole = CHAINS[name]
    found = whole(X, center=centre, key=9)
    matrix, original = X, np.eye(12)
    for step, details in zip(whole.before, found.details["steps"], strict=True):
        if isinstance(step, Bucketing):
            step = replace(step, permutation=tuple(details["permutation"].tolist()))
        mixed = step(matrix, center=centre)
        matrix, original = mixed.matrix, mixed.weights_used @ original
    last = whole.rule(matrix, center=centre)
    np.testing.assert_allclose(found.vector, last.vector, rtol=1e-7, atol=1e-7)
    if last.weights_used is None:
        assert found.weights_used is None
        return
    assert found.weights_used is not None
    np.testing.assert_allclose(found.weights_used, last.weights_used @ original, atol=1e-7)
    origin = 0.0 if centre is None else centre
    np.testing.assert_allclose(found.vector, origin + found.weights_used @ (X - origin), rtol=1e-9, atol=1e-9)
    if last.selected is not None:
        assert found.selected is not None
        np.testing.assert_array_equal(found.selected, np.flatnonzero(original[last.selected].any(0)))


def test_the_data_are_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = []
    whole = Rows._pieces

    def counted(self: Rows, *args: Any) -> Any:
        passes.append(self)
        return whole(self, *args)

    monkeypatch.setattr(Rows, "_pieces", counted)
    x = X.astype(np.float32)
    for rule in (
        chain(NNM(f=2), TrimmedMean(f=2)),
        chain(Bucketing(2), Krum(f=1)),
        chain(Clipping(60.0), NNM(f=2), Median(f=2)),
        chain(ARC(f=2), Bucketing(2), Krum(f=1)),
        chain(Bucketing(2), Median(f=1)),
    ):
        passes.clear()
        rule(x, key=0)
        assert len(passes) == 2, rule


@dataclass(frozen=True)
class Reckoning(Rule):
    """Says in its details which n and f it met."""

    f: int = 0
    weighting: ClassVar[str] = "none"

    def decide(self, rows: Rows, call: Call) -> Decision:
        return Decision(
            coefficients=np.full(rows.n, 1.0 / rows.n),
            scores=np.arange(rows.n, dtype=np.float64),
            state={"calls": np.array([1 + (call.state["calls"][0] if call.state else 0), call.key or 0])},
            details={"n": rows.n, "f": call.f, "clients": call.clients},
        )


def test_every_step_reckons_with_its_own_f_less_what_was_dropped() -> None:
    x = X[:, :5].copy()
    x[3, 1], x[7, 0] = np.nan, np.inf
    found = chain(NNM(f=3), Bucketing(2), Reckoning(f=1))(x, key=0)
    assert (found.details["n"], found.details["f"]) == (5, 0)
    np.testing.assert_array_equal(found.dropped, [3, 7])
    np.testing.assert_allclose(found.weights_used.sum(), 1.0)
    assert not found.weights_used[[3, 7]].any()
    shares = chain(NNM(f=3), Mean())(x).weights_used
    alone = NNM(f=1)(np.delete(x, [3, 7], 0)).weights_used.mean(0)
    np.testing.assert_allclose(np.delete(shares, [3, 7]), alone)
    assert chain(NNM(f=3), Reckoning(f=4))(x).details["f"] == 2
    assert "more updates dropped than f" in chain(NNM(f=1), Mean())(x).flags
    # a fraction is one of the updates that were given
    fraction = chain(NNM(f=3), TrimmedMean(fraction=0.3))(x).vector  # 4 of 12, less 2
    np.testing.assert_allclose(fraction, chain(NNM(f=3), TrimmedMean(f=4))(x).vector)


def test_scores_and_clients_stay_with_rows_that_are_clients() -> None:
    x = X[:, :5].copy()
    x[3, 1] = np.nan
    clients = np.arange(12) * 10
    kept = chain(NNM(f=2), Clipping(5.0), Reckoning())(x, clients=clients)
    np.testing.assert_array_equal(kept.scores, [0, 1, 2, np.nan, *range(3, 11)])
    np.testing.assert_array_equal(kept.details["clients"], np.delete(clients, 3))
    lost = chain(NNM(f=2), Bucketing(4), Reckoning())(x, clients=clients, key=0)
    assert lost.scores is None
    np.testing.assert_array_equal(lost.details["row_scores"], [0, 1, 2])


def test_state_passes_through_and_steps_draw_different_numbers() -> None:
    rule = chain(Bucketing(2), Bucketing(2), Reckoning())
    first = rule(X, key=5)
    second = rule(X, key=5, state=first.state)
    assert second.state is not None
    assert second.state["calls"][0] == 2
    assert second.state["calls"][1] not in (0, 5)  # the rule's own key
    one, two = (Bucketing(1) for _ in range(2))
    drawn = [tuple(s["permutation"]) for s in chain(one, two, Mean())(X, key=5).details["steps"]]
    assert drawn[0] != drawn[1]


def test_conditions_are_checked_in_order_with_the_rows_that_are_left() -> None:
    rule = chain(NNM(f=2), Bucketing(2), Krum(f=1))
    rule.check(9)
    rule(X[:9], key=0)
    with pytest.raises(DomainError, match=r"n ≥ 2f \+ 3"):
        rule(X[:8], key=0)
    with pytest.raises(DomainError, match="n ≥ 2f"):
        rule.check(8)
    with pytest.raises(DomainError, match="NNM"):
        rule(X[:4], key=0)
    assert rule.needs(9, 2) is None
    assert "Krum, which meets 4 rows" in (rule.needs(8, 2) or "")


def test_what_can_not_be_chained() -> None:
    with pytest.raises(ConfigError, match="unequal weights"):
        CHAINS["NNM, trimmed mean"](X, np.arange(1.0, 13.0))
    same = CHAINS["NNM, trimmed mean"](X, np.full(12, 3.0))
    np.testing.assert_array_equal(same.vector, CHAINS["NNM, trimmed mean"](X).vector)
    for rule in (FoolsGold(), FLDetector(), MoNNA(f=1, trusted=0)):
        with pytest.raises(ConfigError, match="Bucketing"):
            chain(Bucketing(2), rule)
    with pytest.raises(ConfigError, match="begins with pre-aggregators"):
        chain(Mean())
    with pytest.raises(ConfigError, match="begins with pre-aggregators"):
        chain(Mean(), NNM(f=1), Mean())
    with pytest.raises(ConfigError, match="ends in a rule"):
        chain(NNM(f=1), NNM(f=1))
    with pytest.raises(ConfigError, match="begins with pre-aggregators"):
        chain()


def test_a_rule_that_needs_the_servers_update_gets_it() -> None:
    server = RNG.normal(size=5000)
    found = chain(NNM(f=2), FLTrust())(X, server=server)
    alone = FLTrust()(NNM(f=2)(X).matrix, server=server)
    np.testing.assert_allclose(found.vector, alone.vector, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_dtypes(dtype: Any) -> None:
    x = RNG.normal(size=(9, 30)).astype(dtype)
    given = x.copy()
    for rule in (chain(NNM(f=2), Median(f=2)), chain(Bucketing(2), Clipping(2.0), Mean())):
        found = rule(x, key=0)
        wide = rule(x.astype(np.float64), key=0)
        narrow = (lambda v: v) if dtype == np.float64 else np.float32
        assert found.vector.dtype == dtype
        np.testing.assert_array_equal(found.vector, narrow(wide.vector).astype(dtype))
        np.testing.assert_array_equal(x, given)
    assert NNM(f=2)(x).matrix.dtype == dtype
