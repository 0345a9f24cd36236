"""What cannot be averaged is set aside and named, and the round goes on (law 4)."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.algorithms.base import Algorithm, Server, Update
from dure.errors import ConfigError
from dure.oracles.model import Model
from dure.oracles.task import Task
from problems import Cyclic, Only, make_engine

SCHEDULES = pytest.mark.parametrize(
    "schedule",
    [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 3}],
    ids=["sequential", "vectorised"],
)


def line(values: Any, sizes: Any = 1) -> dure.Federated:
    """Client k has sizes[k] rows (values[k], values[k])."""
    sizes = np.broadcast_to(sizes, len(values))
    x = np.repeat(np.asarray(values, np.float32), sizes)
    return dure.Federated(
        {"x": x[:, None], "y": np.zeros(len(x), np.float32)}, np.concatenate([[0], np.cumsum(sizes)])
    )


def make_task(loss: Any) -> Task:
    """The loss of a row is loss(x, w), in a model of one parameter that starts at 0."""

    def apply(params: Any, x: Any) -> Any:
        return jnp.stack([x[:, 0], x[:, 0] * 0 + params["w"]], -1)

    model = Model.from_functions(lambda key: {"w": jnp.zeros(1)}, apply)
    return Task(model, lambda out, target: loss(out[:, 0], out[:, 1]))


#: The gradient at 0 is −x: one step of rate 1 moves w by the mean of x. Rows above 90 make trouble.
SLOPES = {99: np.nan, 96: -1e20, 95: -2e12}


def troubled(x: Any, w: Any) -> Any:
    slope = jnp.where(x > 90, 0.0, -x)
    for row, value in SLOPES.items():
        slope = jnp.where(x == row, value, slope)
    steep = jnp.where(x == 98, jnp.sqrt(jnp.where(x == 98, w, 1.0)), 0.0)  # 0, with an infinite gradient
    return slope * w + steep + jnp.where(x == 97, jnp.nan, 0.0)


TASK = make_task(troubled)
ONE_STEP = {"steps": 1, "batch_size": math.inf, "optimizer": 1.0}


@SCHEDULES
@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (99, "update not finite; loss not finite"),
        (98, "update not finite"),
        (97, "loss not finite"),
        (96, "too large"),
        (95, "too large"),
    ],
)
def test_one_client_is_set_aside_and_named(trouble: float, reason: str, schedule: dict[str, Any]) -> None:
    """Defects A2 and A4: the mean is over the others, exactly."""
    data = line([1.0, trouble, 4.0], [10, 10, 30])
    engine = make_engine(dure.FedAvg(), TASK, data, **ONE_STEP, **schedule)
    result = engine.collect(engine.launch())
    assert result.status[0] == result.status[2] == "ok"
    for part in reason.split("; "):
        assert part in result.status[1]
    assert result.accepted == 2
    np.testing.assert_allclose(engine.model.server.w, [(10 * 1 + 30 * 4) / 40], rtol=1e-6)


@SCHEDULES
@pytest.mark.parametrize("local", [{"steps": 1, "batch_size": 4}, {"steps": 1, "batch_size": math.inf}])
def test_a_broken_row_reaches_nobody_elses_short_batch(
    local: dict[str, Any], schedule: dict[str, Any]
) -> None:
    """Masks keep a padded row's loss out, but 0 · NaN is NaN in a gradient: padding must be a row of one's own."""
    data = line([99.0, 1.0, 4.0, 0.0], [2, 3, 1, 0])
    engine = make_engine(dure.FedAvg(), TASK, data, optimizer=1.0, **local, **schedule)
    assert engine.collect(engine.launch()).status[1:] == ["ok", "ok", "no examples"]
    np.testing.assert_allclose(engine.model.server.w, [(3 * 1 + 4) / 4], rtol=1e-6)


def test_horvitz_thompson_counts_a_rejected_client_as_nothing() -> None:
    data = line([1.0, 99, 4.0], [10, 10, 30])
    engine = make_engine(dure.FedAvg(), TASK, data, estimator="horvitz-thompson", **ONE_STEP)
    engine.launch()
    np.testing.assert_allclose(engine.model.server.w, [(10 * 1 + 30 * 4) / 50], rtol=1e-6)


@SCHEDULES
def test_records_name_the_client_and_the_reason(schedule: dict[str, Any]) -> None:
    data = line([1.0, 99.0, 4.0, 0.0], [1, 1, 1, 0])
    run = dure.simulate(dure.FedAvg(), TASK, data, rounds=2, **ONE_STEP, **schedule)
    for record in run.rounds[1:]:
        assert record["status"] == "ok"
        assert (record["clients"], record["accepted"], record["rejected"], record["examples"]) == (4, 2, 1, 2)
        assert record["rejections"] == ["client 1: update not finite; loss not finite"]
        assert math.isfinite(record["train_loss"])
    first = run.participation[run.participation["round"] == 1]
    assert first["status"].tolist() == ["ok", "update not finite; loss not finite", "ok", "no examples"]
    assert first["steps"].tolist() == [1, 1, 1, 0]
    assert first["weight"].tolist() == [1, 1, 1, 0]
    assert np.isfinite(run.model["w"]).all()


def test_names_are_the_data_sets() -> None:
    data = dure.Federated(
        {"x": np.float32([[1], [99]]), "y": np.zeros(2, np.float32)}, np.array([0, 1, 2]),
        client_names=["Seoul", "Busan"],
    )  # fmt: skip
    run = dure.simulate(dure.FedAvg(), TASK, data, rounds=1, **ONE_STEP)
    assert run.rounds[1]["rejections"][0].startswith("client Busan: ")


@SCHEDULES
def test_a_client_that_diverges_while_training(schedule: dict[str, Any]) -> None:
    """A rate that suits the others and not the one with steep rows: ½ (x w − 1)² with x² η > 2."""
    task = make_task(lambda x, w: 0.5 * (x * w - 1) ** 2)
    data = line([1.0, 30.0, 0.5])
    keywords = {"steps": 60, "optimizer": 0.5, "batch_size": math.inf, **schedule}
    run = dure.simulate(dure.FedAvg(), task, data, rounds=1, **keywords)
    assert run.rounds[1]["accepted"] == 2
    assert "client 1" in run.rounds[1]["rejections"][0]
    others = dure.simulate(dure.FedAvg(), task, data, rounds=1, sampler=Only((0, 2)), **keywords)
    np.testing.assert_array_equal(run.model["w"], others.model["w"])


class Counted(NamedTuple):
    w: Any
    rounds: Any


@dataclass(frozen=True)
class Stateful(Algorithm):
    """Counts its rounds: one without anybody must not advance the state."""

    def init(self, w: Any) -> Counted:
        return Counted(w, jnp.float32(0))

    def local(self, server: Counted, client: Any, oracle: Any) -> tuple[Update, Any]:
        return Update(oracle.solve(server.w).w - server.w), client

    def apply(self, server: Counted, mean: Update, round: Any) -> Counted:
        return Counted(server.w + mean.delta, server.rounds + 1)


def test_a_round_with_nobody_left_changes_nothing_defects_a1_a11(tmp_path: Any) -> None:
    data = line([99.0, 97.0, 1.0])
    engine = make_engine(Stateful(), TASK, data, sampler=Alternating(), **ONE_STEP)
    engine.launch()
    before = [np.asarray(x).tobytes() for x in (engine.model.server.w, engine.model.server.rounds)]
    result = engine.collect(engine.launch())
    assert result.accepted == 0
    assert [np.asarray(x).tobytes() for x in (engine.model.server.w, engine.model.server.rounds)] == before
    engine.launch()
    assert float(engine.model.server.rounds) == 2
    run = dure.simulate(
        Stateful(), TASK, data, rounds=3, sampler=Alternating(), directory=tmp_path / "run", **ONE_STEP
    )
    assert [r["status"] for r in run.rounds] == ["start", "ok", "no usable update", "ok"]
    silent = run.rounds[2]
    assert (silent["clients"], silent["accepted"], silent["rejected"], silent["update_norm"]) == (
        2,
        0,
        2,
        0.0,
    )
    assert silent["train_loss"] is None


class Alternating:
    """Odd rounds ask client 2, even ones the two that are broken."""

    def sample(self, seed: int, round: int, population: Any) -> Any:
        return Only((2,) if round % 2 else (0, 1)).sample(seed, round, population)

    def expected_size(self, population: Any) -> float:
        return 2.0

    def describe(self) -> str:
        return "alternating"


def test_an_empty_cohort_is_a_round_without_an_update() -> None:
    data = line([1.0, 2.0])
    keywords = {"sampler": dure.Poisson(0.05), "rounds": 20, **ONE_STEP}
    run = dure.simulate(dure.FedAvg(), TASK, data, **keywords)
    empty = [r for r in run.rounds[1:] if r["clients"] == 0]
    assert empty
    for record in empty:
        assert (record["status"], record["uplink_bytes"], record["downlink_bytes"]) == (
            "no usable update",
            0,
            0,
        )
    used = sum(r["status"] == "ok" for r in run.rounds[1:])
    assert used == 20 - len(empty) > 0


@SCHEDULES
def test_clients_without_examples_are_legal_and_weigh_nothing(schedule: dict[str, Any]) -> None:
    for weighting in ("examples", "uniform"):
        data = line([5.0, 1.0, 7.0, 3.0], [0, 2, 0, 2])
        engine = make_engine(dure.FedAvg(), TASK, data, weighting=weighting, **ONE_STEP, **schedule)
        result = engine.collect(engine.launch())
        assert result.status == ["no examples", "ok", "no examples", "ok"]
        assert result.steps.tolist() == [0, 1, 0, 1]
        assert result.weights[[0, 2]].tolist() == [0, 0]
        assert (result.accepted, result.senders) == (2, 2)
        np.testing.assert_allclose(engine.model.server.w, [2.0], rtol=1e-6)
    nobody = make_engine(dure.FedSGD(), TASK, data, sampler=Only((0, 2)), **schedule)
    result = nobody.collect(nobody.launch())
    assert (result.accepted, result.senders) == (0, 0)
    assert float(nobody.model.server.w[0]) == 0


def test_a_client_that_took_no_steps_is_not_used() -> None:
    def nothing_from_1(seed: int, round: int, ids: Any, steps: Any) -> Any:
        return np.where(ids == 1, 0, steps)

    for algorithm in (dure.FedAvg(), dure.FedSGD(1.0)):
        engine = make_engine(algorithm, TASK, line([1.0, 5.0, 3.0]), work_limit=nothing_from_1, **ONE_STEP)
        result = engine.collect(engine.launch())
        assert result.status == ["ok", "no steps", "ok"]
        assert (result.accepted, result.senders) == (2, 2)
        np.testing.assert_allclose(engine.model.server.w, [2.0])


def test_a_rejected_client_keeps_its_state_and_a_used_one_takes_the_new_one() -> None:
    data = line([1.0, 99.0, 4.0])
    engine = make_engine(dure.Scaffold(), TASK, data, **{**ONE_STEP, "optimizer": 0.1})
    for _ in range(3):
        result = engine.collect(engine.launch())
        assert result.accepted == 2
    state = engine.store.gather(np.arange(3))
    assert state[1, 0] == 0.0, "the initial state"
    # With linear losses option II stores exactly the gradient, −x.
    np.testing.assert_allclose(state[[0, 2], 0], [-1.0, -4.0], rtol=1e-5)


@dataclass(frozen=True)
class Wrong(Algorithm):
    """Returns what an update must not be."""

    what: str = "dtype"

    def init_client(self, w: Any) -> Any:
        return {"integer": jnp.int32(0), "state": jnp.zeros(2)}.get(self.what)

    def local(self, server: Any, client: Any, oracle: Any) -> tuple[Any, Any]:
        delta = oracle.solve(server.w).w - server.w
        if self.what == "dtype":
            return Update(delta.astype(jnp.float16)), client
        return Update(delta), jnp.zeros(3) if self.what == "state" else client

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        return (server.w, mean.delta) if self.what == "structure" else Server(server.w + mean.delta)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("dtype", r"Wrong\.local returned float16 in update\.delta; what is averaged is float32"),
        ("state", r"Wrong\.local proposed a client state"),
        ("integer", r"Wrong\.init_client returned int32"),
        ("structure", r"Wrong\.apply returned"),
    ],
)
def test_a_wrong_algorithm_is_told_what_is_wrong(what: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(Wrong(what), TASK, line([1.0, 2.0]), **ONE_STEP).launch()


def test_huge_cohorts_and_weights_stay_exact() -> None:
    """Weights of 2²⁴ and more are rounded once to float32, and large clients don't swallow small ones."""
    data = line([1.0, 2.0], [2**20, 1])
    engine = make_engine(dure.FedSGD(1.0), TASK, data, sampler=Cyclic(2))
    engine.launch()
    wanted = np.float32((2**20 * np.float64(1) + 2.0) / (2**20 + 1))
    np.testing.assert_allclose(engine.model.server.w, [wanted], rtol=1e-6)
