"""Fed-Heart-Disease, the protocol of FLamby (Ogier du Terrail et al., NeurIPS 2022), beside its published figures.

Four hospitals, logistic regression from weights uniform in ±1/√13, batches of 4, 100 local steps a round, 15
rounds, everyone takes part, weights by examples, accuracy at threshold 0.5. Learning rates are the published
ones, one per method. Pooled and local-only training: Adam, rate 0.001, 50 epochs. Federated methods and local
training read rows normalised per hospital; pooled training reads rows normalised together. Tests per hospital
read rows normalised per hospital, and the pooled test rows normalised together, as in the published code.

The test, per method and column: Welch's t on the two means over seeds, both standard deviations floored at half
a test row; a method is "within" if no column's p-value is below 0.05 / 5 (Bonferroni over its five columns).

    python benchmarks/heart.py                     seeds 42 to 46
    python benchmarks/heart.py --seeds 20
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax
from scipy import stats
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

import common
import dure
from dure.data.loaders.heart import HOSPITALS

ROUNDS, STEPS, BATCH, FIRST_SEED = 15, 100, 4, 42
COLUMNS = (*HOSPITALS, "pooled test")
ROWS = (104, 89, 16, 45, 254)  # of the test sets

#: Mean and standard deviation over 5 seeds, from the CSV files that FLamby keeps with its code.
PUBLISHED = {
    "pooled": (0.783, 0.011, 0.764, 0.000, 0.750, 0.000, 0.644, 0.000, 0.795, 0.003),
    "local only": (0.746, 0.016, 0.746, 0.006, 0.725, 0.122, 0.702, 0.051, math.nan, math.nan),
    "FedAvg": (0.731, 0.022, 0.719, 0.033, 0.650, 0.114, 0.640, 0.051, 0.748, 0.027),
    "FedProx": (0.731, 0.022, 0.719, 0.033, 0.650, 0.114, 0.640, 0.051, 0.748, 0.027),
    "SCAFFOLD": (0.727, 0.019, 0.719, 0.033, 0.650, 0.114, 0.640, 0.051, 0.748, 0.027),
    "cyclic": (0.758, 0.014, 0.762, 0.015, 0.713, 0.095, 0.640, 0.019, 0.785, 0.012),
    "FedAdam": (0.752, 0.017, 0.746, 0.019, 0.738, 0.028, 0.667, 0.044, 0.779, 0.015),
    "FedYogi": (0.760, 0.018, 0.753, 0.018, 0.738, 0.028, 0.676, 0.040, 0.779, 0.015),
    "FedAdagrad": (0.760, 0.018, 0.753, 0.018, 0.738, 0.028, 0.676, 0.040, 0.779, 0.015),
}
PUBLISHED["cyclic, not passed on"] = PUBLISHED["cyclic"]

TASK = dure.binary(dure.models.logistic(13))
DATA = {way: dure.data.heart(normalise=way) for way in ("hospital", "pooled")}
MOMENTS = {"beta1": 0.9, "beta2": 0.999, "tau": 1e-8}


@dataclass(frozen=True)
class Linear:
    """A trained model: x ↦ x·weight + bias."""

    weight: np.ndarray
    bias: float

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x, np.float64) @ self.weight + self.bias


def start(seed: int) -> dure.Variables:
    """PyTorch's default weights of a linear layer: uniform in ±1/√13."""
    draw = np.random.default_rng(seed).uniform(-1, 1, 14).astype(np.float32) / math.sqrt(13)
    return dure.Variables({"weight": draw[:13], "bias": draw[13]})


def train(seed: int, algorithm: Any, rate: Any, **keywords: Any) -> Linear:
    """One run; keywords are `simulate`'s, where they differ from the protocol's."""
    given = {"data": DATA["hospital"], "rounds": ROUNDS, "steps": STEPS, "batch_size": BATCH, **keywords}
    run = dure.simulate(
        algorithm, TASK, optimizer=rate, seed=seed, initial=start(seed), evaluate_every=None, **given
    )
    return Linear(np.asarray(run.model["weight"], np.float64), float(run.model["bias"]))


def alone(seed: int, rows: dure.Federated) -> Linear:
    """The published baseline on one data set: Adam, 50 epochs."""
    adam = dure.Optimizer(optax.adam, {"learning_rate": 0.001})
    return train(seed, dure.FedAvg(), adam, data=rows, rounds=1, steps=None, epochs=50)


def pooled(seed: int) -> list[Linear]:
    data = DATA["pooled"]
    return [alone(seed, dure.Federated(data.columns, np.array([0, len(data.columns["y"])])))] * 5


def local_only(seed: int) -> list[Linear | None]:
    own = [alone(seed, DATA["hospital"].select(np.array([k]))) for k in range(4)]
    return [*own, None]


def federated(algorithm: Any, rate: float, sampler: Any = None) -> Callable[[int], list[Linear]]:
    return lambda seed: [train(seed, algorithm, rate, sampler=sampler)] * 5


