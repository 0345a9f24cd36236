"""Per-FedAvg: the limits of both forms, and a = 0."""

import math

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import Run
from personal import personal_model
from problems import Q10, QUADRATIC, make_engine, q10

EYE = np.eye(5)


def limit(a: float, hessian_free: bool, p: np.ndarray = Q10.uniform) -> np.ndarray:
    """First order: Σ A_i (I − a A_i)(w − b_i) = 0; Hessian-free: Σ (I − a A_i) A_i (I − a A_i)(w − b_i) = 0."""
    M = np.stack([(EYE - a * A if hessian_free else EYE) @ A @ (EYE - a * A) for A in Q10.A])
    return np.linalg.solve(np.einsum("i,ijk->jk", p, M), np.einsum("i,ijk,ik->j", p, M, Q10.b))


def test_check_values_of_the_reference() -> None:
    assert np.linalg.norm(limit(0.5, True) - limit(0.5, False)) == pytest.approx(0.5240, abs=5e-5)
    away = limit(0.5, True) - Q10.optimum(Q10.uniform)
    assert np.linalg.norm(away) == pytest.approx(1.0449, abs=5e-5)


@pytest.mark.parametrize("delta", [1e-3, 10.0])
@pytest.mark.parametrize("hessian_free", [False, True])
def test_both_limits(hessian_free: bool, delta: float) -> None:
    """One local step; on quadratics the difference quotient is exact for any δ."""
    method = dure.PerFedAvg(1.5, 0.5, hessian_free=hessian_free, delta=delta)
    run = Run(method, steps=1, p=Q10.weighted).rounds(70)
    np.testing.assert_allclose(run.w, limit(0.5, hessian_free, Q10.weighted), atol=1e-9)


def test_without_adaptation_it_is_fedavg() -> None:
    """Every local step takes two minibatches of the plan, three when Hessian-free."""
    for hessian_free, batches in ((False, 2), (True, 3)):
        run = Run(dure.PerFedAvg(0.1, 0.0, hessian_free), steps=5 * batches).rounds(3)
        other = Run(dure.FineTuning(), steps=5, eta=0.1).rounds(3)
        np.testing.assert_allclose(run.w, other.w, atol=1e-13)


@pytest.mark.parametrize("hessian_free", [False, True])
def test_through_the_engine(hessian_free: bool) -> None:
    method = dure.PerFedAvg(1.0, 0.5, hessian_free=hessian_free, delta=1.0)
    engine = make_engine(method, QUADRATIC, q10(weighted=True), steps=1, batch_size=math.inf)
    for _ in range(100):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, limit(0.5, hessian_free, Q10.weighted), atol=2e-5)


def test_the_personal_model_is_one_step_away() -> None:
    run = Run(dure.PerFedAvg(adaptation_lr=0.5), steps=2, start=np.ones(5))
    np.testing.assert_allclose(personal_model(run, 6), 1 - 0.5 * Q10.A[6] @ (1 - Q10.b[6]), atol=1e-12)


@pytest.mark.parametrize("arguments", [{"learning_rate": 0.0}, {"adaptation_lr": -0.1}, {"delta": 0.0}])
def test_impossible_numbers(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        dure.PerFedAvg(**arguments)
