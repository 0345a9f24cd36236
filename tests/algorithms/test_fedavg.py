"""FedAvg and FedSGD on quadratics and a logistic problem, against linear algebra and Newton's method."""

import itertools
import math
from typing import Any

import jax
import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from dure.models import logistic
from dure.oracles.optimizer import sgd
from problems import LINEAR, Q10, QUADRATIC, Cyclic, Only, make_engine, q10, rows_data, train

FULL = {"batch_size": math.inf}


# ----- FedSGD ----------------------------------------------------------------------------------------------


def test_check_values_of_the_problem() -> None:
    """The figures that the reference gives for these ten quadratics."""
    assert Q10.A.sum() == pytest.approx(29.6916711086)
    assert Q10.b.sum() == pytest.approx(-28.7698784080)
    np.testing.assert_allclose(
        Q10.optimum(Q10.uniform), [0.19751093, -2.85493165, 1.20514159, -0.58863584, -0.52865565], atol=1e-8
    )
    np.testing.assert_allclose(
        Q10.optimum(Q10.weighted), [0.08145406, -2.73982597, 1.22732899, 0.84459906, -0.77532333], atol=1e-8
    )


@pytest.mark.parametrize("estimator", ["ratio", "horvitz-thompson"])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_fedsgd_reaches_the_optimum_of_the_stated_objective(weighting: str, estimator: str) -> None:
    p = Q10.weighted if weighting == "examples" else Q10.uniform
    data = q10(weighted=True)
    w = train(dure.FedSGD(1.0), QUADRATIC, data, 60, weighting=weighting, estimator=estimator)
    np.testing.assert_allclose(w, Q10.optimum(p), atol=1e-5)


def test_fedsgd_on_a_logistic_problem() -> None:
    """Clients of different sizes; the optimum of the pooled loss by Newton's method in float64."""
    rng = np.random.default_rng(3)
    sizes = [5, 40, 12, 0, 63]
    x = rng.normal(size=(sum(sizes), 3)).astype(np.float32)
    y = (x @ [1.0, -2.0, 0.5] + rng.logistic(size=len(x)) > 0.3).astype(np.int32)
    data = dure.Federated({"x": x, "y": y}, np.concatenate([[0], np.cumsum(sizes)]))
    task = dure.binary(logistic(3))
    engine = make_engine(dure.FedSGD(2.0), task, data)
    for _ in range(300):
        engine.launch()
    params = engine.params()
    found = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params)])
    z = np.concatenate([x.astype(float), np.ones((len(x), 1))], 1)
    w = np.zeros(4)
    for _ in range(20):
        p = 1 / (1 + np.exp(-z @ w))
        w -= np.linalg.solve(z.T @ (z * (p * (1 - p))[:, None]), z.T @ (p - y))
    gradient = z.T @ (1 / (1 + np.exp(-z @ w)) - y) / len(y)
    assert np.abs(gradient).max() < 1e-12
    np.testing.assert_allclose(np.sort(found), np.sort(w), atol=1e-4)


def test_fedavg_of_one_full_batch_is_fedsgd() -> None:
    data = rows_data([7, 20, 1, 9, 0], seed=4)
    sgd_steps = train(dure.FedSGD(0.3), LINEAR, data, 30)
    averaging = train(dure.FedAvg(), LINEAR, data, 30, epochs=1, optimizer=0.3, **FULL)
    np.testing.assert_allclose(averaging, sgd_steps, atol=1e-6)
    one_batch = train(dure.FedAvg(), LINEAR, data, 30, epochs=1, optimizer=0.3, batch_size=50)
    np.testing.assert_allclose(one_batch, sgd_steps, atol=1e-6)


# ----- FedAvg's biased fixed point -------------------------------------------------------------------------


def contraction(i: int, steps: int, eta: float, beta: float = 0.0) -> np.ndarray:
    """C with Δ_i(x) = C (b_i − x): heavy-ball SGD on f_i is linear in y − b_i."""
    eye = np.eye(5)
    step = np.block([[eye - eta * Q10.A[i], -eta * beta * eye], [Q10.A[i], beta * eye]])
    return eye - np.linalg.matrix_power(step, steps)[:5, :5]


def fixed_point(q: np.ndarray, steps: int, eta: float, beta: float = 0.0) -> np.ndarray:
    """Σ q_i C_i (b_i − x) = 0."""
    C = np.stack([contraction(i, steps, eta, beta) for i in range(10)])
    return np.linalg.solve(np.einsum("i,ijk->jk", q, C), np.einsum("i,ijk,ik->j", q, C, Q10.b))


def test_the_fixed_point_is_the_one_of_the_reference() -> None:
    wanted = [0.08037684, -2.82632511, 1.01032565, -0.4750229, -0.37969332]
    np.testing.assert_allclose(fixed_point(Q10.uniform, 10, 0.1), wanted, atol=1e-8)
    closed = np.stack([np.eye(5) - np.linalg.matrix_power(np.eye(5) - 0.1 * a, 10) for a in Q10.A])
    np.testing.assert_allclose([contraction(i, 10, 0.1) for i in range(10)], closed, atol=1e-12)


