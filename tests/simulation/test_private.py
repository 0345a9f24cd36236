"""What is private stays with the client: tensors, statistics, counters; on the wire and in the store."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.channel import wire
from dure.models import mlp
from dure.oracles.layout import Variables
from dure.oracles.model import Model
from dure.oracles.task import Task
from dure.simulation.packing import halves, whole
from problems import make_engine

# ----- the wire --------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
DATA = dure.Federated(
    {"x": RNG.normal(size=(9, 6)).astype(np.float32), "y": RNG.integers(0, 3, 9).astype(np.int32)},
    np.array([0, 4, 9]),
)
CAPTURED: list[tuple[Any, Any]] = []


def listening(method: type[Any]) -> Any:
    """The method, whose clients' updates and states are kept as they are sent (eagerly)."""

    @dataclass(frozen=True)
    class Listening(method):  # type: ignore[misc]
        def local(self, server: Any, own: Any, oracle: Any) -> tuple[Any, Any]:
            update, proposed = super().local(server, own, oracle)
            CAPTURED.append((update, proposed))
            return update, proposed

    return Listening(("dense2",))


@pytest.mark.parametrize(
    "method",
    [
        dure.FedRep,
        *(
            pytest.param(m, marks=pytest.mark.slow)
            for m in (dure.FedPer, dure.LGFedAvg, dure.FedBABU, dure.FedBN)
        ),
    ],
    ids=lambda m: m.__name__,
)
def test_private_bytes_never_appear_in_an_encoded_update(method: type[Any]) -> None:
    engine = make_engine(
        listening(method), dure.classification(mlp(6, (5,), 3)), DATA, eager=True, batch_size=4
    )
    at_first = np.asarray(engine.params()["dense2"]["weight"])
    CAPTURED.clear()
    for _ in range(2):
        engine.launch()
    assert len(CAPTURED) >= 4
    for update, proposed in CAPTURED:
        named = jax.tree_util.tree_leaves_with_path(update)
        tensors = {jax.tree_util.keystr(path).lstrip("."): np.asarray(leaf) for path, leaf in named}
        message = wire.encode(wire.Message(1, 0, 4.0, tensors))
        assert len(message) == engine.uplink_message
        private = [np.asarray(x, np.float32) for x in (*jax.tree.leaves(proposed), at_first)]
        for value in np.concatenate([x.ravel() for x in private]):
            if value not in (0.0, 1.0):  # a bias at its start is not a secret, and zeros are everywhere
                assert value.tobytes() not in message
        assert sum(x.size for x in tensors.values()) == engine.layout.shared_size == 6 * 5 + 5


# ----- statistics ------------------------------------------------------------------------------------------


def normed() -> Task:
    """y = body · scale · x − mean, with a running mean of the client's inputs and a counter of its steps."""

    def init(key: Any) -> Variables:
        params = {"body": jnp.float32(0.5), "norm": {"scale": jnp.float32(2.0)}}
        return Variables(params, {"mean": jnp.float32(5.0), "steps": jnp.int32(2**25 + 1)})

    def apply(params: Any, x: Any, train: bool, buffers: Any, mask: Any) -> Any:
        outputs = params["body"] * params["norm"]["scale"] * x[:, 0] - buffers["mean"]
        if train:
            mean = 0.5 * buffers["mean"] + 0.5 * jnp.sum(mask * x[:, 0]) / jnp.sum(mask)
            buffers = {"mean": mean, "steps": buffers["steps"] + 1}
        return outputs, buffers

    return Task(Model.from_functions(init, apply, name="normed"), lambda out, target: out * (1 + 0 * target))


ROWS = np.float32([1, 3, -2, 4, 4, 7])
LINES = dure.Federated(
    {"x": ROWS[:, None], "y": np.zeros(6, np.float32)},
    np.array([0, 2, 3, 6]),
    client_test={"x": np.float32([[1], [2], [10]]), "y": np.zeros(3, np.float32)},
    client_test_offsets=np.array([0, 1, 2, 3]),
)
MEANS = np.array([2.0, -2.0, 5.0])
LOCAL = {"steps": 2, "batch_size": 16, "optimizer": 0.01}
NORMED = normed()
PLACES = pytest.mark.parametrize(
    "place",
    [{"schedule": "sequential", "devices": 1}, {"schedule": "vectorised", "width": 2, "devices": 2}],
    ids=["sequential", "vectorised"],
)


