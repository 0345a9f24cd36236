"""FedDyn: h is the mean of all λ_k, and the λ_k end as the gradients at the optimum."""

from typing import Any

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import TAU, Run, check_engine, check_float32, check_order, cyc3, gradients, loss20
from problems import Q10, QUADRATIC, make_engine, q10

FedDyn = dure.FedDyn


@pytest.mark.parametrize(
    ("alpha", "settings", "rounds"),
    [
        (0.1, {"steps": 20}, 179),
        (0.5, {"steps": 20}, 39),
        (2.0, {"steps": 20}, 75),
        (0.1, {"steps": 20, "sampler": cyc3}, 609),
        (0.5, {"steps": 20, "sampler": cyc3}, 134),
        (2.0, {"steps": 20, "sampler": cyc3}, 101),
        (0.5, {"exact": True}, 37),
        (0.5, {"exact": True, "sampler": cyc3}, 125),
    ],
)
def test_optimum_in_the_rounds_of_the_reference(alpha: float, settings: dict[str, Any], rounds: int) -> None:
    """The un-squared norm (a public listing) ends 0.0744 away."""
    run = Run(FedDyn(alpha), **settings)
    assert run.settles(rounds + 100) == rounds
    assert run.error() < 1e-9
    np.testing.assert_allclose(run.clients, gradients(run.w), atol=1e-7)


@pytest.mark.parametrize(
    "settings",
    [
        {"lost": loss20},
        {"lost": loss20, "sampler": cyc3},
        {"steps": TAU, "p": Q10.weighted, "sampler": cyc3},
        {"momentum": 0.5, "sampler": cyc3},
        {"eta": lambda t, s: 0.1 * 0.999**t, "sampler": cyc3},
    ],
    ids=["lost", "sampled and lost", "weights and unequal steps", "momentum", "decay"],
)
def test_optimum_and_h_whatever_happens(settings: dict[str, Any]) -> None:
    """h / |S| in the place of N also converges: only the invariant tells."""
    run = Run(FedDyn(1.0), **{"steps": 20, **settings})
    for _ in range(800):
        run.round()
        np.testing.assert_allclose(run.server.h, run.mean(), atol=1e-11)
    assert run.error() < 1e-9


def test_dual_that_is_kept_though_its_upload_was_lost() -> None:
    wrong = Run(FedDyn(1.0), steps=20, sampler=cyc3, lost=loss20, commit_lost=True).rounds(300)
    assert min(wrong.rounds(1).error() for _ in range(30)) > 1e-3
    assert np.linalg.norm(np.asarray(wrong.server.h) - wrong.mean()) > 1e-2


def test_first_rounds_by_hand() -> None:
    """Signs: θ steps along g − λ + α (θ − x); λ and h move against θ − x; x leaves the mean against h."""
    eta, alpha, A, b = 0.1, 0.7, Q10.A, Q10.b
    run = Run(FedDyn(alpha), steps=3, eta=eta, sampler=cyc3)
    x, h, dual = np.zeros(5), np.zeros(5), np.zeros((10, 5))
    for t in range(5):
        ends = []
        for i in cyc3(t):
            y = x
            for _ in range(3):
                y = y - eta * (A[i] @ (y - b[i]) - dual[i] + alpha * (y - x))
            dual[i] = dual[i] - alpha * (y - x)
            ends.append(y)
        h = h - alpha / 10 * np.sum([y - x for y in ends], 0)
        x = np.mean(ends, 0) - h / alpha
        run.round()
        np.testing.assert_allclose(run.w, x, atol=1e-12)
        np.testing.assert_allclose(run.clients, dual, atol=1e-12)


def test_compiled() -> None:
    check_engine(FedDyn(0.5))
    check_float32(FedDyn(2.0), 150, steps=20)


def test_order_of_clients() -> None:
    check_order(FedDyn(0.5))


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("inf")])
def test_impossible_numbers_are_refused(alpha: Any) -> None:
    with pytest.raises(ConfigError, match=f"alpha={alpha!r}"):
        FedDyn(alpha)


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        (
            {"sampler": dure.Weighted(3), "weighting": "uniform"},
            "FedDyn keeps a mean over all clients' states",
        ),
        ({"sampler": dure.Once(3)}, "FedDyn keeps state with each client"),
    ],
)
def test_settings_that_break_it_are_refused(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make_engine(FedDyn(), QUADRATIC, q10(), **keywords)
