"""FedAvgM: momentum on the mean update, never an average of models."""

import math
from typing import Any

import jax
import numpy as np
import pytest

import dure
from dure.algorithms.base import Update
from dure.errors import ConfigError
from exact import Run, applied, begun, check_engine, check_order, limit
from problems import LINEAR, Q10, QUADRATIC, make_engine, q10, rows_data, train

FedAvgM = dure.FedAvgM
G = np.array([1.0, -2.0, 0.5])  # a pseudo-gradient: the update is −G


def factor(page: FedAvgM, rounds: int) -> float:
    """How far the server has gone along −G under a constant G."""
    server = begun(page, np.zeros(3))
    for t in range(rounds):
        server = applied(page, server, Update(-G), number=t + 1)
    np.testing.assert_allclose(server.w / -G, server.w[0] / -G[0], rtol=1e-12)
    return float(server.w[0] / -G[0])


@pytest.mark.parametrize(("rounds", "wanted"), [(1, 1.0), (2, 2.9), (10, 41.381)])
def test_constant_gradient(rounds: int, wanted: float) -> None:
    """x = −η_g G Σ (1 − β^k) / (1 − β). With the factor 1 − β the steps are ten times smaller."""
    closed = sum((1 - 0.9**k) / 0.1 for k in range(1, rounds + 1))
    assert closed == pytest.approx(wanted, abs=5e-4)
    assert factor(FedAvgM(), rounds) == pytest.approx(closed, rel=1e-12)
    assert factor(FedAvgM(0.3), rounds) == pytest.approx(0.3 * closed, rel=1e-12)


def test_nesterovs_form() -> None:
    """Steps G + β v: 1.9, then 1 + 0.9 · 1.9 = 2.71, then 1 + 0.9 · 2.71."""
    page = FedAvgM(nesterov=True)
    assert factor(page, 1) == pytest.approx(1.9)
    assert factor(page, 2) == pytest.approx(1.9 + 2.71)
    assert factor(page, 3) == pytest.approx(1.9 + 2.71 + 3.439)


def test_with_rate_one_the_first_step_takes_the_mean_of_the_clients() -> None:
    np.testing.assert_allclose(
        Run(FedAvgM(), p=Q10.weighted).rounds(1).w,
        Run(dure.FedProx(0.0), p=Q10.weighted).rounds(1).w,
        atol=1e-14,
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_momentum_it_is_fedavg_bit_for_bit(nesterov: bool) -> None:
    keywords: dict[str, Any] = {"steps": 4, "batch_size": 3, "clients_per_round": 3, "seed": 2}
    data = rows_data([7, 20, 5, 9], seed=4)
    page = FedAvgM(momentum=0.0, nesterov=nesterov)
    momentum, average = (train(p, LINEAR, data, 3, **keywords) for p in (page, dure.FedAvg()))
    assert momentum.tobytes() == average.tobytes()


@pytest.mark.parametrize("nesterov", [False, True])
def test_the_limit_is_fedavgs(nesterov: bool) -> None:
    """Momentum changes the path, not the fixed point: 0.06925 from the optimum."""
    run = Run(FedAvgM(0.3, nesterov=nesterov), steps=5, eta=0.05)
    run.rounds(3)
    assert np.linalg.norm(run.w - Run(dure.FedProx(0.0), steps=5, eta=0.05).rounds(3).w) > 0.1
    run.rounds(600)
    np.testing.assert_allclose(run.w, limit(Q10.uniform, 5, 0.05), atol=1e-12)
    assert run.error() == pytest.approx(0.06925, abs=1e-5)


def test_compiled() -> None:
    check_engine(FedAvgM(0.3))
    engine = make_engine(FedAvgM(0.3), QUADRATIC, q10(), steps=5, batch_size=math.inf, optimizer=0.05)
    for _ in range(300):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, limit(Q10.uniform, 5, 0.05), atol=1e-5)


def test_only_the_model_goes_down() -> None:
    sent = FedAvgM().broadcast(begun(FedAvgM(), np.zeros(3)))
    assert len(jax.tree.leaves(sent)) == 1


def test_order_of_clients() -> None:
    check_order(FedAvgM())


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"server_lr": -1.0}, r"server_lr=-1\.0"),
        ({"momentum": 1.0}, r"momentum=1\.0"),
        ({"momentum": -0.5}, r"momentum=-0\.5"),
    ],
)
def test_impossible_numbers_are_refused(keywords: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FedAvgM(**keywords)
