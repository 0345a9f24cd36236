"""The local problem against closed forms, and local SGD against the same steps in NumPy."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dure
from dure.errors import ConfigError
from dure.oracles.model import Model
from dure.oracles.optimizer import Optimizer, sgd
from dure.oracles.task import Task
from dure.simulation.plan import Work, build
from problems import (
    LINEAR,
    Q10,
    QUADRATIC,
    ask,
    linear_task,
    q10,
    quadratic_data,
    quadratic_task,
    rows_data,
    vector,
)

V = np.array([0.3, -1.0, 0.5, 2.0, -0.7], np.float32)
ANCHOR = np.array([1.0, 2.0, -1.0, 0.5, 0.25], np.float32)
FULL = {"batch_size": math.inf}
ONE, TWO = quadratic_task(1), quadratic_task(2)
HALF = quadratic_data(np.ones((1, 1, 1)), np.ones((1, 1)))  # F = ½ (y − 1)²


def iterate(w: Any, oracle: Any, prox: Any = 0.0) -> Any:
    return oracle.solve(w, prox=prox).w


def flat(d: int = 1, rows: int = 1) -> dure.Federated:
    """F ≡ 0."""
    return dure.Federated(
        {"x": np.zeros((rows, d, d), np.float32), "y": np.zeros((rows, d), np.float32)}, np.array([0, rows])
    )


# ----- closed forms ----------------------------------------------------------------------------------------


def solved(w: Any, oracle: Any, mu: Any) -> Any:
    return oracle.solve(w, linear=jnp.asarray(V), prox=mu, anchor=jnp.asarray(ANCHOR)).w


@pytest.mark.parametrize("mu", [0.0, 0.1, 3.0])
def test_the_minimiser_of_the_local_problem(mu: float) -> None:
    """F_k(y) + ⟨v, y⟩ + (μ/2)‖y − a‖² has the minimiser (A + μI)⁻¹ (A b + μ a − v)."""
    found = ask(
        solved,
        5,
        QUADRATIC,
        q10(),
        clients=range(10),
        numbers=(mu,),
        steps=120,
        optimizer=1 / (1 + mu),
        **FULL,
    )
    for i in range(10):
        right = Q10.A[i] @ Q10.b[i] + mu * ANCHOR - V
        wanted = np.linalg.solve(Q10.A[i] + mu * np.eye(5), right)
        np.testing.assert_allclose(found[i], wanted, atol=1e-5)


@pytest.mark.parametrize(("mu", "wanted"), [(0.0, 1 - 0.9**10), (1.0, 0.5 * (1 - 0.8**10))])
def test_prox_has_an_effect_defect_b2(mu: float, wanted: float) -> None:
    got = ask(iterate, 1, ONE, HALF, numbers=(mu,), steps=10, optimizer=0.1, **FULL)
    assert got[0, 0] == pytest.approx(wanted, abs=1e-6)
    assert wanted == pytest.approx({0.0: 0.651322, 1.0: 0.446313}[mu], abs=5e-7)


def drifting(w: Any, oracle: Any) -> Any:
    return oracle.solve(w, linear=jnp.full(1, 10.0)).w


def test_the_linear_term_is_applied_defect_b7() -> None:
    np.testing.assert_allclose(
        ask(drifting, 1, ONE, flat(), steps=5, optimizer=0.1, **FULL), [[-5.0]], rtol=1e-6
    )


def test_prox_is_one_norm_over_all_parameters_defect_b1() -> None:
    """y − a = (3, 4): the term's gradient is μ (3, 4), in one tensor as in two."""

    def question(w: Any, oracle: Any) -> Any:
        return oracle.solve(w, prox=1.0, anchor=w - jnp.asarray([3.0, 4.0])).w - w

    for init in (lambda key: {"x": jnp.zeros(2)}, lambda key: {"a": jnp.zeros(1), "b": jnp.zeros(1)}):
        model = Model.from_functions(init, lambda params, rows: jnp.zeros((rows.shape[0], 2)))
        task = Task(model, lambda out, target: jnp.sum(out, -1))
        got = ask(question, 2, task, flat(2), steps=1, optimizer=1.0, **FULL)
        np.testing.assert_array_equal(got, [[-3.0, -4.0]])


