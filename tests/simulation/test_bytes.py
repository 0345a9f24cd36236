"""Bytes are those of real messages (law 8)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.algorithms.scaffold import ControlledUpdate
from dure.channel import wire
from dure.oracles.layout import Variables
from dure.oracles.model import Model
from dure.oracles.task import Task
from problems import LINEAR, QUADRATIC, Only, make_engine, q10, rows_data


def message(engine: Any, tree: Any) -> int:
    """Length of a real message that holds the tree's arrays under their names, and the buffers."""
    named = jax.tree_util.tree_leaves_with_path(tree)
    tensors = {jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf) for path, leaf in named}
    host = jax.device_get(engine.model)
    tensors |= {name: x for name, x in (("buffers", host.floats), ("counters", host.ints)) if x.size}
    return len(wire.encode(wire.Message(3, 12, 40.0, tensors)))


def buffered() -> Task:
    """A model with a running mean and a counter."""

    def init(key: Any) -> Variables:
        return Variables({"w": jnp.zeros(3)}, {"mean": jnp.zeros(2), "count": jnp.zeros((), jnp.int32)})

    def apply(params: Any, x: Any, train: bool, buffers: Any, mask: Any) -> Any:
        new = {"mean": buffers["mean"] + 1.0, "count": buffers["count"] + 1} if train else buffers
        return x @ params["w"], new

    return Task(Model.from_functions(init, apply), lambda out, target: (out - target) ** 2)


@pytest.mark.parametrize(
    ("algorithm", "task", "data"),
    [
        (dure.FedAvg(), LINEAR, rows_data([4, 5])),
        (dure.FedSGD(), LINEAR, rows_data([4, 5])),
        (dure.Scaffold(), QUADRATIC, q10()),
        (dure.FedAvg(), buffered(), rows_data([4, 5])),
    ],
    ids=["fedavg", "fedsgd", "scaffold", "buffers"],
)
def test_counted_bytes_are_the_lengths_of_messages(algorithm: Any, task: Task, data: Any) -> None:
    engine = make_engine(algorithm, task, data)
    server = jax.device_get(engine.model.server)
    update = {"FedAvg": dure.Update(server.w), "FedSGD": dure.Update(server.w)}.get(type(algorithm).__name__)
    if update is None:
        update = ControlledUpdate(server.w, server.w)
    assert engine.uplink_message == message(engine, update)
    assert engine.downlink_message == message(engine, server)


def test_parameters_are_four_bytes_each_and_the_rest_is_small() -> None:
    task = dure.classification(dure.models.softmax_regression(60, 10))
    data = dure.Federated(
        {"x": np.ones((4, 60), np.float32), "y": np.array([0, 1, 2, 9])}, np.array([0, 2, 4])
    )
    engine = make_engine(dure.FedAvg(), task, data)
    assert 4 * 610 < engine.uplink_message < 4 * 610 + 100


