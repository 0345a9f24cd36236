"""What is written about a run: its configuration, its messages, a line for each round."""

from typing import Any, NamedTuple

import jax
import numpy as np

import dure
from dure.channel import wire
from dure.distillation.base import Method
from dure.distillation.group import Group
from dure.distillation.public import PublicSet
from dure.oracles.optimizer import response
from dure.simulation.describe import plain
from dure.simulation.records import NOTHING
from dure.simulation.settings import Settings


class Asked(NamedTuple):
    """What happened to the clients of a round, (m,) each, in the order of their ids."""

    client: np.ndarray
    architecture: np.ndarray
    examples: np.ndarray
    weight: np.ndarray
    inclusion: np.ndarray
    steps: np.ndarray
    loss: np.ndarray
    digest_loss: np.ndarray
    status: Any
    uplink: np.ndarray
    downlink: np.ndarray


def messages(group: Group, method: Method, public: PublicSet) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What one client sends in a round, and the messages that it receives, as tensors (or their shapes)."""
    layout = group.layout
    if method.prototypes:
        buffers = {"buffers": _floats(layout.buffer_size)} if layout.buffer_size else {}
        parameters = _floats(layout.size)
        return {"delta": parameters, **buffers}, [{"w": parameters, **buffers}]
    predictions = _floats(public.size, public.classes)
    down: list[dict[str, Any]] = [{"targets": predictions}]
    if public.per_round is not None:  # which of the inputs are meant
        down.append({"rows": jax.ShapeDtypeStruct((public.size,), np.int32)})
    return {"predictions": predictions}, down


def _floats(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def record(number: int, asked: Asked, data: Any, taught: list[float]) -> dict[str, Any]:
    """One line of rounds.jsonl, without evaluation."""
    used = np.array([s == "ok" for s in asked.status], bool)
    rejected = [
        f"client {data.client_name(int(k))}: {s}"
        for k, s in zip(asked.client, asked.status, strict=True)
        if s not in ("ok", "no examples")
    ]
    losses = np.asarray(taught) if taught else asked.digest_loss[np.isfinite(asked.digest_loss)]
    return {
        "round": number,
        "status": "ok" if used.any() else NOTHING,
        "clients": len(asked.client),
        "accepted": int(used.sum()),
        "rejected": len(rejected),
        "rejections": rejected[:20],
        "examples": int(asked.examples[used].sum()),
        "steps": int(asked.steps.sum()),
        "train_loss": _mean(asked.loss[used], asked.examples[used]),
        "digest_loss": float(losses.mean()) if losses.size else None,
        "uplink_bytes": int(asked.uplink.sum()),
        "downlink_bytes": int(asked.downlink.sum()),
    }


def _mean(values: np.ndarray, weights: np.ndarray) -> float | None:
    total = float(weights.sum())
    return float(np.sum(values.astype(np.float64) * weights) / total) if total > 0 else None


def config(
    method: Method, groups: list[Group], data: Any, public: PublicSet, chosen: Settings, rounds: int
) -> dict[str, Any]:
    """What config.json holds."""
    sizes = [messages(group, method, public) for group in groups]
    names = [group.task.model.name for group in groups]
    return {
        "dure": dure.__version__,
        "name": f"{type(method).__name__} on {data.name}",
        "algorithm": plain(method),
        "citation": type(method).citation,
        "objective": "agreement on public inputs between clients that each learn from their own examples",
        "rounds": rounds,
        "seed": chosen.seed,
        "clients": {"population": data.clients, "sampler": plain(chosen.sampler)},
        "local": {
            "epochs": chosen.work.epochs,
            "steps": chosen.work.steps,
            "batch_size": chosen.work.batch_size or "inf",
            "optimizer": plain(chosen.optimizer),
        },
        "public": {
            "inputs": plain(public.inputs),
            "per_round": public.size,
            "batch_size": public.batch,
            "optimizer": plain(public.optimizer),
            "optimizer_response": response(public.optimizer),
        },
        "model": {
            "name": " + ".join(names),
            "classes": public.classes,
            "parameters": [group.layout.size for group in groups],
            "clients": [len(group.ids) for group in groups],
        },
        "messages": {
            "uplink_bytes": [wire.size(up) for up, _ in sizes],
            "downlink_bytes": [sum(wire.size(m) for m in down) for _, down in sizes],
        },
        "schedule": {
            "width": [group.engine.schedule.width for group in groups],
            "devices": groups[0].engine.mesh.size,
        },
        "data": {"name": data.name, "fingerprint": data.fingerprint()},
        "experiment": None,
    }
