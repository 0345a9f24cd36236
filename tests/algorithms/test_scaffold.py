"""SCAFFOLD: the table of known defects, each with the test that tells it from the method."""

import math
from typing import Any

import numpy as np
import optax
import pytest

import dure
from dure.errors import ConfigError
from exact import TAU, Run, check_engine, check_float32, check_order, cyc3, everyone, gradients, loss20
from problems import Q10, QUADRATIC, make_engine, q10

Scaffold = dure.Scaffold


# ----- fixed points ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "settings", "rounds"),
    [
        (1, {}, 32),
        (2, {}, 32),
        (1, {"sampler": cyc3}, 83),
        (2, {"sampler": cyc3}, 71),
        (2, {"lost": loss20}, 35),
        (2, {"lost": loss20, "sampler": cyc3}, 82),
    ],
)
def test_optimum_in_the_rounds_of_the_reference(option: int, settings: dict[str, Any], rounds: int) -> None:
    run = Run(Scaffold(option=option), **settings)
    assert run.settles(rounds + 60) == rounds
    assert run.error() < 1e-9


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.9, "eta": 0.03},
        {"steps": TAU},
        {"steps": TAU, "p": Q10.weighted, "sampler": cyc3},
        {"eta": lambda t, s: 0.1 * 0.999**t, "sampler": cyc3},
        {"eta": lambda t, s: 0.2 / (1 + s)},
    ],
    ids=["momentum", "unequal steps", "weights", "decay", "schedule in the round"],
)
def test_optimum_whatever_the_local_solver(settings: dict[str, Any]) -> None:
    """Momentum with the plain normaliser K η stops 0.745 away (η 0.1), or 0.036 (η 0.01)."""
    assert Run(Scaffold(), **settings).rounds(400).error() < 1e-9


@pytest.mark.parametrize(("sampler", "away"), [(everyone, 0.528), (cyc3, 0.625)])
def test_control_that_is_kept_though_its_upload_was_lost(sampler: Any, away: float) -> None:
    """Why the state has two phases: without, the model stands still where the mean gradient is not zero, and
    c is not the mean of the c_k, by just as much."""
    wrong = Run(Scaffold(), sampler=sampler, lost=loss20, commit_lost=True).rounds(250)
    assert wrong.error() == pytest.approx(away, abs=6e-4)
    gap = np.asarray(wrong.server.c) - wrong.mean()
    np.testing.assert_allclose(gap, -gradients(wrong.w).mean(0), atol=1e-6)
    assert np.linalg.norm(gap) > 0.28


def test_optimum_of_the_weighted_objective_takes_weighted_controls() -> None:
    """Every client's control is its gradient at the optimum, and the server's is their weighted mean, 0."""
    run = Run(Scaffold(), p=Q10.weighted).rounds(100)
    np.testing.assert_allclose(run.w, Q10.optimum(Q10.weighted), atol=1e-9)
    np.testing.assert_allclose(run.server.c, 0, atol=1e-9)


def test_server_rate_scales_the_models_step_and_not_the_controls() -> None:
    whole, half = Run(Scaffold()).rounds(1), Run(Scaffold(server_lr=0.5)).rounds(1)
    np.testing.assert_allclose(half.w, 0.5 * whole.w, atol=1e-14)
    np.testing.assert_allclose(half.server.c, whole.server.c, atol=1e-14)
    assert Run(Scaffold(server_lr=0.5)).rounds(100).error() < 1e-9


# ----- invariants ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sampler": cyc3},
        {"lost": loss20},
        {"sampler": cyc3, "lost": loss20},
        {"sampler": cyc3, "momentum": 0.9, "eta": 0.01},
        {"sampler": cyc3, "eta": lambda t, s: 0.1 * 0.9**t / (1 + s)},
        {"sampler": cyc3, "lost": loss20, "p": Q10.weighted, "steps": TAU},
    ],
    ids=["everyone", "sampled", "lost", "sampled and lost", "momentum", "schedules", "weights"],
)
@pytest.mark.parametrize("option", [1, 2])
def test_the_servers_control_is_the_mean_after_every_round(option: int, settings: dict[str, Any]) -> None:
    """I1. Under sampling c ← c + Σ Δc/|S| converges all the same: only this tells."""
    run = Run(Scaffold(option=option), **settings)
    np.testing.assert_array_equal(run.server.c, 0)
    np.testing.assert_array_equal(run.clients, 0)
    for _ in range(12):
        run.round()
        np.testing.assert_allclose(run.server.c, run.mean(), atol=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_one_full_step_gives_the_gradient_at_any_round_of_a_schedule(momentum: float) -> None:
    """I2 and I3: K = 1. At t > 0 a normaliser with the undecayed rate is off."""
    first, second = (
        Run(Scaffold(option=o), steps=1, eta=lambda t, s: 0.5 * 0.8**t, momentum=momentum) for o in (1, 2)
    )
    for _ in range(8):
        received = second.w
        first.round()
        second.round()
        np.testing.assert_allclose(second.clients, gradients(received), atol=1e-12)
        np.testing.assert_allclose(first.clients, second.clients, atol=1e-12)
        np.testing.assert_allclose(second.w, first.w, atol=1e-12)


def test_two_steps_with_momentum_give_one_gradient_and_not_more() -> None:
    """With tiny steps the control is ∇f_k(x); the normaliser K η makes it 1.45 times that."""
    run = Run(Scaffold(), steps=2, momentum=0.9, eta=1e-9).rounds(1)
    np.testing.assert_allclose(run.clients, gradients(np.zeros(5)), rtol=1e-6)


def test_first_two_rounds_by_hand() -> None:
    """Signs and divisors: two rounds of one step with three clients of ten."""
    eta, A, b = 0.1, Q10.A, Q10.b
    run = Run(Scaffold(), steps=2, eta=eta, sampler=cyc3)
    x, c, c_i = np.zeros(5), np.zeros(5), np.zeros((10, 5))
    for t in range(5):
        moves, changes = [], []
        for i in cyc3(t):
            y = x
            for _ in range(2):
                y = y - eta * (A[i] @ (y - b[i]) - c_i[i] + c)
            new = c_i[i] - c + (x - y) / (2 * eta)
            changes.append(new - c_i[i])
            moves.append(y - x)
            c_i[i] = new
        x, c = x + np.mean(moves, 0), c + np.sum(changes, 0) / 10
        run.round()
        np.testing.assert_allclose(run.w, x, atol=1e-12)
        np.testing.assert_allclose(run.server.c, c, atol=1e-12)


def test_the_compiled_rounds_are_these() -> None:
    check_engine(Scaffold())
    check_float32(Scaffold(), 120)
    check_engine(Scaffold(option=1))


def test_order_of_clients() -> None:
    check_order(Scaffold())


# ----- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"server_lr": 0.0}, r"server_lr=0\.0"),
        ({"server_lr": math.nan}, "server_lr=nan"),
        ({"option": 3}, "option=3"),
    ],
)
def test_impossible_numbers_are_refused(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Scaffold(**keywords)


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"sampler": dure.Weighted(3), "weighting": "uniform"}, "mean over all clients' states"),
        ({"sampler": dure.Once(3)}, "comes once"),
        ({"optimizer": optax.adam(1e-3)}, "not linear in the gradients"),
        ({"optimizer": dure.sgd(0.1, clip_norm=1.0)}, "not linear in the gradients"),
    ],
)
def test_settings_that_break_it_are_refused(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_engine(Scaffold(), QUADRATIC, q10(), **keywords).launch()
