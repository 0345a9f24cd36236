"""`simulate`: the pages on the engine's oracle in float32, records, bytes, lost links, resuming, bad input."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import dure
from dure import decentralized as dd
from dure.channel import wire
from dure.decentralized.network import Network, compiled_round
from dure.errors import ConfigError, DataError, RunError
from dure.oracles.model import Model
from problems import LINEAR, Q10, QUADRATIC, linear_task, q10, rows_data, train

RING = dd.metropolis(dd.ring(10))
FULL: dict[str, Any] = {"batch_size": math.inf}
OPTIMUM = Q10.optimum(Q10.uniform)


class Quadratics:
    """Full gradient steps on the ten quadratics, in NumPy."""

    def __init__(self, eta: float, steps: int):
        self.keys = jax.random.split(jax.random.key(0), 10)
        self.eta, self.steps = eta, steps

    def gradient(self, x: Any) -> Any:
        return jax.numpy.einsum("ijk,ik->ij", Q10.A, x - Q10.b)

    def solve(self, start: Any) -> Any:
        for _ in range(self.steps):
            start = start - self.eta * self.gradient(start)
        return start


def models(method: Any, rounds: int, monkeypatch: Any, graph: Any = None, **keywords: Any) -> Any:
    """The run on Q10 and the network behind it."""
    kept = []
    init = Network.__init__

    def keep(self: Network, *arguments: Any) -> None:
        init(self, *arguments)
        kept.append(self)

    monkeypatch.setattr(Network, "__init__", keep)
    run = dd.simulate(
        method, QUADRATIC, q10(), graph or dd.ring(10), rounds=rounds, **{"batch_size": math.inf} | keywords
    )
    return run, kept[0]


# ----- the same rounds as the pages in float64 ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "keywords"),
    [
        (dd.DPSGD(), {"optimizer": 0.1}),
        (dd.DPSGD(True), {"optimizer": 0.1, "steps": 4}),
        (dd.GradientTracking(0.05), {}),
        (dd.Extra(0.05), {}),
        (dd.PushSum(), {"optimizer": 0.1}),
        (dd.Choco(dd.TopK(2), 0.4), {"optimizer": 0.1}),
    ],
    ids=["dpsgd", "local steps", "tracking", "extra", "push-sum", "choco"],
)
def test_rounds_are_those_of_the_page(method: Any, keywords: Any, monkeypatch: Any) -> None:
    steps, eta = keywords.get("steps", 1), keywords.get("optimizer", 0.0)
    _, network = models(method, 15, monkeypatch, **keywords)
    with jax.enable_x64(True):
        state = method.init(jax.numpy.zeros((10, 5)))
        for _ in range(15):
            state = method.step(state, jax.numpy.asarray(RING), Quadratics(eta, steps))
        wanted = np.asarray(method.models(state))
    np.testing.assert_allclose(network.models(), wanted, atol=2e-5)


def test_the_schedule_can_not_be_seen() -> None:
    """Nodes one by one or all together, with unequal numbers of steps and one node without rows."""
    data = rows_data([5, 0, 3, 6])
    runs = []
    for schedule in ("sequential", "vectorised"):
        run = dd.simulate(dd.DPSGD(), LINEAR, data, dd.ring(4), rounds=5, batch_size=2, schedule=schedule)
        assert run.config["schedule"] == {"name": schedule}
        runs.append(run)
    np.testing.assert_allclose(runs[0].model["w"], runs[1].model["w"], atol=1e-6)


def test_dpsgd_stops_at_the_solution_of_its_linear_system(monkeypatch: Any) -> None:
    """(I − W ⊗ I + η A) X = η A b, error 1.5083 at η = 0.1."""
    big = np.zeros((50, 50))
    for i, A in enumerate(Q10.A):
        big[5 * i : 5 * i + 5, 5 * i : 5 * i + 5] = A
    left = np.eye(50) - np.kron(RING, np.eye(5)) + 0.1 * big
    limit = np.linalg.solve(left, 0.1 * big @ Q10.b.reshape(-1)).reshape(10, 5)
    run, network = models(dd.DPSGD(), 250, monkeypatch)
    np.testing.assert_allclose(network.models(), limit, atol=1e-5)
    assert np.linalg.norm(network.models() - OPTIMUM, axis=1).max() == pytest.approx(1.5083, abs=1e-4)
    spread = np.sqrt(((limit - limit.mean(0)) ** 2).sum(1).mean())
    assert run.final["consensus"] == pytest.approx(spread, abs=1e-5)
    np.testing.assert_allclose(run.model["x"], limit.mean(0), atol=1e-5)


@pytest.mark.parametrize("method", [dd.GradientTracking(0.1), dd.Extra(0.1)], ids=["tracking", "extra"])
def test_exact_methods_reach_the_optimum_when_links_are_lost(method: Any, monkeypatch: Any) -> None:
    run, network = models(method, 350, monkeypatch, lost_messages=0.2)
    np.testing.assert_allclose(network.models(), np.tile(OPTIMUM, (10, 1)), atol=1e-5)
    lost = np.array([r["lost_messages"] for r in run.rounds[1:]])
    assert (lost % 2 == 0).all(), "both directions of a link are lost together"
    share = 5 * np.sqrt(0.2 * 0.8 / 3500)
    assert lost.sum() / (350 * 20) == pytest.approx(0.2, abs=share)
    assert {r["messages"] for r in run.rounds[1:]} == {20}


def test_push_sum_loses_each_direction_by_itself_and_no_mass(monkeypatch: Any) -> None:
    graph = dd.exponential(10, directed=True)
    run, network = models(dd.PushSum(), 60, monkeypatch, graph, lost_messages=0.3, optimizer=0.02)
    assert float(network.state.w.sum()) == pytest.approx(10, abs=1e-4)
    assert any(r["lost_messages"] % 2 for r in run.rounds[1:])


# ----- the same arithmetic as the federated engine --------------------------------------------------------------


@pytest.mark.parametrize(("steps", "batch"), [(1, math.inf), (3, 2)], ids=["FedSGD", "minibatches"])
def test_on_the_complete_graph_adapt_then_combine_is_fedavg(steps: int, batch: float) -> None:
    """Same plan, same minibatches, same optimizer: only the mean is taken otherwise."""
    data = rows_data([4, 7, 2, 5])
    keywords: dict[str, Any] = {"steps": steps, "batch_size": batch, "optimizer": dure.sgd(0.1, momentum=0.5)}
    run = dd.simulate(dd.DPSGD(True), LINEAR, data, dd.complete(4), rounds=8, seed=5, **keywords)
    w = train(dure.FedAvg(), LINEAR, data, 8, weighting="uniform", seed=5, **keywords)
    np.testing.assert_allclose(run.model["w"], w, atol=2e-6)
    assert run.final["consensus"] < 1e-6
    if steps == 1:
        sgd = train(dure.FedSGD(0.1), LINEAR, data, 8, weighting="uniform", seed=5)
        np.testing.assert_allclose(run.model["w"], sgd, atol=2e-6)


def test_tracking_takes_the_mean_of_the_rounds_minibatch_gradients() -> None:
    """Batches of one row over one epoch: their mean is the full gradient, whatever the order."""
    data = rows_data([4, 4, 4])
    runs = [
        dd.simulate(dd.GradientTracking(0.1), LINEAR, data, dd.ring(3), rounds=6, batch_size=b, seed=s)
        for b, s in ((1, 0), (1, 9), (math.inf, 0))
    ]
    for run in runs[1:]:
        np.testing.assert_allclose(run.model["w"], runs[0].model["w"], atol=1e-6)


# ----- the record ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "tensors"),
    [
        (dd.DPSGD(), {"x": (5,)}),
        (dd.GradientTracking(), {"x": (5,), "y": (5,)}),
        (dd.PushSum(), {"x": (5,), "w": ()}),
        (dd.Choco(dd.TopK(2)), {"values": (2,), "places": (2,)}),
    ],
)
def test_bytes_are_the_lengths_of_encoded_messages(method: Any, tensors: Any, monkeypatch: Any) -> None:
    run, _ = models(method, 2, monkeypatch)
    contents = {n: np.zeros(s, np.int32 if n == "places" else np.float32) for n, s in tensors.items()}
    length = len(wire.encode(wire.Message(1, 0, 0.0, contents)))
    assert [r["cumulative_uplink_bytes"] for r in run.rounds] == [0, 20 * length, 40 * length]
    assert run.config["messages"] == {"message_bytes": length}


def test_the_record_names_the_mean_and_the_worst_node(tmp_path: Path) -> None:
    data = dure.data.digits()
    task = dure.classification(dure.models.softmax_regression(64, 10))
    run = dd.simulate(
        dd.DPSGD(),
        task,
        data,
        dd.ring(14),
        rounds=3,
        optimizer=0.3,
        evaluate_every=2,
        directory=tmp_path / "run",
    )
    assert [("test_accuracy" in r) for r in run.rounds] == [True, False, True, True]
    first, last = run.rounds[0], run.rounds[-1]
    assert first["test_accuracy"] == first["test_accuracy_worst"]  # all begin alike
    nodes = run.clients
    assert len(nodes) == 14
    assert nodes["accuracy"].min() == last["test_accuracy_worst"]
    assert nodes["loss"].max() == last["test_loss_worst"]
    test = data.central_test
    logits, _ = task.model.apply(dure.Variables(run.model), test["x"], train=False, key=None, mask=None)
    assert last["test_accuracy"] == pytest.approx(
        np.mean(np.asarray(logits).argmax(1) == test["y"]), abs=1e-9
    )
    assert run.config["graph"]["spectral_gap"] == pytest.approx(
        1 - (1 + 2 * np.cos(2 * np.pi / 14)) / 3, abs=1e-9
    )
    assert run.config["objective"].startswith("(1/N) Σ F_k")
    assert run.participation["status"].eq("ok").all()
    assert "test accuracy" in run.summary()
    assert run.report().exists()
    assert set(dure.Run.open(tmp_path / "run").state_dict()) == set(run.state_dict())


def test_another_learning_rate_does_not_compile_again() -> None:
    data = rows_data([3, 3])
    before = None
    for eta in (0.1, 0.2, 0.3):
        dd.simulate(dd.Extra(eta), LINEAR, data, dd.ring(2), rounds=2)
        before = before or compiled_round.cache_info().misses
    assert compiled_round.cache_info().misses == before


def test_a_node_whose_work_can_not_be_used_is_set_aside_and_named() -> None:
    """Node 1's rows overflow. It keeps mixing what it hears, and the others go on as if it had no rows."""
    good, bad = rows_data([3, 3, 3]), rows_data([3, 3, 3])
    columns = {name: np.array(values) for name, values in bad.columns.items()}
    columns["x"][3:6] = 1e30
    bad = dure.Federated(columns, bad.offsets)
    empty = dure.Federated(
        {name: np.delete(values, range(3, 6), 0) for name, values in good.columns.items()},
        np.array([0, 3, 3, 6]),
    )
    for method, keywords in ((dd.DPSGD(), {"optimizer": 0.1}), (dd.GradientTracking(0.1), {})):
        run = dd.simulate(method, LINEAR, bad, dd.ring(3), rounds=4, **keywords)
        (reason,) = run.rounds[-1]["rejections"]
        assert reason.startswith("client 1: update ")
        assert run.participation["status"].ne("ok").tolist() == [False, True, False] * 4
        other = dd.simulate(method, LINEAR, empty, dd.ring(3), rounds=4, **keywords)
        assert other.participation["status"].tolist() == ["ok", "no examples", "ok"] * 4
        np.testing.assert_allclose(run.model["w"], other.model["w"], atol=1e-6)
        assert run.rounds[-1]["train_loss"] == pytest.approx(other.rounds[-1]["train_loss"], abs=1e-6)


