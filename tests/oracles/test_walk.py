"""Local loops of a method's own, parts that stay, repeated plans: against the same steps in NumPy."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from dure.oracles.model import Model
from dure.oracles.optimizer import sgd
from dure.oracles.task import Task
from dure.simulation.plan import Work, build
from problems import LINEAR, ask, make_engine, rows_data, vector

SIZES = np.array([7, 23, 1, 10, 0, 4])
ROWS = rows_data(SIZES)
LOCAL = {"epochs": 2, "batch_size": 4}
PLACES = pytest.mark.parametrize(
    "place", [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 3}], ids=["one by one", "vmap"]
)


def gradient(w: np.ndarray, rows: np.ndarray) -> np.ndarray:
    x, y = ROWS.columns["x"][rows].astype(np.float64), ROWS.columns["y"][rows].astype(np.float64)
    return x.T @ (x @ w - y) / len(rows)


def minibatches(client: int) -> list[np.ndarray]:
    """The rows of each of the client's local steps in round 1 with seed 0."""
    ids = np.array([client])
    plan = build(Work(2, None, 4), 0, 1, ids, ROWS.offsets[ids], SIZES[ids], 4)
    steps = plan.order.reshape(-1, 4)[: int(plan.steps[0])]
    return [rows[rows >= 0] for rows in steps]


@PLACES
@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_walk_takes_the_plans_minibatches_in_turn(batches: int, place: dict[str, Any]) -> None:
    """b at a time, disjoint while the plan lasts, beginning anew at its end; ⌈steps / b⌉ turns."""

    def question(w: Any, oracle: Any) -> Any:
        def step(state: Any, *given: Any) -> Any:
            y, turns = state
            for i, batch in enumerate(given, 1):
                y = y - 0.05 * i * batch.gradient(y)
            return y, turns + 1

        y, turns = oracle.walk((w, jnp.float32(0)), step, batches=batches)
        return vector(y, turns)

    clients = (0, 1, 2, 3, 5)
    found = ask(question, 4, LINEAR, ROWS, clients=clients, **LOCAL, **place)
    for client, answer in zip(clients, found, strict=True):
        plan = minibatches(client)
        y, turns = np.zeros(3), -(-len(plan) // batches)
        for t in range(turns):
            for i in range(batches):
                y = y - 0.05 * (i + 1) * gradient(y, plan[(t * batches + i) % len(plan)])
        np.testing.assert_allclose(answer, [*y, turns], rtol=1e-4, atol=1e-6)


@PLACES
def test_repeats_go_through_the_plan_again(place: dict[str, Any]) -> None:
    """The momentum goes on from pass to pass; `gain` and `steps` count all of them."""

    def question(w: Any, oracle: Any) -> Any:
        y = oracle.solve(w, repeats=3)
        return vector(y.w, y.steps, y.gain)

    clients = (0, 1, 2)
    found = ask(
        question, 5, LINEAR, ROWS, clients=clients, optimizer=sgd(0.05, momentum=0.5), **LOCAL, **place
    )
    for client, answer in zip(clients, found, strict=True):
        plan = 3 * minibatches(client)
        y, buffer, z, pace = np.zeros(3), np.zeros(3), 0.0, 0.0
        for rows in plan:
            buffer, pace = 0.5 * buffer + gradient(y, rows), 0.5 * pace + 1
            y, z = y - 0.05 * buffer, z + 0.05 * pace
        np.testing.assert_allclose(answer, [*y, len(plan), z], rtol=1e-4, atol=1e-6)


def split_task() -> Task:
    model = Model.from_functions(
        lambda key: {"a": jnp.zeros(1), "b": jnp.zeros(2)},
        lambda params, x: x @ jnp.concatenate([params["a"], params["b"]]),
        name="split",
    )
    return Task(model, lambda out, target: 0.5 * (out - target) ** 2, name="split")


class Half(dure.FedPer):
    """Moves one part only."""

    train = "shared"

    def local(self, server: Any, own: Any, oracle: Any) -> Any:
        y = oracle.solve(oracle.join(server.w, own), train=self.train).w
        return dure.Update(oracle.shared(y) - server.w), oracle.private(y)


class OtherHalf(Half):
    train = "private"


class Wrong(Half):
    train = "privat"


@PLACES
def test_only_the_named_part_moves(place: dict[str, Any]) -> None:
    """Shared and private order in the vector: "a" is private and comes behind "b"; the other part keeps its bits."""
    keywords = {"steps": 1, "batch_size": math.inf, "optimizer": sgd(0.1, momentum=0.9), **place}
    data = rows_data([5])
    x, y = data.columns["x"].astype(np.float64), data.columns["y"]
    step = 0.1 * x.T @ y / 5  # from zero
    for method, moved in ((Half, [False, True, True]), (OtherHalf, [True, False, False])):
        engine = make_engine(method(("a",)), split_task(), data, **keywords)
        engine.launch()
        found = [*engine.store.gather(np.array([0]))[0], *np.asarray(engine.model.server.w)]
        np.testing.assert_allclose(found, np.where(moved, step, 0), rtol=1e-5)
    with pytest.raises(ConfigError, match="train='privat' is not known"):
        make_engine(Wrong(("a",)), split_task(), data, **keywords)


def test_a_rate_scales_every_displacement_and_the_gain() -> None:
    def question(w: Any, oracle: Any) -> Any:
        y = oracle.solve(w, rate=1 / oracle.steps)
        return vector(y.w, y.gain, oracle.steps)

    clients = (0, 1, 3)
    found = ask(question, 5, LINEAR, ROWS, clients=clients, optimizer=0.3, **LOCAL)
    for client, answer in zip(clients, found, strict=True):
        plan = minibatches(client)
        y = np.zeros(3)
        for rows in plan:
            y = y - 0.3 / len(plan) * gradient(y, rows)
        np.testing.assert_allclose(answer, [*y, 0.3, len(plan)], rtol=1e-4, atol=1e-6)


def test_labels_are_counted() -> None:
    labels = np.array([0, 2, 2, 1, 2, 2, 0])
    data = dure.Federated({"x": np.zeros((7, 3), np.float32), "y": labels}, np.array([0, 3, 3, 7]))
    task = dure.classification(dure.models.softmax_regression(3, 4))

    def question(w: Any, oracle: Any) -> Any:
        return oracle.labels(4) + 0 * oracle.solve(w).w[0]

    found = ask(question, 4, task, data, clients=(0, 2), steps=1)
    np.testing.assert_array_equal(found, [[1, 0, 2, 0], [1, 1, 2, 0]])
