"""Stragglers on FedProx's synthetic(α, β) (Li et al., MLSys 2020): who keeps partial work, who drops it.

30 devices, softmax regression, rate 0.01, batches of 10, E = 20, 10 devices a round drawn uniformly, weights by
examples, 200 rounds. In every round round(10 (1 − s)) of the chosen devices do all epochs and the others 1 to 19
(uniform), seeded by the round, the same for all methods. s = 0, 50, 90 %.

    FedAvg, drops      the stragglers do nothing: they are not aggregated
    FedAvg, partial    what they did is aggregated (FedProx with μ = 0)
    FedProx, μ = 1     what they did is aggregated

Loss and accuracy are the global model's, over all training and all test rows. "unrest" is the mean size of the
loss's change from one round to the next over the second half, in percent of its mean there.

    python benchmarks/synthetic.py [--quick]
    python benchmarks/synthetic.py --saved a.json b.json --picture all.png     of saved results
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import common
import dure
from dure.simulation.evaluate import Evaluation

EPOCHS, RATE, CHOSEN, ROUNDS = 20, 0.01, 10, 200
SETS: dict[str, dict[str, Any]] = {
    "IID": {"iid": True},
    "(0, 0)": {},
    "(0.5, 0.5)": {"alpha": 0.5, "beta": 0.5},
    "(1, 1)": {"alpha": 1.0, "beta": 1.0},
}
SHARES = (0.0, 0.5, 0.9)
METHODS = {
    "FedAvg, drops": (dure.FedAvg(), False),
    "FedAvg, partial": (dure.FedAvg(), True),
    "FedProx, μ = 1": (dure.FedProx(mu=1.0), True),
}
TASK = dure.classification(dure.models.softmax_regression(60, 10))


@dataclass(frozen=True)
class Stragglers:
    """A work limit: a share of the round's devices is slow. `kept`: their epochs count; else they do nothing."""

    share: float
    kept: bool

    def __call__(self, seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng([seed, round])
        slow = np.ones(len(ids), bool)
        slow[rng.permutation(len(ids))[: np.round(len(ids) * (1 - self.share)).astype(int)]] = False
        epochs = rng.integers(1, EPOCHS, len(ids)) if self.kept else np.zeros(len(ids), int)
        return np.where(slow, steps // EPOCHS * epochs, steps)


@dataclass
class Curve:
    """Loss on all training rows and accuracy on all test rows after each round."""

    loss: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)

    @property
    def unrest(self) -> float:
        later = np.array(self.loss[len(self.loss) // 2 :])
        return float(np.abs(np.diff(later)).mean() / later.mean())


Found = dict[tuple[str, float, str], list[Curve]]  # data set, stragglers, method → one curve per seed


def run(method: str, data: dure.Federated, share: float, seed: int, rounds: int) -> Curve:
    algorithm, kept = METHODS[method]
    simulation = dure.Simulation(
        algorithm,
        TASK,
        data,
        clients_per_round=CHOSEN,
        epochs=EPOCHS,
        batch_size=10,
        optimizer=RATE,
        seed=seed,
        work_limit=Stragglers(share, kept) if share else None,
    )
    engine, path = simulation.engine, Curve()
    train, test = (
        Evaluation(TASK, engine.layout, engine.mesh, rows) for rows in (data.columns, data.central_test)
    )
    for round in range(rounds + 1):
        if round:
            simulation.step()
        started = train.start(engine.vector(), engine.model), test.start(engine.vector(), engine.model)
        path.loss.append(train.totals(started[0])["loss"])
        path.accuracy.append(test.totals(started[1])["accuracy"])
    return path


def methods(share: float) -> list[str]:
    """Without stragglers nothing is dropped, so that both FedAvg are one."""
    return [m for m in METHODS if share or m != "FedAvg, drops"]


def picture(found: Found) -> Figure:
    sets = [name for name in SETS if any(name == key[0] for key in found)]
    shares = sorted({key[1] for key in found})
    figure = Figure(figsize=(3 * len(sets), 2.3 * len(shares) + 0.6), layout="constrained")
    panels = figure.subplots(len(shares), len(sets), sharex=True, sharey="col", squeeze=False)
    style = dict(zip(METHODS, zip(common.COLOURS, (":", "-", "--"), strict=False), strict=True))
    for row, share in zip(panels, shares, strict=True):
        for axes, name in zip(row, sets, strict=True):
            for method in methods(share):
                paths = np.array([p.loss for p in found[name, share, method]])
                colour, line = style[method]
                axes.plot(np.median(paths, 0), color=colour, linestyle=line, linewidth=1.5, label=method)
                axes.fill_between(
                    range(paths.shape[1]), paths.min(0), paths.max(0), color=colour, alpha=0.15, lw=0
                )
            axes.set_yscale("log")
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            if share == shares[0]:
                axes.set_title(name if name == "IID" else f"synthetic{name}")
            if share == shares[-1]:
                axes.set_xlabel("round")
        row[0].set_ylabel(f"{100 * share:.0f} % stragglers\ntraining loss")
    handles, labels = panels[-1][0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(METHODS), loc="outside upper center", frameon=False)
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="(0, 0) and (1, 1), 0 and 90 %%, 40 rounds")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), metavar="SET", help=", ".join(SETS))
    parser.add_argument("--seeds", type=int, help="data, cohorts and stragglers; at least 1 (3; quick 1)")
    parser.add_argument("--rounds", type=int, help=f"({ROUNDS}; quick 40)")
    parser.add_argument(
        "--saved", nargs="+", type=Path, metavar="FILE", help="show these --json files instead"
    )
    common.files(parser, picture=True)
    asked = parser.parse_args()
    console, load, started = common.console(), os.getloadavg()[0], time.perf_counter()
    found = saved(asked.saved) if asked.saved else measured(asked, console)
    first = next(iter(found.values()))
    head = (
        "data",
        "stragglers",
        "method",
        "final loss",
        "lowest loss",
        "final accuracy",
        "best accuracy",
        "unrest",
    )
    rows = [[n, f"{100 * s:.0f} %", m, *summary(curves)] for (n, s, m), curves in found.items()]
    title = f"After {len(first[0].loss) - 1} rounds, means over {len(first)} seeds (least–most)"
    common.show(console, [(title, head, rows)])
    about = "" if asked.saved else f"{common.about(load)} {time.perf_counter() - started:.0f} s."
    console.print(about)
    common.save(asked, about, [(title, head, rows)], report(found), picture(found))
    return 0


