"""A run that was killed at any instant goes on, and ends bit for bit like one that was not."""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dure
from dure.errors import ConfigError, DureError, RunError
from dure.simulation.checkpoint import saved_rounds

SCRIPT = Path(__file__).with_name("resumable.py")
_spec = importlib.util.spec_from_file_location("resumable", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
resumable = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(resumable)

FILES = ("rounds.jsonl", "participation.jsonl", "clients.jsonl", "model.safetensors")


def contents(directory: Path) -> dict[str, bytes]:
    return {name: (directory / name).read_bytes() for name in FILES}


def last_round(directory: Path) -> int:
    try:
        return (directory / "rounds.jsonl").read_bytes().count(b"\n") - 1
    except FileNotFoundError:
        return -1


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happened to."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    resumable.run(str(directory), "host", False)
    return directory


@pytest.mark.parametrize("placement", [pytest.param("host", marks=pytest.mark.slow), "disk"])
def test_killed_at_random_instants(placement: str, whole: Path, tmp_path: Path) -> None:
    directory, rng = tmp_path / "run", random.Random(f"kills of {placement}")
    resume = False
    kills = 0
    for target in (2, 17, 46, 90):
        child = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(directory), placement, "resume" if resume else "new", "0.004"],
            stderr=subprocess.PIPE,
        )
        while child.poll() is None and last_round(directory) < target:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.03)
        if child.poll() is None:
            child.kill()
            kills += 1
        error = child.communicate()[1].decode()
        assert child.returncode in (-9, 0), error
        resume = True
    assert kills >= 3, "the child was to be killed, not to finish"
    run = resumable.run(str(directory), placement, True)
    assert run.state == "complete"
    assert contents(directory) == contents(whole)


def test_killed_before_the_first_checkpoint(whole: Path, tmp_path: Path) -> None:
    """The run's directory counts from its config.json on; there is nothing yet to go back to but the start."""
    directory = tmp_path / "run"
    interrupted(directory, 0)
    assert not (directory / "checkpoint").exists()
    assert len((directory / "rounds.jsonl").read_text().splitlines()) == 1
    resumable.run(str(directory), "host", True)
    assert contents(directory) == contents(whole)


class Stop(Exception):
    pass


def interrupted(
    directory: Path, round: int, placement: str = "host", error: type[BaseException] = Stop
) -> None:
    """A run that stops after a round's record."""

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == round:
            raise error

    with pytest.raises(error):
        resumable.run(str(directory), placement, False, on_round=stop)


