"""Regularisers and constraint sets in the server's step, against an independent solver."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import dure
from dure.errors import ConfigError
from exact import Run, cyc3, everyone
from problems import Q10, QUADRATIC, make_engine, q10

V = np.array([1.5, -0.3, 0.0, -2.0, 0.2])


def proximal_gradient(p: np.ndarray, step: Callable[[np.ndarray, float], np.ndarray]) -> np.ndarray:
    """Minimise Σ p_i f_i + g: a gradient step, then g's own, again and again."""
    A, right = np.einsum("i,ijk->jk", p, Q10.A), np.einsum("i,ijk,ik->j", p, Q10.A, Q10.b)
    x = np.zeros(5)
    for _ in range(500):
        x = step(x - (A @ x - right), 1.0)
    return x


def soft(strength: float) -> Callable[[np.ndarray, float], np.ndarray]:
    return lambda v, t: np.where(v > t * strength, v - t * strength, np.minimum(v + t * strength, 0))


def ball(radius: float) -> Callable[[np.ndarray, float], np.ndarray]:
    return lambda v, t: v if np.linalg.norm(v) <= radius else v * radius / np.linalg.norm(v)


CASES = [
    (dure.L1(0.2), soft(0.2)),
    (dure.Box(-1.0, 0.5), lambda v, t: np.minimum(np.maximum(v, -1.0), 0.5)),
    (dure.Ball(1.0), ball(1.0)),
]
NAMES = ["l1", "box", "ball"]


@pytest.mark.parametrize(("proximal", "step"), CASES, ids=NAMES)
@pytest.mark.parametrize("p", [Q10.uniform, Q10.weighted], ids=["uniform", "weighted"])
@pytest.mark.parametrize(
    ("method", "sampler", "rounds"),
    [(dure.ConsensusADMM, everyone, 150), (dure.FedADMM, everyone, 150), (dure.FedADMM, cyc3, 500)],
    ids=["consensus", "fedadmm", "cyclic"],
)
def test_the_regularised_optimum(
    method: Any, sampler: Any, rounds: int, p: np.ndarray, proximal: Any, step: Any
) -> None:
    wanted = proximal_gradient(p, step)
    assert np.linalg.norm(wanted - Q10.optimum(p)) > 0.1, "the regulariser matters"
    run = Run(method(0.8, proximal=proximal), exact=True, p=p, sampler=sampler).rounds(rounds)
    np.testing.assert_allclose(run.w, wanted, atol=1e-8)


def test_a_strong_l1_has_zeros_and_they_are_exact() -> None:
    wanted = proximal_gradient(Q10.uniform, soft(0.8))
    assert 1 <= (wanted == 0).sum() <= 4
    run = Run(dure.ConsensusADMM(proximal=dure.L1(0.8)), exact=True).rounds(150)
    np.testing.assert_array_equal(run.w == 0, wanted == 0)


@pytest.mark.parametrize(("proximal", "step"), CASES, ids=NAMES)
def test_through_the_engine(proximal: Any, step: Any) -> None:
    keywords = {"steps": 20, "optimizer": 0.4, "batch_size": float("inf")}
    engine = make_engine(dure.FedADMM(proximal=proximal), QUADRATIC, q10(), **keywords)
    for _ in range(80):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, proximal_gradient(Q10.uniform, step), atol=2e-5)


@pytest.mark.parametrize("step", [0.25, 2.0])
def test_each_is_the_proximal_map(step: float) -> None:
    """argmin g(z) + ‖z − v‖² / (2 step), by a solver that knows nothing of projections."""

    def found(**keywords: Any) -> np.ndarray:
        return minimize(x0=np.full(5, 0.01), tol=1e-14, **keywords).x

    def distance(z: np.ndarray) -> float:
        return float(((z - V) ** 2).sum() / (2 * step))

    near = {"atol": 1e-5}
    halves = [(0, None)] * 10  # z = first − second, ‖z‖₁ = their sum
    parts = minimize(
        lambda q: distance(q[:5] - q[5:]) + 0.4 * q.sum(), np.full(10, 0.1), bounds=halves, tol=1e-14
    ).x
    np.testing.assert_allclose(dure.L1(0.4)(jnp.float32(V), step), parts[:5] - parts[5:], **near)
    boxed = found(fun=distance, bounds=[(-0.5, 1.0)] * 5)
    np.testing.assert_allclose(dure.Box(-0.5, 1.0)(jnp.float32(V), step), boxed, **near)
    inside = {"type": "ineq", "fun": lambda z: 1 - z @ z}
    np.testing.assert_allclose(
        dure.Ball(1.0)(jnp.float32(V), step), found(fun=distance, constraints=inside), atol=1e-4
    )


def test_limits() -> None:
    v = jnp.float32(V)
    for nothing in (dure.L1(0.0), dure.Box(-5.0, 5.0), dure.Ball(10.0)):
        np.testing.assert_array_equal(nothing(v, 0.7), v)
    np.testing.assert_array_equal(dure.Ball(1.0)(jnp.zeros(5), 1.0), np.zeros(5))
    np.testing.assert_array_equal(dure.Box(0.5, 0.5)(v, 1.0), np.full(5, 0.5))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dure.L1(-0.1), r"L1\(strength=-0.1\)"),
        (lambda: dure.Box(1.0, 0.0), r"Box\(high=0.0\)"),
        (lambda: dure.Ball(0.0), r"Ball\(radius=0.0\)"),
        (lambda: dure.L1(float("nan")), "strength=nan"),
    ],
)
def test_impossible_numbers(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
