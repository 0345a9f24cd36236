"""FedDC: drift variables beside SCAFFOLD's controls."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
import pytest

import dure
from dure.errors import ConfigError
from exact import TAU, Run, check_engine, check_float32, check_order, cyc3, gradients, loss20
from problems import Q10, QUADRATIC, make_engine, q10

FedDC = dure.FedDC


@pytest.mark.parametrize(
    ("alpha", "settings", "rounds"),
    [(0.01, {}, 39), (0.1, {}, 33), (0.01, {"sampler": cyc3}, 95), (0.1, {"sampler": cyc3}, 87)],
)
def test_optimum_in_the_rounds_of_the_reference(alpha: float, settings: dict[str, Any], rounds: int) -> None:
    run = Run(FedDC(alpha), steps=20, **settings)
    assert run.settles(rounds + 60) == rounds
    assert run.error() < 1e-9


@pytest.mark.parametrize(
    "settings",
    [
        {"sampler": cyc3},
        {"lost": loss20},
        {"sampler": cyc3, "lost": loss20},
        {"sampler": cyc3, "p": Q10.weighted, "steps": TAU},
        {"sampler": cyc3, "eta": lambda t, s: 0.1 * 0.999**t},
    ],
    ids=["sampled", "lost", "sampled and lost", "weights and unequal steps", "decay"],
)
def test_both_of_the_servers_means_hold_after_every_round(settings: dict[str, Any]) -> None:
    run = Run(FedDC(0.1), **{"steps": 20, **settings})
    for _ in range(400):
        run.round()
        np.testing.assert_allclose(run.server.c, run.mean(lambda own: own.c), atol=1e-11)
        np.testing.assert_allclose(run.server.h, run.mean(lambda own: own.h), atol=1e-11)
    assert run.error() < 1e-9


def test_state_that_is_kept_though_its_upload_was_lost() -> None:
    wrong = Run(FedDC(0.1), steps=20, sampler=cyc3, lost=loss20, commit_lost=True).rounds(400)
    assert min(wrong.rounds(1).error() for _ in range(30)) > 1e-3
    assert np.linalg.norm(np.asarray(wrong.server.h) - wrong.mean(lambda own: own.h)) > 1e-2


@dataclass(frozen=True)
class WithoutDrift(FedDC):
    """h_k is kept and never used: with α = 0 not by the clients, and here not by the server."""

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        new = super().apply(server, mean, round)
        return new._replace(w=server.w + mean.delta)


def test_without_drift_it_is_scaffold() -> None:
    settings: dict[str, Any] = {"sampler": cyc3, "lost": loss20, "steps": TAU, "momentum": 0.5, "eta": 0.05}
    drift, scaffold = Run(WithoutDrift(0.0), **settings), Run(dure.Scaffold(), **settings)
    for _ in range(20):
        drift.round()
        scaffold.round()
        np.testing.assert_allclose(drift.w, scaffold.w, atol=1e-12)
        np.testing.assert_allclose(drift.clients.c, scaffold.clients, atol=1e-12)


def test_the_control_is_a_gradient_at_any_round_of_a_schedule() -> None:
    """K = 1: c_k⁺ = ∇f_k(x) + α h_k. The undecayed rate, or the proximal term's gain, would be off at t > 0."""
    run = Run(FedDC(0.5), steps=1, eta=lambda t, s: 0.5 * 0.8**t)
    for _ in range(6):
        received, drift = run.w, np.asarray(run.clients.h)
        run.round()
        np.testing.assert_allclose(run.clients.c, gradients(received) + 0.5 * drift, atol=1e-12)


def test_first_rounds_by_hand() -> None:
    eta, alpha, A, b = 0.1, 0.3, Q10.A, Q10.b
    run = Run(FedDC(alpha), steps=3, eta=eta, sampler=cyc3)
    x, c, c_i, h_i = np.zeros(5), np.zeros(5), np.zeros((10, 5)), np.zeros((10, 5))
    for t in range(5):
        ends, changes = [], []
        for i in cyc3(t):
            y = x
            for _ in range(3):
                y = y - eta * (A[i] @ (y - b[i]) + c - c_i[i] + alpha * (y + h_i[i] - x))
            new = c_i[i] - c + (x - y) / (3 * eta)
            changes.append(new - c_i[i])
            c_i[i], h_i[i] = new, h_i[i] + y - x
            ends.append(y)
        x, c = np.mean(ends, 0) + h_i.mean(0), c + np.sum(changes, 0) / 10
        run.round()
        np.testing.assert_allclose(run.w, x, atol=1e-12)
        np.testing.assert_allclose(run.server.c, c, atol=1e-12)


def test_compiled() -> None:
    check_engine(FedDC())
    check_float32(FedDC(), 150, steps=20)


def test_order_of_clients() -> None:
    check_order(FedDC())


@pytest.mark.parametrize("alpha", [-0.1, float("nan"), float("inf")])
def test_impossible_numbers_are_refused(alpha: Any) -> None:
    with pytest.raises(ConfigError, match=f"alpha={alpha!r}"):
        FedDC(alpha)


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        (
            {"sampler": dure.Weighted(3), "weighting": "uniform"},
            "FedDC keeps a mean over all clients' states",
        ),
        ({"sampler": dure.Once(3)}, "FedDC keeps state with each client"),
        ({"optimizer": optax.adam(1e-3)}, "not linear in the gradients"),
    ],
)
def test_settings_that_break_it_are_refused(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_engine(FedDC(), QUADRATIC, q10(), **keywords).launch()
