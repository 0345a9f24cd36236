"""Personalisation on digits by writer: how good is the model that each client ends up using?

14 writers with their own test rows (about 39 each), everyone takes part, E = 2, B = 10, 40 rounds; MLP 64-32-10,
FedBN with batch normalisation after the hidden layer (and FedAvg with the same model beside it). Every method's
rates and own hyper-parameters are tuned on other seeds (100 and 101), by the mean over clients of the accuracy of
the models that the clients use; the table is over seeds 0 to 4 (split of each writer's rows, weights, orders).
Local-only training gets as many local steps as the others.

    python benchmarks/personal.py
    python benchmarks/personal.py --quick          two seeds, one point per method
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

import common
import dure
from dure.models.layers import batch_norm, batch_norm_init, dense, dense_init

ROUNDS, EPOCHS, BATCH, HIDDEN = 40, 2, 10, 32
HEAD, BODY = ("dense2",), ("dense1",)


def batch_norm_model() -> Any:
    """64-32-10 with batch normalisation before the ReLU."""

    def init(key: Any) -> dure.Variables:
        first, second = jax.random.split(key)
        scale, statistics = batch_norm_init(HIDDEN)
        params = {
            "dense1": dense_init(first, 64, HIDDEN),
            "norm": scale,
            "dense2": dense_init(second, HIDDEN, 10),
        }
        return dure.Variables(params, {"norm": statistics})

    def apply(params: Any, x: Any, *, train: bool, mask: Any, buffers: Any) -> Any:
        before = dense(params["dense1"], x)
        hidden, statistics = batch_norm(params["norm"], buffers["norm"], before, train=train, mask=mask)
        return dense(params["dense2"], jax.nn.relu(hidden)), {"norm": statistics}

    return dure.Model.from_functions(init, apply, name="mlp(64-32-10) with batch normalisation")


PLAIN = dure.classification(dure.models.mlp(64, (HIDDEN,), 10))
NORMED = dure.classification(batch_norm_model())


@dataclass(frozen=True)
class Entry:
    """One row: (algorithm, optimizer) points to tune over, and the task."""

    name: str
    points: tuple[tuple[Any, Any], ...]
    task: dure.Task = PLAIN


def grid(make: Any, rates: Iterable[float], *values: Iterable[float]) -> tuple[tuple[Any, Any], ...]:
    """All combinations of local rates and the method's own values; `make(rate, *values)`."""
    return tuple((make(rate, *rest), rate) for rate, *rest in product(rates, *values))


RATES = (0.1, 0.3, 1.0)


def entries() -> list[Entry]:
    return [
        Entry("local only", grid(lambda r: dure.LocalOnly(), RATES)),
        Entry("FedAvg", grid(lambda r: dure.FedAvg(), RATES)),
        Entry("fine-tuning", grid(lambda r: dure.FineTuning(), RATES)),
        Entry("Ditto", grid(lambda r, lam: dure.Ditto(lam=lam), RATES, (0.03, 0.1, 0.3))),
        Entry(
            "pFedMe",
            grid(
                lambda r, lam: dure.PFedMe(lam=lam, inner_lr=r / 2, eta=1 / lam, inner_steps=5),
                (0.05, 0.1),
                (1.0, 3.0),
            ),
        ),
        Entry("APFL", grid(lambda r, a: dure.APFL(learning_rate=r, alpha=a, alpha_lr=0.01), RATES, (0.25, 0.5))),
        Entry(
            "Per-FedAvg",
            grid(lambda r, a: dure.PerFedAvg(learning_rate=r, adaptation_lr=a), RATES, (0.1, 0.5)),
        ),
        Entry("FedPer", grid(lambda r: dure.FedPer(private=HEAD), RATES)),
        Entry("FedRep", grid(lambda r, n: dure.FedRep(private=HEAD, head_passes=int(n)), RATES, (1, 3))),
        Entry("FedBABU", grid(lambda r: dure.FedBABU(private=HEAD), RATES)),
        Entry("LG-FedAvg", grid(lambda r: dure.LGFedAvg(private=BODY), RATES)),
        Entry("IFCA", grid(lambda r, k: dure.IFCA(clusters=int(k), spread=0.05), RATES, (2, 3))),
        Entry("FedAvg, batch norm", grid(lambda r: dure.FedAvg(), RATES), NORMED),
        Entry("FedBN", grid(lambda r: dure.FedBN(), RATES), NORMED),
    ]  # fmt: skip


@cache
def data(seed: int) -> dure.Federated:
    return dure.data.digits(seed=seed)


@dataclass
class Result:
    """Accuracy of each of the 14 clients' test rows, with the server's model and with the client's own."""

    server: np.ndarray
    own: np.ndarray


