"""FedExP: the extrapolation's size, its bounds, and what is handed out."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.algorithms.fedexp import Measured
from dure.errors import ConfigError
from exact import Run, applied, begun, check_engine, check_order, limit
from problems import Q10

FedExP = dure.FedExP
PLAIN = {"epsilon": 0.0, "relative": False, "largest": 1e9}


def step(page: FedExP, deltas: np.ndarray) -> float:
    """η_g of the first round, for clients of equal weight with these updates."""
    mean = Measured(deltas.mean(0), (deltas**2).sum(1).mean())
    server = applied(page, begun(page, np.zeros(deltas.shape[1])), mean)
    np.testing.assert_allclose(server.w, float(server.step) * deltas.mean(0), atol=1e-12)
    return float(server.step)


def test_equal_updates_are_averaged_as_they_are() -> None:
    """The ratio is ½; never below 1."""
    assert step(FedExP(**PLAIN), np.ones((4, 3))) == 1.0


@pytest.mark.parametrize("n", [3, 4, 8])
def test_orthogonal_updates_go_half_their_number(n: int) -> None:
    assert step(FedExP(**PLAIN), 0.7 * np.eye(n)) == pytest.approx(n / 2)


def test_updates_that_nearly_cancel_are_not_followed_for_ever() -> None:
    nearly = np.array([[1.0, 0.0], [-1.0, 1e-3]])
    assert step(FedExP(epsilon=0.0, largest=7.0), nearly) == 7.0
    assert step(FedExP(**PLAIN), nearly) == pytest.approx((2 + 1e-6) / 4 / (0.25e-6))


def test_epsilon_as_it_is_and_relative_to_the_first_round() -> None:
    deltas = 3.0 * np.eye(4)  # Σ p ‖Δ‖² = 9, ‖Δ̄‖² = 9/4
    assert step(FedExP(0.5, relative=False), deltas) == pytest.approx(9 / (2 * (9 / 4 + 0.5)))
    page = FedExP(0.05)
    assert step(page, deltas) == pytest.approx(9 / (2 * (9 / 4 + 0.05 * 9)))
    mean = Measured(deltas.mean(0), np.array(9.0))
    server = applied(page, begun(page, np.zeros(4)), mean)
    second = applied(page, server, Measured(0.1 * deltas.mean(0), np.array(1.0)))
    assert float(second.step) == pytest.approx(1 / (2 * (0.01 * 9 / 4 + 0.05 * 9)), rel=1e-9)


def test_first_round_of_the_reference() -> None:
    run = Run(FedExP(1e-3, relative=False)).rounds(1)
    assert float(run.server.step) == pytest.approx(2.472, abs=5e-4)
    np.testing.assert_allclose(run.w, 2.472 * Run(dure.FedProx(0.0)).rounds(1).w, rtol=3e-4)


def test_a_small_epsilon_explodes_near_the_fixed_point_unless_it_is_clipped() -> None:
    """Δ̄ goes to 0 and the Δ_k do not."""
    free, clipped = FedExP(1e-3, relative=False, largest=1e9), FedExP(1e-3, relative=False, largest=2.0)
    run = Run(free)
    assert max(float(run.rounds(1).server.step) for _ in range(200)) > 100
    run = Run(clipped)
    steps = [float(run.rounds(1).server.step) for _ in range(200)]
    assert min(steps) >= 1
    assert max(steps) == 2


@pytest.mark.parametrize("page", [FedExP(1.0, relative=False), FedExP()], ids=["epsilon 1", "default"])
def test_with_an_epsilon_of_the_right_scale_it_settles_on_fedavgs_limit(page: FedExP) -> None:
    run = Run(page).rounds(400)
    np.testing.assert_allclose(run.w, limit(Q10.uniform, 10, 0.1), atol=1e-9)
    assert run.error() == pytest.approx(0.29596, abs=1e-5)


def handed_out(page: FedExP, server: Any) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(page.model(jax.tree.map(jnp.asarray, server)))


def test_the_mean_of_the_last_two_iterates_is_handed_out() -> None:
    page = FedExP()
    server = begun(page, np.zeros(2))
    np.testing.assert_array_equal(handed_out(page, server), 0)
    places = [np.zeros(2)]
    for t, delta in enumerate(np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]]), 1):
        server = applied(page, server, Measured(delta, np.array(delta @ delta)), number=t)
        places.append(server.w)
        np.testing.assert_allclose(handed_out(page, server), (places[-1] + places[-2]) / 2)


def test_compiled() -> None:
    check_engine(FedExP())


def test_order_of_clients() -> None:
    check_order(FedExP())


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"epsilon": -1e-3}, r"epsilon=-0\.001"),
        ({"largest": 0.5}, r"largest=0\.5"),
        ({"largest": np.inf}, "largest=inf"),
    ],
)
def test_impossible_numbers_are_refused(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FedExP(**keywords)