@PLACES
def test_statistics_and_counters_stay_with_the_client(place: dict[str, Any]) -> None:
    def lost(seed: int, round: int, ids: np.ndarray) -> np.ndarray:
        return (ids == 1) & (round == 1)

    engine = make_engine(dure.FedBN(), NORMED, LINES, lost_uploads=lost, **LOCAL, **place)
    for rounds in (1, 2):
        engine.launch()
        kept = engine.store.gather(np.arange(3))  # scale, mean, counter in two halves
        left = 0.25**rounds  # two steps a round, each halves the distance to the client's own mean
        np.testing.assert_allclose(kept[:, 1], left * 5.0 + (1 - left) * MEANS, rtol=1e-6)
        counters = [int(whole(jnp.asarray(row[2:])[:, None])[0]) for row in kept]
        assert counters == [2**25 + 1 + 2 * rounds] * 3
        assert len(set(kept[:, 0].tolist())) == 3, "every client has its own scale"
        # At the server they are what they were, and they don't travel.
        assert float(engine.model.floats[0]) == 5.0
        assert int(engine.model.ints[0]) == 2**25 + 1
    assert engine.uplink_message == wire.size({"delta": np.zeros(1, np.float32)})
    assert engine.downlink_message == wire.size({"w": np.zeros(1, np.float32)})


def test_other_partial_methods_average_them() -> None:
    engine = make_engine(dure.FedPer(("norm",)), NORMED, LINES, **LOCAL)
    engine.launch()
    mean = (LINES.sizes / 6) @ (0.25 * 5.0 + 0.75 * MEANS)
    assert float(engine.model.floats[0]) == pytest.approx(mean, rel=1e-6)
    assert int(engine.model.ints[0]) == 2**25 + 3
    assert engine.store.gather(np.arange(3)).shape == (3, 1)


def test_training_alone_keeps_them_too_and_sends_nothing() -> None:
    engine = make_engine(dure.LocalOnly(), NORMED, LINES, **LOCAL)
    engine.launch()
    kept = engine.store.gather(np.arange(3))  # body, scale, mean, halves
    np.testing.assert_allclose(kept[:, 2], 0.25 * 5.0 + 0.75 * MEANS, rtol=1e-6)
    assert (engine.uplink_message, engine.downlink_message) == (0, 0)
    assert float(engine.model.floats[0]) == 5.0


@PLACES
def test_a_client_is_evaluated_with_its_own_statistics(place: dict[str, Any]) -> None:
    keywords = {"rounds": 2, "evaluate_clients_every": 2, **LOCAL, **place}
    run = dure.simulate(dure.FedBN(), NORMED, LINES, **keywords)
    engine = make_engine(dure.FedBN(), NORMED, LINES, **LOCAL, **place)
    for _ in range(2):
        engine.launch()
    kept, body = engine.store.gather(np.arange(3)), float(engine.model.server.w[0])
    wanted = body * kept[:, 0] * [1.0, 2.0, 10.0] - kept[:, 1]
    last = run.clients[run.clients["round"] == 2]
    np.testing.assert_allclose(last["personal_loss"], wanted, rtol=1e-5)
    # The server's model with the statistics that everybody begins with, beside it.
    np.testing.assert_allclose(last["loss"], body * 2.0 * np.array([1.0, 2.0, 10.0]) - 5.0, rtol=1e-5)


def test_statistics_survive_resuming(tmp_path: Any) -> None:
    keywords = {"evaluate_clients_every": 1, "client_state": "disk", **LOCAL}
    for name, stops in (("whole", (4,)), ("parts", (2, 4))):
        for rounds in stops:
            dure.simulate(
                dure.FedBN(), NORMED, LINES, rounds=rounds, directory=tmp_path / name, resume=rounds != stops[0],
                **keywords,
            )  # fmt: skip
    for file in ("clients.jsonl", "model.safetensors", "rounds.jsonl"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()


def test_counters_are_kept_exactly() -> None:
    numbers = jnp.array([0, 1, -1, 65535, 65536, 2**24 + 1, 2**31 - 1, -(2**31)], jnp.int32)
    np.testing.assert_array_equal(whole(halves(numbers)), numbers)


# ----- memory ----------------------------------------------------------------------------------------------


def test_a_million_registered_clients_cost_what_took_part(tmp_path: Any) -> None:
    """SCAFFOLD's controls on disk: rows only for those who came (laws 5 and 10)."""
    from dure.simulation.engine import Engine
    from dure.simulation.settings import settings

    data = DATA.replicate(10**6)
    chosen = settings(data, clients_per_round=20, client_state="disk", batch_size=4)
    task = dure.classification(mlp(6, (5,), 3))
    engine = Engine(dure.Scaffold(), task, data, chosen, directory=tmp_path)
    came: set[int] = set()
    for _ in range(3):
        came |= set(engine.collect(engine.launch()).ids.tolist())
    assert max(came) > 10**5
    assert engine.store.used == len(came) == 60
    row = 4 * engine.layout.size
    assert 60 * row <= (tmp_path / "rows.f32").stat().st_size <= 4 * 64 * row
    controls = engine.store.gather(np.array(sorted(came)))
    assert (np.abs(controls).max(1) > 0).all()
    np.testing.assert_array_equal(engine.store.gather(np.setdiff1d([0, 7, 999_999], list(came))), 0)


def test_a_lost_upload_leaves_no_state_behind() -> None:
    lost = {"lost_uploads": lambda seed, round, ids: ids == 1}
    engine = make_engine(dure.Scaffold(), dure.classification(mlp(6, (5,), 3)), DATA, **lost)
    engine.launch()
    assert engine.store.used == 1