def once(entry: Entry, point: tuple[Any, Any], seed: int) -> Result:
    run = dure.simulate(
        point[0],
        entry.task,
        data(seed),
        rounds=ROUNDS,
        epochs=EPOCHS,
        batch_size=BATCH,
        optimizer=point[1],
        seed=seed,
        evaluate_every=None,
    )
    last = run.clients[run.clients["round"] == ROUNDS]
    server = last["accuracy"].to_numpy(float)
    own = last["personal_accuracy"].to_numpy(float) if "personal_accuracy" in last else server
    return Result(server, own)


def setting(entry: Entry, point: tuple[Any, Any]) -> str:
    """The chosen rate and the values that differ between the entry's points."""
    algorithm, rate = point
    words = [f"rate {rate:g}"]
    for name in ("lam", "alpha", "adaptation_lr", "head_passes", "clusters"):
        if len({getattr(a, name, None) for a, _ in entry.points}) > 1:
            words.append(f"{name} {getattr(algorithm, name):g}")
    return ", ".join(words)


def line(name: str, chosen: str, results: list[Result], local: list[Result]) -> list[str]:
    """One row of the table; gains are per seed, over local-only training on the same split."""
    own, server = np.array([r.own for r in results]), np.array([r.server for r in results])
    has_server = name not in ("local only", "FedPer", "FedRep", "LG-FedAvg", "FedBABU", "FedBN", "IFCA")
    gain = (own - np.array([r.own for r in local])).mean(1)
    half = stats.t.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
    worse = (own < np.array([r.own for r in local])).mean()
    return [
        name,
        chosen,
        *(spread(server) if has_server else ["–"] * 3),
        *spread(own),
        "" if name == "local only" else f"{100 * gain.mean():+.1f} ± {100 * half:.1f}",
        "" if name == "local only" else f"{100 * worse:.0f} %",
    ]


def spread(values: np.ndarray) -> list[str]:
    """Mean, 10th percentile and worst over clients, each the mean over seeds, in percent."""
    found = values.mean(1), np.percentile(values, 10, axis=1), values.min(1)
    return [f"{100 * x.mean():.1f}" for x in found]


def picture(results: dict[str, list[Result]]) -> Figure:
    """Per method: the mean over clients (dot) and the clients' range, over seeds."""
    names = sorted(results, key=lambda n: np.mean([r.own.mean() for r in results[n]]))
    figure = Figure(figsize=(7.5, 0.32 * len(names) + 1.3), layout="constrained")
    axes = figure.subplots()
    for y, name in enumerate(names):
        own = np.array([r.own for r in results[name]])
        low, p10 = own.min(1).mean(), np.percentile(own, 10, axis=1).mean()
        axes.plot([100 * low, 100 * own.max(1).mean()], [y, y], color="0.75", linewidth=2, zorder=1)
        axes.scatter(100 * low, y, marker="|", color="0.4", s=60, label="worst client" if y == 0 else None)
        axes.scatter(
            100 * p10,
            y,
            marker="D",
            color=common.COLOURS[1],
            s=22,
            label="10th percentile" if y == 0 else None,
        )
        axes.scatter(
            100 * own.mean(), y, color=common.COLOURS[0], s=36, zorder=3, label="mean" if y == 0 else None
        )
    local = 100 * np.mean([r.own.mean() for r in results["local only"]])
    axes.axvline(local, color="0.4", linestyle=":", linewidth=1)
    axes.text(local, len(names) - 0.4, " local only", fontsize=8, color="0.3")
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("accuracy of the model that a client uses, on its own test rows (%)")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="upper left", fontsize=8)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two seeds, the first point of each grid")
    parser.add_argument("--seeds", type=int, help="at least 2 (5; quick 2)")
    common.files(parser, picture=True)
    asked = parser.parse_args()
    seeds = asked.seeds or (2 if asked.quick else 5)
    console, load, started = common.console(), os.getloadavg()[0], time.perf_counter()
    results: dict[str, list[Result]] = {}
    rows, report = [], {}
    for entry in entries():
        scores = [0.0]
        if not asked.quick:
            scores = [np.mean([once(entry, p, s).own.mean() for s in (100, 101)]) for p in entry.points]
        best = entry.points[int(np.argmax(scores))]
        results[entry.name] = [once(entry, best, seed) for seed in range(seeds)]
        rows.append(line(entry.name, setting(entry, best), results[entry.name], results["local only"]))
        report[entry.name] = {
            "tried": [[setting(entry, p), float(s)] for p, s in zip(entry.points, scores, strict=False)],
            "server": [r.server.tolist() for r in results[entry.name]],
            "own": [r.own.tolist() for r in results[entry.name]],
        }
        console.print("  " + " · ".join(rows[-1]), style="dim", highlight=False)
    head = (
        "method", "chosen", "server's model: mean", "p10", "worst", "client's model: mean", "p10", "worst",
        "gain over local only", "clients worse off",
    )  # fmt: skip
    tables = [(f"Accuracy on each writer's own test rows in %, means over {seeds} seeds", head, rows)]
    common.show(console, tables)
    console.print(f"{time.perf_counter() - started:.0f} s")
    common.save(asked, common.about(load), tables, {"methods": report}, picture(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