def measured(asked: argparse.Namespace, console: Any) -> Found:
    sets = asked.sets or (["(0, 0)", "(1, 1)"] if asked.quick else list(SETS))
    seeds, rounds = asked.seeds or (1 if asked.quick else 3), asked.rounds or (40 if asked.quick else ROUNDS)
    found: Found = {}
    for name in sets:
        data = [dure.data.synthetic(**SETS[name], seed=seed) for seed in range(seeds)]
        for share in (0.0, 0.9) if asked.quick else SHARES:
            for method in methods(share):
                curves = [run(method, data[seed], share, seed, rounds) for seed in range(seeds)]
                found[name, share, method] = curves
                if asked.json:  # what is there if it is stopped
                    asked.json.write_text(json.dumps(report(found)))
                words = [name, f"{100 * share:.0f} %", method, *summary(curves)]
                console.print("  " + " · ".join(words), style="dim", highlight=False)
    return found


def report(found: Found) -> dict[str, Any]:
    curves = [[*key, [vars(c) for c in seeds]] for key, seeds in found.items()]
    return {"curves": curves}


def saved(files: list[Path]) -> Found:
    found: Found = {}
    for file in files:
        for *key, seeds in json.loads(file.read_text())["curves"]:
            found[tuple(key)] = [Curve(**c) for c in seeds]
    return {key: found[key] for name in SETS for key in found if key[0] == name}


def summary(paths: list[Curve]) -> list[str]:
    def over(values: list[float], pattern: str) -> str:
        low, mean, high = (pattern.format(f(values)) for f in (np.min, np.mean, np.max))
        return mean if low == high else f"{mean} ({low}–{high})"

    return [
        over([np.mean(p.loss[-10:]) for p in paths], "{:.3f}"),
        over([min(p.loss) for p in paths], "{:.3f}"),
        over([np.mean(p.accuracy[-10:]) for p in paths], "{:.3f}"),
        over([max(p.accuracy) for p in paths], "{:.3f}"),
        over([p.unrest for p in paths], "{:.1%}"),
    ]


if __name__ == "__main__":
    sys.exit(main())