@pytest.mark.parametrize(
    ("steps", "eta", "weighted", "error"),
    [
        (10, 0.1, False, 0.29596),
        (5, 0.1, False, 0.13870),
        (10, 0.05, False, 0.15204),
        (10, 0.1, True, 0.30449),
    ],
)
def test_fedavg_converges_to_its_biased_fixed_point(
    steps: int, eta: float, weighted: bool, error: float
) -> None:
    p = Q10.weighted if weighted else Q10.uniform
    rounds = math.ceil(18 / (0.5 * steps * eta))
    w = train(dure.FedAvg(), QUADRATIC, q10(weighted=weighted), rounds, epochs=steps, optimizer=eta, **FULL)
    np.testing.assert_allclose(w, fixed_point(p, steps, eta), atol=3e-6)
    assert np.linalg.norm(w - Q10.optimum(p)) == pytest.approx(error, abs=1e-5)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize(
    ("steps", "eta", "beta"), [(3, 0.2, 0.0), (20, 0.01, 0.0), (10, 0.1, 0.9), (4, 0.3, 0.5), (1, 0.5, 0.9)]
)
def test_the_fixed_point_stays_fixed(steps: int, eta: float, beta: float, weighting: str) -> None:
    """One round from the fixed point that linear algebra gives, with and without momentum."""
    p = Q10.weighted if weighting == "examples" else Q10.uniform
    fixed = fixed_point(p, steps, eta, beta)
    keywords = {"steps": steps, "weighting": weighting, "optimizer": sgd(eta, momentum=beta), **FULL}
    moved = train(dure.FedAvg(), QUADRATIC, q10(weighted=True), 1, start=fixed, **keywords)
    np.testing.assert_allclose(moved, fixed, atol=3e-6)
    if steps > 1:
        optimum = Q10.optimum(p)
        away = train(dure.FedAvg(), QUADRATIC, q10(weighted=True), 1, start=optimum, **keywords)
        assert np.linalg.norm(away - optimum) > 1e-4, "the optimum is not a fixed point"


def test_the_bias_is_proportional_to_the_rate() -> None:
    """error / η → 3.10 at ten steps."""
    for eta, ratio in ((0.1, 2.96), (0.05, 3.04), (0.02, 3.08)):
        rounds = math.ceil(18 / (5 * eta))
        w = train(dure.FedAvg(), QUADRATIC, q10(), rounds, steps=10, optimizer=eta, **FULL)
        error = np.linalg.norm(w - Q10.optimum(Q10.uniform))
        assert error / eta == pytest.approx(ratio, abs=0.006)


def test_server_rate_scales_the_path_not_the_limit() -> None:
    fixed = fixed_point(Q10.uniform, 10, 0.1)
    first = {
        rate: train(dure.FedAvg(rate), QUADRATIC, q10(), 1, steps=10, optimizer=0.1, **FULL)
        for rate in (0.5, 1.0)
    }
    np.testing.assert_allclose(first[0.5], 0.5 * first[1.0], atol=1e-6)
    w = train(dure.FedAvg(0.5), QUADRATIC, q10(), 80, steps=10, optimizer=0.1, **FULL)
    np.testing.assert_allclose(w, fixed, atol=3e-6)


def test_with_rate_one_the_server_takes_the_mean_of_the_clients() -> None:
    """The sign on the wire: Σ w_i y_i after one round."""
    w = train(dure.FedAvg(), QUADRATIC, q10(weighted=True), 1, steps=10, optimizer=0.1, **FULL)
    y = np.stack([contraction(i, 10, 0.1) @ Q10.b[i] for i in range(10)])
    np.testing.assert_allclose(w, Q10.weighted @ y, atol=1e-6)


# ----- sampling --------------------------------------------------------------------------------------------

PAIRS = list(itertools.combinations(range(10), 2))


class EveryPair:
    """Round r asks pair r: the cohorts of uniform sampling of two, each once."""

    def sample(self, seed: int, round: int, population: Any) -> Any:
        return Only(PAIRS[(round - 1) % len(PAIRS)], 0.2).sample(seed, round, population)

    def expected_size(self, population: Any) -> float:
        return 2.0

    def describe(self) -> str:
        return "every pair"


def expected_move(x: np.ndarray, **keywords: Any) -> np.ndarray:
    """The mean over all 45 cohorts of what one round of FedSGD (η = 0.1) does to x."""
    engine = make_engine(
        dure.FedSGD(0.1), QUADRATIC, q10(weighted=True), start=x, sampler=EveryPair(), **keywords
    )
    start = jax.device_get(engine.model)
    moves = []
    for r in range(len(PAIRS)):
        engine.restore(start, r, {})
        engine.launch()
        moves.append(np.asarray(engine.model.server.w, np.float64) - start.server.w)
    return np.mean(moves, 0)


