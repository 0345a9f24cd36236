import json
import math
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.errors import RunError
from dure.run import Run, RunWriter
from dure.run.layout import encode, read_lines, write_atomic


def write_three_rounds(writer: RunWriter, first: int = 1) -> None:
    for r in range(first, 4):
        writer.round({"round": r, "clients": 3, "train_loss": np.float32(0.1) * r, "status": "ok"})
        losses = np.array([0.5, math.nan if r == 2 else 1.0, 2.0], np.float32)
        writer.participation(r, {"client": np.arange(3), "loss": losses, "status": ["ok", "x", "ok"]})
        writer.clients(r, {"client": np.arange(3), "accuracy": np.full(3, r / 4)})
        writer.timing({"round": r, "seconds": 0.25})


@pytest.mark.parametrize("memory", [False, True])
def test_what_is_written_is_read_back(tmp_path: Path, memory: bool) -> None:
    writer = RunWriter(None if memory else tmp_path / "a", config={"name": "n", "x": {"y": 1}}, rounds=3)
    write_three_rounds(writer)
    writer.model({"w": np.arange(6, dtype=np.float16).reshape(2, 3).T}, {"round": "3"})
    writer.status("complete", 3)
    writer.close()
    run = writer.run(model={"w": 1})
    assert run.config == {"name": "n", "x": {"y": 1}}
    assert run.state == "complete"
    assert [record["round"] for record in run.rounds] == [1, 2, 3]
    assert run.rounds[0]["train_loss"] == 0.1  # float32 in its own shortest text
    assert list(run.participation.columns) == ["round", "client", "loss", "status"]
    assert run.participation.shape == (9, 4)
    assert run.participation["loss"].isna().sum() == 1
    assert run.clients[run.clients["round"] == 2]["accuracy"].tolist() == [0.5] * 3
    assert run.history["seconds"].tolist() == [0.25] * 3
    np.testing.assert_array_equal(run.state_dict()["w"], np.arange(6, dtype=np.float16).reshape(2, 3).T)
    assert run.state_dict()["w"].dtype == np.float16
    assert run.model == {"w": 1}
    assert run.final["status"] == "ok"


def test_memory_and_disk_read_the_same(tmp_path: Path) -> None:
    runs = []
    for directory in (tmp_path / "a", None):
        writer = RunWriter(directory, config={}, rounds=3)
        write_three_rounds(writer)
        runs.append(writer.run())
    for table in ("history", "participation", "clients"):
        assert getattr(runs[0], table).equals(getattr(runs[1], table)), table


def test_the_model_keeps_dtypes_and_shapes(tmp_path: Path) -> None:
    tensors = {
        "half": np.ones((2, 2), ml_dtypes.bfloat16),
        "scalar": np.array(3, np.int32),
        "empty": np.zeros((0, 4), np.float32),
        "strided": np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::2, ::-1],
    }
    writer = RunWriter(tmp_path / "r", config={})
    writer.model(tensors, {"round": "1"})
    back = Run.open(tmp_path / "r").state_dict()
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        np.testing.assert_array_equal(back[name], tensor)


def test_the_models_file_has_the_same_bytes_whatever_the_order_of_its_metadata(tmp_path: Path) -> None:
    from safetensors import safe_open

    contents = set()
    for k in range(12):  # the library's own order of keys is random
        writer = RunWriter(tmp_path / str(k), config={})
        writer.model({"w": np.ones(3, np.float32), "b": np.ones(())}, {"round": "1", "format": "x", "a": "é"})
        contents.add((tmp_path / str(k) / "model.safetensors").read_bytes())
    assert len(contents) == 1
    with safe_open(tmp_path / "0" / "model.safetensors", "np") as file:
        assert file.metadata() == {"round": "1", "format": "x", "a": "é"}


