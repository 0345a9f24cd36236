"""Checkpoints: everything that the rest of a run depends on, written so that a kill at any instant is safe.

    RUN/checkpoint/round-00000012.safetensors   server state, buffers, client states
    RUN/checkpoint/round-00000012.json          round, checksum, lengths of the record files; written last

The manifest makes a checkpoint count. The last two are kept.
"""

import hashlib
import json
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from dure.errors import RunError
from dure.run.layout import io_error, write_atomic
from dure.simulation.engine import Engine
from dure.simulation.statics import Model

KEEP = 2


class Checkpoint(NamedTuple):
    """Where a run stood: the round, the lengths of its record files, and counters of the record."""

    round: int
    positions: dict[str, int]
    uplink: int
    downlink: int


def save(directory: Path, engine: Engine, at: Checkpoint) -> None:
    """Write a checkpoint of the engine's present state and forget the oldest.

    Raises:
        RunError: it can't be written; earlier checkpoints stay.
    """
    from safetensors.numpy import save as to_bytes

    leaves = jax.device_get(jax.tree.leaves(engine.model))
    tensors = {f"model/{i}": np.array(leaf, order="C") for i, leaf in enumerate(leaves)}
    if engine.defence is not None:
        tensors |= {f"memory/{name}": np.array(x, order="C") for name, x in engine.defence.snapshot().items()}
    if engine.store is not None:
        tensors |= engine.store.snapshot()
    folder = directory / "checkpoint"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise io_error("write to", folder, error) from error
    content = to_bytes(tensors)
    manifest = {**at._asdict(), "sha256": hashlib.sha256(content).hexdigest()}
    write_atomic(_file(folder, at.round, "safetensors"), content)
    if engine.store is not None:
        engine.store.flush()
    write_atomic(_file(folder, at.round, "json"), json.dumps(manifest).encode())
    rounds = saved_rounds(directory)
    if engine.store is not None:
        engine.store.commit(at.round, rounds[-KEEP:][0])
    for old in rounds[:-KEEP]:
        for ending in ("json", "safetensors"):
            _file(folder, old, ending).unlink(missing_ok=True)


def load(directory: Path, engine: Engine) -> Checkpoint:
    """Take the engine back to the last checkpoint.

    Raises:
        RunError: there is none, it is damaged (naming the file and what to do), or of another model.
    """
    from safetensors.numpy import load as from_bytes

    rounds = saved_rounds(directory)
    if not rounds:
        raise RunError(f"{directory} has no checkpoint to resume from. Start the run again elsewhere.")
    folder = directory / "checkpoint"
    path, manifest_path = (_file(folder, rounds[-1], ending) for ending in ("safetensors", "json"))
    way_out = (
        f"Delete {manifest_path.name} to go back to the checkpoint of round {rounds[-2]}."
        if len(rounds) > 1
        else "There is no earlier one: start the run again elsewhere."
    )
    try:
        manifest = json.loads(manifest_path.read_bytes())
        content = path.read_bytes()
        at = Checkpoint(*(manifest[name] for name in Checkpoint._fields))
        checksum = manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"The checkpoint {manifest_path} is damaged: {error!r}. {way_out}") from error
    if hashlib.sha256(content).hexdigest() != checksum:
        raise RunError(f"The checkpoint {path} is damaged: its checksum does not match. {way_out}")
    _restore(engine, from_bytes(content), at.round, path)
    return at


def saved_rounds(directory: Path) -> list[int]:
    """Rounds that have a complete checkpoint, in order."""
    names = (p.stem[6:] for p in (directory / "checkpoint").glob("round-*.json"))
    return sorted(int(name) for name in names if name.isdecimal())


def _restore(engine: Engine, tensors: dict[str, np.ndarray], round: int, path: Path) -> None:
    leaves, structure = jax.tree.flatten(engine.model)
    found = [tensors.get(f"model/{i}") for i in range(len(leaves))]
    for i, (leaf, value) in enumerate(zip(leaves, found, strict=True)):
        if value is None or value.shape != leaf.shape or value.dtype != leaf.dtype:
            there = "missing" if value is None else f"{value.dtype}{value.shape}"
            raise RunError(
                f"The checkpoint {path} does not fit the model: array {i} is {there}, not {leaf.dtype}{leaf.shape}."
            )
    model: Model = jax.tree.unflatten(structure, found)
    client_state = {k: v for k, v in tensors.items() if k.startswith("client_")}
    memory = {k.removeprefix("memory/"): v for k, v in tensors.items() if k.startswith("memory/")}
    engine.restore(model, round, client_state, memory)


def _file(folder: Path, round: int, ending: str) -> Path:
    return folder / f"round-{round:08d}.{ending}"