def test_clipping_and_plain_steps_defects_b12_s5() -> None:
    data = quadratic_data(np.eye(2)[None], np.array([[-30.0, -40.0]]))  # ∇F(0) = (30, 40)
    task = TWO
    clipped = ask(iterate, 2, task, data, steps=1, optimizer=sgd(1.0, clip_norm=5.0), **FULL)
    np.testing.assert_allclose(clipped, [[-3.0, -4.0]], rtol=1e-6)
    small = ask(iterate, 2, task, data, steps=1, optimizer=sgd(1.0, clip_norm=100.0), **FULL)
    np.testing.assert_allclose(small, [[-30.0, -40.0]], rtol=1e-6)
    np.testing.assert_array_equal(
        ask(iterate, 2, task, data, steps=1, optimizer=0.1, **FULL), np.float32([[-3, -4]])
    )


def test_weight_decay_pulls_to_zero_and_prox_to_the_anchor() -> None:
    def question(w: Any, oracle: Any) -> Any:
        return oracle.solve(w, prox=0.5, anchor=jnp.full(1, 4.0)).w

    got = ask(question, 1, ONE, HALF, start=[2.0], steps=1, optimizer=sgd(0.1, weight_decay=0.3), **FULL)
    assert got[0, 0] == pytest.approx(2.0 - 0.1 * ((2.0 - 1.0) + 0.5 * (2.0 - 4.0) + 0.3 * 2.0), abs=1e-6)


# ----- the same steps in NumPy -----------------------------------------------------------------------------

SIZES = np.array([7, 23, 1, 10, 0, 4])
ROWS = rows_data(SIZES)


def gradient(w: np.ndarray, rows: np.ndarray) -> np.ndarray:
    x, y = ROWS.columns["x"][rows].astype(np.float64), ROWS.columns["y"][rows].astype(np.float64)
    return x.T @ (x @ w - y) / len(rows)


def batches(client: int, work: Work, round: int = 1, seed: int = 0) -> list[np.ndarray]:
    """The rows of each step of one client, from the plan; what a plan must hold is tested elsewhere."""
    ids = np.array([client])
    size = work.batch_size or 32
    plan = build(work, seed, round, ids, ROWS.offsets[ids], SIZES[ids], size)
    steps = [plan.order[s * size : (s + 1) * size] for s in range(int(plan.steps[0]))]
    return [rows[rows >= 0] for rows in steps]


def numpy_sgd(
    client: int,
    work: Work,
    *,
    rate: Callable[[int], float] = lambda s: 0.1,
    momentum: float = 0.0,
    nesterov: bool = False,
    correction: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
    limit: int | None = None,
    start: float = 0.5,
) -> np.ndarray:
    w, trace = np.full(3, start), np.zeros(3)
    for s, rows in enumerate(batches(client, work)[:limit]):
        g = gradient(w, rows)
        if correction is not None:
            g = g + correction(w, rows)
        trace = g + momentum * trace
        w = w - rate(s) * (g + momentum * trace if nesterov else trace)
    return w


SCHEDULES = pytest.mark.parametrize(
    "schedule", [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 4}]
)
START = linear_task(3, 0.5)


@SCHEDULES
@pytest.mark.parametrize(
    "work", [Work(3, None, 4), Work(None, 5, 4), Work(2, None, None), Work(1, None, 100)]
)
def test_local_sgd(schedule: dict[str, Any], work: Work) -> None:
    """Epochs and steps, B below, at and above the clients' sizes; short last batches are means of what is there."""
    asked = {"epochs": work.epochs, "steps": work.steps, "batch_size": work.batch_size or math.inf}
    got = ask(iterate, 3, START, ROWS, clients=range(6), **asked, **schedule)
    for client in (0, 1, 2, 3, 5):
        np.testing.assert_allclose(
            got[client], numpy_sgd(client, work), atol=2e-6, err_msg=f"client {client}"
        )
    assert np.isnan(got[4]).all(), "a client without examples sends nothing"


