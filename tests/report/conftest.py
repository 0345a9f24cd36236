"""Runs as the engine would write them, without an engine: random but fixed numbers of the right shape."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dure.run import Run, RunWriter


def fake_run(
    directory: Path | None,
    *,
    rounds: int = 30,
    clients: int = 14,
    classes: int = 10,
    cohort: int | None = None,
    seed: int = 0,
    name: str = "digits",
    speed: float = 6.0,
    client_evaluation: bool = True,
    test: bool = True,
    broken: bool = False,
    personal: bool = False,
    method: str = "FedAvg",
    stop: int | None = None,
    state: str = "complete",
    rule: str | None = None,
    attack: str | None = None,
) -> Run:
    """Write a run: `broken` adds NaN losses and rejected clients, `personal` adds personal models, `stop` ends it.

    `rule` is what an aggregation rule does ("weighs", "chooses", "neither"), `attack` the name of an attack by clients
    0 and 1, which the rule suspects; round 3 is skipped.
    """
    rng = np.random.default_rng(seed)
    cohort = clients if cohort is None else cohort
    counts = rng.multinomial(90, rng.dirichlet(np.full(classes, 0.5)), clients)
    if clients > 40:
        counts = np.stack([rng.multinomial(90, rng.dirichlet(np.full(classes, 0.2))) for _ in range(clients)])
    config = {
        "name": name,
        "seed": seed,
        "rounds": rounds,
        "citation": "H. B. McMahan et al. Communication-Efficient Learning … AISTATS 2017.",
        "objective": "Σ (n_k/n) F_k",
        "data": {"name": "digits", "test_fraction": 0.3},
        "model": {"name": "softmax_regression"},
        "algorithm": {"name": method, "server_lr": 1.0},
        "clients": {"fraction": cohort / clients, "epochs": 1, "batch_size": 10, "weighting": "examples"},
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
    }
    if rule:
        inner = {"kind": "TrimmedMean", "f": 2, "fraction": None}
        chained = {"kind": "Chain", "before": [{"kind": "NNM", "f": 2}], "rule": inner}
        config["aggregator"] = {"rule": chained, "too_few": "skip", "weight_cap": None}
    if attack:
        config["attack"] = {"kind": {"kind": attack, "z": 1.5}, "attackers": [0, 1]}
    data = {
        "name": "digits",
        "source": "UCI",
        "licence": "CC BY 4.0",
        "citation": "E. Alpaydin, C. Kaynak. Optical Recognition of Handwritten Digits. UCI, 1998.",
        "clients": clients,
        "examples": int(counts.sum()),
        "classes": classes,
        "class_counts": counts[:1000],
        "sizes": counts[:1000].sum(axis=1),
        "shown_clients": np.arange(min(1000, clients)),
        "test_examples": 540,
    }
    if clients <= 40:
        data["client_names"] = [f"writer {k + 1}" for k in range(clients)]
    environment = {
        "python": "3.11.7",
        "packages": {"dure": "0.1.0", "jax": "0.10.2"},
        "cores": 2,
        "device": "cpu",
    }
    writer = RunWriter(directory, config=config, environment=environment, data=data, rounds=rounds)
    sent = 0
    skill = rng.normal(0, 0.05, clients)
    last = rounds if stop is None else stop
    for r in range(last + 1):
        accuracy = 0.1 + 0.85 * (1 - np.exp(-r / speed)) + 0.01 * rng.normal()
        record: dict[str, Any] = {"round": r}
        if r:
            ids = np.sort(rng.choice(clients, cohort, replace=False))
            status = np.array(["ok"] * cohort, dtype=object)
            loss = (2.3 * np.exp(-r / speed) + 0.05 * rng.random(cohort)).astype(np.float32)
            if broken and r % 4 == 0:
                status[0], loss[0] = "loss is not finite", np.nan
            bad = int((status != "ok").sum())
            sent += 2640 * (cohort - bad)
            lost = broken and r in (9, 10)
            record |= {"clients": cohort, "accepted": cohort - bad, "rejected": bad, "examples": 90 * cohort}
            record |= {"uplink_bytes": 2640 * (cohort - bad), "downlink_bytes": 2640 * cohort}
            record |= {"cumulative_uplink_bytes": sent}
            record |= {"train_loss": np.nan if lost else float(np.nanmean(loss)), "update_norm": float(1 / r)}
            record |= {"status": "no usable update" if lost else "ok"}
            columns = {
                "client": ids,
                "examples": np.full(cohort, 90),
                "weight": np.full(cohort, 90.0),
                "inclusion": np.full(cohort, cohort / clients),
                "steps": counts[ids].sum(axis=1) // 10 + ids % 5,
                "loss": loss,
                "norm": loss,
                "status": status,
            }
            if rule:
                record |= _ruled(record, columns, rule, attack, rng)
            writer.participation(r, columns)
            writer.timing({"round": r, "seconds": 0.01 + (r == 1) * 0.8, "compilations": int(r == 1)})
        if test:
            record |= {"test_loss": float(2.3 * np.exp(-r / speed) + 0.1), "test_accuracy": float(accuracy)}
        if client_evaluation and r % 5 == 0:
            each = np.clip(accuracy + skill, 0, 1)
            record |= {
                "client_accuracy_mean": each.mean(),
                "client_accuracy_p10": np.percentile(each, 10),
                "client_accuracy_worst": each.min(),
                "client_accuracy_spread": each.std(),
                "client_loss_mean": 2.3 * np.exp(-r / speed) + 0.2,
            }
            rows = {"client": np.arange(clients), "examples": np.full(clients, 39), "accuracy": each}
            if personal:
                own = np.clip(each + 0.04 * rng.random(clients), 0, 1)
                rows |= {"personal_accuracy": own}
                record |= {
                    "client_personal_accuracy_mean": own.mean(),
                    "client_personal_accuracy_p10": np.percentile(own, 10),
                    "client_personal_accuracy_worst": own.min(),
                    "client_personal_accuracy_spread": own.std(),
                    "client_personal_loss_mean": 2.0 * np.exp(-r / speed) + 0.1,
                }
            writer.clients(r, rows)
        writer.round(record)
    if state == "complete":
        writer.model({"dense/kernel": np.zeros((64, 10), np.float32)}, {"round": str(last)})
    writer.status(state, last, "disk full" if state == "failed" else None)
    writer.close()
    return writer.run()


def _ruled(
    record: dict[str, Any], columns: dict[str, Any], rule: str, attack: str | None, rng: np.random.Generator
) -> dict[str, Any]:
    """What a rule writes in a round; adds the clients' columns."""
    m, bad = len(columns["client"]), np.isin(columns["client"], [0, 1])
    unknown, skipped = np.full(m, np.nan), record["round"] == 3
    kept = np.zeros(m, bool) if skipped else ~bad if rule != "neither" else np.ones(m, bool)
    columns |= {
        "selected": kept,
        "rule_weight": kept / max(kept.sum(), 1) if rule == "weighs" and not skipped else unknown,
        "score": unknown,
        "distance": unknown if skipped else bad + rng.random(m),
        "attacker": bad if attack else np.zeros(m, bool),
    }
    more: dict[str, Any] = {
        "rule_selected": int(kept.sum()),
        "rule_dropped": 0,
        "rule_flags": [],
        "kappa_bound": 0.9,
    }
    if record["round"] in (1, 2, 5):
        more["rule_flags"] = ["more updates dropped than f"]
    if skipped:
        more |= {"status": "skipped: NNM needs 2f < n", "kappa_bound": None}
    if attack:
        more |= {"attackers": int(bad.sum())}
        more |= {} if skipped else {"kappa": float(0.3 + 0.1 * rng.random())}
        more |= {"backdoor_accuracy": 0.25} if attack == "Backdoor" else {}
    return more


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    """`make_run(name, …)` writes a fake run under tmp_path; with `memory=True` into memory."""

    def make(folder: str = "run", *, memory: bool = False, **options: Any) -> Run:
        return fake_run(None if memory else tmp_path / folder, **options)

    return make