def received(weight: Any) -> np.ndarray:
    """q_i = E[w_i 1{i ∈ S}] over all pairs."""
    q = np.zeros(10)
    for pair in PAIRS:
        for i in pair:
            q[i] += weight(i, pair) / len(PAIRS)
    return q


RATIO = received(lambda i, pair: Q10.weighted[i] / sum(Q10.weighted[j] for j in pair))
HT = received(lambda i, pair: Q10.weighted[i] / 0.2)


def expected_gradient(q: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("i,ijk,ik->j", q, Q10.A, x - Q10.b)


def test_horvitz_thompson_removes_the_bias_of_the_ratio() -> None:
    """Exactly, over all cohorts: where the expected move is 0, and how far that is from the optimum."""
    optimum, of_ratio = Q10.optimum(Q10.weighted), Q10.optimum(RATIO)
    np.testing.assert_allclose(HT, Q10.weighted)
    assert np.linalg.norm(of_ratio - optimum) == pytest.approx(0.6902, abs=5e-5)
    assert np.linalg.norm(of_ratio - Q10.optimum(Q10.uniform)) == pytest.approx(0.7864, abs=5e-5)
    np.testing.assert_allclose(expected_move(of_ratio, estimator="ratio"), 0, atol=1e-6)
    np.testing.assert_allclose(expected_move(optimum, estimator="horvitz-thompson"), 0, atol=1e-6)
    away = np.full(5, 2.0)  # the whole gradient, not only its direction
    wanted = -0.1 * expected_gradient(Q10.weighted, away)
    np.testing.assert_allclose(expected_move(away, estimator="horvitz-thompson"), wanted, atol=1e-6)
    biased = expected_move(optimum, estimator="ratio")
    np.testing.assert_allclose(biased, -0.1 * expected_gradient(RATIO, optimum), atol=1e-6)
    assert np.linalg.norm(biased) > 0.02
    uniform = Q10.optimum(Q10.uniform)
    np.testing.assert_allclose(expected_move(uniform, weighting="uniform"), 0, atol=1e-6)


def test_long_runs_stay_around_their_theory() -> None:
    """2000 rounds of uniform pairs: the model follows the affine recursion of the same cohorts, and the mean
    over rounds is near the stationary mean: at the ratio's own point, or at the optimum."""
    data = q10(weighted=True)
    optimum = Q10.optimum(Q10.weighted)
    for estimator, centre in (("ratio", Q10.optimum(RATIO)), ("horvitz-thompson", optimum)):
        keywords = {"clients_per_round": 2, "estimator": estimator, "seed": 5}
        engine = make_engine(dure.FedSGD(0.1), QUADRATIC, data, **keywords)
        sampler = engine.settings.sampler
        x, total = np.zeros(5), np.zeros(5)
        for t in range(2000):
            ids = sampler.sample(5, t + 1, data).ids
            n = ids + 1.0
            weights = n / n.sum() if estimator == "ratio" else n / 55 / 0.2
            x = x - 0.1 * sum(w * Q10.A[i] @ (x - Q10.b[i]) for w, i in zip(weights, ids, strict=True))
            total += x if t >= 100 else 0
            if t < 150:
                engine.launch()
            if t == 149:
                np.testing.assert_allclose(engine.model.server.w, x, atol=2e-5)
        mean = total / 1900
        assert np.linalg.norm(mean - centre) < 0.25
        if estimator == "ratio":
            assert np.linalg.norm(mean - optimum) > 0.5


def test_weighted_sampling_with_the_plain_mean_is_unbiased_and_twice_is_refused() -> None:
    data = q10(weighted=True)
    with pytest.raises(ConfigError, match="n_k²"):
        make_engine(dure.FedSGD(), QUADRATIC, data, sampler=dure.Weighted(2))
    start = Q10.optimum(Q10.weighted)
    for keywords in ({"weighting": "uniform"}, {"estimator": "horvitz-thompson"}):
        engine = make_engine(
            dure.FedSGD(0.1), QUADRATIC, data, start=start, sampler=dure.Weighted(4), seed=1, **keywords
        )
        host = jax.device_get(engine.model)
        gradients = np.einsum("ijk,ik->ij", Q10.A, start - Q10.b)
        for r in range(20):
            engine.restore(host, r, {})
            result = engine.collect(engine.launch())
            cohort = engine.settings.sampler.sample(1, r + 1, data)
            assert cohort.multiplicity.sum() == 4
            wanted = start - 0.1 * (cohort.multiplicity / 4) @ gradients[cohort.ids]
            np.testing.assert_allclose(engine.model.server.w, wanted, atol=2e-6)
            assert result.accepted == len(cohort.ids)


def test_cyclic_cohorts_of_everyone_make_the_same_model_as_everyone() -> None:
    everyone = train(dure.FedAvg(), QUADRATIC, q10(), 5, steps=3, **FULL)
    cyclic = train(dure.FedAvg(), QUADRATIC, q10(), 5, steps=3, sampler=Cyclic(10), **FULL)
    assert everyone.tobytes() == cyclic.tobytes()