WORK = Work(2, None, 4)
EPOCHS = {"epochs": 2, "batch_size": 4}


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov: bool) -> None:
    optimizer = sgd(0.05, momentum=0.9, nesterov=nesterov)
    got = ask(iterate, 3, START, ROWS, clients=(0, 1, 2), optimizer=optimizer, **EPOCHS)
    for client in range(3):
        wanted = numpy_sgd(client, WORK, rate=lambda s: 0.05, momentum=0.9, nesterov=nesterov)
        np.testing.assert_allclose(got[client], wanted, atol=2e-6)


def test_schedules_count_local_steps_and_rounds_decay() -> None:
    decay = optax.exponential_decay(0.2, transition_steps=1, decay_rate=0.8)
    got = ask(iterate, 3, START, ROWS, clients=(0, 1), optimizer=sgd(decay), **EPOCHS)
    for client in range(2):
        np.testing.assert_allclose(
            got[client], numpy_sgd(client, WORK, rate=lambda s: 0.2 * 0.8**s), atol=2e-6
        )
    for decay_of_rounds in (0.5, lambda round: 0.5 ** (round - 1)):
        third = ask(
            iterate, 1, ONE, HALF, steps=1, rounds=3, optimizer=sgd(0.4, round_decay=decay_of_rounds), **FULL
        )
        assert third[0, 0] == pytest.approx(0.4 * 0.25, abs=1e-7)


def reference(w: Any, oracle: Any) -> Any:
    return oracle.solve(w, reference=(jnp.asarray([1.0, -1.0, 0.5]), jnp.asarray([0.2, 0.1, -0.3]))).w


@SCHEDULES
def test_reference_steps_are_variance_reduced(schedule: dict[str, Any]) -> None:
    """y ← y − η (g_B(y) − g_B(x) + g), the same B in both."""
    x, g = np.array([1.0, -1.0, 0.5]), np.array([0.2, 0.1, -0.3])
    got = ask(reference, 3, START, ROWS, clients=(0, 1), **EPOCHS, **schedule)
    for client in range(2):
        wanted = numpy_sgd(client, WORK, correction=lambda w, rows: g - gradient(x, rows))
        np.testing.assert_allclose(got[client], wanted, atol=2e-6)


