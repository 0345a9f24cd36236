"""FedSAM and MoFedSAM: one norm over the whole vector, the same minibatch twice, uphill signs."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dure
from dure.errors import ConfigError
from dure.oracles.model import Model
from exact import Run, check_engine, check_order, gradients
from problems import LINEAR, Q10, make_engine, rows_data, train

FedSAM, MoFedSAM = dure.FedSAM, dure.MoFedSAM


@pytest.mark.parametrize(("rho", "error"), [(0.0, 0.29596), (0.05, 0.2898), (0.5, 0.2445)])
def test_limits_of_the_reference(rho: float, error: float) -> None:
    assert Run(FedSAM(rho)).rounds(150).error() == pytest.approx(error, abs=6e-5)


def test_without_radius_it_is_fedavg() -> None:
    keywords: dict[str, Any] = {"steps": 4, "batch_size": 3, "clients_per_round": 3, "seed": 2}
    data = rows_data([7, 20, 5, 9], seed=4)
    flat, average = (train(page, LINEAR, data, 3, **keywords) for page in (FedSAM(0.0), dure.FedAvg()))
    np.testing.assert_allclose(flat, average, atol=1e-6)
    np.testing.assert_allclose(Run(FedSAM(0.0)).rounds(9).w, Run(dure.FedProx(0.0)).rounds(9).w, atol=1e-13)


def test_mofedsam_without_momentum_is_fedsam() -> None:
    settings: dict[str, Any] = {"p": Q10.weighted, "momentum": 0.5, "eta": 0.05}
    np.testing.assert_allclose(
        Run(MoFedSAM(0.3, 1.0), **settings).rounds(9).w, Run(FedSAM(0.3), **settings).rounds(9).w, atol=1e-13
    )


def test_a_gradient_of_zero_has_no_direction() -> None:
    """Every client at its own minimiser: nothing is divided by zero, and nobody moves."""
    for page in (FedSAM(0.5), MoFedSAM(0.5)):
        run = Run(page, b=np.tile(np.arange(5.0), (10, 1)), start=np.arange(5.0)).rounds(2)
        np.testing.assert_array_equal(run.w, np.arange(5.0))


def two_tensors(A: np.ndarray, b: np.ndarray) -> dure.Task:
    """½ (x − b)ᵀ A (x − b) of one row, with x in two tensors."""
    model = Model.from_functions(
        lambda key: {"first": jnp.zeros(2), "second": jnp.zeros((3, 1))},
        lambda params, x: (
            jnp.concatenate([params["first"], params["second"][:, 0]])[None]
            - jnp.asarray(b, jnp.float32)
            + 0 * x
        ),
        name="two tensors",
    )
    return dure.Task(
        model,
        lambda away, _: (
            0.5 * jnp.einsum("ni,ij,nj->n", away, jnp.asarray(A, jnp.float32), away, precision="highest")
        ),
        name="two tensors",
    )


def test_the_norm_is_over_the_whole_vector() -> None:
    """A norm for each layer would go √2 times as far."""
    A, b, rho, eta = Q10.A[3], Q10.b[3], 2.0, 0.3
    data = dure.Federated({"x": np.zeros((1, 5), np.float32), "y": np.zeros(1, np.float32)}, np.array([0, 1]))
    w = np.zeros(5)
    engine = make_engine(FedSAM(rho), two_tensors(A, b), data, steps=2, batch_size=math.inf, optimizer=eta)
    for _ in range(2):
        g = A @ (w - b)
        w = w - eta * A @ (w + rho * g / np.linalg.norm(g) - b)
    engine.launch()
    np.testing.assert_allclose(engine.model.server.w, w, atol=1e-5)
    np.testing.assert_allclose(
        Run(FedSAM(rho), A=A[None], b=b[None], p=np.ones(1), steps=2, eta=eta, sampler=lambda t: [0])
        .rounds(1)
        .w,
        w,
        atol=1e-12,
    )


def test_both_passes_see_the_same_minibatch() -> None:
    """One step on one row: where it leads says which row climbed and which one descended."""
    data, rho, eta = rows_data([6], seed=5), 0.8, 0.1
    x, y = np.asarray(data.columns["x"], float), np.asarray(data.columns["y"], float)
    start = np.full(3, 0.3)
    ends = {}
    for i in range(6):
        for j in range(6):
            g = (x[i] @ start - y[i]) * x[i]
            far = start + rho * g / np.linalg.norm(g)
            ends[i, j] = start - eta * (x[j] @ far - y[j]) * x[j]
    engine = make_engine(FedSAM(rho), LINEAR, data, start=start, steps=1, batch_size=1, optimizer=eta)
    found = set()
    for _ in range(5):
        engine.restore(
            engine.model._replace(server=engine.model.server._replace(w=jnp.asarray(start, jnp.float32))),
            engine.round,
            {},
        )
        engine.launch()
        w = np.asarray(engine.model.server.w)
        near = [pair for pair, end in ends.items() if np.allclose(w, end, atol=1e-6)]
        assert len(near) == 1
        assert near[0][0] == near[0][1]
        found.add(near[0])
    assert len(found) > 1


def test_momentum_is_last_rounds_uphill_direction() -> None:
    """K = 2, two rounds: G = −mean Δ / (K η), and it enters with 1 − β."""
    rho, beta, eta, A, b = 0.3, 0.25, 0.1, Q10.A, Q10.b
    run = Run(MoFedSAM(rho, beta), steps=2, eta=eta)
    x, uphill = np.zeros(5), np.zeros(5)
    for t in range(4):
        ends = []
        for i in range(10):
            y = x
            for _ in range(2):
                g = A[i] @ (y - b[i])
                g = A[i] @ (y + rho * g / np.linalg.norm(g) - b[i])
                y = y - eta * (beta * g + (1 - beta) * uphill)
            ends.append(y)
        uphill = (x - np.mean(ends, 0)) / (2 * eta)
        x = np.mean(ends, 0)
        run.round()
        np.testing.assert_allclose(run.w, x, atol=1e-12)
        np.testing.assert_allclose(run.server.uphill, uphill, atol=1e-11)
        if t == 0:
            assert uphill @ gradients(np.zeros(5)).mean(0) > 0


def test_the_direction_is_per_unit_of_step_under_momentum_and_schedules() -> None:
    """With small steps G is the gradient at the model times β, however the local steps were made."""
    settings: dict[str, Any] = {"momentum": 0.9, "eta": lambda t, s: 1e-9 / (1 + s)}
    run = Run(MoFedSAM(0.0, 0.5), **settings).rounds(1)
    np.testing.assert_allclose(run.server.uphill, 0.5 * gradients(np.zeros(5)).mean(0), rtol=1e-6)


@pytest.mark.parametrize("page", [FedSAM(0.2), MoFedSAM(0.2, 0.5)], ids=["FedSAM", "MoFedSAM"])
def test_compiled_and_in_any_order(page: Any) -> None:
    check_engine(page)
    check_order(page)


@pytest.mark.parametrize(
    ("page", "keywords", "named"),
    [
        (FedSAM, {"rho": -0.1}, r"FedSAM\(rho=-0\.1\)"),
        (MoFedSAM, {"rho": math.nan}, r"MoFedSAM\(rho=nan\)"),
        (MoFedSAM, {"beta": 0.0}, r"MoFedSAM\(beta=0\.0\)"),
        (MoFedSAM, {"beta": 1.5}, r"MoFedSAM\(beta=1\.5\)"),
    ],
)
def test_impossible_numbers_are_refused(page: Any, keywords: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        page(**keywords)


def test_momentum_needs_a_gain() -> None:
    with pytest.raises(ConfigError, match="not linear in the gradients"):
        make_engine(MoFedSAM(), LINEAR, rows_data([4]), optimizer=optax.adam(1e-3)).launch()
