"""What is written about a network's run. Everything here is deterministic: the clock has its own file."""

from typing import Any

import jax
import numpy as np

import dure
from dure.decentralized.mixing import spectral_gap
from dure.decentralized.network import Launched, Network
from dure.oracles.optimizer import response
from dure.simulation.describe import plain
from dure.simulation.records import NOTHING
from dure.simulation.verdict import statuses


def config_of(network: Network, rounds: int, evaluate_every: int | None, initial: Any) -> dict[str, Any]:
    """What config.json holds: all that is needed to repeat the run, beside the code of the user's functions."""
    chosen, task, layout, graph = network.settings, network.task, network.layout, network.graph
    own = hasattr(network.method, "learning_rate")
    return {
        "dure": dure.__version__,
        "name": f"{type(network.method).__name__} on {network.data.name}, {graph.name}",
        "algorithm": plain(network.method),
        "citation": type(network.method).citation,
        "objective": "(1/N) Σ F_k: every node counts alike, whatever it holds",
        "rounds": rounds,
        "seed": chosen.seed,
        "graph": {
            "name": graph.name,
            "nodes": graph.nodes,
            "directed_edges": len(graph.edges),
            "adjacency": plain(graph.adjacency),
            "mixing": plain(network.mixing),
            "spectral_gap": spectral_gap(network.mixing),
            "lost_messages": network.lost_messages,
        },
        "local": {
            "epochs": chosen.work.epochs,
            "steps": chosen.work.steps,
            "batch_size": chosen.work.batch_size or "inf",
            "optimizer": None if own else plain(chosen.optimizer),
            "optimizer_response": None if own else response(chosen.optimizer),
        },
        "model": {
            "name": task.model.name,
            "task": task.name,
            "parameters": layout.size,
            "initial": None if initial is None else [plain(leaf) for leaf in jax.tree.leaves(initial)],
        },
        "messages": {"message_bytes": network.message},
        "evaluation": {"every": evaluate_every},
        "schedule": {"name": network.schedule.name},
        "data": {"name": network.data.name, "fingerprint": network.data.fingerprint()},
    }


def round_record(network: Network, launched: Launched | None, sent: int) -> dict[str, Any]:
    """One line of rounds.jsonl; round 0 (`launched` None) is before training. Waits for the round.

    `consensus` is None where the models are not finite.
    """
    if launched is None:
        return {"round": 0, "status": "start", "consensus": 0.0, "cumulative_uplink_bytes": 0}
    loss, _, verdict, consensus = (np.asarray(x) for x in launched.report)
    worked = (launched.steps > 0) & (verdict == 0)
    status = _statuses(launched)
    refused = [
        f"client {network.data.client_name(k)}: {s}"
        for k, s in enumerate(status)
        if s not in ("ok", "no examples")
    ]
    edges = len(network.graph.edges)
    return {
        "round": launched.round,
        "status": "ok" if worked.any() else NOTHING,
        "clients": network.graph.nodes,
        "rejected": len(refused),
        "rejections": refused[:20],
        "steps": int(launched.steps.sum()),
        "train_loss": float(loss[worked].mean(dtype=np.float64)) if worked.any() else None,
        "consensus": float(consensus) if np.isfinite(consensus) else None,
        "messages": edges,
        "lost_messages": launched.lost,
        "uplink_bytes": network.message * edges,
        "cumulative_uplink_bytes": sent,
    }


def participation(network: Network, launched: Launched) -> dict[str, Any]:
    """One line of participation.jsonl: a list per column, one entry per node."""
    n = network.graph.nodes
    loss, norm = np.asarray(launched.report.loss), np.asarray(launched.report.norm)
    return {
        "client": np.arange(n),
        "examples": launched.examples,
        "weight": np.full(n, 1 / n),
        "steps": launched.steps,
        "loss": np.where(launched.steps > 0, loss, np.nan),
        "norm": np.where(launched.steps > 0, norm, np.nan),
        "status": _statuses(launched),
    }


def _statuses(launched: Launched) -> list[str]:
    """Each node's "ok", or why its work was set aside."""
    nothing = np.zeros(len(launched.steps), bool)  # an exchange may be lost, a node's own work can't be
    return statuses(launched.examples, launched.steps, nothing, np.asarray(launched.report.verdict))
