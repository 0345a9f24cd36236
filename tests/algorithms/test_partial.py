"""Partial sharing: the optimum by Schur complements, what is private, and what moves when."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from dure.oracles.model import Model
from dure.oracles.task import Task
from exact import Run
from personal import personal_model
from problems import Q10, make_engine, q10

#: Coordinates 0–2 travel, 3–4 stay.
S, H = slice(0, 3), slice(3, 5)
Ass, Ash, Ahs, Ahh = (Q10.A[:, r, c] for r in (S, H) for c in (S, H))


def optimum(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(s*, every client's h*): each client's h minimises f_i(s, ·), so s sees the Schur complement."""
    inner = np.linalg.solve(Ahh, Ahs)
    schur = Ass - Ash @ inner
    s = np.linalg.solve(np.einsum("i,ijk->jk", p, schur), np.einsum("i,ijk,ik->j", p, schur, Q10.b[:, S]))
    return s, Q10.b[:, H] - np.einsum("ijk,ik->ij", inner, s - Q10.b[:, S])


def objective(s: np.ndarray, h: np.ndarray) -> float:
    away = np.concatenate([np.tile(s, (10, 1)), h], 1) - Q10.b
    return float(0.5 * np.einsum("ij,ijk,ik->i", away, Q10.A, away).mean())


def test_check_values_of_the_reference() -> None:
    s, h = optimum(Q10.uniform)
    np.testing.assert_allclose(s, [-0.27957, -2.794721, 0.899331], atol=5e-6)
    assert objective(s, h) == pytest.approx(3.9706, abs=5e-5)
    one = Q10.optimum(Q10.uniform)
    assert objective(one[S], np.tile(one[H], (10, 1))) == pytest.approx(9.7336, abs=5e-5)


# The head is found exactly or nearly so; one body step a round keeps s exact.
@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (dure.FedPer(("h",)), 160),
        (dure.LGFedAvg(("h",)), 160),
        (dure.FedRep(("h",)), 160),
        (dure.FedRep(("h",), 60), 60),
    ],
    ids=["FedPer", "LGFedAvg", "FedRep", "FedRep-60"],
)
def test_one_body_step_reaches_the_optimum(algorithm: Any, rounds: int) -> None:
    s, h = optimum(Q10.weighted)
    run = Run(algorithm, steps=1, eta=1.0, shared=3, p=Q10.weighted).rounds(rounds)
    np.testing.assert_allclose(run.w, s, atol=1e-9)
    np.testing.assert_allclose(run.clients, h, atol=1e-8)


@pytest.mark.parametrize(
    ("algorithm", "error"),
    [(dure.FedPer(("h",)), 0.1369), (dure.FedRep(("h",), 20), 0.1502)],
    ids=["FedPer", "FedRep"],
)
def test_many_body_steps_drift(algorithm: Any, error: float) -> None:
    """Ten local steps of rate 0.1; FedRep with 200 head steps before them."""
    run = Run(algorithm, steps=10, eta=0.1, shared=3).rounds(70)
    assert run.error(optimum(Q10.uniform)[0]) == pytest.approx(error, abs=6e-5)


def test_fedbabu_minimises_with_the_head_where_it_was() -> None:
    """Σ p_i [A_ss (s − b_s) + A_sh (h₀ − b_h)] = 0; then each client trains all of it from there."""
    start = np.array([0.0, 0.0, 0.0, 1.5, -0.5])
    A = np.einsum("i,ijk->jk", Q10.weighted, Ass)
    right = np.einsum("i,ijk,ik->j", Q10.weighted, Ass, Q10.b[:, S]) - np.einsum(
        "i,ijk,ik->j", Q10.weighted, Ash, start[H] - Q10.b[:, H]
    )
    run = Run(dure.FedBABU(("h",)), steps=1, eta=1.0, shared=3, p=Q10.weighted, start=start).rounds(60)
    np.testing.assert_allclose(run.w, np.linalg.solve(A, right), atol=1e-9)
    np.testing.assert_array_equal(run.clients, np.tile(start[H], (10, 1)))
    used = personal_model(run, 4)
    whole = np.concatenate([run.w, start[H]])
    np.testing.assert_allclose(used, whole - Q10.A[4] @ (whole - Q10.b[4]), atol=1e-12)


# ----- through the engine ----------------------------------------------------------------------------------


def split_task() -> Task:
    """The quadratics with their coordinates in two tensors; the private one comes first in tree order."""

    def apply(params: Any, rows: Any) -> Any:
        x = jnp.concatenate([params["s"], params["h"]])
        return jnp.einsum("nij,j->ni", rows, x, precision="highest")

    model = Model.from_functions(lambda key: {"s": jnp.zeros(3), "h": jnp.full(2, 0.5)}, apply, name="split")
    return Task(model, lambda out, target: 0.5 * jnp.sum((out - target) ** 2, -1), name="split")


TASK = split_task()
FULL = {"batch_size": math.inf, "steps": 1, "optimizer": 1.0}


@pytest.mark.parametrize(
    ("algorithm", "keywords"),
    [
        (dure.FedPer(("h",)), {}),
        (dure.FedRep(("h",)), {"schedule": "vectorised", "width": 3}),
        (dure.FedRep(("h",), 40), {}),
        (dure.LGFedAvg(("h",)), {"schedule": "vectorised", "width": 10}),
    ],
    ids=["FedPer", "FedRep-vectorised", "FedRep-40", "LGFedAvg-vectorised"],
)
def test_the_engine_gets_there(algorithm: Any, keywords: dict[str, Any]) -> None:
    engine = make_engine(algorithm, TASK, q10(weighted=True), **FULL, **keywords)
    assert engine.model.server.w.shape == (3,)
    for _ in range(100):
        engine.launch()
    s, h = optimum(Q10.weighted)
    np.testing.assert_allclose(engine.model.server.w, s, atol=1e-5)
    np.testing.assert_allclose(engine.store.gather(np.arange(10)), h, atol=2e-5)
    # What is handed out as a whole model: the shared part with the head that a client begins with.
    np.testing.assert_allclose(engine.params()["s"], s, atol=1e-5)
    np.testing.assert_array_equal(engine.params()["h"], [0.5, 0.5])


def test_heads_of_lost_uploads_are_kept_and_their_bodies_not() -> None:
    """A private head is the client's own business: it has moved although nothing arrived."""
    engine = make_engine(
        dure.FedPer(("h",)), TASK, q10(), lost_uploads=lambda seed, round, ids: ids != 3, **FULL
    )
    engine.launch()
    start = np.array([0, 0, 0, 0.5, 0.5])
    step = start - np.einsum("ijk,ik->ij", Q10.A, start - Q10.b)
    np.testing.assert_allclose(engine.store.gather(np.arange(10)), step[:, H], atol=1e-5)
    np.testing.assert_allclose(engine.model.server.w, step[3, S], atol=1e-5)


def test_private_patterns_that_match_nothing_are_named() -> None:
    with pytest.raises(ConfigError, match="head"):
        make_engine(dure.FedPer(("head",)), TASK, q10())
    with pytest.raises(ConfigError, match=r"\[Nn\]orm"):
        make_engine(dure.FedBN(), TASK, q10())
    for nothing in ((), ("",)):
        with pytest.raises(ConfigError, match="must be name patterns"):
            dure.FedPer(nothing)
    with pytest.raises(ConfigError, match="head_passes=0"):
        dure.FedRep(("h",), 0)
