"""What client state costs: a SCAFFOLD round against a FedAvg round, and the memory of a million clients' states.

Time: W1 (softmax, 1000 ragged clients, cohorts of 100) and W2 (2NN, 100 × 600, cohorts of 10) of `rounds.py`, in
one process, same seeds and so the same cohorts and local work; windows of both methods alternate, and the ratio is
the median over pairs of neighbouring windows. Aim: at most 1.3.

Beside it: what the host does for client state in a round, gathering and scattering rows.

Memory: W4's data under 1,000,000 registered clients, SCAFFOLD with cohorts of 1000, each placement of client state
in a process of its own; FedAvg beside it.

    python benchmarks/state.py [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import common
import dure
import workloads
from dure.simulation.engine import Engine
from dure.simulation.settings import settings

AIM, WINDOW = 1.3, 0.3
METHODS = {"FedAvg": dure.FedAvg, "SCAFFOLD": dure.Scaffold}
MODELS = {"softmax": lambda: dure.models.softmax_regression(60, 10), "two_nn": dure.models.two_nn}


def federated(workload: workloads.Workload, registered: int = 0) -> dure.Federated:
    data = workloads.load(workloads.data_file(workload))
    made = dure.Federated({"x": data.x, "y": data.y}, data.offsets, classes=10)
    return made.replicate(registered) if registered else made


def engine(method: str, workload: workloads.Workload, data: dure.Federated, **more: Any) -> Engine:
    task = dure.classification(MODELS[workload.model]())
    directory = more.pop("directory", None)
    chosen = settings(
        data, clients_per_round=workload.cohort, epochs=1, batch_size=workload.batch, optimizer=0.1, **more
    )
    return Engine(METHODS[method](), task, data, chosen, directory=directory)


def rounds(one: Engine, count: int) -> float:
    """Seconds for so many rounds, with one wait at the end."""
    begin = time.perf_counter()
    for _ in range(count):
        one.launch()
        one.plan_ahead()
    one.block()
    return time.perf_counter() - begin


def speed(name: str, windows: int) -> tuple[list[str], dict[str, Any]]:
    """Alternating windows of both methods on one workload."""
    workload = workloads.WORKLOADS[name]
    data = federated(workload)
    both = {method: engine(method, workload, data) for method in METHODS}
    for one in both.values():
        rounds(one, 30)  # compilations, first touches
    count = max(round(WINDOW / (rounds(both["FedAvg"], 5) / 5)), 1)
    rounds(both["SCAFFOLD"], 5)
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for i in range(windows):
        for method in sorted(METHODS, reverse=bool(i % 2)):
            times[method].append(rounds(both[method], count) / count)
    ratios = np.array(times["SCAFFOLD"]) / np.array(times["FedAvg"])
    medians = [float(np.median(times[method])) for method in METHODS]
    ratio, parts = float(np.median(ratios)), host_parts(both["SCAFFOLD"])
    row = [
        name,
        *(f"{1e3 * m:.2f}" for m in medians),
        f"{ratio:.2f}",
        f"{np.percentile(ratios, 25):.2f}–{np.percentile(ratios, 75):.2f}",
        "met" if ratio <= AIM else f"MISSED by {ratio / AIM:.2f}",
        *(f"{1e3 * parts[part]:.2f}" for part in ("gather", "scatter")),
    ]
    return row, {"seconds": times, "ratio": ratio, "parts": parts}


def clocked(work: Any, into: list[float]) -> Any:
    """The function, writing its seconds into a list."""

    def watched(*given: Any) -> Any:
        begin = time.perf_counter()
        result = work(*given)
        into.append(time.perf_counter() - begin)
        return result

    return watched


def host_parts(one: Engine, repeats: int = 20) -> dict[str, float]:
    """Median seconds a round of what the host does for client state: gathering rows and scattering them."""
    found: dict[str, list[float]] = {"gather": [], "scatter": []}
    store = one.store
    for part, values in found.items():
        setattr(store, part, clocked(getattr(store, part), values))
    rounds(one, repeats)
    del store.gather, store.scatter
    return {part: float(np.median(values)) for part, values in found.items()}


# -- memory


def memory() -> dict[str, float]:
    """MB of this process: anonymous memory, and pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return {
        key: int(line.split()[1]) / 1024
        for line in lines
        for key in ("RssAnon", "RssFile")
        if line.startswith(key)
    }


def populated(placement: str, registered: int, count: int) -> dict[str, Any]:
    """Rounds over a large population; "none" is FedAvg."""
    workload = workloads.WORKLOADS["W4"]
    data = federated(workload, registered)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "client_state"
        more = {} if placement == "none" else {"client_state": placement, "directory": directory}
        one = engine("FedAvg" if placement == "none" else "SCAFFOLD", workload, data, **more)
        rounds(one, 3)
        before = memory()
        seconds = rounds(one, count) / count
        after = memory()
        disk = sum(p.stat().st_blocks * 512 for p in directory.glob("*")) if directory.exists() else 0
        touched = 0 if one.store is None else one.store.used
        return {
            "placement": placement,
            "touched": touched,
            "state": 0 if one.store is None else 4 * len(one.store.initial),
            "seconds": seconds,
            "grown": {key: after[key] - before[key] for key in after},
            "disk": disk / 2**20,
        }


def separately(placement: str, registered: int, count: int) -> dict[str, Any]:
    words = [sys.executable, __file__, "--one", placement, str(registered), str(count)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return dict(json.loads(done.stdout))


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(populated(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few windows, 20 rounds for the memory")
    parser.add_argument("--windows", type=int, help="pairs of windows (40; quick 6)")
    common.files(parser)
    asked = parser.parse_args()
    console, load = common.console(), os.getloadavg()[0]
    windows, count = asked.windows or (6 if asked.quick else 40), 20 if asked.quick else 100
    found = {name: speed(name, windows) for name in ("W1", "W2")}
    registered = 1_000_000
    sizes = [separately(placement, registered, count) for placement in ("none", "host", "device", "disk")]
    first = (
        "workload", "FedAvg ms", "SCAFFOLD ms", "ratio", "quartiles", f"aim {AIM}", "gather ms", "scatter ms",
    )  # fmt: skip
    second = (
        "client state", "touched", "bytes a client", "MB touched", "memory grown MB", "file pages MB", "files MB",
        "ms a round",
    )  # fmt: skip
    lines = [
        [
            {"none": "none (FedAvg)"}.get(s["placement"], s["placement"]),
            f"{s['touched']:,}",
            f"{s['state']:,}",
            f"{s['touched'] * s['state'] / 2**20:.0f}",
            f"{s['grown']['RssAnon']:.0f}",
            f"{s['grown']['RssFile']:.0f}",
            f"{s['disk']:.0f}",
            f"{1e3 * s['seconds']:.1f}",
        ]
        for s in sizes
    ]
    tables: list[common.Named] = [
        (f"A round with client state, {windows} pairs of windows", first, [row for row, _ in found.values()]),
        (f"{registered:,} registered clients, {count} rounds of 1000", second, lines),
    ]
    common.show(console, tables)
    report = {"speed": {name: more for name, (_, more) in found.items()}, "memory": sizes}
    common.save(asked, common.about(load), tables, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