def test_equal_runs_have_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_three_rounds(RunWriter(tmp_path / name, config={"seed": 1}))
    for file in ("config.json", "rounds.jsonl", "participation.jsonl", "clients.jsonl"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_resume_takes_records_back_and_goes_on(tmp_path: Path) -> None:
    whole = RunWriter(tmp_path / "whole", config={}, rounds=3)
    write_three_rounds(whole)
    writer = RunWriter(tmp_path / "r", config={}, rounds=3)
    writer.round({"round": 1, "clients": 3, "train_loss": np.float32(0.1), "status": "ok"})
    positions = writer.positions()
    write_three_rounds(writer, first=2)  # after the checkpoint, lost
    writer.close()
    with open(tmp_path / "r" / "rounds.jsonl", "ab") as file:
        file.write(b'{"round": 4, "torn')
    assert len(Run.open(tmp_path / "r").rounds) == 3  # the torn line doesn't count
    again = RunWriter(tmp_path / "r", rounds=3, resume=True)
    again.truncate(positions)
    write_three_rounds(again, first=2)
    assert (tmp_path / "r/rounds.jsonl").read_bytes() == (tmp_path / "whole/rounds.jsonl").read_bytes()


def test_truncating_to_more_than_there_is_is_an_error(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r", config={})
    writer.round({"round": 1})
    positions = writer.positions()
    writer.truncate({**positions, "rounds": 0})
    with pytest.raises(RunError, match=r"rounds\.jsonl has 0 bytes, the checkpoint was made when it had"):
        writer.truncate(positions)


def test_a_directory_with_a_run_is_refused(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r", config={}, rounds=30)
    with pytest.raises(RunError, match=r"already holds a run \(running, round 0 of 30\).*dure resume"):
        RunWriter(tmp_path / "r", config={})
    with pytest.raises(RunError, match="Another process is writing"):
        RunWriter(tmp_path / "r", resume=True)
    writer.close()
    RunWriter(tmp_path / "r", resume=True).close()
    with pytest.raises(RunError, match="holds no run to resume"):
        RunWriter(tmp_path / "other", resume=True)


def test_a_running_run_without_its_process_reads_as_interrupted(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r", config={}, rounds=5)
    run = Run.open(tmp_path / "r")
    assert run.state == "running"
    writer.close()
    assert run.state == "interrupted"


def test_a_path_that_cannot_be_a_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"Cannot write to .*file/run: Not a directory"):
        RunWriter(tmp_path / "file" / "run", config={})


FULL = """
import resource, signal, sys
from dure.errors import RunError
from dure.run import RunWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
writer = RunWriter(sys.argv[1], config={}, rounds=9)
writer.round({"round": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    for r in range(2, 9):
        writer.round({"round": r, "text": "x" * 10})
except RunError as error:
    writer.fail(error, r)
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the file size limit is POSIX's")
def test_a_full_disk_is_a_named_error_and_keeps_what_was_saved(tmp_path: Path) -> None:
    # A limit on file size makes write() fail as a full disk does, without filling one.
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "r")], capture_output=True, text=True, check=True
    )
    assert "Cannot write" in done.stdout
    assert "rounds.jsonl" in done.stdout
    run = Run.open(tmp_path / "r")
    assert [record["round"] for record in run.rounds] == [1, 2]
    assert run.state in ("failed", "interrupted")


def test_an_atomic_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_atomic(path, b"old")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"Cannot write .*a\.json: No space left on device"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_damaged_records_are_named(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r", config={})
    writer.close()
    (tmp_path / "r/rounds.jsonl").write_text('{"round": 1}\nnonsense\n{"round": 3}\n')
    with pytest.raises(RunError, match=r"rounds\.jsonl is damaged in line 2"):
        _ = Run.open(tmp_path / "r").rounds
    (tmp_path / "r/config.json").write_text("{")
    with pytest.raises(RunError, match=r"config\.json is damaged"):
        _ = Run.open(tmp_path / "r").config


def test_columns_of_different_lengths_are_refused() -> None:
    writer = RunWriter(None, config={})
    with pytest.raises(RunError, match="participation of round 3: columns have different lengths"):
        writer.participation(3, {"client": np.arange(3), "loss": np.zeros(2)})


def test_what_is_no_data_is_refused() -> None:
    with pytest.raises(RunError, match="object"):
        encode({"a": object()})


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None, max_examples=80)
@given(st.dictionaries(st.text(), VALUES, max_size=5))
def test_records_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, record: dict[str, object]
) -> None:
    line = encode(record)
    assert line.count(b"\n") == 1
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(line + line)
    assert read_lines(path) == [record, record]


@settings(deadline=None, max_examples=80)
@given(st.lists(st.floats(width=32), max_size=5))
def test_float32_columns_read_back_to_the_same_float32(values: list[float]) -> None:
    column = np.array(values, np.float32)
    back = json.loads(encode({"c": column}))["c"]
    again = np.array([math.nan if v is None else v for v in back], np.float32)
    np.testing.assert_array_equal(again, np.where(np.isfinite(column), column, np.nan))