def test_a_run_that_diverges_says_so() -> None:
    with pytest.raises(RunError, match=r"not finite after round 1: the method diverged"):
        dd.simulate(dd.Extra(1e30), QUADRATIC, q10(), dd.ring(10), rounds=3, **FULL)


# ----- randomness and resuming -----------------------------------------------------------------------------------


def long(directory: Path | None, **keywords: Any) -> dure.Run:
    data = rows_data([5, 3, 6, 4, 2], seed=1)
    chosen: dict[str, Any] = {
        "rounds": 9,
        "batch_size": 2,
        "optimizer": dure.sgd(0.05, momentum=0.5, round_decay=0.9),
        "seed": 3,
        "checkpoint_every": 4,
    }
    method = keywords.pop("method", dd.PushSum())
    graph = dd.exponential(5, directed=True)
    return dd.simulate(
        method, LINEAR, data, graph, lost_messages=0.3, directory=directory, **chosen | keywords
    )


def records(directory: Path) -> list[bytes]:
    return [
        (directory / name).read_bytes()
        for name in ("rounds.jsonl", "participation.jsonl", "model.safetensors")
    ]


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    long(tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        long(tmp_path / "cut", on_round=stop)
    assert dure.Run.open(tmp_path / "cut").state == "interrupted"
    long(tmp_path / "cut", resume=True)
    assert records(tmp_path / "cut") == records(tmp_path / "whole")
    assert dure.Run.open(tmp_path / "cut").state == "complete"

    short = tmp_path / "short"
    long(short, rounds=5)
    long(short, rounds=9, resume=True)
    assert records(short) == records(tmp_path / "whole")
    with pytest.raises(ConfigError, match=r"not the same experiment: seed was 3 and is 4"):
        long(short, resume=True, seed=4)
    with pytest.raises(RunError, match="has done 9 rounds already"):
        long(short, resume=True, rounds=7)
    path = short / "checkpoint" / "state.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(RunError, match="damaged: its checksum does not match"):
        long(short, resume=True)


def test_a_run_stopped_before_its_first_checkpoint_begins_anew(tmp_path: Path) -> None:
    long(tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        long(tmp_path / "cut", on_round=stop)
    long(tmp_path / "cut", resume=True)
    assert records(tmp_path / "cut") == records(tmp_path / "whole")


def test_everything_random_follows_from_the_seed() -> None:
    first, again, other = (long(None, seed=s) for s in (3, 3, 4))
    assert first.rounds == again.rounds
    assert first.rounds[-1] != other.rounds[-1]
    lost = [r["lost_messages"] for r in first.rounds[1:]]
    assert len(set(lost)) > 1, "every round has its own losses"


def test_every_node_and_round_compresses_by_its_own_key(monkeypatch: Any) -> None:
    """Which single entry of five is sent: not the same one everywhere, and with time every one by everybody."""
    places = []

    def look(record: dict[str, Any]) -> None:
        if record["round"]:
            places.append(np.asarray(networks[0].state.replica) != 0)

    networks: list[Network] = []
    init = Network.__init__
    monkeypatch.setattr(Network, "__init__", lambda self, *a: (init(self, *a), networks.append(self))[0])
    data = rows_data([2] * 10, d=5)
    task = linear_task(5)
    dd.simulate(dd.Choco(dd.RandomK(1), 0.1), task, data, dd.ring(10), rounds=40, on_round=look)
    assert (places[0].sum(1) == 1).all()
    assert places[0].any(0).sum() > 1
    assert (places[1].sum(1) <= 2).all()
    assert places[-1].all(), "a chance of (4/5)^40 for each entry not to be sent"


# ----- bad input -------------------------------------------------------------------------------------------------

THREE = rows_data([2, 2, 2])
LOPSIDED = (np.eye(3) + np.roll(np.eye(3), 1, 0)) / 2


def refused(
    method: Any = None, graph: Any = None, data: Any = THREE, task: Any = LINEAR, **keywords: Any
) -> None:
    dd.simulate(
        method or dd.DPSGD(), task, data, dd.ring(3) if graph is None else graph, **{"rounds": 1} | keywords
    )


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"rounds": 0}, r"rounds=0 is not allowed"),
        ({"evaluate_every": 0}, r"evaluate_every=0"),
        ({"checkpoint_every": -1}, r"checkpoint_every=-1"),
        ({"resume": True}, r"resume=True needs the directory"),
        ({"schedule": "fast"}, r"schedule='fast' is not known"),
        ({"graph": dd.ring(4)}, r"ring\(4\) has 4 nodes and the data have 3 clients.*data.select"),
        ({"graph": np.eye(3)}, r"no path from node 0 to 1"),
        ({"graph": "ring"}, r"graph='ring' is not a graph"),
        ({"graph": LOPSIDED != 0}, r"directed.*Use PushSum"),
        ({"mixing": np.eye(3)}, r"mixing is not connected"),
        ({"mixing": np.full((3, 3), 0.3)}, r"row 0 sums to 0.9"),
        ({"method": dd.Extra(), "graph": LOPSIDED != 0, "mixing": LOPSIDED}, r"needs a symmetric matrix"),
        (
            {"graph": LOPSIDED != 0, "mixing": LOPSIDED, "lost_messages": 0.1},
            r"not symmetric.*or use PushSum",
        ),
        ({"lost_messages": 1.0}, r"lost_messages=1.0 is not allowed"),
        ({"lost_messages": -0.1}, r"lost_messages=-0.1"),
        ({"method": dd.Choco(dd.TopK(1)), "lost_messages": 0.1}, r"different replicas.*Use DPSGD"),
        ({"method": dd.Choco(dd.TopK(4))}, r"can't choose 4 of 3 entries"),
        ({"method": dd.Extra(), "optimizer": 0.1}, r"Leave it out and give Extra\(learning_rate=…\)"),
        ({"epochs": 1, "steps": 2}, r"exclude each other"),
        ({"batch_size": 0}, r"batch_size=0"),
        ({"optimizer": -0.1}, r"learning_rate=-0.1"),
        ({"seed": -1}, r"seed=-1"),
    ],
)
def test_bad_arguments_are_refused(keywords: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        refused(**keywords)


@pytest.mark.parametrize("make", [dd.GradientTracking, dd.Extra])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_impossible_learning_rates_are_refused(make: Any, value: float) -> None:
    with pytest.raises(ConfigError, match=r"learning_rate must be a number in \(0, inf\)"):
        make(value)


def test_models_with_running_statistics_are_refused() -> None:
    def init(key: Any) -> Any:
        return dure.Variables({"w": jax.numpy.zeros(3)}, {"mean": jax.numpy.zeros(3)})

    def apply(params: Any, x: Any, *, buffers: Any) -> Any:
        return x @ params["w"], buffers

    model = Model.from_functions(init, apply, name="counted")
    task = dure.Task(model, LINEAR.loss)
    with pytest.raises(ConfigError, match=r"'counted' has running statistics \('mean'\).*GroupNorm"):
        refused(task=task)


def test_data_without_the_column_are_refused() -> None:
    task = dure.Task(LINEAR.model, LINEAR.loss, input="z")
    with pytest.raises(DataError, match=r"reads column 'z', but the data have x, y"):
        refused(task=task)


def test_a_directory_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    refused(directory=tmp_path / "run")
    with pytest.raises(RunError, match="already holds a run"):
        refused(directory=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "complete"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            np.zeros((3, 2)),
            r"values are .* of shape \(3, 2\); ring\(4\) needs floats, one row for each of its 4",
        ),
        (np.zeros((4, 2), np.int32), r"values are int32"),
        (np.array([[0.0], [1.0], [np.nan], [0.0]]), r"values\[2\] is not finite"),
    ],
)
def test_bad_values_are_not_gossiped(values: np.ndarray, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dd.gossip(values, dd.ring(4), rounds=1)
    with pytest.raises(ConfigError, match="rounds=0"):
        dd.gossip(np.zeros((4, 1), np.float32), dd.ring(4), rounds=0)
