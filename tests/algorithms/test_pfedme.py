"""pFedMe: the optimum of the mean Moreau envelope."""

import math

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import Run
from personal import personal_model
from problems import Q10, QUADRATIC, make_engine, q10

EYE = np.eye(5)


def envelope(lam: float) -> np.ndarray:
    """B_i = λ (A_i + λI)⁻¹ A_i, the curvature of client i's envelope."""
    return np.stack([lam * np.linalg.solve(a + lam * EYE, a) for a in Q10.A])


def envelope_optimum(lam: float, p: np.ndarray) -> np.ndarray:
    B = envelope(lam)
    return np.linalg.solve(np.einsum("i,ijk->jk", p, B), np.einsum("i,ijk,ik->j", p, B, Q10.b))


def test_check_value_of_the_reference() -> None:
    away = envelope_optimum(2.0, Q10.uniform) - Q10.optimum(Q10.uniform)
    assert np.linalg.norm(away) == pytest.approx(0.2662, abs=5e-5)


@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_one_exact_local_round_reaches_it(beta: float) -> None:
    """The envelope's gradient is exact when θ is; a rate of 0.5 then needs few rounds, β moves nothing."""
    method = dure.PFedMe(lam=2.0, eta=0.5, inner_lr=0.4, inner_steps=22, beta=beta)
    run = Run(method, steps=1, p=Q10.weighted).rounds(120)
    np.testing.assert_allclose(run.w, envelope_optimum(2.0, Q10.weighted), atol=1e-9)


def linear_limit(eta: float, steps: int) -> np.ndarray:
    """R exact local rounds contract client i by I − (I − η B_i)^R."""
    B = envelope(2.0)
    C = np.stack([EYE - np.linalg.matrix_power(EYE - eta * b, steps) for b in B])
    return np.linalg.solve(C.sum(0), np.einsum("ijk,ik->j", C, Q10.b))


def test_many_local_rounds_are_off_in_proportion_to_the_rate() -> None:
    best = envelope_optimum(2.0, Q10.uniform)
    off = {eta: np.linalg.norm(linear_limit(eta, 10) - best) for eta in (0.05, 0.005)}
    assert off[0.05] == pytest.approx(0.0916, abs=5e-5)
    assert off[0.005] == pytest.approx(0.0093, abs=5e-5)
    method = dure.PFedMe(lam=2.0, eta=0.05, inner_lr=0.4, inner_steps=12)
    engine = make_engine(method, QUADRATIC, q10(), steps=10, batch_size=math.inf)
    for _ in range(80):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, linear_limit(0.05, 10), atol=1e-5)


def test_inner_steps_are_the_formula() -> None:
    """θ from w by gradient steps on f + (λ/2)‖θ − w‖², then w ← w − η λ (w − θ): one client, one step of each."""
    method = dure.PFedMe(lam=3.0, eta=0.1, inner_lr=0.05, inner_steps=2)
    run = Run(method, steps=1, p=np.array([1.0]), A=Q10.A[:1], b=Q10.b[:1], start=np.ones(5)).rounds(1)
    w = np.ones(5)
    theta = w - 0.05 * Q10.A[0] @ (w - Q10.b[0])
    theta = theta - 0.05 * (Q10.A[0] @ (theta - Q10.b[0]) + 3.0 * (theta - w))
    np.testing.assert_allclose(run.w, w - 0.1 * 3.0 * (w - theta), atol=1e-12)


def test_the_personal_model_is_the_proximal_point() -> None:
    run = Run(dure.PFedMe(lam=2.0, inner_lr=0.4, inner_steps=10), steps=5, start=np.ones(5))
    wanted = np.linalg.solve(Q10.A[3] + 2 * EYE, Q10.A[3] @ Q10.b[3] + 2 * np.ones(5))
    np.testing.assert_allclose(personal_model(run, 3), wanted, atol=1e-9)


@pytest.mark.parametrize("name", ["lam", "eta", "inner_lr", "beta", "inner_steps"])
def test_impossible_numbers(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        dure.PFedMe(**{name: 0})
