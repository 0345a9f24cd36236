"""The resolved configuration of a run, as it is saved, and whether two of them are the same experiment."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

import dure
from dure.devices import of_all
from dure.errors import ConfigError, RunError
from dure.oracles.adapter import Adapter
from dure.oracles.optimizer import response
from dure.oracles.problem import FROZEN
from dure.run import layout as files
from dure.simulation.engine import Engine
from dure.simulation.settings import Settings


def plain(thing: Any) -> Any:
    """Values as JSON has them; objects by the names of their classes and functions, with their fields."""
    if thing is None or isinstance(thing, bool | int | str):
        return thing
    if isinstance(thing, float):
        return thing if np.isfinite(thing) else str(thing)
    if isinstance(thing, np.generic):
        return plain(thing.item())
    if isinstance(thing, Mapping):
        return {str(k): plain(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple):
        return [plain(v) for v in thing]
    if is_dataclass(thing) and not isinstance(thing, type):
        parts = {f.name: plain(getattr(thing, f.name)) for f in fields(thing) if f.init}
        return {"kind": type(thing).__name__, **parts}
    if isinstance(thing, np.ndarray | jax.Array):
        array = np.asarray(thing)
        return f"{array.dtype}{array.shape}:{hashlib.sha256(array.tobytes()).hexdigest()[:16]}"
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def config(
    engine: Engine,
    rounds: int,
    evaluate_every: int | None,
    clients_every: int | None,
    initial: Any,
    experiment: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What config.json holds: all that is needed to repeat the run, beside the code of the user's functions."""
    chosen, task, layout = engine.settings, engine.task, engine.layout
    start = None if initial is None else [plain(leaf) for leaf in jax.tree.leaves(initial)]
    return {
        "dure": dure.__version__,
        "name": (experiment or {}).get("name") or f"{type(engine.algorithm).__name__} on {engine.data.name}",
        "algorithm": plain(engine.algorithm),
        "citation": type(engine.algorithm).citation,
        "objective": chosen.objective,
        "rounds": rounds,
        "seed": chosen.seed,
        "clients": {
            "population": engine.data.clients,
            "sampler": plain(chosen.sampler),
            "weighting": chosen.weighting,
            "estimator": chosen.estimator,
            "lost_uploads": plain(chosen.lost_uploads),
        },
        **_hostility(chosen),
        "local": {
            "epochs": chosen.work.epochs,
            "steps": chosen.work.steps,
            "batch_size": chosen.work.batch_size or "inf",
            "optimizer": plain(chosen.optimizer),
            "optimizer_response": response(chosen.optimizer),
            "work_limit": plain(chosen.work_limit),
        },
        "model": {
            "name": task.model.name,
            "task": task.name,
            "parameters": layout.size,
            **({"frozen": plain(engine.columns[FROZEN])} if layout.frozen_size else {}),
            **(
                {"adapters": {a.name: _adapter(a) for a in task.model.adapters}}
                if task.model.adapters
                else {}
            ),
            "buffers": layout.buffer_size,
            "counters": layout.counter_size,
            "initial": start,
        },
        "messages": {"uplink_bytes": engine.uplink_message, "downlink_bytes": engine.downlink_message},
        "evaluation": {"every": evaluate_every, "clients_every": clients_every},
        "schedule": {
            "name": engine.schedule.name,
            "width": engine.schedule.width,
            "devices": engine.mesh.size,
        },
        "executor": chosen.executor,
        "data": {
            "name": engine.data.name,
            "clients": engine.data.clients,
            "examples": engine.data.examples,
            "fingerprint": engine.data.fingerprint(),
        },
        "experiment": None if experiment is None else dict(experiment),
    }


def _hostility(chosen: Settings) -> dict[str, Any]:
    """The aggregation rule and the attack, for runs that have them."""
    if chosen.aggregator is None:
        return {}
    rule = {
        "rule": plain(chosen.aggregator),
        "too_few": chosen.too_few,
        "weight_cap": plain(chosen.weight_cap),
        **({} if chosen.root is None else {"root": chosen.root}),
    }
    if chosen.enemy is None:
        return {"aggregator": rule}
    return {
        "aggregator": rule,
        "attack": {"kind": plain(chosen.enemy.attack), "attackers": list(chosen.enemy.ids)},
    }


def _adapter(adapter: Adapter) -> dict[str, Any]:
    """What the rank, the scale α/r and the sides make of a vector follows from no fingerprint of the parameters."""
    return {"rank": adapter.rank, "scale": adapter.scale, "inputs_last": adapter.inputs_last}


def stored_config(directory: Path) -> dict[str, Any]:
    """The config.json of a run.

    Raises:
        RunError: there is none, or it is damaged.
    """
    path = directory / files.CONFIG
    if not path.exists():
        raise RunError(f"{directory} holds no run to resume: it has no {files.CONFIG}.")
    found: dict[str, Any] = files.read_json(path)
    return found


def check_processes(config: Mapping[str, Any]) -> None:
    """Processes that run a training together must run the same one.

    Raises:
        ConfigError: they don't.
    """
    if jax.process_count() == 1:
        return
    content = json.dumps(files.plain({**config, "experiment": None}), sort_keys=True).encode()
    digests = of_all(np.frombuffer(hashlib.sha256(content).digest(), np.uint8))
    others = np.flatnonzero((digests != digests[0]).any(1))
    if len(others):
        raise ConfigError(
            f"Process {others[0]} runs another experiment than process 0. All processes must call simulate with "
            "the same arguments and data: look for what depends on the machine, the time, or an unseeded generator."
        )


def check_same(stored: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """A run may only be resumed as the same experiment; more rounds are allowed.

    Raises:
        ConfigError: naming the first key that differs, with both values.
    """
    for key in now:
        if key in ("rounds", "dure", "experiment", "name", "executor"):
            continue
        difference = _difference(key, stored.get(key), files.plain(now[key]))
        if difference:
            raise ConfigError(
                f"This is not the same experiment: {difference}. Resume with the arguments of the run, or "
                "start another one in a new directory."
            )


def _difference(key: str, old: Any, new: Any) -> str | None:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for name in {**old, **new}:
            found = _difference(f"{key}.{name}", old.get(name), new.get(name))
            if found:
                return found
        return None
    return None if old == new else f"{key} was {old!r} and is {new!r}"
