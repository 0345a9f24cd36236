"""A checkpoint in one file that holds all that the rest of a run depends on, replaced atomically.

For runs that are small beside their data: networks without a server, distillation. The engine's own
checkpoints (`dure.simulation.checkpoint`) keep the last two and can leave client state where it lies.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dure.errors import RunError
from dure.run.layout import io_error, write_atomic

FILE = "state.safetensors"
_MANIFEST = ("round", "positions", "counters")


class Snapshot(NamedTuple):
    """Where a run stood.

    Attributes:
        round: rounds that were done.
        positions: lengths of the record files, see `RunWriter.positions`.
        counters: totals of the record, such as bytes sent so far.
        tensors: the run's state by name.
    """

    round: int
    positions: dict[str, int]
    counters: dict[str, int]
    tensors: dict[str, np.ndarray]


def save(directory: Path, snapshot: Snapshot) -> None:
    """Write RUN/checkpoint/state.safetensors in the place of the one before.

    Raises:
        RunError: it can't be written; the one before stays.
    """
    from safetensors.numpy import save as to_bytes

    tensors = {name: np.array(x, order="C") for name, x in snapshot.tensors.items()}
    manifest = {name: getattr(snapshot, name) for name in _MANIFEST} | {"sha256": _checksum(tensors)}
    folder = directory / "checkpoint"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise io_error("write to", folder, error) from error
    write_atomic(folder / FILE, to_bytes(tensors, {"manifest": json.dumps(manifest)}))


def load(directory: Path, like: Mapping[str, Any]) -> Snapshot | None:
    """The last snapshot; None if there is none yet.

    Args:
        directory: the run's.
        like: what the tensors must look like, by name: anything with a shape, or None for any shape.

    Raises:
        RunError: it is damaged, or of another model or method.
    """
    from safetensors import safe_open

    path = directory / "checkpoint" / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, "np") as file:
            manifest = json.loads(file.metadata()["manifest"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        round, positions, counters = (manifest[name] for name in _MANIFEST)
        found = Snapshot(round, positions, counters, tensors)
        damage = None if manifest["sha256"] == _checksum(tensors) else "its checksum does not match"
    except Exception as error:  # safetensors has an exception of its own for a torn file
        damage = repr(error)
    if damage:
        raise RunError(f"The checkpoint {path} is damaged: {damage}. Start the run again in a new directory.")
    shapes = {name: getattr(x, "shape", None) for name, x in like.items()}
    if set(shapes) != set(tensors) or any(
        s is not None and tensors[name].shape != s for name, s in shapes.items()
    ):
        raise RunError(f"The checkpoint {path} is of another model or method. Resume with the run's own.")
    return found


def _checksum(tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()
