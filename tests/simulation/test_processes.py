"""Two processes with one device each are one process with two, bit for bit."""

import importlib.util
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).with_name("together.py")
_spec = importlib.util.spec_from_file_location("together", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
together = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(together)

FILES = ("rounds.jsonl", "participation.jsonl", "clients.jsonl", "model.safetensors")


def start(what: str, directory: Path, processes: int = 2) -> None:
    """The script in so many processes; all must come to their end."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    directory.mkdir(exist_ok=True)
    children = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(port), str(processes), str(rank), str(directory), what],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        said = [child.communicate(timeout=120)[0] for child in children]
    finally:
        for child in children:
            child.kill()
    for child, text in zip(children, said, strict=True):
        assert child.returncode == 0, text
        assert f"finished {what}" in text


def contents(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same trainings by this process on two devices."""
    directory = tmp_path_factory.mktemp("alone")
    for name in together.METHODS:
        together.run(name, directory / name, devices=2)
    return directory


def test_two_processes_equal_one(alone: Path, tmp_path: Path) -> None:
    """Client state (SCAFFOLD's, Ditto's), evaluation and records included; also when interrupted between."""
    start("begin", tmp_path)  # three rounds of five, the last checkpoint after two or three
    for name in together.METHODS:
        first, second = (np.load(tmp_path / f"{name}-{rank}.npz") for rank in (0, 1))
        for tensor in first:  # every process holds the model
            np.testing.assert_array_equal(first[tensor], second[tensor])
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy"))
    start("resume", tmp_path)
    for name in together.METHODS:
        assert contents(tmp_path / name) == contents(alone / name), name
    for name in together.METHODS:  # what several processes began, one goes on with
        run = together.run(name, tmp_path / "copy" / name, resume=True, devices=2)
        assert run.state == "complete"
        assert contents(tmp_path / "copy" / name) == contents(alone / name), name


def test_what_several_processes_cannot_do_is_refused_in_each(tmp_path: Path) -> None:
    start("refusals", tmp_path)
