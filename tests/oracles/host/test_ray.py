"""Ray: the same bits as here, every array put once, and workers and nodes that die in the middle of a round."""

import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

import dure
from problems import LINEAR, make_engine

ray = pytest.importorskip("ray")
torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

RNG = np.random.default_rng(5)
SIZES = np.array([6, 10, 4, 8, 0, 7, 3])
DATA = dure.Federated(
    {
        "x": RNG.normal(size=(SIZES.sum(), 4)).astype(np.float32),
        "y": RNG.integers(0, 3, SIZES.sum()).astype(np.int32),
    },
    np.concatenate([[0], np.cumsum(SIZES)]),
)
HERE: dict[str, Any] = {"devices": 2, "schedule": "vectorised"}
STEPS: dict[str, Any] = {"epochs": 2, "batch_size": 4}  # a function has none


pytestmark = [
    # Starting Ray forks, which worries JAX: what is forked becomes another program at once.
    pytest.mark.filterwarnings(r"ignore:os.fork\(\) was called:RuntimeWarning"),
    pytest.mark.xdist_group("ray"),  # one cluster for all of them
]


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """For Ray's files. Its name is short, as sockets' names must be."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")  # or Ray writes a token into the home directory
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = tempfile.mkdtemp(prefix="dure")
        yield made
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(folder: str) -> Iterator[Any]:
    """Two CPUs on this machine."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    yield ray
    ray.shutdown()


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Compile without most optimisations, as most of the time goes into that."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def train(params: Any, data: Any, config: Any) -> Any:
    """Needs more than one operation, so that another order of rows or another seed can be seen in the bits."""
    draw = np.random.default_rng(config["seed"]).normal(size=params.shape)
    moved = params + 0.1 * (data["x"].mean(0) * (1 + config["client"]) - params) + 1e-3 * draw
    return moved, len(data["y"]), float(np.square(moved).mean())


def function(train: Any = train, size: int = 4) -> dure.Task:
    return dure.oracle(train, init=np.zeros(size))


def trained(task: dure.Task, algorithm: Any = None, rounds: int = 2, **settings: Any) -> np.ndarray:
    assert task.model.outside is not None
    steps = {} if task.model.outside.local_work == "own" else STEPS
    engine = make_engine(algorithm or dure.FedAvg(), task, DATA, **{**HERE, **steps, **settings})
    for _ in range(rounds):
        engine.collect(engine.launch())
    return np.asarray(engine.vector())


