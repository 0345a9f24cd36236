"""APFL: models are mixed; both limits; α follows its own gradient."""

import math

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import Run
from personal import personal_model
from problems import Q10, QUADRATIC, make_engine, q10


def mixtures(run: Run) -> np.ndarray:
    v, alpha = map(np.asarray, run.clients)
    return alpha[:, None] * v + (1 - alpha[:, None]) * run.w


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_one_local_step_reaches_both_optima(alpha: float) -> None:
    """w → the optimum of all; v̄ → each client's own, whatever the fixed share."""
    run = Run(dure.APFL(1.0, alpha), steps=1).rounds(450 if alpha < 1 else 120)
    assert run.error() < 1e-9
    np.testing.assert_allclose(mixtures(run), Q10.b, atol=1e-8)


def test_without_a_share_it_is_fedavg_and_v_never_moves() -> None:
    run = Run(dure.APFL(0.1, 0.0), steps=10, start=np.ones(5)).rounds(3)
    other = Run(dure.FineTuning(), steps=10, eta=0.1, start=np.ones(5)).rounds(3)
    np.testing.assert_allclose(run.w, other.w, atol=1e-13)
    np.testing.assert_array_equal(run.clients.v, np.ones((10, 5)))


def test_the_steps_are_the_formulas_with_old_values() -> None:
    method = dure.APFL(0.1, 0.6, alpha_lr=0.02)
    run = Run(method, steps=3, p=np.array([1.0]), A=Q10.A[2:3], b=Q10.b[2:3], start=np.ones(5)).rounds(2)
    A, b = Q10.A[2], Q10.b[2]
    w, v, alpha = np.ones(5), np.ones(5), 0.6
    for _ in range(6):  # one client: the server's model is its own
        mixed = A @ (alpha * v + (1 - alpha) * w - b)
        w, v, alpha = (
            w - 0.1 * A @ (w - b),
            v - 0.1 * alpha * mixed,
            float(np.clip(alpha - 0.02 * (v - w) @ mixed, 0, 1)),
        )
    np.testing.assert_allclose(run.w, w, atol=1e-12)
    np.testing.assert_allclose(run.clients.v[0], v, atol=1e-12)
    assert float(run.clients.alpha[0]) == pytest.approx(alpha, abs=1e-12)
    assert alpha != 0.6


def test_the_share_stays_a_share() -> None:
    run = Run(dure.APFL(0.1, 0.5, alpha_lr=50.0), steps=2, start=np.ones(5)).rounds(2)
    shares = set(np.asarray(run.clients.alpha).tolist())
    assert shares <= {0.0, 0.5, 1.0}
    assert shares & {0.0, 1.0}


def test_through_the_engine_and_lost_uploads_do_not_matter_to_v() -> None:
    lost = {"lost_uploads": lambda seed, round, ids: ids == 1}
    engine = make_engine(dure.APFL(0.5, 1.0), QUADRATIC, q10(), steps=1, batch_size=math.inf, **lost)
    for _ in range(160):
        engine.launch()
    state = engine.store.gather(np.arange(10))
    np.testing.assert_allclose(state[:, :5], Q10.b, atol=2e-5)
    np.testing.assert_array_equal(state[:, 5], 1.0)
    others = np.where(np.arange(10) == 1, 0, 1 / 9)
    np.testing.assert_allclose(engine.model.server.w, Q10.optimum(others), atol=1e-5)


def test_the_personal_model_is_the_mixture() -> None:
    run = Run(dure.APFL(0.1, 0.3), steps=2, start=np.ones(5)).rounds(2)
    np.testing.assert_allclose(personal_model(run, 1), mixtures(run)[1], atol=1e-14)


@pytest.mark.parametrize(
    "arguments", [{"learning_rate": 0.0}, {"alpha": 1.5}, {"alpha": -0.1}, {"alpha_lr": -1.0}]
)
def test_impossible_numbers(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        dure.APFL(**arguments)
