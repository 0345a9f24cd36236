"""Consensus ADMM and FedADMM: round counts of the reference, and the iterations written down independently."""

import math
from typing import Any

import numpy as np
import pytest

import dure
from dure.algorithms.admm import Consensus
from dure.errors import ConfigError
from exact import Run, cyc3, everyone, loss20
from problems import Q10, QUADRATIC, Cyclic, make_engine, q10

EYE = np.eye(5)


def minimiser(i: int, rho: float, at: np.ndarray) -> np.ndarray:
    """argmin f_i(x) + (ρ/2) ‖x − at‖²."""
    return np.linalg.solve(Q10.A[i] + rho * EYE, Q10.A[i] @ Q10.b[i] + rho * at)


@pytest.mark.parametrize(
    ("algorithm", "sampler", "rounds"),
    [
        (dure.ConsensusADMM(), everyone, 41),
        (dure.FedADMM(), everyone, 39),
        (dure.FedADMM(), cyc3, 110),
    ],
    ids=["consensus", "everyone", "cyclic"],
)
def test_rounds_to_the_optimum(algorithm: Any, sampler: Any, rounds: int) -> None:
    """ρ = 1, exact local solves: the first round after which the error stays below 1e-8."""
    run = Run(algorithm, sampler=sampler, exact=True)
    found = run.settles(rounds + 80)
    assert abs(found - rounds) <= 2, "the model is counted before or after the dual's step"
    assert run.error() < 1e-9


@pytest.mark.parametrize("p", [Q10.uniform, Q10.weighted], ids=["uniform", "weighted"])
@pytest.mark.parametrize("rho", [0.3, 1.0, 4.0])
def test_consensus_is_the_textbook_iteration(rho: float, p: np.ndarray) -> None:
    """x, then z, then u with the new z."""
    run = Run(dure.ConsensusADMM(rho), exact=True, p=p)
    z, u = np.zeros(5), np.zeros((10, 5))
    for _ in range(12):
        run.round()
        x = np.stack([minimiser(i, rho, z - u[i]) for i in range(10)])
        z = p @ (x + u)
        u = u + x - z
        np.testing.assert_allclose(run.w, z, atol=1e-12)


@pytest.mark.parametrize("p", [Q10.uniform, Q10.weighted], ids=["uniform", "weighted"])
def test_fedadmm_of_everyone_is_consensus_in_the_order_x_u_z(p: np.ndarray) -> None:
    """A client steps its dual with the z that it received: x, u, then z = Σ p_k (x_k + u_k)."""
    run = Run(dure.FedADMM(0.7), exact=True, p=p)
    z, u = np.zeros(5), np.zeros((10, 5))
    for _ in range(12):
        run.round()
        x = np.stack([minimiser(i, 0.7, z - u[i]) for i in range(10)])
        u = u + x - z
        z = p @ (x + u)
        np.testing.assert_allclose(run.w, z, atol=1e-12)
        np.testing.assert_allclose(run.clients.u, u, atol=1e-12)


def test_the_server_follows_the_mean_of_x_and_u_over_all_clients() -> None:
    """Also of those that did not come and of those whose upload was lost."""
    for p in (Q10.uniform, Q10.weighted):
        run = Run(dure.FedADMM(), sampler=cyc3, lost=loss20, p=p)
        for _ in range(30):
            run.round()
            np.testing.assert_allclose(run.w, run.mean(lambda clients: clients.x + clients.u), atol=1e-12)


class FullStep(dure.FedADMM):
    """η = 1: the mean change of the sample as if it were everybody's."""

    def apply(self, server: Consensus, mean: Any, round: Any) -> Consensus:
        return Consensus(server.v + mean.delta, server.v + mean.delta)


def test_step_one_under_sampling_diverges() -> None:
    assert Run(FullStep(), sampler=cyc3, exact=True).rounds(150).error() > 1e3
    assert Run(FullStep(), exact=True).rounds(60).error() < 1e-9, "with everyone η = 1 is |S|/N"


@pytest.mark.parametrize(("sampler", "rounds"), [(everyone, 60), (cyc3, 220)], ids=["everyone", "cyclic"])
def test_lost_uploads_cost_rounds_and_nothing_else(sampler: Any, rounds: int) -> None:
    """A client whose upload is lost keeps x and u as they were; one that doesn't never gets there."""
    kept = Run(dure.FedADMM(), sampler=sampler, lost=loss20, exact=True).rounds(rounds)
    assert kept.error() < 1e-9
    wrong = Run(dure.FedADMM(), sampler=sampler, lost=loss20, exact=True, commit_lost=True).rounds(rounds)
    assert wrong.error() > 0.05


def test_inexact_local_work_reaches_the_optimum_too() -> None:
    """Ten gradient steps from the client's last x; x_k → z and ρ u_k → −∇f_k(z)."""
    for algorithm in (dure.ConsensusADMM(), dure.FedADMM()):
        run = Run(algorithm, steps=10, eta=0.3).rounds(120)
        assert run.error() < 1e-9
        np.testing.assert_allclose(run.clients.x, np.tile(run.w, (10, 1)), atol=1e-8)
        gradients = np.einsum("ijk,ik->ij", Q10.A, run.w - Q10.b)
        np.testing.assert_allclose(run.clients.u, -gradients, atol=1e-8)


@pytest.mark.parametrize(
    ("algorithm", "keywords", "rounds"),
    [
        (dure.ConsensusADMM(), {}, 50),
        (dure.FedADMM(), {}, 50),
        (dure.FedADMM(), {"sampler": Cyclic(3)}, 130),
        (dure.FedADMM(), {"weighting": "examples", "sampler": Cyclic(3)}, 200),
    ],
    ids=["consensus", "everyone", "cyclic", "weighted"],
)
def test_through_the_engine(algorithm: Any, keywords: dict[str, Any], rounds: int) -> None:
    keywords = {"weighting": "uniform", "steps": 20, "optimizer": 0.4, "batch_size": math.inf, **keywords}
    engine = make_engine(algorithm, QUADRATIC, q10(weighted=True), **keywords)
    for _ in range(rounds):
        engine.launch()
    p = Q10.weighted if keywords["weighting"] == "examples" else Q10.uniform
    np.testing.assert_allclose(engine.model.server.w, Q10.optimum(p), atol=1e-5)


@pytest.mark.parametrize("algorithm", [dure.ConsensusADMM(), dure.FedPD()], ids=lambda a: type(a).__name__)
def test_methods_for_everyone_refuse_a_sample(algorithm: Any) -> None:
    name = type(algorithm).__name__
    for keywords in ({"clients_per_round": 3}, {"sampler": dure.Poisson(0.5)}, {"sampler": dure.Once(1)}):
        with pytest.raises(ConfigError, match=f"{name} is right only when every client takes part"):
            make_engine(algorithm, QUADRATIC, q10(), **keywords)
    for lost in (0.1, lambda seed, round, ids: ids < 0):
        with pytest.raises(ConfigError, match=f"{name} is right only when every client's update arrives"):
            make_engine(algorithm, QUADRATIC, q10(), lost_uploads=lost)
    make_engine(algorithm, QUADRATIC, q10(), clients_per_round=10)


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf])
def test_the_penalty_is_positive(value: Any) -> None:
    for method in (dure.ConsensusADMM, dure.FedADMM):
        with pytest.raises(ConfigError, match=r"rho=.* must be a number in \(0, inf\)"):
            method(rho=value)
