"""FedProx: the proximal term as it is, its limits, partial work."""

import math
from typing import Any

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import TAU, Run, check_engine, check_order, cyc3, limit
from problems import LINEAR, Q10, QUADRATIC, make_engine, q10, rows_data, train

FedProx = dure.FedProx


def test_without_the_term_it_is_fedavg_bit_for_bit() -> None:
    keywords: dict[str, Any] = {"steps": 4, "batch_size": 3, "clients_per_round": 3, "seed": 2}
    data = rows_data([7, 20, 5, 9], seed=4)
    prox, average = (train(page, LINEAR, data, 3, **keywords) for page in (FedProx(0.0), dure.FedAvg()))
    assert prox.tobytes() == average.tobytes()


def test_the_steps_extra_term_is_mu_times_the_way_gone() -> None:
    """Two steps: y₁ = x − η g(x), y₂ = y₁ − η (g(y₁) + μ (y₁ − x)). The norm is squared, and x does not alias y."""
    eta, mu, A, b = 0.2, 3.0, Q10.A, Q10.b
    x = np.linspace(-1, 1, 5)
    first = x - eta * np.einsum("ijk,ik->ij", A, x - b)
    second = first - eta * (np.einsum("ijk,ik->ij", A, first - b) + mu * (first - x))
    engine = make_engine(FedProx(mu), QUADRATIC, q10(), start=x, steps=2, batch_size=math.inf, optimizer=eta)
    engine.launch()
    np.testing.assert_allclose(engine.model.server.w, second.mean(0), atol=1e-6)
    np.testing.assert_allclose(
        Run(FedProx(mu), steps=2, eta=eta, start=x).rounds(1).w, second.mean(0), atol=1e-12
    )
    engine = make_engine(FedProx(10.0), QUADRATIC, q10(), steps=10, batch_size=math.inf, optimizer=0.1)
    for _ in range(400):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, limit(Q10.uniform, 10, 0.1, 10.0), atol=1e-5)


@pytest.mark.parametrize(("mu", "error"), [(0.0, 0.29596), (0.1, 0.29259), (1.0, 0.25891), (10.0, 0.06512)])
def test_limits_of_the_reference(mu: float, error: float) -> None:
    """It shrinks the drift and never removes it."""
    run = Run(FedProx(mu)).rounds(400)
    np.testing.assert_allclose(run.w, limit(Q10.uniform, 10, 0.1, mu), atol=1e-9)
    assert run.error() == pytest.approx(error, abs=1e-5)


def test_partial_work_of_slow_clients_is_aggregated() -> None:
    """The limit is the one that every client's own number of steps gives."""
    run = Run(FedProx(0.5), steps=TAU, p=Q10.weighted).rounds(300)
    np.testing.assert_allclose(run.w, limit(Q10.weighted, TAU, 0.1, 0.5), atol=1e-9)


def test_sampled_clients_weigh_by_their_share_of_the_cohort() -> None:
    run = Run(FedProx(0.5), p=Q10.weighted, sampler=cyc3).rounds(1)
    ends = [limit(np.eye(10)[i], 10, 0.1, 0.5) for i in range(3)]  # b_i: the only client's own minimiser
    np.testing.assert_allclose(ends, Q10.b[:3], atol=1e-9)
    alone = [Run(FedProx(0.5), sampler=lambda t, i=i: [i]).rounds(1).w for i in range(3)]
    np.testing.assert_allclose(run.w, np.array([1, 2, 3]) @ alone / 6, atol=1e-12)


def test_compiled() -> None:
    check_engine(FedProx(0.5))


def test_order_of_clients() -> None:
    check_order(FedProx(0.5))


@pytest.mark.parametrize("mu", [-0.1, float("inf"), float("nan")])
def test_impossible_numbers_are_refused(mu: Any) -> None:
    with pytest.raises(ConfigError, match=f"mu={mu!r}"):
        FedProx(mu)
