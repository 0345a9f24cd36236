"""Worker momentum: m_k ← β m_k + (1 − δ) Δ_k at every client, whatever the server makes of it."""

from typing import Any

import numpy as np
import pytest

import dure
from dure.aggregation import Krum, Median
from dure.errors import ConfigError
from problems import LINEAR, Q10, QUADRATIC, make_engine, q10, rows_data, train


def test_without_momentum_it_is_fedavg_bit_for_bit() -> None:
    keywords: dict[str, Any] = {"steps": 4, "batch_size": 3, "clients_per_round": 3, "seed": 2}
    data = rows_data([7, 20, 5, 9], seed=4)
    momentum, average = (
        train(page, LINEAR, data, 3, **keywords) for page in (dure.WorkerMomentum(0.0), dure.FedAvg())
    )
    assert momentum.tobytes() == average.tobytes()


@pytest.mark.parametrize(("momentum", "dampening"), [(0.9, 0.0), (0.5, 0.5)])
def test_rounds_of_one_full_gradient_step_by_linear_algebra(momentum: float, dampening: float) -> None:
    """The mean of momenta is the momentum of the mean: heavy ball on the mean of the f_i, in float64."""
    w, m = np.zeros((1, 5)), np.zeros((10, 5))
    for _ in range(4):
        gradient = np.einsum("ijk,ik->ij", Q10.A, w - Q10.b)
        m = momentum * m - (1 - dampening) * 0.1 * gradient
        w = w + 0.7 * m.mean(0)
    page = dure.WorkerMomentum(momentum, dampening, server_lr=0.7)
    found = train(page, QUADRATIC, q10(), 4, steps=1, optimizer=0.1)
    np.testing.assert_allclose(found, w[0], rtol=1e-5, atol=1e-6)


def test_it_ends_at_the_optimum_of_the_mean_with_single_steps() -> None:
    """With one step a round there is no drift: the fixed point is the minimiser of Σ f_i / 10."""
    page = dure.WorkerMomentum(0.8, 0.8)
    found = train(page, QUADRATIC, q10(), 400, steps=1, optimizer=0.3)
    np.testing.assert_allclose(found, Q10.optimum(Q10.uniform), atol=2e-5)


def test_a_client_that_the_rule_leaves_out_keeps_its_momentum_going() -> None:
    engine = make_engine(
        dure.WorkerMomentum(0.9), QUADRATIC, q10(), steps=1, optimizer=0.1, aggregator=Krum(2)
    )
    w, m = np.zeros(5), np.zeros((10, 5))
    for _ in range(3):
        result = engine.collect(engine.launch())
        gradient = np.einsum("ijk,ik->ij", Q10.A, w - Q10.b)
        m = 0.9 * m - 0.1 * gradient
        assert result.account is not None
        w = w + m[np.flatnonzero(result.account.selected)[0]]
    np.testing.assert_allclose(engine.store.gather(np.arange(10)), m, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(engine.vector(), w, rtol=1e-4, atol=1e-5)


def test_what_it_is_for() -> None:
    """Honest updates differ by their batches; their momenta differ less, and in that noise attackers hide."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 3)).astype(np.float32)
    y = (x @ np.float32([1, -2, 3]) + rng.normal(size=2000)).astype(np.float32)
    data = dure.Federated({"x": x, "y": y}, np.arange(0, 2001, 200))

    def spread(page: Any) -> float:
        run = dure.simulate(
            page,
            LINEAR,
            data,
            rounds=60,
            steps=1,
            batch_size=2,
            optimizer=0.02,
            aggregator=Median(2),
        )
        return float(run.participation.query("round > 40")["distance"].mean())

    # The variance of an average with weights (1 − β) βᵗ is (1 − β) / (1 + β) of one batch's.
    ratio = spread(dure.WorkerMomentum(0.9, 0.9)) / spread(dure.FedAvg())
    assert ratio == pytest.approx(np.sqrt(0.1 / 1.9), rel=0.35)


@pytest.mark.parametrize(
    "wrong", [{"momentum": 1.0}, {"momentum": -0.1}, {"dampening": 1.0}, {"server_lr": 0.0}]
)
def test_impossible_values(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        dure.WorkerMomentum(**wrong)
