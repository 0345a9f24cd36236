"""Which defence? Every rule, with and without pre-aggregators, against every attack; the score is the worst case.

    python benchmarks/robust.py digits      [--json FILE] [--markdown FILE] [--picture FILE]    a few minutes
    python benchmarks/robust.py fashion     the same on Fashion-MNIST, 25 clients                   about half an hour
    python benchmarks/robust.py bucketing   the study of Karimireddy, He and Jaggi (ICLR 2022), on Fashion-MNIST;
                                            three quarters of an hour

`digits` and `fashion`: softmax regression, FedAvg, test accuracy after the last round. Clients' data are alike
(γ = 1) or mostly sorted by label (γ = 0.3); a tenth to a fifth of the clients is hostile. The radius of centred
clipping and the bound of norm clipping are half the mean length of an honest first update.

`bucketing`: 25 clients, 5 of them hostile, honest data ordered by label, one step of SGD a round (batch 32, rate 0.01,
600 rounds), worker momentum 0 or 0.9, buckets of 1 or 2; accuracy is the mean of the last five evaluations. As there,
ALIE is m − zσ of gradients, clients that flip signs or labels send gradients without momentum, τ is 10 in the units of
a gradient, and RFA makes 8 steps from 0 with ν = 0.1. Other than there: a perceptron of 100 hidden units, pixels in
[0, 1], Krum as published.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from common import about, console, files, save, show
from robust_cells import ATTACKS, Cell, defences, run, start

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: (γ, hostile clients) of each table; clients and rounds of each data set; mean length of an honest first update.
SETTINGS = {
    "digits": ([(1.0, 3), (0.3, 1), (0.3, 3)], 15, 15, 0.9),
    "fashion": ([(1.0, 5), (0.3, 2), (0.3, 5)], 25, 40, 1.5),
}
STUDIED = ("Mean", "Median", "CenteredClipping", "Krum", "RFA")
OURS = ("NNM + TrimmedMean", "NNM + GeometricMedian")
AGAINST = ("none", "ALIE", "sign flip", "IPM 0.1", "label flip", "mimic")


def compute(cells: Sequence[Cell], processes: int) -> list[float]:
    """Each cell's accuracy, by processes with a core each; says how far it is on the error stream."""
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for i in range(processes):
        cores.put(i)
    found, begin = [], time.perf_counter()
    with ProcessPoolExecutor(processes, context, start, (cores,)) as pool:
        for value in pool.map(run, cells):
            found.append(value)
            if len(found) % max(len(cells) // 20, 1) == 0:
                spent = time.perf_counter() - begin
                print(f"{len(found)} of {len(cells)} trainings, {spent:.0f} s", file=sys.stderr, flush=True)
    return found


def percent(value: float) -> str:
    return "" if np.isnan(value) else f"{100 * value:.1f}"


def compared(asked: argparse.Namespace) -> tuple[list[Any], dict[str, Any], Figure]:
    """Tables, report and picture of every defence under every attack."""
    settings, n, rounds, size = SETTINGS[asked.study]
    names, tried = defences(), asked.attacks or list(ATTACKS)
    cells = [
        Cell(asked.study, similarity, n, f, name, attack, asked.rounds or rounds, size=size)
        for (similarity, f), name, attack in itertools.product(settings, names, tried)
    ]
    found = np.array(compute(cells, asked.processes)).reshape(len(settings), len(names), len(tried))
    tables, scores = [], found.min(2)
    for (similarity, f), grid, worst in zip(settings, found, scores, strict=True):
        order = np.argsort(np.where(np.isnan(worst), 2, -worst), kind="stable")
        rows = [[names[i], *map(percent, grid[i]), percent(worst[i])] for i in order]
        title = f"{asked.study}: n = {n}, {f} hostile, γ = {similarity:g}; accuracy in % after the last round"
        tables.append((title, ["defence", *tried, "worst"], rows))
    report = {
        "cells": [{**asdict(c), "accuracy": float(a)} for c, a in zip(cells, found.ravel(), strict=True)]
    }
    return tables, report, picture(settings, names, tried, found)


def picture(settings: Sequence[Any], names: Sequence[str], tried: Sequence[str], found: np.ndarray) -> Figure:
    """A heat map for each setting: defences (best in the hardest setting first) × attacks, and the worst case."""
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    hardest = found[-1].min(1)
    served = [i for i in np.argsort(-hardest, kind="stable") if not np.isnan(found[:, i]).all()]
    colours = PowerNorm(2.5, 10, 100 * np.nanmax(found))  # most differences that count are between good ones
    figure = Figure(figsize=(6.2 * len(settings), 0.27 * len(served) + 2.2), layout="constrained")
    axes = figure.subplots(1, len(settings), sharey=True)
    for axis, (similarity, f), grid in zip(axes, settings, found, strict=True):
        shown = 100 * np.hstack([grid, grid.min(1, keepdims=True)])[served]
        image = axis.imshow(np.ma.masked_invalid(shown), cmap="cividis", norm=colours, aspect="auto")
        axis.set_xticks(range(shown.shape[1]), [*tried, "worst"], rotation=55, ha="right", fontsize=8)
        axis.set_yticks(range(len(served)), [names[i] for i in served], fontsize=8)
        axis.axvline(shown.shape[1] - 1.5, color="white", linewidth=2)
        axis.set_title(f"{f} hostile, γ = {similarity:g}", fontsize=10)
        for (i, j), value in np.ndenumerate(shown):
            if not np.isnan(value):
                tone = "white" if colours(value) < 0.5 else "black"
                axis.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=6, color=tone)
    figure.colorbar(image, ax=axes, label="test accuracy in %", shrink=0.6, ticks=(10, *range(30, 101, 10)))
    return figure


