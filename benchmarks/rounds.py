"""Federated rounds side by side: `python benchmarks/rounds.py W1 W2 … [--against torch,pfl,flower,fedjax]`.

Every contestant runs in its own interpreter on the same data file, is first checked to compute the same
model, then timed. What the columns mean is said in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import common
import contestants
import workloads

# What the project set out to reach: dure's speed as a multiple of a peer's, and the first round's seconds.
GOALS = {
    ("W1", "torch"): 12.0,
    ("W2", "torch"): 2.0,
    ("W3", "torch"): 1.05,
    ("W4", "torch"): 100.0,
    ("W1", "pfl"): 30.0,
    ("W4", "pfl"): 30.0,
}
TORCH_GOALS = {
    ("W1", "torch"): 3.0,
    ("W2", "torch"): 1.0,
    ("W3", "torch"): 1.0,
    ("W1", "pfl"): 5.0,
    ("W4", "pfl"): 5.0,
}
FIRST_ROUND = {"W1": 3.0, "W2": 3.0, "W4": 3.0}
SAME_COST = ("W5", "W4", 1.3)  # registered clients must not matter: at most this ratio
ORDER = ("dure", "dure-torch", "torch", "pfl", "flower", "fedjax")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=["W1", "W2"], metavar="W", help="W1 … W5 (W1 W2)")
    parser.add_argument(
        "--against", default="dure-torch,torch,pfl,flower,fedjax", help="peers, comma-separated, or none"
    )
    parser.add_argument("--rounds", type=int, default=200, help="timed rounds, at most (200)")
    parser.add_argument("--seconds", type=float, default=8.0, help="timed seconds per contestant, about (8)")
    parser.add_argument("--time-limit", type=float, default=180.0, help="whole contestant, seconds (180)")
    parser.add_argument("--repeat", type=int, default=1, help="times round the field; the fastest counts (1)")
    parser.add_argument("--without-dure", action="store_true", help="peers only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    asked = parser.parse_args()
    asked.peers = [] if asked.against in ("", "none") else asked.against.split(",")
    if unknown := [w for w in asked.workloads if w not in workloads.WORKLOADS]:
        parser.error(f"unknown workload {', '.join(unknown)}; there are {', '.join(workloads.WORKLOADS)}")
    if unknown := [p for p in asked.peers if p not in ORDER[1:]]:
        parser.error(f"unknown peer {', '.join(unknown)}; there are {', '.join(ORDER[1:])}")
    return asked


def probe() -> dict[str, float]:
    """The machine's peaks: the best that numpy, JAX and, when its environment is there, PyTorch reach."""
    peaks = {"gemm_flops": 0.0, "copy_bytes": 0.0}
    torch = contestants.interpreter("torch")
    for python in [sys.executable, *([str(torch)] if torch.exists() else [])]:
        command = [python, str(contestants.PEERS / "probe.py")]
        env = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
        tried = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
        if tried.returncode == 0:
            for kind, values in json.loads(tried.stdout.splitlines()[-1]).items():
                peaks[kind] = max(peaks[kind], *values.values())
    return peaks


def figures(workload: workloads.Workload, data: workloads.Data, raw: dict, peaks: dict) -> dict[str, Any]:
    """The columns, from one contestant's raw result.

    A ragged cohort's work varies by round and not everybody draws the same cohorts, so seconds a round are
    the median seconds per local step times the workload's mean steps a round; where every cohort has the
    same steps, that is the median round.
    """
    steps, rows = workloads.expected(workload, data)
    per_step = [w["seconds"] * w["rounds"] / w["steps"] for w in raw["windows"]]
    seconds = statistics.median(per_step) * steps
    flops = rows * workloads.flops_per_row(workload.model)
    traffic = workloads.bytes_per_round(workload.model, steps, rows)
    return {
        "seconds_per_round": seconds,
        "first_round_seconds": raw["first_round_seconds"],
        "startup_seconds": raw["startup_seconds"],
        "microseconds_per_step": seconds / steps * 1e6,
        "clients_per_second": workload.cohort / seconds,
        "cpu_seconds_per_round": raw["cpu_seconds_per_round"],
        "peak_bytes": raw["peak_bytes"],
        "share_of_gemm_peak": flops / seconds / peaks["gemm_flops"] if peaks["gemm_flops"] else None,
        "share_of_copy_peak": traffic / seconds / peaks["copy_bytes"] if peaks["copy_bytes"] else None,
        "timed_rounds": sum(w["rounds"] for w in raw["windows"]),
        "quartiles": [q * steps for q in np.quantile(per_step, [0.25, 0.75]).tolist()],
        **{key: raw[key] for key in ("versions", "compilations", "schedule") if key in raw},
    }


