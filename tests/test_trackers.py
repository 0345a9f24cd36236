"""Trackers: what was written is read back with the packages' own readers."""

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import dure
from dure.trackers import MLflow, TensorBoard, WandB, flattened


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dure.Run:
    task = dure.classification(dure.models.softmax_regression(64, 10))
    where = tmp_path_factory.mktemp("run") / "run"
    return dure.simulate(dure.FedAvg(), task, dure.data.digits(), rounds=3, directory=where)


def test_tensorboard_shows_every_round_and_the_settings(run: dure.Run, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    TensorBoard(tmp_path).write(run)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert {"test_accuracy", "train_loss", "cumulative_uplink_bytes"} <= set(read.Tags()["scalars"])
    found = [(e.step, e.value) for e in read.Scalars("test_accuracy")]
    assert [step for step, _ in found] == [0, 1, 2, 3]
    for (_, value), record in zip(found, run.rounds, strict=True):
        assert math.isclose(value, record["test_accuracy"], rel_tol=1e-6)
    (text,) = read.Tensors("settings")
    assert b"| algorithm.kind | FedAvg |" in text.tensor_proto.string_val[0]


def test_mlflow_has_rounds_settings_and_files(
    run: dure.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = (tmp_path / "store").as_uri()
    tracker = MLflow("digits", name="first", uri=uri)
    tracker.write(run)
    client = mlflow.MlflowClient(uri)
    stored = client.get_run(tracker.run_id)
    assert stored.info.status == "FINISHED"
    assert stored.data.params["algorithm.kind"] == "FedAvg"
    history = {m.step: m.value for m in client.get_metric_history(tracker.run_id, "test_accuracy")}
    assert history == {r["round"]: r["test_accuracy"] for r in run.rounds}
    assert {"config.json", "model.safetensors", "rounds.jsonl"} <= {
        f.path for f in client.list_artifacts(tracker.run_id)
    }
    again = MLflow("digits", uri=uri)
    assert client.get_run(again.run_id).info.experiment_id == stored.info.experiment_id
    again.close()


def test_a_tracker_follows_a_run_live(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task = dure.classification(dure.models.softmax_regression(64, 10))
    with TensorBoard(tmp_path) as tracker:
        run = dure.simulate(dure.FedAvg(), task, dure.data.digits(), rounds=2, on_round=tracker)
        tracker.finish(run)
    read = EventAccumulator(str(tmp_path))
    read.Reload()
    assert [e.step for e in read.Scalars("train_loss")] == [1, 2]


def test_wandb_gets_the_same_calls(run: dure.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its service is out of reach in a test: what is called is checked, on a stand-in."""
    logged: list[Any] = []
    config: dict[str, str] = {}
    fake = SimpleNamespace(
        log=lambda values, step: logged.append((step, values)),
        config=SimpleNamespace(update=lambda values, allow_val_change: config.update(values)),
        finish=lambda: logged.append("finished"),
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **keywords: fake))
    WandB("digits", mode="offline").write(run)
    assert [entry[0] for entry in logged[:-1]] == [0, 1, 2, 3]
    assert logged[-1] == "finished"
    assert config["algorithm.kind"] == "FedAvg"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("tensorboard.compat.proto.event_pb2", "mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    for make, package in (
        (lambda: TensorBoard(tmp_path), "tensorboard"),
        (lambda: MLflow("x"), "mlflow"),
        (lambda: WandB("x"), "wandb"),
    ):
        with pytest.raises(dure.ConfigError, match=f"pip install {package}"):
            make()


def test_what_is_not_a_finite_number_is_left_out() -> None:
    seen: list[Any] = []

    class Keeps(dure.trackers.Tracker):
        def numbers(self, round: int, values: Any) -> None:
            seen.append((round, dict(values)))

    Keeps()({"round": 1, "status": "ok", "loss": float("nan"), "a": 1, "flag": True, "rejections": []})
    assert seen == [(1, {"a": 1.0})]


def test_settings_are_flattened() -> None:
    assert flattened({"a": {"b": 1, "c": None}, "d": "x", "e": [1, 2]}) == {
        "a.b": "1",
        "d": "x",
        "e": "[1, 2]",
    }
