"""Mime and MimeLite: momentum that does not move during the round; Mime's survey makes it exact."""

import math

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from dure.oracles.optimizer import sgd
from exact import TAU, Run, check_engine, check_order, gradients, limit
from problems import LINEAR, Q10, QUADRATIC, make_engine, q10, rows_data, train

Mime, MimeLite = dure.Mime, dure.MimeLite


@pytest.mark.parametrize(("beta", "rounds"), [(0.9, 366), (0.0, 33)])
def test_optimum_in_the_rounds_of_the_reference(beta: float, rounds: int) -> None:
    run = Run(Mime(beta))
    assert run.settles(rounds + 60) == rounds
    assert run.error() < 1e-9


@pytest.mark.parametrize(("beta", "error"), [(0.0, 0.29596), (0.9, 0.00308)])
def test_mimelites_limit(beta: float, error: float) -> None:
    run = Run(MimeLite(beta)).rounds(600)
    assert run.error() == pytest.approx(error, abs=1e-5)


@pytest.mark.parametrize("page", [Mime(0.8), MimeLite(0.8)], ids=["Mime", "MimeLite"])
def test_first_rounds_by_hand(page: Mime | MimeLite) -> None:
    """m is 0 in the first round's steps, moves once a round by the mean gradient at the received model."""
    eta, beta, A, b = 0.1, 0.8, Q10.A, Q10.b
    run = Run(page, steps=3, eta=eta)
    x, m = np.zeros(5), np.zeros(5)
    for _ in range(4):
        c, ends = gradients(x).mean(0), []
        for i in range(10):
            y = x
            for _ in range(3):
                g = A[i] @ (y - b[i])
                if isinstance(page, Mime):
                    g = g - A[i] @ (x - b[i]) + c
                y = y - eta * ((1 - beta) * g + beta * m)
            ends.append(y)
        x, m = np.mean(ends, 0), (1 - beta) * c + beta * m
        run.round()
        np.testing.assert_allclose(run.w, x, atol=1e-12)
        np.testing.assert_allclose(run.server.m, m, atol=1e-12)


def test_a_step_from_the_received_model_is_the_whole_gradient_whatever_the_minibatch() -> None:
    """g_B(w) − g_B(w) + c = c if both minibatches are one and the same."""
    data = rows_data([7, 20, 5, 9], seed=4)
    one = train(Mime(0.0), LINEAR, data, 3, steps=1, batch_size=2, optimizer=0.2)
    np.testing.assert_allclose(one, train(dure.FedSGD(0.2), LINEAR, data, 3), atol=1e-6)


def test_mimelite_without_momentum_is_fedavg() -> None:
    keywords = {"steps": 4, "batch_size": 3, "clients_per_round": 3, "seed": 2}
    data = rows_data([7, 20, 5, 9], seed=4)
    lite, average = (train(page, LINEAR, data, 3, **keywords) for page in (MimeLite(0.0), dure.FedAvg()))
    np.testing.assert_allclose(lite, average, atol=1e-6)
    np.testing.assert_allclose(
        Run(MimeLite(0.0), steps=TAU).rounds(300).w, limit(Q10.uniform, TAU, 0.1), atol=1e-9
    )


@pytest.mark.parametrize("page", [Mime(0.5), MimeLite(0.5)], ids=["Mime", "MimeLite"])
def test_compiled(page: Mime | MimeLite) -> None:
    check_engine(page)


def test_float32() -> None:
    """Everyone: under sampling c is a mean over the cohort, and the model moves with it."""
    w = train(Mime(0.5), QUADRATIC, q10(), 250, steps=10, batch_size=math.inf, optimizer=sgd(0.1))
    assert np.linalg.norm(w - Q10.optimum(Q10.uniform)) < 1e-5


@pytest.mark.parametrize("page", [Mime(), MimeLite()], ids=["Mime", "MimeLite"])
def test_order_of_clients(page: Mime | MimeLite) -> None:
    check_order(page)


def test_the_surveys_traffic_is_counted() -> None:
    """Up: gradient and update. Down: model and momentum, then the mean gradient."""
    data = q10()
    average, lite, mime = (
        make_engine(page, QUADRATIC, data, batch_size=math.inf)
        for page in (dure.FedAvg(), MimeLite(), Mime())
    )
    one = 5 * 4
    for engine in (lite, mime):
        assert engine.uplink_message - average.uplink_message >= one
    assert lite.downlink_message - average.downlink_message >= one
    assert mime.downlink_message - average.downlink_message >= 2 * one


@pytest.mark.parametrize("page", [Mime, MimeLite])
@pytest.mark.parametrize("beta", [1.0, -0.1, float("nan")])
def test_impossible_numbers_are_refused(page: type, beta: float) -> None:
    with pytest.raises(ConfigError, match=f"beta={beta!r}"):
        page(beta)