def contest(asked: argparse.Namespace, console: Console, peaks: dict, folder: Path) -> list[dict[str, Any]]:
    """All rows: one per workload and contestant variant."""
    field = contestants.contestants([*([] if asked.without_dure else ["dure"]), *asked.peers])
    missing = {
        peer: why for peer in dict.fromkeys(c.peer for c in field) if (why := contestants.unavailable(peer))
    }
    rows: list[dict[str, Any]] = []
    checks: dict[tuple[contestants.Contestant, str], dict[str, Any]] = {}
    for name in asked.workloads:
        workload = workloads.WORKLOADS[name]
        path = workloads.data_file(workload)
        with np.load(path) as file:
            data = workloads.Data(np.empty(0), np.empty(0), file["offsets"])
        np.savez(folder / "weights.npz", *workloads.initial(workload.model))
        job = contestants.Job(
            workload, False, str(path), str(folder / "weights.npz"), "", asked.rounds, asked.seconds
        )
        table = {c: {"workload": name, "peer": c.peer, "variant": c.variant} for c in field}
        for turn in range(asked.repeat):
            for c, row in table.items():
                if c.peer in missing:
                    row["error"] = missing[c.peer]
                    continue
                key = (c, workload.model)
                if key not in checks:
                    console.print(f"  {name} {c.peer} {c.variant}: check", style="dim")
                    checks[key] = contestants.check(c, workload.model, folder, asked.time_limit)
                row["check"] = checks[key]
                if not checks[key]["passed"] or (turn and "error" in row):
                    continue
                console.print(f"  {name} {c.peer} {c.variant}: time", style="dim")
                raw = contestants.measure(c, job, folder, asked.time_limit)
                if "error" in raw:
                    row["error"] = raw["error"]
                    continue
                got = figures(workload, data, raw, peaks)
                row.setdefault("repeats", []).append(got["seconds_per_round"])
                if got["seconds_per_round"] <= row.get("seconds_per_round", np.inf):
                    row.update(got)
        rows += table.values()
    return rows


def best(rows: list[dict[str, Any]], workload: str, peer: str) -> dict[str, Any] | None:
    """A peer's fastest variant, or whatever can be said of it."""
    mine = [row for row in rows if (row["workload"], row["peer"]) == (workload, peer)]
    timed = [row for row in mine if "seconds_per_round" in row]
    return min(timed, key=lambda row: row["seconds_per_round"]) if timed else (mine[0] if mine else None)


def number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    if value == 0 or not 1e-3 <= abs(value) < 1e5:
        return f"{value:.{digits - 1}e}"
    places = max(0, digits - 1 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{places}f}"


HEAD = (
    "workload",
    "contestant",
    "s / round",
    "× dure",
    "µs / step",
    "clients / s",
    "CPU s / round",
    "first round s",
    "peak MB",
    "% GEMM",
    "% copy",
    "same model",
)


def lines(rows: list[dict[str, Any]], names: list[str]) -> list[list[str]]:
    """The table's cells: the best variant of each peer."""
    cells = []
    for name in names:
        ours = best(rows, name, "dure")
        for peer in ORDER:
            row = best(rows, name, peer)
            if row is None:
                continue
            title = f"{peer} ({row['variant']})" if row["variant"] and "seconds_per_round" in row else peer
            check = row.get("check", {})
            agrees = number(check.get("largest_error"), 2)
            if check and not check["passed"]:
                agrees = "check failed" if "error" in check else f"NO: {agrees}"
            if "seconds_per_round" not in row:
                limit = row.get("error", "–")
                cells.append([name, title, limit if limit.startswith(">") else "–", *["–"] * 8, agrees])
                continue
            ratio = (
                row["seconds_per_round"] / ours["seconds_per_round"]
                if ours and "seconds_per_round" in ours
                else None
            )
            cells.append(
                [
                    name,
                    title,
                    number(row["seconds_per_round"]),
                    number(ratio),
                    number(row["microseconds_per_step"]),
                    number(row["clients_per_second"]),
                    number(row["cpu_seconds_per_round"]),
                    number(row["first_round_seconds"]),
                    number(row["peak_bytes"] / 1e6),
                    number(100 * row["share_of_gemm_peak"]),
                    number(100 * row["share_of_copy_peak"]),
                    agrees,
                ]
            )
    return cells


