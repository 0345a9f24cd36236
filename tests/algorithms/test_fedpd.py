"""FedPD: exact when everything is averaged every time, and what skipping costs."""

import math

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import Run
from problems import Q10, QUADRATIC, make_engine, q10


def by_the_book(eta: float, period: int, rounds: int, p: np.ndarray) -> np.ndarray:
    """x_i = argmin f_i + ⟨λ_i, x⟩ + ‖x − x0_i‖²/(2η); λ_i += (x_i − x0_i)/η; x0_i = x_i + η λ_i; then the mean."""
    w, dual = np.zeros(5), np.zeros((10, 5))
    for _ in range(rounds):
        x0 = np.tile(w, (10, 1))
        for _ in range(period):
            right = np.einsum("ijk,ik->ij", Q10.A, Q10.b) - dual + x0 / eta
            x = np.stack([np.linalg.solve(Q10.A[i] + np.eye(5) / eta, right[i]) for i in range(10)])
            dual = dual + (x - x0) / eta
            x0 = x + eta * dual
        w = p @ x0
    return w


def test_averaging_every_step_is_exact() -> None:
    run = Run(dure.FedPD(), exact=True)
    assert abs(run.settles(80) - 39) <= 1
    assert run.error() < 1e-9
    gradients = np.einsum("ijk,ik->ij", Q10.A, run.w - Q10.b)
    np.testing.assert_allclose(run.clients, -gradients, atol=1e-8)


@pytest.mark.parametrize(("period", "error"), [(2, 0.512), (5, 1.015)])
def test_skipping_is_not_exact(period: int, error: float) -> None:
    run = Run(dure.FedPD(period=period), exact=True).rounds(150)
    assert run.error() == pytest.approx(error, abs=6e-4)


@pytest.mark.parametrize("period", [1, 3])
@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_the_iteration(eta: float, period: int) -> None:
    for p in (Q10.uniform, Q10.weighted):
        run = Run(dure.FedPD(eta=eta, period=period), exact=True, p=p).rounds(8)
        np.testing.assert_allclose(run.w, by_the_book(eta, period, 8, p), atol=1e-12)


@pytest.mark.parametrize("period", [1, 2])
def test_through_the_engine(period: int) -> None:
    keywords = {"steps": 60, "optimizer": 0.5, "batch_size": math.inf}
    engine = make_engine(dure.FedPD(period=period), QUADRATIC, q10(weighted=True), **keywords)
    for _ in range(60):
        engine.launch()
    wanted = by_the_book(1.0, period, 200, Q10.weighted)
    np.testing.assert_allclose(engine.model.server.w, wanted, atol=2e-5)


@pytest.mark.parametrize("arguments", [{"eta": 0.0}, {"eta": -1.0}, {"period": 0}, {"period": True}])
def test_impossible_numbers(arguments: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        dure.FedPD(**arguments)  # type: ignore[arg-type]
