"""Nearest-neighbour mixing is the mean of the n − f nearest, and a rule behind it keeps its promise."""

from itertools import combinations

import numpy as np
import pytest

from dure.aggregation import NNM, Mean, Median, TrimmedMean, chain
from dure.errors import ConfigError, DomainError

RNG = np.random.default_rng(5)


def naive(x: np.ndarray, f: int) -> np.ndarray:
    out = []
    for i in range(len(x)):
        order = sorted(range(len(x)), key=lambda j: (j != i, float(((x[i] - x[j]) ** 2).sum()), j))
        out.append(x[order[: len(x) - f]].mean(0))
    return np.array(out)


@pytest.mark.parametrize(("n", "f"), [(1, 0), (3, 1), (7, 2), (12, 5)])
def test_rows_become_means_of_their_nearest(n: int, f: int) -> None:
    x = RNG.normal(size=(n, 40)) * RNG.uniform(0.1, 5, (n, 1))
    np.testing.assert_allclose(NNM(f=f)(x).matrix, naive(x, f), rtol=1e-12, atol=1e-12)


def test_the_row_itself_comes_first_and_ties_go_to_the_first() -> None:
    x = np.array([[1.0], [1.0], [0.0], [2.0], [1.0]])
    shares = NNM(f=2)(x).weights_used
    np.testing.assert_array_equal(shares > 0, np.array(
        [[1, 1, 0, 0, 1], [1, 1, 0, 0, 1], [1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 0, 0, 1]], bool
    ))  # fmt: skip
    twins = np.ones((5, 3))
    assert (np.diag(NNM(f=2)(twins).weights_used) > 0).all()  # also the last of equal rows keeps itself


def test_condition() -> None:
    NNM(f=2).check(5)
    with pytest.raises(DomainError, match="NNM needs 2f < n"):
        NNM(f=2)(np.zeros((4, 2)))
    with pytest.raises(ConfigError, match="at least 0"):
        NNM(f=-1)
    with pytest.raises(ConfigError, match="unequal weights"):
        NNM(f=1)(np.zeros((4, 2)), np.arange(1, 5))


def test_close_rows_far_from_zero_are_told_apart_in_float32() -> None:
    x = (1e4 + 1e-2 * RNG.normal(size=(9, 500))).astype(np.float32)
    np.testing.assert_array_equal(NNM(f=3)(x).weights_used, NNM(f=3)(x.astype(np.float64)).weights_used)


@pytest.mark.parametrize("rule", [TrimmedMean, Median])
def test_the_robustness_constant(rule: type) -> None:
    for n, d in ((5, 1), (7, 2), (9, 3)):
        f = (n - 1) // 2 - 1
        mixed = chain(NNM(f=f), rule(f=f))
        inner = rule(f=f).kappa(n, f)
        kappa = mixed.kappa(n, f)
        assert kappa == pytest.approx(8 * f / (n - f) * (inner + 1))
        for shift in (0, 1, 3, 100):
            x = RNG.normal(size=(n, d)) * np.where(RNG.random((n, 1)) < 0.3, 1e-2, 1.0)
            x[:f] += shift * RNG.normal(size=(f, d))
            found = mixed(x).vector
            for honest in combinations(range(n), n - f):
                part = x[list(honest)]
                error = ((found - part.mean(0)) ** 2).sum()
                assert error <= kappa * ((part - part.mean(0)) ** 2).sum(1).mean() * (1 + 1e-9)
    assert chain(NNM(f=1), Mean()).kappa(5, 1) is None