@pytest.mark.parametrize("placement", ["host", "disk", "device"])
@pytest.mark.parametrize("round", [3, 7, 20])
def test_resumed_after_an_exception(placement: str, round: int, whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    interrupted(directory, round, placement)
    assert dure.Run.open(directory).state == "failed"
    resumable.run(str(directory), placement, True)
    assert contents(directory) == contents(whole)


def test_resuming_a_complete_run_changes_nothing(whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(whole, directory)
    resumable.run(str(directory), "host", True)
    assert contents(directory) == contents(whole)


def test_more_rounds(whole: Path, tmp_path: Path) -> None:
    """A run of 70 rounds that is asked for 120: the model and who took part are those of 120."""
    directory = tmp_path / "run"
    resumable.run(str(directory), "host", False, rounds=70)
    resumable.run(str(directory), "host", True)
    for name in ("participation.jsonl", "model.safetensors"):
        assert (directory / name).read_bytes() == (whole / name).read_bytes()


def test_ctrl_c_leaves_a_run_that_says_so(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    interrupted(directory, 9, error=KeyboardInterrupt)
    assert dure.Run.open(directory).state == "interrupted"


# ----- what cannot be resumed ------------------------------------------------------------------------------


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    directory = tmp_path / "run"
    interrupted(directory, 20)
    assert saved_rounds(directory) == [7, 14]
    return directory


@pytest.mark.parametrize("what", ["bits", "cut", "missing", "manifest", "not json"])
def test_damaged_checkpoints_are_named_and_the_way_out_works(what: str, stopped: Path, whole: Path) -> None:
    tensors = stopped / "checkpoint" / "round-00000014.safetensors"
    manifest = tensors.with_suffix(".json")
    content = tensors.read_bytes()
    if what == "bits":
        tensors.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    elif what == "cut":
        tensors.write_bytes(content[:100])
    elif what == "missing":
        tensors.unlink()
    elif what == "manifest":
        manifest.write_text(json.dumps({"round": 14}))
    else:
        manifest.write_bytes(b"\x00garbage")
    with pytest.raises(RunError, match=r"round-00000014.*damaged.*Delete round-00000014\.json.*round 7"):
        resumable.run(str(stopped), "host", True)
    manifest.unlink()
    resumable.run(str(stopped), "host", True)
    assert contents(stopped) == contents(whole)


def test_no_earlier_checkpoint(stopped: Path) -> None:
    for path in (stopped / "checkpoint").glob("round-00000007*"):
        path.unlink()
    tensors = stopped / "checkpoint" / "round-00000014.safetensors"
    tensors.write_bytes(b"")
    with pytest.raises(RunError, match="There is no earlier one"):
        resumable.run(str(stopped), "host", True)


def test_all_checkpoints_lost(stopped: Path) -> None:
    """Rounds were recorded, so there was a checkpoint: they are not thrown away in silence."""
    before = (stopped / "rounds.jsonl").read_bytes()
    shutil.rmtree(stopped / "checkpoint")
    with pytest.raises(RunError, match="no checkpoint to resume from"):
        resumable.run(str(stopped), "host", True)
    assert (stopped / "rounds.jsonl").read_bytes() == before


def test_a_record_that_was_cut_is_an_error(stopped: Path) -> None:
    (stopped / "rounds.jsonl").write_bytes(b"")
    with pytest.raises(RunError, match=r"rounds\.jsonl has 0 bytes"):
        resumable.run(str(stopped), "host", True)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"seed": 5}, "seed"),
        ({"clients_per_round": 6}, "clients.sampler"),
        ({"batch_size": 4}, "local.batch_size"),
        ({"epochs": 3}, "local.epochs"),
        (
            {"optimizer": dure.sgd(0.03, momentum=0.5, round_decay=0.99)},
            "local.optimizer.arguments.learning_rate",
        ),
        ({"weighting": "uniform"}, "objective"),
        ({"evaluate_every": 6}, "evaluation.every"),
        ({"devices": 2}, "schedule.devices"),
    ],
)
def test_another_experiment_is_refused_with_the_key(changed: dict[str, Any], key: str, stopped: Path) -> None:
    before = contents_of(stopped)
    with pytest.raises(ConfigError, match=rf"not the same experiment.*{key}|{key}.*not the same experiment"):
        resumable.run(str(stopped), "host", True, **changed)
    assert contents_of(stopped) == before, "nothing that was saved is touched"


def contents_of(directory: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(directory)): p.read_bytes()
        for p in sorted(directory.rglob("*"))
        if p.is_file() and p.name != "status.json"
    }


def test_fewer_rounds_than_done(whole: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    shutil.copytree(whole, directory)
    with pytest.raises(RunError, match="done 120 rounds already; rounds=50"):
        resumable.run(str(directory), "host", True, rounds=50)


def test_nothing_to_resume_and_nothing_to_overwrite(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no run to resume"):
        resumable.run(str(tmp_path / "none"), "host", True)
    with pytest.raises(DureError, match="already holds a run"):
        resumable.run(str(whole), "host", False)
    with pytest.raises(ConfigError, match="resume=True needs the directory"):
        resumable.run(None, "host", True)


def test_rounds_count_bytes_from_the_checkpoint_on(whole: Path) -> None:
    records = [json.loads(line) for line in (whole / "rounds.jsonl").read_text().splitlines()]
    uplink = np.cumsum([r.get("uplink_bytes", 0) for r in records])
    assert [r["cumulative_uplink_bytes"] for r in records] == uplink.tolist()
