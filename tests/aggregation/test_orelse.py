"""A fallback is used where the first rule's condition fails, and says so."""

import numpy as np
import pytest

from dure.aggregation import (
    NNM,
    Bucketing,
    ClippedClustering,
    Krum,
    Mean,
    Median,
    NormClipping,
    OrElse,
    TrimmedMean,
    chain,
)
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(20)
X = RNG.normal(size=(9, 20))
RULE = OrElse(Krum(f=2), Median(f=2))


def test_the_first_where_it_can() -> None:
    for n in (7, 9):
        found = RULE(X[:n])
        np.testing.assert_array_equal(found.vector, Krum(f=2)(X[:n]).vector)
        np.testing.assert_array_equal(found.selected, Krum(f=2)(X[:n]).selected)
        assert not found.flags


def test_the_second_where_it_must_with_a_flag() -> None:
    for n in (5, 6):
        found = RULE(X[:n])
        np.testing.assert_allclose(found.vector, np.median(X[:n], axis=0), rtol=1e-14)
        assert found.selected is None
        assert found.flags == (
            f"Median was used, for Krum needs n ≥ 2f + 3, and there are n={n} usable updates of which f=2 may be "
            "hostile",
        )
    RULE.check(5)
    with pytest.raises(DomainError, match=r"n ≥ 2f \+ 3 for Krum or 2f < n for Median"):
        RULE.check(4)
    with pytest.raises(DomainError, match="Median"):
        RULE(X[:4])


def test_each_reckons_with_its_own_f_less_what_was_dropped() -> None:
    broken = X[:8].copy()
    broken[[1, 4], 0] = np.nan
    found = OrElse(Krum(f=2), TrimmedMean(f=3))(broken)  # n = 6, f = 0 for Krum
    left = np.delete(np.arange(8), [1, 4])
    np.testing.assert_array_equal(found.selected, left[Krum(f=0)(broken[left]).selected])
    short = OrElse(Krum(f=3), TrimmedMean(f=3))(broken)  # 6 ≥ 2 · 1 + 3
    assert not short.flags
    less = OrElse(Krum(f=4), TrimmedMean(f=3))(broken)  # 6 < 2 · 2 + 3
    np.testing.assert_allclose(less.vector, TrimmedMean(f=1)(np.delete(broken, [1, 4], 0)).vector)
    assert less.flags[0].startswith("TrimmedMean was used")


def test_weights_whose_heaviest_outweigh_the_rest() -> None:
    weights = np.array([100.0, 1, 1, 1, 1, 1, 1, 1, 1])
    with pytest.raises(DomainError, match="2F < W"):
        Median(f=1)(X, weights)
    found = OrElse(Median(f=1), NormClipping(1.0))(X, weights)
    np.testing.assert_allclose(found.vector, NormClipping(1.0)(X, weights).vector)
    assert "2F < W" in found.flags[0]
    with pytest.raises(ConfigError, match="unequal weights"):
        OrElse(chain(NNM(f=1), Mean()), Median(f=1))(X, np.arange(1.0, 10.0))


def test_each_keeps_its_own_memory() -> None:
    rule = OrElse(ClippedClustering(f=2), OrElse(ClippedClustering(f=1), Mean()))
    first = rule(X)
    assert first.state is not None
    assert set(first.state) == {"rule.norms"}
    second = rule(X[:4], state=first.state)  # 2 · 2 is not less than 4
    assert second.state is not None
    assert {k: len(v) for k, v in second.state.items()} == {"rule.norms": 9, "fallback.rule.norms": 4}
    third = rule(X[:6], state=second.state)
    assert third.state is not None
    assert {k: len(v) for k, v in third.state.items()} == {"rule.norms": 15, "fallback.rule.norms": 4}


def test_within_a_chain_and_around_one() -> None:
    inside = chain(Bucketing(2), RULE)
    assert inside(X, key=0).flags[0].startswith("Median was used")
    around = OrElse(chain(Bucketing(2), Krum(f=2)), TrimmedMean(f=2))
    found = around(X, key=0)
    np.testing.assert_allclose(found.vector, TrimmedMean(f=2)(X).vector)
    assert found.flags[0].startswith("TrimmedMean was used, for Krum needs")
    assert around.kappa(9, 2) == TrimmedMean(f=2).kappa(9, 2)
    again = OrElse(Krum(f=2), chain(Bucketing(2), Median(f=1)))(X[:6], key=0)
    assert again.flags[0].startswith("Bucketing + Median was used, for Krum needs")
    assert RULE.weighting == "selection"
    assert OrElse(chain(NNM(f=1), Mean()), Mean()).weighting == "none"
