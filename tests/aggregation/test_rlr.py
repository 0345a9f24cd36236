"""The robust learning rate turns coordinates that few clients push."""

from typing import Any

import numpy as np
import pytest

from dure.aggregation import RLR, Krum, Mean, Median, MultiKrum, TrimmedMean
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(19)
X = np.round(RNG.normal(size=(9, 300)), 1)  # with zeros among them


@pytest.mark.parametrize("inner", [Mean(), Median(f=2), Krum(f=2), TrimmedMean(f=2)])
@pytest.mark.parametrize("centre", [None, np.round(RNG.normal(size=300), 1)])
def test_signs_are_counted_in_every_column(inner: Any, centre: np.ndarray | None) -> None:
    origin = np.zeros(300) if centre is None else centre
    found = RLR(threshold=4, inner=inner, f=2, lr=0.5)(X, center=centre)
    plain = inner(X, center=centre)
    expected = np.empty(300)
    for j in range(300):
        votes = sum(int(v > origin[j]) - int(v < origin[j]) for v in X[:, j])
        rate = 0.5 if abs(votes) >= 4 else -0.5
        expected[j] = origin[j] + rate * (plain.vector[j] - origin[j])
    np.testing.assert_allclose(found.vector, expected, rtol=1e-12, atol=1e-14)
    assert found.weights_used is None
    np.testing.assert_equal(found.selected, plain.selected)
    np.testing.assert_equal(found.scores, plain.scores)
    assert {-1, 1} == set(found.details["lr_sign"])


def test_a_backdoor_is_turned_round() -> None:
    honest = np.ones((8, 100)) + 0.1 * RNG.normal(size=(8, 100))
    honest[:, 90:] = 0.01 * RNG.normal(size=(8, 10))  # what the task doesn't care about
    honest[4:, 90:] *= -1.0
    honest[:4, 90:] = -honest[4:, 90:]
    bad = honest[:2].copy()
    bad[:, 90:] = 5.0
    x = np.vstack([honest, bad])
    found = RLR(threshold=5, f=2)(x)
    assert (x.mean(0)[90:] > 0.5).all()
    assert (found.vector[90:] < -0.5).all()  # away from the backdoor
    np.testing.assert_allclose(found.vector[:90], x.mean(0)[:90], rtol=1e-12)


def test_weights_are_the_inner_rules_matter() -> None:
    weights = RNG.uniform(1, 3, 9)
    found = RLR(threshold=1)(X, weights)
    sign = found.details["lr_sign"]
    np.testing.assert_allclose(found.vector, sign * (weights @ X / weights.sum()), atol=1e-12)
    assert RLR(threshold=1).weighting == "mass"
    assert RLR(threshold=1, inner=MultiKrum(f=1)).geometric


def test_conditions() -> None:
    RLR(threshold=3, f=2)(X)
    RLR(threshold=7, f=2)(X)
    for threshold in (2, 8):
        with pytest.raises(DomainError, match=rf"f \+ 1 ≤ threshold ≤ n − f \(threshold={threshold}\)"):
            RLR(threshold=threshold, f=2)(X)
    with pytest.raises(DomainError, match="Krum"):
        RLR(threshold=5, inner=Krum(f=4))(X)
    with pytest.raises(DomainError):
        RLR(threshold=2, inner=TrimmedMean(f=2))(X)  # the inner rule's f counts too
    broken = X.copy()
    broken[0, 0] = np.nan
    found = RLR(threshold=7, f=2, inner=TrimmedMean(f=1))(broken)  # n − f stays what it was
    plain = X[1:].mean(0)
    np.testing.assert_allclose(np.abs(found.vector), np.abs(plain), atol=1e-12)
    for wrong in ({"threshold": 0}, {"threshold": 1, "lr": 0.0}, {"threshold": 1, "f": -1}):
        with pytest.raises(ConfigError):
            RLR(**wrong)