def goals(rows: list[dict[str, Any]], names: list[str]) -> list[str]:
    """What was aimed at and by how much it was met or missed."""
    said = []

    def say(what: str, wanted: float, got: float, met: bool, unit: str) -> None:
        verdict = "met" if met else f"MISSED by a factor {max(wanted / got, got / wanted):.2f}"
        said.append(f"{what}: aim {wanted:g}{unit}, measured {number(got)}{unit}: {verdict}")

    timed = {n: row for n in names if (row := best(rows, n, "dure")) and "seconds_per_round" in row}
    for ours, wanted in (("dure", GOALS), ("dure-torch", TORCH_GOALS)):
        for (name, peer), factor in wanted.items():
            mine, theirs = best(rows, name, ours), best(rows, name, peer)
            if mine and theirs and "seconds_per_round" in mine and "seconds_per_round" in theirs:
                got = theirs["seconds_per_round"] / mine["seconds_per_round"]
                say(f"{name}: {ours} against {peer}, at least", factor, got, got >= factor, "×")
    for name, seconds in FIRST_ROUND.items():
        if name in timed:
            got = timed[name]["first_round_seconds"]
            say(f"{name} first round, at most", seconds, got, got <= seconds, " s")
    many, few, factor = SAME_COST
    if many in timed and few in timed:
        got = timed[many]["seconds_per_round"] / timed[few]["seconds_per_round"]
        say(f"{many} a round against {few}, at most", factor, got, got <= factor, "×")
    return said


def troubles(rows: list[dict[str, Any]]) -> list[str]:
    """What did not run, and why."""
    said = []
    for row in rows:
        why = row.get("error") or row.get("check", {}).get("error")
        if why and "seconds_per_round" not in row:
            said.append(f"{row['workload']} {row['peer']} {row['variant']}: {why}")
    return said


def markdown(report: dict[str, Any], cells: list[list[str]]) -> str:
    peaks = report["peaks"]
    measured = (
        f"Measured peaks: {peaks['gemm_flops'] / 1e9:.0f} GFLOP/s (GEMM), "
        f"{peaks['copy_bytes'] / 1e9:.1f} GB/s (copy)."
    )
    notes = "\n".join(f"- {line}" for line in [*report["goals"], *report["troubles"]])
    return f"{report['about']} {measured}\n\n{common.markdown_table(HEAD, cells)}\n\n{notes}\n"


def main() -> int:
    asked, console = arguments(), common.console()
    started, load_before = time.time(), os.getloadavg()[0]
    console.print("probing the machine's peak", style="dim")
    peaks = probe()
    with tempfile.TemporaryDirectory() as folder:
        rows = contest(asked, console, peaks, Path(folder))
    cells, said = lines(rows, asked.workloads), goals(rows, asked.workloads)
    table = Table(*HEAD, title="rounds")
    for before, row in zip([None, *cells], cells, strict=False):
        if before is not None and before[0] != row[0]:
            table.add_section()
        table.add_row(*row)
    console.print(table)
    for line in said:
        console.print(line, style="red" if "MISSED" in line else "green")
    for line in troubles(rows):
        console.print(line, style="yellow")
    report = {
        "command": common.command(),
        "about": common.about(load_before),
        "machine": common.machine(),
        "peaks": peaks,
        "seconds": time.time() - started,
        "goals": said,
        "troubles": troubles(rows),
        "rows": rows,
    }
    if asked.json:
        asked.json.write_text(json.dumps(report, indent=1))
    if asked.markdown:
        asked.markdown.write_text(markdown(report, cells))
    return 0


if __name__ == "__main__":
    sys.exit(main())