def same_bits(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


# ----- before there is a cluster -------------------------------------------------------------------------------


def test_no_cluster_is_an_error_with_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if ray.is_initialized():
        pytest.skip("another test has started one")
    monkeypatch.setenv("RAY_ADDRESS", "")
    monkeypatch.setattr(ray, "init", partial(ray.init, _temp_dir=str(tmp_path)))  # not to find someone else's
    with pytest.raises(dure.ConfigError, match=r"finds no Ray cluster.*ray start --head"):
        make_engine(dure.FedAvg(), function(), DATA, executor="ray")


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dure.oracles.host.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(dure.ConfigError, match=r"pip install \"dure\[ray\]\""):
        make_engine(dure.FedAvg(), function(), DATA, executor="ray")


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (LINEAR, {}, "JAX computes 'linear'.*jax.distributed"),
        (function(), {"eager": True}, "eager=True runs everything in this process"),
        (function(), {"executor": "dask"}, "executor='dask' is not known"),
        (
            dure.Task(dure.Model.from_torch(nn.Linear(4, 3), device="cuda"), nn.CrossEntropyLoss()),
            {},
            "on device='cuda', which the program itself asks",
        ),
    ],
    ids=["jax", "eager", "unknown", "cuda"],
)
def test_what_cannot_be(task: Any, settings: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        make_engine(dure.FedAvg(), task, DATA, **{"executor": "ray", **settings})


# ----- bits ----------------------------------------------------------------------------------------------------


def test_a_function_gives_the_same_bits(cluster: Any) -> None:
    here = trained(function())
    same_bits(trained(function(), executor="ray"), here)
    same_bits(trained(function(), executor="ray", schedule="sequential", devices=1), here)
    assert np.abs(here).max() > 0


def convolutional() -> nn.Module:
    """Clients run two or three together, for they are large; and the bits depend on who is together with whom."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 256), nn.Unflatten(1, (1, 16, 16)), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(784, 512),
        nn.ReLU(), nn.Linear(512, 3),
    )  # fmt: skip


def normalised() -> nn.Module:
    """Clients run one after another."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("make", "algorithm"),
    [pytest.param(convolutional, dure.FedAvg(), marks=pytest.mark.slow), (normalised, dure.Scaffold())],
    ids=lambda a: a.__name__ if callable(a) else "",
)
def test_a_module_gives_the_same_bits(
    cluster: Any, make: Any, algorithm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the question is cut, and whatever reaches the workers with it."""
    from dure.oracles.host.ray import RayPool

    pieces: list[int] = []
    send = RayPool._ask
    monkeypatch.setattr(RayPool, "_ask", lambda *given: pieces.append(len(given[4].rows)) or send(*given))
    # The tests' type checks draw from Python's generator, which the trial takes for the module's doing.
    monkeypatch.setattr("dure.oracles.pytorch.together.foreign_states", lambda: None)
    task = dure.classification(make())
    found = trained(task, algorithm, optimizer=0.1, devices=1, executor="ray")
    assert sorted(pieces[: len(pieces) // 2]) == ([2, 2, 3] if make is convolutional else [3, 4])
    same_bits(found, trained(task, algorithm, optimizer=0.1, devices=1))


@pytest.mark.slow
def test_a_run_may_be_resumed_elsewhere(cluster: Any, tmp_path: Path) -> None:
    def run(name: str, rounds: int, **settings: Any) -> dure.Run:
        return dure.simulate(
            dure.FedAvg(), function(), DATA, rounds=rounds, directory=tmp_path / name, **{**HERE, **settings}
        )

    whole = run("whole", 4)
    run("parts", 2)
    parts = run("parts", 4, executor="ray", resume=True)
    same_bits(parts.state_dict()["0"], whole.state_dict()["0"])
    assert (tmp_path / "parts" / "rounds.jsonl").read_bytes() == (
        tmp_path / "whole/rounds.jsonl"
    ).read_bytes()


# ----- what travels --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_data_are_put_once_and_the_model_once_a_round(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = dure.Federated({name: column.copy() for name, column in DATA.columns.items()}, DATA.offsets)
    size = 20_000  # 80 kB, more than what travels with the question

    def grow(params: Any, data: Any, config: Any) -> Any:
        return params + 1 + config["client"], len(data["y"])

    puts: list[Any] = []
    put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))
    for schedule in ("vectorised", "sequential"):
        puts.clear()
        engine = make_engine(
            dure.FedAvg(), function(grow, size), data, **{**HERE, "schedule": schedule, "executor": "ray"}
        )
        for _ in range(3):
            assert Counter(engine.collect(engine.launch()).status) == {"ok": 6, "no examples": 1}
        kinds = Counter(type(value) for value in puts)
        # A host's content, and three models for 2 devices and 7 clients; columns with the first engine only.
        assert kinds == {bytes: 1, np.ndarray: 3, **({dict: 1} if schedule == "vectorised" else {})}
        if schedule == "vectorised":
            first = engine  # which keeps the columns there
    assert first.settings.executor == "ray"


# ----- death ---------------------------------------------------------------------------------------------------


def dies(marker: Path | None) -> Any:
    """Kills its process while it works for client 3: once if there is a marker to leave, else always."""
    path = None if marker is None else str(marker)

    def train_or_die(params: Any, data: Any, config: Any) -> Any:
        if config["client"] == 3 and (path is None or not os.path.exists(path)):
            if path is not None:
                open(path, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return params + (1 + config["client"]) * data["x"].mean(0), len(data["y"])

    return train_or_die


def test_a_worker_that_dies_is_asked_again_elsewhere(cluster: Any, tmp_path: Path) -> None:
    marker = tmp_path / "died"
    found = trained(function(dies(marker)), executor="ray")
    assert marker.exists()
    same_bits(found, trained(function(dies(marker))))  # nobody dies where the marker is


@pytest.mark.slow
def test_a_client_that_always_kills_its_worker_is_named(cluster: Any) -> None:
    engine = make_engine(dure.FedAvg(), function(dies(None)), DATA, **{**HERE, "executor": "ray"})
    with pytest.raises(
        dure.RunError, match=r"Client 3 failed in round 1 \(train\).*2 workers of the Ray cluster died"
    ):
        engine.collect(engine.launch())


def test_only_the_client_that_kills_its_workers_is_set_aside(cluster: Any) -> None:
    settings = {**HERE, "devices": 1, "executor": "ray", "client_errors": "set aside"}
    result = (engine := make_engine(dure.FedAvg(), function(dies(None)), DATA, **settings)).collect(
        engine.launch()
    )
    assert [s.partition(" of the Ray")[0] for s in result.status] == [
        "ok", "ok", "ok", "raised 2 workers", "no examples", "ok", "ok"
    ]  # fmt: skip
    rest = [0, 1, 2, 5, 6]
    starts = np.concatenate([[0], np.cumsum(SIZES)])
    moves = np.stack([(1 + k) * DATA.columns["x"][starts[k] : starts[k + 1]].mean(0) for k in rest])
    expected = SIZES[rest] @ moves / SIZES[rest].sum()
    np.testing.assert_allclose(np.asarray(engine.vector()), expected, rtol=1e-5)


def test_a_client_that_raises_is_named_with_its_traceback(cluster: Any) -> None:
    def fails(params: Any, data: Any, config: Any) -> Any:
        if config["client"] == 3:
            raise ValueError("no disk")
        return params, len(data["y"])

    engine = make_engine(dure.FedAvg(), function(fails), DATA, **{**HERE, "executor": "ray"})
    with pytest.raises(dure.RunError, match=r"Client 3 failed in round 1.*no disk") as caught:
        engine.collect(engine.launch())
    assert "in fails" in caught.value.__notes__[0]


# ----- workers that are not what this program is ---------------------------------------------------------------


@pytest.fixture
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool that has not looked at its workers."""
    monkeypatch.setattr("dure.oracles.host.ray._pool", None, raising=False)


@pytest.mark.slow
def test_workers_without_dure(
    cluster: Any, anew: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dure").mkdir()
    (tmp_path / "dure" / "__init__.py").write_text("")  # takes the place of the installed one
    monkeypatch.setattr("dure.oracles.host.ray._own_paths", lambda: [str(tmp_path)])
    with pytest.raises(dure.ConfigError, match=r"can't run dure: .*No module named 'dure.*Install dure"):
        make_engine(dure.FedAvg(), function(), DATA, executor="ray")


@pytest.mark.slow
def test_workers_with_another_dure(cluster: Any, anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    there = dure.__version__
    monkeypatch.setattr(dure, "__version__", "0.0.7")
    with pytest.raises(dure.ConfigError, match=f"have dure {there}, and this program has 0.0.7"):
        make_engine(dure.FedAvg(), function(), DATA, executor="ray")


@pytest.mark.slow
@pytest.mark.filterwarnings("default:No worker of the Ray cluster")
def test_a_cluster_without_a_free_cpu_is_waited_for_with_a_word(
    cluster: Any, anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray alone would say nothing."""

    class Holds:
        def there(self) -> bool:
            return True

    holders = [ray.remote(Holds).options(num_cpus=1).remote() for _ in range(2)]
    ray.get([holder.there.remote() for holder in holders])
    monkeypatch.setattr("dure.oracles.host.ray.PATIENCE", 1)

    def tell_why() -> None:
        told()
        for holder in holders:
            ray.kill(holder)

    import dure.oracles.host.ray as ours

    told = ours._tell_why
    monkeypatch.setattr(ours, "_tell_why", tell_why)
    with pytest.warns(RuntimeWarning, match="begun for 1 seconds.*the cluster has 2, of which 0 are free"):
        make_engine(dure.FedAvg(), function(), DATA, executor="ray")


def test_another_cluster_has_other_workers(cluster: Any, anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs are numbered from 1 as well: only the nodes tell it from the one before."""
    from dure.oracles.host.ray import ray_pool

    first = ray_pool()
    assert ray_pool() is first
    own = ray.get_runtime_context()
    other = SimpleNamespace(get_job_id=own.get_job_id, get_node_id=lambda: "f" * 56)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: other)
    assert ray_pool() is not first


@pytest.mark.slow
def test_a_cluster_that_was_ended_and_another_one(cluster: Any, folder: str) -> None:
    """Job numbers begin anew there: what was put into the old one's store is gone all the same."""
    task = function()
    engine = make_engine(dure.FedAvg(), task, DATA, **{**HERE, "executor": "ray"})
    engine.collect(engine.launch())
    ray.shutdown()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _temp_dir=folder)
    engine.collect(engine.launch())
    same_bits(np.asarray(engine.vector()), trained(task))


# ----- nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_node_that_is_lost_in_the_middle_of_a_round(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes with a CPU each; the second is killed while a client's function runs there."""
    from ray.cluster_utils import Cluster

    ray.shutdown()  # the cluster of the other tests, if they ran
    monkeypatch.setattr("ray._private.utils.write_ray_address", lambda *_: None)  # into /tmp/ray, for others
    began, go = tmp_path / "began", tmp_path / "go"
    began.mkdir()

    def waits(params: Any, data: Any, config: Any) -> Any:
        if "RAY_JOB_ID" in os.environ:  # in a worker
            (began / ray.get_runtime_context().get_node_id()).touch()
            while not go.exists():
                time.sleep(0.01)
        return train(params, data, config)

    nodes = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False, "temp_dir": folder})
    second = nodes.add_node(num_cpus=1, temp_dir=folder)

    def kill() -> None:
        while not (began / second.node_id).exists():
            time.sleep(0.01)
        nodes.remove_node(second, allow_graceful=False)
        go.touch()

    try:
        ray.init(address=nodes.address, log_to_driver=False)
        nodes.wait_for_nodes()
        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        found = trained(function(waits), executor="ray", rounds=1)
        killer.join(30)
        assert not killer.is_alive()
        same_bits(found, trained(function(), rounds=1))
    finally:
        ray.shutdown()
        nodes.shutdown()