def test_rounds_count_senders_up_and_everybody_asked_down() -> None:
    data = rows_data([4, 0, 5, 3])

    def lazy(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return np.where(ids == 3, 0, steps)

    run = dure.simulate(dure.FedAvg(), LINEAR, data, rounds=3, work_limit=lazy)
    engine = make_engine(dure.FedAvg(), LINEAR, data)
    for record in run.rounds[1:]:
        assert record["uplink_bytes"] == 2 * engine.uplink_message
        assert record["downlink_bytes"] == 4 * engine.downlink_message
        assert record["cumulative_uplink_bytes"] == record["round"] * record["uplink_bytes"]
        assert record["cumulative_downlink_bytes"] == record["round"] * record["downlink_bytes"]


def test_a_rejected_update_was_sent_all_the_same() -> None:
    data = rows_data([4, 5])
    broken = Task(LINEAR.model, lambda out, target: jnp.where(target == 0, jnp.nan, 0.0 * out))
    zero = dure.Federated({**data.columns, "y": np.zeros(9, np.float32)}, data.offsets)
    engine = make_engine(dure.FedAvg(), broken, zero, sampler=Only((0, 1)))
    result = engine.collect(engine.launch())
    assert (result.accepted, result.senders) == (0, 2)


# ----- buffers and counters --------------------------------------------------------------------------------


def statistics() -> Task:
    """Two buffers: the mean of a client's last batch, and a count of its steps."""

    def init(key: Any) -> Variables:
        return Variables({"w": jnp.ones(1)}, {"mean": jnp.float32(5), "steps": jnp.zeros((), jnp.int32)})

    def apply(params: Any, x: Any, train: bool, buffers: Any, mask: Any) -> Any:
        if train:
            mean = jnp.sum(mask * x[:, 0]) / jnp.sum(mask)
            buffers = {"mean": mean, "steps": buffers["steps"] + 1}
        return x[:, 0] * params["w"], buffers

    return Task(Model.from_functions(init, apply), lambda out, target: out)


STATISTICS = statistics()
ROWS = dure.Federated(
    {"x": np.float32([[0.2], [0.4], [0.4], [0.4]]), "y": np.zeros(4, np.float32)}, np.array([0, 1, 4])
)


@pytest.mark.parametrize("server_lr", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("schedule", [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 2}])
def test_buffers_are_averaged_whatever_the_server_does_defect_b4(
    server_lr: float, schedule: dict[str, Any]
) -> None:
    for weighting, wanted in (("uniform", 0.3), ("examples", 0.35)):
        for estimator in ("ratio", "horvitz-thompson"):
            engine = make_engine(
                dure.FedAvg(server_lr), STATISTICS, ROWS, weighting=weighting, estimator=estimator, epochs=1,
                batch_size=3, **schedule,
            )  # fmt: skip
            engine.launch()
            assert float(engine.model.floats[0]) == pytest.approx(wanted, rel=1e-6)


def test_buffers_are_a_mean_also_where_updates_are_an_estimated_total() -> None:
    """Horvitz–Thompson weights don't sum to 1 in a round; a running mean must stay one."""
    keywords = {"estimator": "horvitz-thompson", "sampler": Only((1,), 0.5), "epochs": 1, "batch_size": 3}
    engine = make_engine(dure.FedAvg(), STATISTICS, ROWS, **keywords)
    result = engine.collect(engine.launch())
    assert result.weights[0] == 1.5
    assert float(engine.model.floats[0]) == pytest.approx(0.4, rel=1e-6)


def test_counters_are_the_maximum_defect_a6() -> None:
    engine = make_engine(dure.FedAvg(), STATISTICS, ROWS, epochs=2, batch_size=1)
    engine.launch()
    assert engine.model.ints.dtype == jnp.int32
    assert int(engine.model.ints[0]) == 6, "client 1 took six steps, client 0 two"
    engine.launch()
    assert int(engine.model.ints[0]) == 12


def test_a_client_whose_statistics_are_broken_is_set_aside() -> None:
    """The buffers are checked as the parameters are."""

    def apply(params: Any, x: Any, train: bool, buffers: Any, mask: Any) -> Any:
        if train:
            buffers = {"mean": jnp.where(x[0, 0] > 1, jnp.nan, x[0, 0])}
        return x[:, 0] * params["w"], buffers

    def init(key: Any) -> Variables:
        return Variables({"w": jnp.ones(1)}, {"mean": jnp.float32(5)})

    task = Task(Model.from_functions(init, apply), lambda out, target: out)
    data = dure.Federated(
        {"x": np.float32([[0.5], [2.0]]), "y": np.zeros(2, np.float32)}, np.array([0, 1, 2])
    )
    engine = make_engine(dure.FedAvg(), task, data)
    result = engine.collect(engine.launch())
    assert result.status == ["ok", "update not finite"]
    assert float(engine.model.floats[0]) == 0.5


# ----- flax ------------------------------------------------------------------------------------------------


def flax_tasks() -> tuple[Task, Task]:
    nn = pytest.importorskip("flax.linen")

    class Normed(nn.Module):  # type: ignore[misc,name-defined]
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(x)
            return nn.Dense(2)(x)

    class Dropping(nn.Module):  # type: ignore[misc,name-defined]
        @nn.compact
        def __call__(self, x: Any, train: bool) -> Any:
            return nn.Dense(2)(nn.Dropout(0.5, deterministic=not train)(x))

    example = np.zeros((1, 3), np.float32)
    return tuple(dure.classification(m, example_input=example) for m in (Normed(), Dropping()))  # type: ignore[return-value]


def labelled(sizes: list[int]) -> dure.Federated:
    rng = np.random.default_rng(5)
    n = sum(sizes)
    columns = {
        "x": rng.normal(2.0, 3.0, (n, 3)).astype(np.float32),
        "y": rng.integers(0, 2, n).astype(np.int32),
    }
    return dure.Federated(columns, np.concatenate([[0], np.cumsum(sizes)]))


def test_batch_norm_statistics_are_the_weighted_mean_of_the_clients() -> None:
    """One full batch: running = 0.9 · old + 0.1 · the client's own, padding left out; then n_k-weighted."""
    data = labelled([6, 2, 9])
    engine = make_engine(dure.FedAvg(3.0), flax_tasks()[0], data, epochs=1, batch_size=16)
    engine.launch()
    buffers = engine.variables().buffers["batch_stats"]["BatchNorm_0"]
    mean = var = np.zeros(3)
    for k in range(3):
        x = data.client(k)["x"].astype(float)
        share = len(x) / 17
        mean = mean + share * 0.1 * x.mean(0)
        var = var + share * (0.9 + 0.1 * x.var(0))
    np.testing.assert_allclose(buffers["mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(buffers["var"], var, rtol=1e-5)


def test_batch_norm_trains_with_every_schedule_alike() -> None:
    task, data = flax_tasks()[0], labelled([6, 2, 9, 0, 5])
    models = []
    for schedule in ({"schedule": "sequential"}, {"schedule": "vectorised", "width": 2}):
        engine = make_engine(dure.FedAvg(), task, data, epochs=2, batch_size=4, **schedule)
        for _ in range(3):
            engine.launch()
        models.append(jax.device_get(engine.model))
    np.testing.assert_allclose(models[0].server.w, models[1].server.w, atol=1e-5)
    np.testing.assert_allclose(models[0].floats, models[1].floats, rtol=1e-5)


def test_dropout_is_repeatable_and_differs_by_round_and_client() -> None:
    task = flax_tasks()[1]
    one = labelled([8])
    twins = dure.Federated(
        {name: np.concatenate([x, x]) for name, x in one.columns.items()}, np.array([0, 8, 16])
    )
    models = []
    for schedule in (
        {"schedule": "sequential"},
        {"schedule": "sequential"},
        {"schedule": "vectorised", "width": 2},
    ):
        engine = make_engine(dure.FedAvg(), task, twins, epochs=1, batch_size=4, **schedule)
        first = engine.collect(engine.launch())
        assert first.norm[0] != first.norm[1], "clients with equal rows drop other units"
        models.append(np.asarray(engine.model.server.w))
    assert models[0].tobytes() == models[1].tobytes()
    np.testing.assert_allclose(models[0], models[2], atol=1e-5)
    still = make_engine(dure.FedAvg(1e-30), task, twins, epochs=1, batch_size=8)
    norms = [still.collect(still.launch()).norm[0] for _ in range(2)]
    assert norms[0] != norms[1], "the model hardly moved, the round is another"
