"""What every contestant's script shares: the job it is given, the clock, and the result it hands back.

A script is started as `python peers/<script>.py JOB.json` in the contestant's own interpreter. It defines

    run(job, data, weights, clock) -> the weights afterwards, canonical layout (see workloads.py)

and runs `while clock.more(): … ; clock.done(rounds, steps, rows)`, or, where a framework owns the loop,
calls `clock.more()` once before the loop and then `clock.done(…)` and `clock.more()` from the framework's
hook after each round. `done` is called when the model of that round exists, not when its computation has
been dispatched.

Needs numpy and the standard library only, and runs under every peer's pins.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import processes
import workloads
from workloads import Data, Workload


@dataclass(frozen=True)
class Job:
    """One subprocess: check the model or time the rounds."""

    workload: Workload
    check: bool
    data: str
    weights: str
    result: str
    rounds: int  # at most this many timed rounds
    seconds: float  # or when the timed rounds have taken this long
    least: int = 3  # but at least this many
    warmup: int = 2  # rounds after the first that are not timed
    threads: int = 1
    processes: int = 1
    variant: str = ""

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(path: str) -> Job:
        fields = json.loads(Path(path).read_text())
        return Job(**{**fields, "workload": Workload(**fields["workload"])})

    def cohort(self, round: int) -> np.ndarray:
        """Ids that take part in round 0, 1, …: the same for every contestant that can be told."""
        if self.check:
            return np.arange(self.workload.clients)
        return workloads.cohort(self.workload, round)


class Clock:
    """Times rounds; decides when there are enough."""

    def __init__(self, job: Job, started: float) -> None:
        self.job, self.started = job, started
        self.rounds: list[dict[str, float]] = []
        self.cpu: list[float] = []
        self.extra: dict[str, Any] = {}
        self.mark = 0.0
        self.saved = time.perf_counter()

    def more(self) -> bool:
        """Start the next round's clock; False when the contestant should stop."""
        if self.job.check:
            go = not self.rounds
        else:
            timed = self.timed()
            spent = sum(r["seconds"] * r["rounds"] for r in timed)
            go = len(timed) < self.job.least or (
                sum(r["rounds"] for r in timed) < self.job.rounds and spent < self.job.seconds
            )
        if len(self.rounds) == 0:
            self.startup = time.time() - self.started
        if not self.job.check and (not go or len(self.rounds) == 1 + self.job.warmup):
            self.cpu.append(processes.cpu_seconds(processes.mine()))
        if not self.job.check and (not go or time.perf_counter() - self.saved > 5.0):
            self.save()
            self.saved = time.perf_counter()
        self.mark = time.perf_counter()
        return go

    def restart(self) -> None:
        """Start the clock again: what happened since `more` isn't the contestant's own work."""
        self.mark = time.perf_counter()

    def done(self, rounds: int, steps: int = 0, rows: int = 0) -> None:
        """These rounds, local steps and rows (examples read) are finished since `more`.

        Steps and rows may be filled into `rounds` later.
        """
        seconds = time.perf_counter() - self.mark
        self.rounds.append({"seconds": seconds / rounds, "rounds": rounds, "steps": steps, "rows": rows})

    def timed(self) -> list[dict[str, float]]:
        return self.rounds[1 + self.job.warmup :]

    def save(self, **more: Any) -> None:
        result: dict[str, Any] = {
            "startup_seconds": self.startup,
            "first_round_seconds": self.rounds[0]["seconds"] if self.rounds else None,
            "windows": [r for r in self.timed() if r["steps"]],
            "cpu_seconds_per_round": None,
            "peak_bytes": processes.peak_bytes(),
            **self.extra,
            **more,
        }
        if len(self.cpu) > 1:
            result["cpu_seconds_per_round"] = (self.cpu[-1] - self.cpu[0]) / sum(
                r["rounds"] for r in self.timed()
            )
        path = Path(self.job.result)
        unfinished = path.with_suffix(".part")
        unfinished.write_text(json.dumps(result))
        unfinished.replace(path)


def main(
    run: Callable[[Job, Data, list[np.ndarray], Clock], list[np.ndarray]], versions: dict[str, str]
) -> None:
    started = float(os.environ.get("DURE_BENCHMARK_STARTED", time.time()))
    job = Job.load(sys.argv[1])
    data = workloads.load(job.data)
    with np.load(job.weights) as file:
        weights = [file[f"arr_{i}"] for i in range(len(file.files))]
    clock = Clock(job, started)
    try:
        after = run(job, data, weights, clock)
    except Exception as error:
        traceback.print_exc()
        Path(job.result).write_text(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}))
        raise SystemExit(1) from error
    if job.check:
        np.savez(job.result.replace(".json", ".npz"), *[np.asarray(a) for a in after])
    clock.save(versions=versions)