def bucketing(asked: argparse.Namespace) -> tuple[list[Any], dict[str, Any], Figure]:
    """The study's tables: each rule alone and behind buckets of two, without and with momentum."""
    columns = list(itertools.product((0.0, 0.9), ("", "Bucketing + ")))
    names, tried = [*STUDIED, *OURS], asked.attacks or AGAINST
    cells = [
        Cell("fashion", 0.0, 25, 5, before + name, attack, asked.rounds or 600, beta, 0.2, seed, "bucketing")
        for name, attack, (beta, before), seed in itertools.product(names, tried, columns, range(asked.seeds))
        if not (before and name in ("Mean", *OURS))
    ]
    values: dict[tuple[str, str, float, str], list[float]] = {}
    for cell, accuracy in zip(cells, compute(cells, asked.processes), strict=True):
        before, name = (
            ("Bucketing + ", cell.defence[12:]) if cell.defence.startswith("Buck") else ("", cell.defence)
        )
        values.setdefault((name, cell.attack, cell.momentum, before), []).append(accuracy)
    means = {key: float(np.mean(found)) for key, found in values.items()}
    rows = []
    for name in names:
        line = [name]
        for attack in tried:
            parts = [
                [percent(means.get((name, attack, b, s), np.nan)) for s in ("", "Bucketing + ")]
                for b in (0.0, 0.9)
            ]
            line.append(" ; ".join(", ".join(p for p in part if p) for part in parts))
        rows.append(line)
    title = (
        "Honest data by label, 5 of 25 hostile: momentum 0 alone, in buckets ; momentum 0.9 alone, in buckets"
    )
    report = {
        "cells": [
            {"rule": k[0], "attack": k[1], "momentum": k[2], "before": k[3], "accuracy": v}
            for k, v in values.items()
        ]
    }
    return [(title, ["rule", *tried], rows)], report, study_picture(names, tried, means)


def study_picture(
    names: Sequence[str], tried: Sequence[str], means: dict[tuple[str, str, float, str], float]
) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    image = None
    for axis, beta in zip(axes, (0.0, 0.9), strict=True):
        lines = [
            (name, before)
            for name in names
            for before in ("", "Bucketing + ")
            if (name, tried[0], beta, before) in means
        ]
        shown = np.array([[100 * means[name, a, beta, before] for a in tried] for name, before in lines])
        image = axis.imshow(np.ma.masked_invalid(shown), cmap="cividis", vmin=0, vmax=100, aspect="auto")
        axis.set_xticks(range(len(tried)), tried, rotation=30, ha="right", fontsize=8)
        axis.set_yticks(range(len(lines)), [before + name for name, before in lines], fontsize=8)
        axis.set_title(f"worker momentum {beta:g}", fontsize=10)
        for (i, j), value in np.ndenumerate(shown):
            axis.text(
                j,
                i,
                f"{value:.0f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if value < 60 else "black",
            )
    assert image is not None
    figure.colorbar(image, ax=axes, label="test accuracy in %", shrink=0.8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", choices=["digits", "fashion", "bucketing"])
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), help="only these")
    parser.add_argument("--rounds", type=int, help="instead of the study's own number")
    parser.add_argument("--seeds", type=int, default=1, help="of the bucketing study")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    files(parser, picture=True)
    asked = parser.parse_args()
    load, begin, out = os.getloadavg()[0], time.perf_counter(), console()
    tables, report, drawn = bucketing(asked) if asked.study == "bucketing" else compared(asked)
    show(out, tables)
    out.print(f"{time.perf_counter() - begin:.0f} s")
    save(asked, f"{about(load)} {time.perf_counter() - begin:.0f} s.", tables, report, drawn)


if __name__ == "__main__":
    main()
