"""Rounds to a target accuracy, McMahan et al. (AISTATS 2017), table 2's protocol on Fashion-MNIST.

100 clients of 600 images, a tenth of them in each round; IID, or two shards of one label each per client.
For every (E, B) the learning rate is tuned by this command on a multiplicative grid, which is extended as
long as its best member lies at an edge. Each run's test accuracy is made monotone (best so far) and
interpolated between rounds, as in the paper; the speed-up is FedSGD's rounds (E = 1, B = ∞) over the
setting's.

    python benchmarks/mcmahan.py                 everything
    python benchmarks/mcmahan.py --quick         three settings, lower targets
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import common
from dure import FedAvg, Federated, Simulation, Task, classification, models
from dure.data import fashion_mnist, iid, shards
from dure.errors import DataError
from dure.simulation.evaluate import Evaluation

CLIENTS, FRACTION = 100, 0.1
SETTINGS = [(1, math.inf), (5, math.inf), (1, 50), (5, 50), (1, 10), (5, 10), (20, 10)]
QUICK = [(1, math.inf), (1, 10), (5, 10)]
TARGETS = {"iid": 0.85, "shards": 0.80}
QUICK_TARGETS = {"iid": 0.80, "shards": 0.65}
FIRST_RATE = {"2nn": 0.215, "cnn": 0.1}
FIRST_LIMIT = 10  # rounds that every rate gets


@dataclass
class Curve:
    """One run: best test accuracy so far at the rounds where it was evaluated."""

    rate: float
    rounds: list[int] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)
    reached: float | None = None  # interpolated rounds to the target
    seconds: float = 0.0


@dataclass
class Cell:
    """One setting on one partition."""

    partition: str
    epochs: int
    batch: float
    target: float
    curves: list[Curve] = field(default_factory=list)  # one per rate
    repeats: list[Curve] = field(default_factory=list)  # the best rate under other seeds

    @property
    def name(self) -> str:
        if (self.epochs, self.batch) == (1, math.inf):
            return "FedSGD"
        return f"E={self.epochs}, B={'∞' if math.isinf(self.batch) else int(self.batch)}"

    @property
    def best(self) -> Curve | None:
        reached = [c for c in self.curves if c.reached is not None]
        return min(reached, key=lambda c: c.reached) if reached else None

    @property
    def rounds(self) -> list[float]:
        """Rounds to the target with the best rate, one per seed; empty if a seed did not get there."""
        runs = [self.best, *self.repeats] if self.best else []
        return [] if any(c.reached is None for c in runs) else [c.reached for c in runs]


def crossing(curve: Curve, target: float) -> float | None:
    """Where the monotone curve, linear between evaluations, meets the target."""
    for i, accuracy in enumerate(curve.accuracy):
        if accuracy >= target:
            if i == 0 or accuracy == curve.accuracy[i - 1]:
                return float(curve.rounds[i])
            before, low = curve.rounds[i - 1], curve.accuracy[i - 1]
            return before + (target - low) / (accuracy - low) * (curve.rounds[i] - before)
    return None


class Training:
    """One learning rate in one cell: runs on, when asked, from where it stopped."""

    def __init__(self, cell: Cell, task: Task, data: Federated, rate: float, seed: int) -> None:
        self.target, self.curve = cell.target, Curve(rate)
        self.simulation = Simulation(
            FedAvg(),
            task,
            data,
            fraction=FRACTION,
            epochs=cell.epochs,
            batch_size=cell.batch,
            optimizer=rate,
            seed=seed,
        )
        engine = self.simulation.engine
        self.test = Evaluation(task, engine.layout, engine.mesh, data.central_test)
        self.evaluate(0)

    def evaluate(self, round: int) -> None:
        best = self.curve.accuracy[-1] if self.curve.accuracy else 0.0
        engine = self.simulation.engine
        now = self.test.totals(self.test.start(engine.vector(), engine.model))["accuracy"]
        self.curve.rounds.append(round)
        self.curve.accuracy.append(max(best, now))

    def run(self, limit: int) -> None:
        """On to this round or the target; evaluates densely at first, then every few percent of the way."""
        started = time.perf_counter()
        while self.curve.rounds[-1] < limit and self.curve.reached is None:
            round = self.curve.rounds[-1]
            step = min(max(1, round // 40), limit - round)
            for _ in range(step):
                self.simulation.step()
            self.evaluate(round + step)
            self.curve.reached = crossing(self.curve, self.target)
        self.curve.seconds += time.perf_counter() - started


def tune(
    cell: Cell, task: Task, data: Federated, start: float, asked: argparse.Namespace, console: Console
) -> None:
    """Fill in the cell's curves.

    All rates run as far as a common limit; the grid grows while the best of them has not a worse neighbour on
    either side. If the best has not reached the target, it and its neighbours run on, twice as far. So rates
    that are going nowhere cost little, and nobody runs beyond the best one's arrival.
    """
    trainings: dict[int, Training] = {}

    def score(i: int) -> tuple[float, float]:
        """Fewer rounds first; where nobody has arrived, more accuracy."""
        if i not in trainings:
            if len(trainings) >= asked.tries:
                return (math.inf, math.inf)
            trainings[i] = Training(cell, task, data, start * asked.factor**i, asked.seed)
            cell.curves.append(trainings[i].curve)
        training, arrived = trainings[i], cell.best
        training.run(limit if arrived is None else min(limit, math.ceil(arrived.reached)))
        reached = training.curve.reached
        return (math.inf if reached is None else reached, -training.curve.accuracy[-1])

    centre, limit = 0, min(FIRST_LIMIT, asked.limit)
    while True:
        best = min((centre, centre - 1, centre + 1), key=score)
        if best != centre:
            centre = best
        elif cell.best is not None or limit >= asked.limit:
            break
        else:
            limit = min(2 * limit, asked.limit)
    for curve in sorted(cell.curves, key=lambda c: c.rate):
        say(console, cell, curve)


def repeat(cell: Cell, task: Task, data: Federated, seed: int, limit: int, console: Console) -> None:
    """The tuned rate on another partition, other weights and other cohorts."""
    if cell.best is not None:
        training = Training(cell, task, data, cell.best.rate, seed)
        training.run(min(limit, 20 + math.ceil(5 * cell.best.reached)))
        cell.repeats.append(training.curve)
        say(console, cell, training.curve, f"seed {seed}")


def say(console: Console, cell: Cell, curve: Curve, note: str = "") -> None:
    where = f"{curve.reached:.1f} rounds" if curve.reached else f"stopped at {curve.rounds[-1]}"
    console.print(
        f"  {cell.partition:7} {cell.name:12} rate {curve.rate:8.4f}  {where:20} "
        f"best {curve.accuracy[-1]:.4f}  {curve.seconds:6.1f} s  {note}",
        style="dim",
        highlight=False,
    )


def rows(cells: list[Cell]) -> list[list[str]]:
    """Table cells, with the speed-up over FedSGD on the same partition."""
    base = {c.partition: c.rounds for c in cells if c.name == "FedSGD"}
    out = []
    for cell in cells:
        steps = cell.epochs * math.ceil(1 if math.isinf(cell.batch) else 600 / cell.batch)
        best, mine, sgd = cell.best, cell.rounds, base.get(cell.partition)
        speed = f"{statistics.mean(sgd) / statistics.mean(mine):.1f}×" if mine and sgd else "–"
        label = {"iid": "IID", "shards": "2 shards"}[cell.partition]
        rate = f"{best.rate:.3g}" if best else "–"
        rounds = f"{statistics.mean(mine):.1f}" if mine else "not reached"
        if len(mine) > 1:
            rounds += f" ({min(mine):.1f}–{max(mine):.1f})"
        tried = ", ".join(f"{c.rate:.3g}" for c in sorted(cell.curves, key=lambda c: c.rate))
        target = f"{100 * cell.target:g} %"
        spent = f"{sum(c.seconds for c in [*cell.curves, *cell.repeats]):.0f} s"
        out.append([label, target, cell.name, str(steps), rate, rounds, speed, tried, spent])
    return out


HEAD = ("partition", "target", "setting", "local steps", "rate", "rounds", "speed-up", "rates tried", "time")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="three settings and lower targets")
    parser.add_argument("--partition", choices=["iid", "shards"], action="append", help="only this one")
    parser.add_argument("--model", choices=["2nn", "cnn"], default="2nn")
    parser.add_argument("--data", metavar="FOLDER", help="where Fashion-MNIST's four files are")
    parser.add_argument("--target-iid", type=float, help="test accuracy, 0 to 1 (0.85; quick 0.80)")
    parser.add_argument("--target-shards", type=float, help="test accuracy, 0 to 1 (0.80; quick 0.65)")
    parser.add_argument("--factor", type=float, default=10 ** (1 / 3), help="between rates (10^⅓)")
    parser.add_argument("--tries", type=int, default=9, help="rates per setting, at most (9)")
    parser.add_argument("--limit", type=int, default=2000, help="rounds per run, at most (2000)")
    parser.add_argument("--seeds", type=int, default=1, help="runs with the tuned rate, averaged (1)")
    parser.add_argument("--seed", type=int, default=0, help="of partition, cohorts, weights and orders (0)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if asked.factor <= 1:
        parser.error("--factor must be above 1")
    asked.targets = dict(QUICK_TARGETS if asked.quick else TARGETS)
    for name in asked.targets:
        given = getattr(asked, f"target_{name}")
        asked.targets[name] = asked.targets[name] if given is None else given
    return asked


def main() -> int:
    asked, console, load = arguments(), common.console(), os.getloadavg()[0]
    try:
        images = fashion_mnist(asked.data)
    except DataError as error:
        console.print(str(error), style="red")
        return 2
    started = time.perf_counter()
    model = models.two_nn() if asked.model == "2nn" else models.mcmahan_cnn()
    task, cells = classification(model), []
    for partition in asked.partition or list(TARGETS):
        divide = iid if partition == "iid" else shards
        seeds = range(asked.seed, asked.seed + asked.seeds)
        data = {s: images.partition(divide(images.labels, CLIENTS, seed=s)) for s in seeds}
        rate = FIRST_RATE[asked.model]
        for epochs, batch in QUICK if asked.quick else SETTINGS:
            cell = Cell(partition, epochs, batch, asked.targets[partition])
            cells.append(cell)
            tune(cell, task, data[asked.seed], rate, asked, console)
            for seed in seeds[1:]:
                repeat(cell, task, data[seed], seed, asked.limit, console)
            rate = cell.best.rate if cell.best else rate  # neighbours in the table want similar rates
    table = Table(*HEAD, title=f"rounds to target, Fashion-MNIST, {asked.model}, C = {FRACTION}")
    for row in rows(cells):
        table.add_row(*row)
    console.print(table)
    console.print(f"{time.perf_counter() - started:.0f} s")
    save(asked, cells, time.perf_counter() - started, common.about(load))
    return 0


def save(asked: argparse.Namespace, cells: list[Cell], seconds: float, about: str) -> None:
    if asked.json:
        report: dict[str, Any] = {"about": about, "seconds": seconds, "cells": []}
        for cell in cells:
            batch = None if math.isinf(cell.batch) else int(cell.batch)
            report["cells"].append({**asdict(cell), "batch": batch, "setting": cell.name})
        asked.json.write_text(json.dumps(report, indent=1))
    if asked.markdown:
        asked.markdown.write_text(f"{about}\n\n{common.markdown_table(HEAD, rows(cells))}\n")


if __name__ == "__main__":
    sys.exit(main())
