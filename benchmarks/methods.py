"""Every method that makes one model for all: its best curve on four splits, against rounds and uplink bytes.

    digits          14 writers of the scikit-learn digits, 7 a round, E = 2, B = 10, MLP 64-32-10, 60 rounds
    shards          10,000 images of Fashion-MNIST, 100 clients × 100, two shards of one label each per client,
                    10 a round, E = 2, B = 10, MLP 784-32-10, 100 rounds, tested on all 10,000 test images
    dirichlet-0.1   the same with Dirichlet(0.1) labels, at least 5 images a client
    dirichlet-0.5   the same with Dirichlet(0.5)
    momentum        two labels per client as in NIID-Bench: 10 clients, everyone, E = 10, B = 64, 50 rounds, with
                    and without local momentum 0.9, on the same 10,000 images and MLP

Each method is tuned by this command on seed 0, over the first half of the rounds, by the mean test accuracy there:
its learning rate on a grid with ratio √10, which goes on beyond an edge that is best, twice at most; then its other
hyper-parameters at that rate. The curves shown are of other seeds (data split, weights, cohorts). Methods that need
everyone and the cyclic one get as many client visits as the others, so fewer or more rounds. Rounds and bytes to the
target are read off the monotone (best so far), interpolated mean curve. Rates are chosen on test rows, as in papers.

    python benchmarks/methods.py digits
    python benchmarks/methods.py shards dirichlet-0.1 dirichlet-0.5 momentum
    python benchmarks/methods.py --saved a.json b.json --picture all.png     tables and picture of saved results
    python benchmarks/methods.py --quick           two minutes: digits and shards, fewer methods and rounds
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

import common
import dure
from dure.data import dirichlet, fashion_mnist, label_quantity, shards
from dure.errors import DataError
from method_grid import MOMENTUM, STEP, Entry, entries

IMAGES, HIDDEN = 10_000, 32
QUICK = ("FedAvg", "FedAvgM", "FedYogi", "SCAFFOLD", "FedDyn", "Mime")


@dataclass(frozen=True)
class Split:
    """One data set dealt to clients, and how a round looks."""

    name: str
    title: str
    data: Callable[[int], dure.Federated]
    task: dure.Task
    cohort: int
    rounds: int
    epochs: int
    batch: int
    target: float
    points: int = 20  # evaluations in a run


@cache
def pool() -> Any:
    """10,000 training images and all 10,000 test images."""
    images = fashion_mnist()
    rows = np.sort(np.random.default_rng(0).permutation(len(images.labels))[:IMAGES])
    return dure.data.Pooled(
        {name: column[rows] for name, column in images.train.items()}, images.test, classes=10
    )


DIGITS = dure.classification(dure.models.mlp(64, (32,), 10))
FASHION = dure.classification(dure.models.mlp(784, (HIDDEN,), 10))
SPLITS = {
    s.name: s
    for s in (
        Split("digits", "digits by writer", lambda s: dure.data.digits(seed=s), DIGITS, 7, 60, 2, 10, 0.95),
        Split(
            "shards",
            "Fashion-MNIST, 2 shards",
            lambda s: pool().partition(shards(pool().labels, 100, 2, seed=s)),
            FASHION, 10, 100, 2, 10, 0.75,
        ),
        Split(
            "dirichlet-0.1",
            "Fashion-MNIST, Dirichlet(0.1)",
            lambda s: pool().partition(dirichlet(pool().labels, 100, 0.1, minimum=5, tries=1000, seed=s)),
            FASHION, 10, 100, 2, 10, 0.77,
        ),
        Split(
            "dirichlet-0.5",
            "Fashion-MNIST, Dirichlet(0.5)",
            lambda s: pool().partition(dirichlet(pool().labels, 100, 0.5, minimum=5, tries=1000, seed=s)),
            FASHION, 10, 100, 2, 10, 0.82,
        ),
        Split(
            "momentum",
            "Fashion-MNIST, two labels per client, 10 clients",
            lambda s: pool().partition(label_quantity(pool().labels, 10, 2, seed=s)),
            FASHION, 10, 50, 10, 64, 0.70,
        ),
    )
}  # fmt: skip


@dataclass
class Curve:
    """Test accuracy at some rounds, and the bytes that all clients had sent by then."""

    rounds: np.ndarray
    bytes: np.ndarray
    accuracy: np.ndarray

    @property
    def score(self) -> float:
        return float(self.accuracy[1:].mean())

    @property
    def final(self) -> float:
        """The mean over the last tenth: curves are noisy on skewed data."""
        return float(self.accuracy[-max(len(self.accuracy) // 10, 1) :].mean())

    def reach(self, target: float, axis: np.ndarray) -> float | None:
        best = np.maximum.accumulate(self.accuracy)
        if best[-1] < target:
            return None
        i = int(np.argmax(best >= target))
        if i == 0:
            return float(axis[0])
        share = (target - best[i - 1]) / (best[i] - best[i - 1])
        return float(axis[i - 1] + share * (axis[i] - axis[i - 1]))


@dataclass
class Row:
    """One method on one split; `tried`: (variant, rate, score on the tuning seed)."""

    name: str
    cohort: str
    setting: str = ""
    tried: list[tuple[int, float, float]] = field(default_factory=list)
    curves: list[Curve] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def best(self) -> tuple[int, float]:
        return max(self.tried, key=lambda t: t[2])[:2]

    @property
    def mean(self) -> Curve:
        over = [np.mean([getattr(c, name) for c in self.curves], 0) for name in ("bytes", "accuracy")]
        return Curve(self.curves[0].rounds, *over)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        curves = [{k: v.tolist() for k, v in vars(c).items()} for c in self.curves]
        return {**vars(self), "curves": curves}

    @staticmethod
    def of(saved: dict[str, Any]) -> Row:
        curves = [Curve(**{k: np.array(v) for k, v in c.items()}) for c in saved["curves"]]
        return Row(**{**saved, "curves": curves})


@cache
def dealt(split: Split, seed: int) -> dure.Federated:
    return split.data(seed)


def once(split: Split, entry: Entry, point: tuple[int, float], seed: int, share: float = 1.0) -> Curve:
    """One run over this share of the rounds."""
    data = dealt(split, seed)
    count = {"some": split.cohort, "all": data.clients, "one": 1}[entry.cohort]
    whole = split.rounds * split.cohort / count
    rounds = max(round(whole * share), 2)
    algorithm, optimizer = entry.point(entry.variants[point[0]], point[1])
    sampler = {"all": dure.Everyone(), "one": dure.Cyclic(1)}.get(entry.cohort, dure.Uniform(count=count))
    run = dure.simulate(
        algorithm,
        split.task,
        data,
        rounds=rounds,
        sampler=dure.Everyone() if count == data.clients else sampler,
        epochs=split.epochs,
        batch_size=split.batch,
        optimizer=optimizer,
        seed=seed,
        evaluate_every=max(int(whole) // split.points, 1),
    )
    kept = [r for r in run.rounds if r.get("test_accuracy") is not None]
    columns = ("round", "cumulative_uplink_bytes", "test_accuracy")
    return Curve(*(np.array([r[name] for r in kept], float) for name in columns))


def run(split: Split, entry: Entry, seeds: int) -> Row:
    """Tune the rate with the first variant, then choose the variant, then run the other seeds."""
    row, begin = Row(entry.name, entry.cohort), time.perf_counter()

    def tries(variant: int, rate: float) -> None:
        row.tried.append((variant, rate, once(split, entry, (variant, rate), 0, 0.5).score))

    for rate in entry.rates:
        tries(0, rate)
    for _ in range(2):
        rate, known = row.best[1], [r for _, r, _ in row.tried]
        if rate == max(known):
            tries(0, rate * STEP)
        elif rate == min(known):
            tries(0, rate / STEP)
        else:
            break
    rate = row.best[1]
    for variant in range(1, len(entry.variants)):
        tries(variant, rate)
    row.setting = entry.describe(*row.best)
    row.curves = [once(split, entry, row.best, seed) for seed in range(1, seeds + 1)]
    row.seconds = time.perf_counter() - begin
    return row


def table(split: Split, rows: list[Row], seeds: int) -> common.Named:
    head = (
        "method", "chosen", "rounds to target", "MB to target", "× FedAvg's MB", "final accuracy", "over seeds",
        "MB sent",
    )  # fmt: skip
    base, lines = rows[0].mean, []
    reference = base.reach(split.target, base.bytes)
    for row in rows:
        mean = row.mean
        number, sent = (mean.reach(split.target, axis) for axis in (mean.rounds, mean.bytes))
        finals = [c.final for c in row.curves]
        lines.append(
            [
                row.name,
                row.setting,
                "–" if number is None else f"{number:.1f}",
                "–" if sent is None else f"{sent / 1e6:.2f}",
                "–" if sent is None or not reference else f"{sent / reference:.2f}",
                f"{100 * np.mean(finals):.1f} %",
                f"{100 * min(finals):.1f}–{100 * max(finals):.1f}",
                f"{mean.bytes[-1] / 1e6:.1f}",
            ]
        )
    title = f"{split.title}: target {100 * split.target:g} %, mean of {seeds} seeds"
    return title, head, lines


def picture(found: dict[str, list[Row]]) -> Figure:
    """A row of two panels per split. FedAvg and the six best methods (mean rank) in colour, the others grey."""
    ranks: dict[str, list[int]] = {}
    for rows in found.values():
        plain = [r for r in rows if r.cohort == "some" and "momentum" not in r.name]
        for rank, row in enumerate(sorted(plain, key=lambda r: -r.mean.score)):
            ranks.setdefault(row.name, []).append(rank)
    everywhere = [n for n in ranks if n != "FedAvg" and len(ranks[n]) == len(found)]
    best = sorted(everywhere, key=lambda n: np.mean(ranks[n]))[:6]
    shown = dict(zip(["FedAvg", *best], ("#000000", *common.COLOURS), strict=False))
    figure = Figure(figsize=(9, 2.9 * len(found) + 0.7), layout="constrained")
    for row, (name, rows) in zip(figure.subplots(len(found), 2, squeeze=False), found.items(), strict=True):
        for axes, against in zip(row, ("rounds", "bytes"), strict=True):
            panel(axes, rows, shown, against)
        split = SPLITS[name]
        row[0].set_title(split.title, loc="left", fontsize=10)
        row[0].set_ylabel("test accuracy (%)")
        row[0].set_xlabel("round")
        row[1].set_xlabel("uplink of all clients (MB, log)")
        row[1].set_xscale("log")
        row[1].xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        row[1].xaxis.set_major_formatter("{x:g}")
        row[1].xaxis.set_minor_formatter(NullFormatter())
        for axes in row:
            axes.axhline(100 * split.target, color="0.4", linestyle=":", linewidth=1)
            top = max(100 * r.mean.accuracy.max() for r in rows)
            axes.set_ylim(100 * split.target - 18, top + 1)
    handles, labels = row[0].get_legend_handles_labels()
    order = [labels.index(n) for n in [*shown, "all others"] if n in labels]
    figure.legend(
        [handles[i] for i in order], [labels[i] for i in order], ncols=4, loc="outside upper center"
    )
    return figure


def panel(axes: Axes, rows: list[Row], shown: dict[str, str], against: str) -> None:
    first = True
    limit = max(r.mean.rounds[-1] for r in rows if r.cohort == "some")
    for row in sorted(rows, key=lambda r: r.name in shown):
        mean, name = row.mean, row.name
        if against == "rounds" and row.cohort == "one":
            continue
        x = mean.rounds if against == "rounds" else mean.bytes / 1e6
        skip = 0 if against == "rounds" else 1
        if name in shown:
            style = {"color": shown[name], "linewidth": 1.7, "label": name, "zorder": 3}
        else:
            style = {"color": "0.75", "linewidth": 0.8, "label": "all others" if first else None}
            first = False
        axes.plot(x[skip:], 100 * mean.accuracy[skip:], **style)
    if against == "rounds":
        axes.set_xlim(0, limit)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def chosen(split: Split, asked: argparse.Namespace) -> list[Entry]:
    if split.name == "momentum":
        plain = [e for e in entries(10) if e.name in ("FedAvg", "FedProx", "SCAFFOLD", "FedNova")]
        found = [*plain, *MOMENTUM]
    else:
        clients = dealt(split, 0).clients
        found = [*entries(clients), *(MOMENTUM if split.name == "shards" else [])]
    names = asked.only.split(",") if asked.only else QUICK if asked.quick else None
    return [e for e in found if names is None or e.name in names or e.name == "FedAvg"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("splits", nargs="*", metavar="SPLIT", help=", ".join(SPLITS) + "; all by default")
    parser.add_argument("--quick", action="store_true", help="six methods, a quarter of the rounds, one seed")
    parser.add_argument("--only", metavar="NAMES", help="methods, separated by commas (FedAvg always)")
    parser.add_argument("--seeds", type=int, help="seeds of the curves, from 1 on (3 for digits, else 2)")
    parser.add_argument(
        "--saved", nargs="+", type=Path, metavar="FILE", help="show these --json files instead"
    )
    common.files(parser, picture=True)
    asked = parser.parse_args()
    if unknown := set(asked.splits) - set(SPLITS):
        parser.error(f"unknown split {', '.join(unknown)}: choose from {', '.join(SPLITS)}")
    console, load, started = common.console(), os.getloadavg()[0], time.perf_counter()
    try:
        found = saved(asked.saved) if asked.saved else measured(asked, console)
    except DataError as error:
        console.print(str(error), style="red")
        return 2
    about = "" if asked.saved else f"{common.about(load)} {time.perf_counter() - started:.0f} s."
    tables = [table(SPLITS[n], rows, len(rows[0].curves)) for n, rows in found.items()]
    common.show(console, tables)
    console.print(about)
    drawn = {n: rows for n, rows in found.items() if n != "momentum"}
    common.save(asked, about, tables, report(found), picture(drawn) if drawn else None)
    return 0


def report(found: dict[str, list[Row]]) -> dict[str, Any]:
    return {"splits": {name: [row.plain() for row in rows] for name, rows in found.items()}}


def measured(asked: argparse.Namespace, console: Any) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for name in asked.splits or (["digits", "shards"] if asked.quick else list(SPLITS)):
        split = SPLITS[name]
        if asked.quick:
            split = replace(split, rounds=split.rounds // 4, points=10)
        seeds = asked.seeds or (1 if asked.quick else 3 if name == "digits" else 2)
        for entry in chosen(split, asked):
            row = run(split, entry, seeds)
            found.setdefault(name, []).append(row)
            if asked.json:  # what is there if it is stopped
                asked.json.write_text(json.dumps(report(found)))
            console.print(
                f"  {name:14} {entry.name:24} {row.setting:28} {100 * row.mean.final:5.1f} %  {row.seconds:5.1f} s",
                style="dim",
                highlight=False,
            )
    return found


def saved(files: list[Path]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for file in files:
        for name, rows in json.loads(file.read_text())["splits"].items():
            known = {row.name for row in found.setdefault(name, [])}
            found[name] += [Row.of(row) for row in rows if row["name"] not in known]
    return {name: found[name] for name in SPLITS if name in found}


if __name__ == "__main__":
    sys.exit(main())
