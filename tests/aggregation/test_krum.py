"""Krum and Multi-Krum against the definition, written as loops."""

import numpy as np
import pytest

from dure.aggregation import Krum, MultiKrum
from dure.errors import ConfigError, DomainError


def heavy(n, d, seed):
    return np.random.default_rng(seed).standard_t(2, size=(n, d))


def scores_by_definition(x, neighbours):
    found = []
    for i in range(len(x)):
        others = sorted(float(((x[i] - x[j]) ** 2).sum()) for j in range(len(x)) if j != i)
        found.append(sum(others[:neighbours]))
    return np.array(found)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("neighbours", ["n-f-2", "n-f-1"])
def test_scores_and_choice_are_those_of_the_definition(seed, neighbours):
    n, f = (7, 2) if seed % 2 else (11, 3)
    x = heavy(n, 4, seed)
    scores = scores_by_definition(x, n - f - (2 if neighbours == "n-f-2" else 1))
    one = Krum(f, neighbours=neighbours)(x)
    np.testing.assert_allclose(one.scores, scores, rtol=1e-12)
    np.testing.assert_array_equal(one.selected, [np.argmin(scores)])
    np.testing.assert_array_equal(one.vector, x[np.argmin(scores)])
    best = np.sort(np.argsort(scores)[: n - f])
    many = MultiKrum(f, m="n-f", neighbours=neighbours)(x)
    same = MultiKrum(f, m=n - f, neighbours=neighbours)(x)
    np.testing.assert_array_equal(same.selected, best)
    np.testing.assert_array_equal(many.selected, best)
    np.testing.assert_allclose(many.vector, x[best].mean(0), rtol=1e-12)


def test_variants_of_other_libraries_choose_differently_now_and_then():
    differ = {"n-f-1": 0, "not squared": 0, "4th power": 0}
    for seed in range(100):
        x = heavy(9, 3, seed)
        chosen = Krum(2)(x).selected[0]
        distances = np.sqrt(((x[:, None] - x) ** 2).sum(2))
        for name, power, neighbours in (("n-f-1", 2, 6), ("not squared", 1, 5), ("4th power", 4, 5)):
            ranked = np.sort(distances**power, axis=1)[:, 1 : 1 + neighbours]
            differ[name] += int(np.argmin(ranked.sum(1)) != chosen)
    assert all(count > 2 for count in differ.values()), differ


def test_multi_krum_averages_n_f_2_by_default():
    x = heavy(12, 3, 0)
    np.testing.assert_array_equal(MultiKrum(3)(x).selected, MultiKrum(3, m=7)(x).selected)
    assert len(MultiKrum(3)(x).selected) == 7


def test_equal_scores_go_to_the_first():
    x = np.array([[5.0], [1.0], [-1.0], [0.0], [0.0], [1.0], [-1.0]])
    scores = scores_by_definition(x, 7 - 2 - 2)
    np.testing.assert_array_equal(scores, [57, 2, 2, 2, 2, 2, 2])
    np.testing.assert_array_equal(Krum(2)(x).selected, [1])
    np.testing.assert_array_equal(MultiKrum(2, m=3)(x).selected, [1, 2, 3])


def test_dropped_updates_leave_m_possible():
    x = heavy(7, 2, 1)
    x[3, 0] = np.nan
    found = MultiKrum(2, m=5)(x)  # n − f is what it was
    assert len(found.selected) == 5
    assert 3 not in found.selected


@pytest.mark.parametrize(
    "make",
    [
        lambda: Krum(-1),
        lambda: Krum(True),
        lambda: Krum(1, neighbours="n-f"),
        lambda: MultiKrum(1, m=0),
        lambda: MultiKrum(1, m="n"),
        lambda: MultiKrum(1, neighbours="3"),
    ],
)
def test_impossible_arguments_are_refused(make):
    with pytest.raises(ConfigError, match="is not allowed"):
        make()


def test_m_beyond_n_f_is_refused_and_not_before():
    x = heavy(7, 2, 0)
    assert len(MultiKrum(2, m=5)(x).selected) == 5
    with pytest.raises(DomainError, match="m ≤ n − f"):
        MultiKrum(2, m=6)(x)
