"""Curves over seeds: means with confidence bands, the figure, rounds and bytes to a target."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dure.report import words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dure.run import Run

# Okabe and Ito's colours, told apart by colour-blind readers too; the order puts the strongest first.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F6CC9", "#6B6B6B")


@dataclass(frozen=True)
class Curve:
    """One metric of one or several seeds of the same study.

    All arrays have the same length: the rounds in which every seed was evaluated. `low` and `high` bound the
    95 % confidence interval of the mean (Student's t over the seeds); with one seed they equal `mean`.
    """

    rounds: np.ndarray
    bytes: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    seeds: int


def curve(runs: Sequence["Run"], key: str) -> Curve:
    """The mean of a metric over seeds, round by round, with a 95 % confidence band.

    Uplink bytes are the seeds' mean too. A round counts if every seed has a value there, so that the mean is
    never over different sets of seeds.
    """
    tables = []
    for run in runs:
        total = 0.0
        table = {}
        for record in run.rounds:
            total = float(record.get("cumulative_uplink_bytes") or total)
            if record.get(key) is not None:
                table[int(record["round"])] = (total, float(record[key]))
        tables.append(table)
    rounds = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    values = np.array([[table[r] for r in rounds] for table in tables], np.float64).reshape(
        len(tables), len(rounds), 2
    )
    mean = values[:, :, 1].mean(axis=0) if tables else np.zeros(0)
    half = _half_width(values[:, :, 1])
    uplink = values[:, :, 0].mean(axis=0) if tables else np.zeros(0)
    low, high = mean - half, mean + half
    if words.is_share(key):  # a normal approximation knows nothing of the ends
        low, high = low.clip(0, 1), high.clip(0, 1)
    return Curve(np.array(rounds, np.int64), uplink, mean, low, high, len(tables))


def _half_width(values: np.ndarray, level: float = 0.95) -> np.ndarray:
    """Half the confidence interval of the mean over axis 0: t · s / √n. (SciPy comes with scikit-learn.)"""
    n = values.shape[0]
    if n < 2:
        return np.zeros(values.shape[1])
    from scipy.stats import t  # type: ignore[import-untyped]

    return np.asarray(t.ppf(0.5 + level / 2, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n))


@dataclass(frozen=True)
class Reached:
    """What a study needed to reach a target, over the seeds that reached it (medians); None if none did."""

    label: str
    seeds: int
    reached: int
    rounds: float | None
    bytes: float | None
    seconds: float | None
    clock: str  # "simulated" or "host"
    final: float | None
    half_width: float


def to_target(label: str, runs: Sequence["Run"], key: str, target: words.Number) -> Reached:
    """Rounds, uplink bytes and time until `key` first reaches `target` (from the right side for its kind)."""
    hits = []
    for run in runs:
        better = words.higher_is_better(key)
        for record in run.rounds:
            value = record.get(key)
            if value is not None and (value >= target if better else value <= target):
                number = int(record["round"])
                hits.append((number, float(record.get("cumulative_uplink_bytes") or 0), _time(run, number)))
                break
    clock = "simulated" if all("simulated_seconds" in run.final for run in runs) else "host"
    rounds, sent, times = [float(np.median([hit[i] for hit in hits])) if hits else None for i in (0, 1)] + [
        _median_time(hits)
    ]
    finals = np.array([[float(run.final[key])] for run in runs if run.final.get(key) is not None])
    final = float(finals.mean()) if finals.size else None
    half = float(_half_width(finals)[0]) if finals.size else 0.0
    return Reached(label, len(runs), len(hits), rounds, sent, times, clock, final, half)


def _time(run: "Run", until: int) -> float | None:
    """Seconds up to and including a round: of the simulated clock if there's one, else of the host's."""
    simulated = [r["simulated_seconds"] for r in run.rounds if r.get("simulated_seconds") is not None]
    if simulated:
        upto = [r.get("simulated_seconds") or 0.0 for r in run.rounds if r["round"] <= until]
        return float(max(upto))
    spent = [t["seconds"] for t in run.timings if t.get("seconds") is not None and t["round"] <= until]
    return float(sum(spent)) if spent else None


def _median_time(hits: Sequence[tuple[int, float, float | None]]) -> float | None:
    times = [hit[2] for hit in hits if hit[2] is not None]
    return float(np.median(times)) if times else None


def group_by_study(runs: Sequence["Run"]) -> dict[str, list["Run"]]:
    """Runs that differ only in their seed (and directory) under one label.

    Labels are the configurations' names; studies with the same name get their runs' directories added.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(repr(sorted(_without_seed(run.config).items())), []).append(run)
    labelled: dict[str, list[Run]] = {}
    names = [members[0].name for members in groups.values()]
    for name, members in zip(names, groups.values(), strict=True):
        text = name
        if names.count(name) > 1:
            text = f"{name} ({members[0].directory})"
        labelled[text] = members
    return labelled


def _without_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    """What two seeds of a study have in common: not what follows from the seed, nor how it was computed."""
    study = config.get("experiment") or config
    same = {k: v for k, v in study.items() if k not in ("seed", "directory", "schedule", "engine", "dure")}
    data = same.get("data")
    if isinstance(data, Mapping):
        same["data"] = {k: v for k, v in data.items() if k != "fingerprint"}
    attack = same.get("attack")
    if isinstance(attack, Mapping) and not config.get("experiment"):  # who is hostile was drawn by the seed
        same["attack"] = {**attack, "attackers": len(attack.get("attackers") or [])}
    return same


def figure(
    groups: Mapping[str, Sequence["Run"]], key: str | None = None, target: words.Number | None = None
) -> "Figure":
    """A metric against uplink bytes (left, first) and against rounds (right), one line a study.

    Args:
        groups: label → the seeds of that study.
        key: the metric; by default the one that all runs are judged by.
        target: drawn as a horizontal line.
    """
    from matplotlib.figure import Figure

    key = key or words.headline_metric([run for runs in groups.values() for run in runs])
    picture = Figure(figsize=(10, 4), layout="constrained")
    left, right = picture.subplots(1, 2, sharey=True)
    for colour, (label, runs) in zip(COLOURS * (1 + len(groups) // 8), groups.items(), strict=False):
        line = curve(runs, key) if key else curve([], "")
        text = label if line.seeds < 2 else f"{label} ({line.seeds} seeds)"
        _draw(left, line.bytes, line, colour, text)
        _draw(right, line.rounds, line, colour, text)
    for axes, text in ((left, "uplink"), (right, "round")):
        axes.set_xlabel(text)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if target is not None:
            axes.axhline(target, color="0.5", linestyle="--", linewidth=1)
    left.xaxis.set_major_formatter(lambda value, _: words.bytes_(value))
    left.set_ylabel(words.label(key) if key else "nothing was evaluated")
    if key and words.is_share(key):
        left.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    if len(groups) > 1 or any(len(runs) > 1 for runs in groups.values()):
        right.legend(frameon=False)
    return picture


def _draw(axes: "Axes", x: np.ndarray, line: Curve, colour: str, label: str) -> None:
    axes.plot(x, line.mean, color=colour, linewidth=1.8, label=label, marker="." if len(x) < 2 else "")
    if line.seeds > 1:
        axes.fill_between(x, line.low, line.high, color=colour, alpha=0.18, linewidth=0)
