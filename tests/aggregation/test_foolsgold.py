"""FoolsGold silences clients whose histories are alike, and remembers them by their numbers."""

import numpy as np
import pytest
from sklearn.metrics.pairwise import cosine_similarity

from dure.aggregation import FoolsGold
from dure.errors import ConfigError, DataError

RNG = np.random.default_rng(12)


def naive(history: np.ndarray, kappa: float) -> np.ndarray:
    """As the method's authors describe it, pair by pair."""
    n = len(history)
    cs = cosine_similarity(history) - np.eye(n)
    v = np.maximum(cs.max(1), 0.0)
    out = cs.copy()
    for i in range(n):
        for j in range(n):
            if i != j and v[j] > v[i]:
                out[i, j] = cs[i, j] * v[i] / v[j]
    a = np.clip(1.0 - np.maximum(out.max(1), 0.0), 0.0, 1.0)
    a /= a.max()
    a[np.isclose(a, 1.0, rtol=0, atol=1e-13)] = 0.99  # of two clients both are at 1
    with np.errstate(divide="ignore"):
        return np.clip(kappa * (np.log(a / (1.0 - a)) + 0.5), 0.0, 1.0)


@pytest.mark.parametrize("kappa", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("n", [2, 5, 11])
def test_weights_follow_the_formula(kappa: float, n: int) -> None:
    for shared in (0.0, 0.3, 1.0, 3.0):
        x = RNG.normal(size=(n, 25)) + shared * RNG.normal(size=25)
        found = FoolsGold(confidence=kappa)(x)
        weights = naive(x, kappa)
        assert found.scores is not None
        np.testing.assert_allclose(1.0 - found.scores, weights, atol=1e-9)
        np.testing.assert_allclose(found.vector, weights @ x / n, atol=1e-9)


def test_identical_sybils_are_silenced_and_honest_clients_stay() -> None:
    honest = RNG.normal(size=(6, 200))
    target = RNG.normal(size=200)
    state, vectors = None, []
    for _ in range(4):
        honest_now = honest + 0.3 * RNG.normal(size=honest.shape)
        sybils = np.repeat((target + 0.001 * RNG.normal(size=200))[None], 10, 0)
        found = FoolsGold()(np.vstack([honest_now, sybils]), state=state)
        state = found.state
        vectors.append(found.vector)
        assert found.scores is not None
        np.testing.assert_allclose(found.scores[6:], 1.0, atol=1e-9)
        np.testing.assert_allclose(found.scores[:6], 0.0, atol=1e-9)
    mean = np.vstack([honest, np.repeat(target[None], 10, 0)]).mean(0)
    towards = target / np.linalg.norm(target)
    assert mean @ towards > 5 * abs(vectors[-1] @ towards)


def test_all_alike_means_none_and_a_flag() -> None:
    direction = RNG.normal(size=50)
    for scales in (np.ones(5), np.array([1e-3, 1.0, 2.0, 7.0, 1e5])):
        found = FoolsGold()(np.outer(scales, direction))
        assert not found.vector.any()
        assert found.flags == ("all histories are parallel: no update was used",)
        np.testing.assert_array_equal(found.scores, np.ones(5))
    one = FoolsGold()(direction[None])  # nobody to resemble
    np.testing.assert_allclose(one.vector, direction)
    zero = FoolsGold()(np.zeros((4, 9)))  # no direction: not alike
    assert not zero.flags
    np.testing.assert_array_equal(zero.scores, np.zeros(4))


def test_histories_belong_to_client_numbers() -> None:
    a, b, c = RNG.normal(size=(3, 30))
    rule = FoolsGold()
    first = rule(np.array([a, b]), clients=[7, 3])
    second = rule(np.array([c, a, b]), clients=[9, 3, 7], state=first.state)
    state = second.state
    assert state is not None
    np.testing.assert_array_equal(state["clients"], [3, 7, 9])
    np.testing.assert_allclose(state["history"], [a + b, a + b, c])
    assert second.scores is not None
    np.testing.assert_allclose(second.scores, [0.0, 1.0, 1.0], atol=1e-9)  # 3 and 7 are now alike
    assert first.state is not None
    np.testing.assert_array_equal(first.state["history"], [b, a])  # not written to
    third = rule(np.array([a]), clients=[3], state=state)
    assert third.state is not None
    np.testing.assert_allclose(third.state["history"], [2 * a + b, a + b, c])
    np.testing.assert_array_equal(third.scores, [0.0])  # compared with who is in the call


def test_only_some_columns_and_the_centre() -> None:
    x, centre = RNG.normal(size=(5, 40)), RNG.normal(size=40)
    found = FoolsGold(columns=(30, 40))(x, center=centre)
    weights = naive((x - centre)[:, 30:], 1.0)
    np.testing.assert_allclose(found.vector, centre + weights @ (x - centre) / 5, atol=1e-9)
    assert found.state is not None
    np.testing.assert_allclose(found.state["history"], (x - centre)[:, 30:])
    with pytest.raises(ConfigError, match="beyond the 40 columns"):
        FoolsGold(columns=(30, 41))(x)
    with pytest.raises(ConfigError, match="at least 31"):
        FoolsGold(columns=(30, 30))
    with pytest.raises(DataError, match="state of another run"):
        FoolsGold(columns=(0, 3))(x, state=found.state)


def test_errors() -> None:
    with pytest.raises(ConfigError, match="a finite number above 0"):
        FoolsGold(confidence=0.0)
    with pytest.raises(DataError, match=r"\['norms'\]: FoolsGold returns and takes \['clients', 'history'\]"):
        FoolsGold()(RNG.normal(size=(2, 3)), state={"norms": np.ones(2)})
    with pytest.raises(DataError, match="equal"):
        FoolsGold()(RNG.normal(size=(2, 3)), clients=[1, 1])
    broken = {"clients": np.arange(2), "history": np.full((2, 3), np.nan, np.float32)}
    with pytest.raises(DataError, match="history that is not finite"):
        FoolsGold()(RNG.normal(size=(2, 3)), state=broken)
    with pytest.raises(ConfigError, match="unequal weights"):
        FoolsGold()(RNG.normal(size=(2, 3)), [1.0, 2.0])


def test_memory_is_as_wide_as_it_must_be() -> None:
    for dtype, wide in ((np.float16, np.float32), (np.float32, np.float32), (np.float64, np.float64)):
        found = FoolsGold()(RNG.normal(size=(3, 8)).astype(dtype))
        assert found.state is not None
        assert found.state["history"].dtype == wide
        assert found.vector.dtype == dtype
