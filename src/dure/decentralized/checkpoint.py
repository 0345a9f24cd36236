"""Checkpoints of a network: one file that holds all that the rest of a run depends on, replaced atomically."""

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dure.decentralized.network import Network
from dure.errors import RunError
from dure.run.layout import io_error, write_atomic

FILE = "network.safetensors"


class Checkpoint(NamedTuple):
    """Where a run stood: the round, the lengths of its record files, bytes sent so far."""

    round: int
    positions: dict[str, int]
    sent: int


def save(directory: Path, network: Network, at: Checkpoint) -> None:
    """Write RUN/checkpoint/network.safetensors in the place of the one before.

    Raises:
        RunError: it can't be written; the one before stays.
    """
    from safetensors.numpy import save as to_bytes

    leaves = jax.device_get(jax.tree.leaves(network.state))
    tensors = {f"state/{i}": np.array(leaf, order="C") for i, leaf in enumerate(leaves)}
    manifest = {**at._asdict(), "sha256": _checksum(tensors)}
    folder = directory / "checkpoint"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise io_error("write to", folder, error) from error
    write_atomic(folder / FILE, to_bytes(tensors, {"manifest": json.dumps(manifest)}))


def load(directory: Path, network: Network) -> Checkpoint | None:
    """Take the network back to the checkpoint; None if there is none yet.

    Raises:
        RunError: it is damaged or of another model or method.
    """
    from safetensors import safe_open

    path = directory / "checkpoint" / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, "np") as file:
            manifest = json.loads(file.metadata()["manifest"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        at = Checkpoint(*(manifest[name] for name in Checkpoint._fields))
        damage = None if manifest["sha256"] == _checksum(tensors) else "its checksum does not match"
    except Exception as error:  # safetensors has an exception of its own for a torn file
        damage = repr(error)
    if damage:
        raise RunError(f"The checkpoint {path} is damaged: {damage}. Start the run again in a new directory.")
    leaves, structure = jax.tree.flatten(network.state)
    found = [tensors.get(f"state/{i}") for i in range(len(leaves))]
    if len(tensors) != len(leaves) or any(
        v is None or v.shape != w.shape for v, w in zip(found, leaves, strict=True)
    ):
        raise RunError(f"The checkpoint {path} is of another model or method. Resume with the run's own.")
    network.restore(jax.tree.unflatten(structure, found), at.round)
    return at


def _checksum(tensors: dict[str, Any]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + np.ascontiguousarray(tensors[name]).tobytes())
    return digest.hexdigest()
