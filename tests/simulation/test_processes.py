"""Two processes with one device each are one process with two, bit for bit."""

import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jax
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


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Compile without most optimisations, as the script does."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path: Path) -> None:
    """Models, client state, evaluation and records; interrupted or not, and resumed by one process or two."""
    alone, two = tmp_path / "alone", tmp_path / "two"
    start("begin", two)
    for name in together.METHODS:
        first, second = (np.load(two / f"{name}-{rank}.npz") for rank in (0, 1))
        for tensor in first:  # every process holds the model
            np.testing.assert_array_equal(first[tensor], second[tensor])
    shutil.copytree(two / "Ditto", two / "copy")
    start("resume and refuse", two)
    together.run("Ditto", two / "copy", resume=True, devices=2)
    for name in together.METHODS:
        assert together.run(name, alone / name, devices=2).state == "complete"
        assert contents(two / name) == contents(alone / name), name
    assert contents(two / "copy") == contents(alone / "Ditto")
    assert len({contents(alone / name)["model.safetensors"] for name in together.METHODS}) == 3
