"""FedLin: exact with unequal clients that do unequal numbers of steps, and without client state."""

import math

import numpy as np
import pytest

import dure
from exact import TAU, Run, check_engine, check_order, gradients
from problems import LINEAR, Q10, QUADRATIC, make_engine, q10, rows_data, train


def test_optimum_in_the_rounds_of_the_reference() -> None:
    run = Run(dure.FedLin(), steps=TAU)
    assert run.settles(400) == 334
    assert run.error() < 1e-9


def test_optimum_of_the_weighted_objective() -> None:
    assert Run(dure.FedLin(), steps=TAU, p=Q10.weighted, eta=0.5).rounds(200).error() < 1e-9


def test_a_client_goes_as_far_whatever_its_number_of_steps() -> None:
    """With small η all go −η times the mean gradient: each step is 1/τ_k of it."""
    run = Run(dure.FedLin(), steps=TAU, eta=1e-8).rounds(1)
    np.testing.assert_allclose(run.w, -1e-8 * gradients(np.zeros(5)).mean(0), rtol=1e-6)


def test_first_rounds_by_hand() -> None:
    eta, A, b = 0.3, Q10.A, Q10.b
    run, x = Run(dure.FedLin(), steps=TAU, eta=eta), np.zeros(5)
    for _ in range(3):
        whole, ends = gradients(x).mean(0), []
        for i in range(10):
            y = x
            for _ in range(TAU[i]):
                y = y - eta / TAU[i] * (A[i] @ (y - b[i]) - A[i] @ (x - b[i]) + whole)
            ends.append(y)
        x = np.mean(ends, 0)
        run.round()
        np.testing.assert_allclose(run.w, x, atol=1e-12)


def test_a_step_from_the_received_model_is_the_whole_gradient_whatever_the_minibatch() -> None:
    """g_B(w) − g_B(w) + g = g if both minibatches are one and the same."""
    data = rows_data([7, 20, 5, 9], seed=4)
    one = train(dure.FedLin(), LINEAR, data, 3, steps=1, batch_size=2, optimizer=0.2)
    np.testing.assert_allclose(one, train(dure.FedSGD(0.2), LINEAR, data, 3), atol=1e-6)


def test_compiled() -> None:
    check_engine(dure.FedLin())


def test_float32() -> None:
    steps = np.array(TAU)
    w = train(
        dure.FedLin(),
        QUADRATIC,
        q10(),
        100,
        steps=20,
        batch_size=math.inf,
        optimizer=0.5,
        work_limit=lambda seed, round, ids, planned: steps[ids],
    )
    assert np.linalg.norm(w - Q10.optimum(Q10.uniform)) < 1e-5


def test_order_of_clients() -> None:
    check_order(dure.FedLin())


def test_the_surveys_traffic_is_counted() -> None:
    average, lin = (
        make_engine(page, QUADRATIC, q10(), batch_size=math.inf) for page in (dure.FedAvg(), dure.FedLin())
    )
    assert lin.uplink_message - average.uplink_message >= 5 * 4
    assert lin.downlink_message - average.downlink_message >= 5 * 4


def test_it_has_no_numbers_to_give() -> None:
    with pytest.raises(TypeError):
        dure.FedLin(0.1)  # type: ignore[call-arg]
