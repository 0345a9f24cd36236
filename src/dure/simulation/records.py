"""What is written about a round. Everything here is deterministic: the clock has its own file."""

from typing import Any

import numpy as np

from dure.simulation.defence import Account
from dure.simulation.engine import Engine
from dure.simulation.results import RoundResult

NOTHING = "no usable update"
NOT_FINITE = "the server's step was not finite: model kept"


def round_record(engine: Engine, result: RoundResult | None, uplink: int, downlink: int) -> dict[str, Any]:
    """One line of rounds.jsonl; round 0 (`result` None) is the model before training."""
    if result is None:
        return {"round": 0, "status": "start", "cumulative_uplink_bytes": 0, "cumulative_downlink_bytes": 0}
    used = np.array([s == "ok" for s in result.status], bool)
    reported = used & ~np.isnan(result.loss)  # a used update's loss is only NaN where none was reported
    weights = result.weights[reported].astype(np.float64)
    loss = float(np.sum(weights * result.loss[reported]) / weights.sum()) if weights.sum() > 0 else None
    rejected = [
        f"client {engine.data.client_name(int(k))}: {s}"
        for k, s in zip(result.ids, result.status, strict=True)
        if s not in ("ok", "no examples")
    ]
    return {
        "round": result.round,
        "status": NOTHING if not result.accepted else "ok" if result.finite else NOT_FINITE,
        "clients": len(result.ids),
        "accepted": result.accepted,
        "rejected": len(rejected),
        "rejections": rejected[:20],
        "examples": int(result.examples[used].sum()),
        "steps": int(result.steps.sum()),
        "train_loss": loss,
        "update_norm": result.move,
        "uplink_bytes": engine.uplink_message * result.senders,
        "downlink_bytes": engine.downlink_message * len(result.ids),
        "cumulative_uplink_bytes": uplink,
        "cumulative_downlink_bytes": downlink,
        **({} if result.account is None else _account(result.account)),
    }


def _account(account: Account) -> dict[str, Any]:
    """What the aggregation rule did in the round."""
    known = (
        {"attackers": int(account.attacker.sum()), "kappa": account.kappa}
        if account.kappa == account.kappa
        else {}
    )
    return {
        **({"status": f"skipped: {account.skipped}"} if account.skipped else {}),
        "rule_selected": int(account.selected.sum()),
        "rule_dropped": account.dropped,
        "rule_flags": list(account.flags),
        "kappa_bound": account.bound,
        **known,
    }


def participation(result: RoundResult) -> dict[str, Any]:
    """One line of participation.jsonl: a list per column, one entry per client that was asked."""
    return {
        "client": result.ids,
        "examples": result.examples,
        "weight": result.weights,
        "inclusion": result.inclusion,
        "steps": result.steps,
        "loss": result.loss,
        "norm": result.norm,
        "status": result.status,
        **({} if result.account is None else _treatment(result.account)),
    }


def _treatment(account: Account) -> dict[str, Any]:
    """What the aggregation rule did with each client."""
    return {
        "selected": account.selected,
        "rule_weight": account.weight,
        "score": account.score,
        "distance": account.distance,
        "attacker": account.attacker,
    }