def half_of_it(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return np.where(ids == 2, 0, (steps + 1) // 2)


@SCHEDULES
def test_early_stop(schedule: dict[str, Any]) -> None:
    """A slow client's first steps count; one that did none is not used."""

    def question(w: Any, oracle: Any) -> Any:
        y = oracle.solve(w)
        return vector(y.w, y.steps, y.gain)

    got = ask(question, 5, START, ROWS, clients=(0, 1, 2), work_limit=half_of_it, **EPOCHS, **schedule)
    for client, planned in ((0, 4), (1, 12)):
        done = (planned + 1) // 2
        np.testing.assert_allclose(got[client, :3], numpy_sgd(client, WORK, limit=done), atol=2e-6)
        assert got[client, 3] == done
        assert got[client, 4] == pytest.approx(0.1 * done)
    assert np.isnan(got[2]).all()


@SCHEDULES
def test_gradient_and_loss_are_over_all_rows(schedule: dict[str, Any]) -> None:
    def question(w: Any, oracle: Any) -> Any:
        return vector(oracle.gradient(w), oracle.loss(w), oracle.examples)

    got = ask(question, 5, START, ROWS, clients=(0, 1, 2, 3), **schedule)
    w = np.full(3, 0.5)
    for client in range(4):
        rows = np.arange(ROWS.offsets[client], ROWS.offsets[client + 1])
        x, y = ROWS.columns["x"][rows].astype(float), ROWS.columns["y"][rows].astype(float)
        np.testing.assert_allclose(got[client, :3], gradient(w, rows), atol=2e-6)
        assert got[client, 3] == pytest.approx(0.5 * np.mean((x @ w - y) ** 2), rel=1e-5)
        assert got[client, 4] == SIZES[client]


def test_many_blocks_of_rows() -> None:
    """A client with more rows than one block holds, beside small ones."""
    data = rows_data([3, 401, 2, 150], seed=1)

    def question(w: Any, oracle: Any) -> Any:
        return vector(oracle.gradient(w), oracle.solve(w).w)

    got = ask(question, 6, START, data, clients=range(4), steps=2, **FULL)
    for client in range(4):
        own = data.client(client)
        x, y = own["x"].astype(float), own["y"].astype(float)
        w = np.full(3, 0.5)
        np.testing.assert_allclose(got[client, :3], x.T @ (x @ w - y) / len(y), atol=3e-6)
        for _ in range(2):
            w = w - 0.1 * x.T @ (x @ w - y) / len(y)
        np.testing.assert_allclose(got[client, 3:], w, atol=3e-6)


def test_the_recorded_loss_is_the_mean_over_the_rows_that_were_read() -> None:
    def question(w: Any, oracle: Any) -> Any:
        return vector(oracle.solve(w).loss)

    got = ask(question, 1, START, ROWS, clients=(0, 1), epochs=1, batch_size=4)
    for client in range(2):
        w, total = np.full(3, 0.5), 0.0
        for rows in batches(client, Work(1, None, 4)):
            x, y = ROWS.columns["x"][rows].astype(float), ROWS.columns["y"][rows].astype(float)
            total += 0.5 * np.sum((x @ w - y) ** 2)
            w = w - 0.1 * gradient(w, rows)
        assert got[client, 0] == pytest.approx(total / SIZES[client], rel=1e-5)


# ----- gain ------------------------------------------------------------------------------------------------


def brute_force_gain(
    steps: int,
    rates: Callable[[int], float],
    momentum: float = 0.0,
    nesterov: bool = False,
    prox: float = 0.0,
) -> float:
    """Σ over steps of the final displacement that a unit impulse of gradient in that step causes."""
    total = 0.0
    for impulse in range(steps):
        z = trace = 0.0
        for s in range(steps):
            g = float(s == impulse) + prox * z
            trace = g + momentum * trace
            z -= rates(s) * (g + momentum * trace if nesterov else trace)
        total -= z
    return total


def gains(w: Any, oracle: Any, prox: Any) -> Any:
    """The gain, and what a constant gradient really does to the iterate, per unit of it."""
    v = jnp.asarray([2.0, -3.0])
    y = oracle.solve(w, linear=v, prox=prox, anchor=w)
    return vector(y.gain, (w - y.w) / v)


@pytest.mark.parametrize(
    ("rounds", "prox"),
    [(3, 0.7), *(pytest.param(*both, marks=pytest.mark.slow) for both in ((1, 0.0), (1, 0.7), (3, 0.0)))],
)
@pytest.mark.parametrize(
    ("keywords", "rates"),
    [
        ({"learning_rate": 0.1}, lambda s: 0.1),
        ({"learning_rate": 0.1, "momentum": 0.9}, lambda s: 0.1),
        ({"learning_rate": 0.1, "momentum": 0.8, "nesterov": True}, lambda s: 0.1),
        ({"learning_rate": optax.exponential_decay(0.2, 1, 0.7)}, lambda s: 0.2 * 0.7**s),
        ({"learning_rate": optax.exponential_decay(0.2, 1, 0.7), "momentum": 0.5}, lambda s: 0.2 * 0.7**s),
    ],
    ids=["sgd", "momentum", "nesterov", "schedule", "schedule+momentum"],
)
def test_gain_is_the_impulse_response(
    keywords: dict[str, Any], rates: Callable[[int], float], rounds: int, prox: float
) -> None:
    steps = 7
    decay = 0.9 ** (rounds - 1)
    got = ask(gains, 3, TWO, flat(2), numbers=(prox,), steps=steps, rounds=rounds,
              optimizer=sgd(**keywords, round_decay=0.9), **FULL)  # fmt: skip
    wanted = brute_force_gain(
        steps,
        lambda s: decay * rates(s),
        keywords.get("momentum", 0.0),
        keywords.get("nesterov", False),
        prox,
    )
    np.testing.assert_allclose(got[0], wanted, rtol=3e-6)


def test_gain_leaves_weight_decay_out() -> None:
    got = ask(gains, 3, TWO, flat(2), numbers=(0.0,), steps=4,
              optimizer=sgd(0.1, weight_decay=0.5), **FULL)  # fmt: skip
    assert got[0, 0] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("optimizer", "name"),
    [
        (Optimizer(optax.adam, {"learning_rate": 0.01}), "adam"),
        (Optimizer(optax.rmsprop, {"learning_rate": 0.01}), "rmsprop"),
        (sgd(0.1, clip_norm=1.0), "sgd"),
        (Optimizer(optax.sign_sgd, {"learning_rate": 0.1}), "sign_sgd"),
        (optax.adam(0.01), "optax transformation"),
    ],
    ids=["adam", "rmsprop", "clip", "sign", "transformation"],
)
def test_there_is_no_gain_where_steps_are_not_linear(optimizer: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"local optimizer (the given )?{name} does not have"):
        ask(gains, 3, TWO, flat(2), numbers=(0.0,), steps=3, optimizer=optimizer, **FULL)


def test_nonlinear_optimizers_still_solve() -> None:
    got = ask(
        iterate, 1, ONE, HALF, steps=300, optimizer=Optimizer(optax.adam, {"learning_rate": 0.05}), **FULL
    )
    assert got[0, 0] == pytest.approx(1.0, abs=1e-2)


# ----- models that are more than one float32 tensor --------------------------------------------------------


def test_half_precision_models_move_in_float32() -> None:
    """Steps far below bfloat16's resolution add up, because the iterate is float32."""
    model = Model.from_functions(
        lambda key: {"w": jnp.ones(1, jnp.bfloat16)}, lambda p, x: (x * p["w"])[:, 0].astype(jnp.float32)
    )
    task = Task(model, lambda out, target: out - target)
    data = dure.Federated({"x": np.ones((1, 1), np.float32), "y": np.zeros(1, np.float32)}, np.array([0, 1]))
    got = ask(iterate, 1, task, data, steps=100, optimizer=1e-4, **FULL)
    assert got[0, 0] == pytest.approx(0.99, abs=1e-5)


def test_tied_weights_get_the_sum_of_both_gradients() -> None:
    def init(key: Any) -> Any:
        shared = jnp.ones(1)
        return {"a": shared, "b": shared}

    task = Task(
        Model.from_functions(init, lambda p, x: (2 * p["a"] + 3 * p["b"]) * x[:, 0]),
        lambda out, target: out - target,
    )
    data = dure.Federated({"x": np.ones((1, 1), np.float32), "y": np.zeros(1, np.float32)}, np.array([0, 1]))
    np.testing.assert_allclose(
        ask(iterate, 1, task, data, steps=1, optimizer=0.1, **FULL), [[0.5]], rtol=1e-6
    )


def test_predict_runs_the_model() -> None:
    inputs = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]], np.float32)

    def question(w: Any, oracle: Any) -> Any:
        return oracle.predict(w, jnp.asarray(inputs))

    np.testing.assert_allclose(ask(question, 2, LINEAR, ROWS, start=[1.0, -1.0, 2.0])[0], [5.0, -1.0])
    assert jax.config.jax_enable_x64 is False