def order(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(4)


def cyclic(seed: int) -> list[Linear]:
    """The model goes from hospital to hospital, one a round, in the seed's order."""
    return federated(dure.FedAvg(), 0.01, dure.Cyclic(1, order=tuple(order(seed))))(seed)


def not_passed_on(seed: int) -> list[Linear]:
    """What the published code does: every hospital goes on with its own copy, and the first one's is tested."""
    visits = ROUNDS // 4 + int(np.flatnonzero(order(seed) == 0)[0] < ROUNDS % 4)
    first = DATA["hospital"].select(np.array([0]))
    return [train(seed, dure.FedAvg(), 0.01, data=first, rounds=visits)] * 5


METHODS: dict[str, Callable[[int], list[Any]]] = {
    "pooled": pooled,
    "local only": local_only,
    "FedAvg": federated(dure.FedAvg(), 0.001),
    "FedProx": federated(dure.FedProx(mu=0.01), 0.001),
    "SCAFFOLD": federated(dure.Scaffold(), 0.001),
    "cyclic": cyclic,
    "cyclic, not passed on": not_passed_on,
    "FedAdam": federated(dure.FedAdam(server_lr=0.01, **MOMENTS), 0.01),
    "FedYogi": federated(dure.FedYogi(server_lr=0.01, **MOMENTS), 0.003162),
    "FedAdagrad": federated(dure.FedAdagrad(server_lr=0.316228, beta1=0.9, tau=1e-8), 0.003162),
}


def measure(models: list[Any]) -> np.ndarray:
    """(3, 5): accuracy, balanced accuracy and area under the curve, per column."""
    tests = [*(DATA["hospital"].client_test_rows(k) for k in range(4)), DATA["pooled"].central_test]
    out = np.full((3, 5), np.nan)
    for i, (model, rows) in enumerate(zip(models, tests, strict=True)):
        if model is not None:
            scores, y = model(rows["x"]), rows["y"]
            said = scores > 0
            out[:, i] = (said == y).mean(), balanced_accuracy_score(y, said), roc_auc_score(y, scores)
    return out


@dataclass(frozen=True)
class Cell:
    """One method in one column: our figures, the published ones, and the test between them."""

    mean: float
    sd: float
    published: float
    published_sd: float
    p: float


def compare(ours: np.ndarray, mean: float, sd: float, rows: int) -> Cell:
    """Welch's test of our accuracies, one per seed, against the published mean and deviation of 5 seeds."""
    n, own = len(ours), float(ours.std(ddof=1))
    a, b = max(own, 0.5 / rows) ** 2 / n, max(sd, 0.5 / rows) ** 2 / 5
    t = (float(ours.mean()) - mean) / math.sqrt(a + b)
    freedom = (a + b) ** 2 / (a**2 / (n - 1) + b**2 / 4)
    return Cell(float(ours.mean()), own, mean, sd, float(2 * stats.t.sf(abs(t), freedom)))


def verdict(cells: list[Cell]) -> str:
    bad = [
        f"{name} {cell.mean - cell.published:+.3f} (p {cell.p:.0e})"
        for name, cell in zip(COLUMNS, cells, strict=True)
        if cell.p < 0.05 / 5
    ]
    return "; ".join(bad) or "within"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="at least 2 (5, as published)")
    common.files(parser)
    asked = parser.parse_args()
    if asked.seeds < 2:
        parser.error("--seeds must be at least 2")
    console, load, started = common.console(), os.getloadavg()[0], time.perf_counter()
    first, second, report = [], [], {}
    for name, method in METHODS.items():
        seeds = range(FIRST_SEED, FIRST_SEED + asked.seeds)
        found = np.array([measure(method(seed)) for seed in seeds])
        given = np.reshape(PUBLISHED[name], (5, 2))
        cells = [compare(found[:, 0, i], *given[i], ROWS[i]) for i in range(5)]
        texts = [
            "–"
            if math.isnan(c.mean)
            else f"{c.mean:.3f} ({c.sd:.3f}) · {c.published:.3f} ({c.published_sd:.3f})"
            for c in cells
        ]
        first.append([name, *texts, verdict(cells)])
        shown = found[:, 1:].mean(0)
        second.append(
            [name, *("–" if np.isnan(b) else f"{b:.3f} · {a:.3f}" for b, a in zip(*shown, strict=True))]
        )
        report[name] = {"accuracy": found[:, 0].tolist(), "cells": [vars(c) for c in cells]}
    tables: list[common.Named] = [
        (
            "Accuracy: dure · published, mean (standard deviation) over seeds",
            ("method", *COLUMNS, "Welch, p < 0.01"),
            first,
        ),
        (
            "dure only: balanced accuracy · area under the curve, mean over seeds",
            ("method", *COLUMNS),
            second,
        ),
    ]
    common.show(console, tables)
    console.print(f"{time.perf_counter() - started:.0f} s")
    common.save(asked, common.about(load), tables, {"methods": report})
    return 0


if __name__ == "__main__":
    sys.exit(main())
