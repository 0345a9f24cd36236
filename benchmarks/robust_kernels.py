"""Kernels of robust aggregation against NumPy, PyTorch and ByzFL, in one run on the same float32 updates.

    python benchmarks/peers/make_venv.py byzfl      # once; without it the two peers are left out
    python benchmarks/robust_kernels.py [--seconds 2] [--only NAME …] [--json FILE] [--markdown FILE]

Each contestant is called over and over for `--seconds` after a first call that isn't counted (ByzFL's SMEA, which
takes most of a minute, is called once), the contestants of a job one after another; the table has the median call.
Where two compute the same thing their results are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from common import about, console, files, save, show
from dure.aggregation import (
    ARC,
    CAF,
    MDA,
    NNM,
    SMEA,
    CenteredClipping,
    Clipping,
    GeometricMedian,
    Krum,
    MeaMed,
    Mean,
    Median,
    MultiKrum,
    TrimmedMean,
)
from peers.make_venv import importable, interpreter

PEER = Path(__file__).parent / "peers" / "robust_rules.py"


@dataclass(frozen=True)
class Job:
    """One call: n updates of d numbers, dure's rule, and what the others call it.

    `same`: which of the others must agree with dure (to 1e-3 of the result's scale).
    `target`: (contestant, how many times faster than it dure is to be).
    """

    name: str
    n: int
    d: int
    rule: Any
    numpy: Callable[[np.ndarray], np.ndarray] | None = None
    torch: tuple[str, dict[str, Any]] | None = None
    byzfl: tuple[str, dict[str, Any]] | None = None
    same: tuple[str, ...] = ()
    targets: dict[str, float] = field(default_factory=dict)
    limit_ms: float | None = None


def trimmed(f: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.sort(x, axis=0)[f : len(x) - f].mean(0)


JOBS = [
    Job("mean 50 × 10⁶", 50, 10**6, Mean(), lambda x: x.mean(0), ("Mean", {}), ("Average", {}), ("numpy", "byzfl")),
    Job(
        "median 50 × 10⁶", 50, 10**6, Median(10), lambda x: np.median(x, axis=0), ("Median", {}), ("Median", {}),
        ("numpy", "byzfl"), {"numpy": 10},
    ),
    Job(
        "trimmed mean 50 × 10⁶, f 10", 50, 10**6, TrimmedMean(10), trimmed(10), ("TrimmedMean", {"f": 10}),
        ("TrMean", {"f": 10}), ("numpy", "torch", "byzfl"),
    ),
    Job(
        "median 64 × 65,536", 64, 65536, Median(8), lambda x: np.median(x, axis=0), ("Median", {}), ("Median", {}),
        ("numpy", "byzfl"), {"numpy": 10, "byzfl": 50},
    ),
    Job(
        "trimmed mean 64 × 65,536, f 8", 64, 65536, TrimmedMean(8), trimmed(8), ("TrimmedMean", {"f": 8}),
        ("TrMean", {"f": 8}), ("numpy", "torch", "byzfl"), {"byzfl": 50},
    ),
    Job("MeaMed 64 × 65,536, f 8", 64, 65536, MeaMed(8), byzfl=("Meamed", {"f": 8}), same=("byzfl",)),
    Job("geometric median 64 × 65,536 (ByzFL: 3 steps)", 64, 65536, GeometricMedian(), byzfl=("GeometricMedian", {})),
    Job(
        "centred clipping 64 × 65,536, 10 steps", 64, 65536, CenteredClipping(100.0, 10),
        byzfl=("CenteredClipping", {"L": 10, "tau": 100.0}), same=("byzfl",),
    ),
    Job(
        "Multi-Krum 80 × 65,536, f 20", 80, 65536, MultiKrum(20, m=60, neighbours="n-f-1"),
        byzfl=("MultiKrum", {"f": 20}), same=("byzfl",), targets={"byzfl": 50},
    ),
    Job("NNM 196 × 4096, f 32", 196, 4096, NNM(32), byzfl=("NNM", {"f": 32}), same=("byzfl",), targets={"byzfl": 50}),
    Job("CAF 64 × 65,536, f 8", 64, 65536, CAF(8), byzfl=("CAF", {"f": 8})),
    Job("SMEA 16 × 4096, f 5", 16, 4096, SMEA(5), byzfl=("SMEA", {"f": 5}), targets={"byzfl": 50}),
    Job("MDA 30 × 2048, f 10", 30, 2048, MDA(10)),
    Job("MDA 100 × 2048, f 30", 100, 2048, MDA(30), limit_ms=300.0),
    Job("clipping 256 × 65,536", 256, 65536, Clipping(2.0), byzfl=("Clipping", {"c": 2.0}), same=("byzfl",)),
    Job("ARC 256 × 65,536, f 32", 256, 65536, ARC(32), byzfl=("ARC", {"f": 32}), same=("byzfl",)),
    Job("Krum 1000 × 10⁵, f 100", 1000, 10**5, Krum(100), limit_ms=2000.0),
]  # fmt: skip


class Peer:
    """The process in which PyTorch and ByzFL are timed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [interpreter("byzfl"), str(PEER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.terminate()


def times(call: Callable[[], Any], seconds: float) -> tuple[list[float], Any]:
    """Milliseconds of each call, and the last result; the first call warms up and isn't counted."""
    found = call()
    taken: list[float] = []
    begin = time.perf_counter()
    while not taken or (time.perf_counter() - begin < seconds and len(taken) < 50):
        at = time.perf_counter()
        found = call()
        taken.append(1e3 * (time.perf_counter() - at))
    return taken, found


def updates(job: Job) -> np.ndarray:
    """Honest-looking rows around a common direction, with an eighth of them far out."""
    rng = np.random.default_rng(job.n * job.d)
    x = rng.normal(size=(job.n, job.d)).astype(np.float32)
    x += rng.normal(size=job.d).astype(np.float32)
    x[: job.n // 8] *= 3
    return x


def vector(found: Any) -> np.ndarray:
    """The result as numbers, of a rule or of a pre-aggregator."""
    found = getattr(found, "matrix", getattr(found, "vector", found))
    return np.asarray(found, np.float64)


def measure(job: Job, peer: Peer | None, seconds: float, folder: Path) -> dict[str, Any]:
    """Median milliseconds of every contestant, and how far their results are from dure's."""
    x = updates(job)
    before = x.copy()
    taken, mine = times(lambda: job.rule(x), seconds)
    row: dict[str, Any] = {
        "job": job.name,
        "ms": {"dure": float(np.median(taken))},
        "calls": {"dure": len(taken)},
    }
    assert np.array_equal(before, x), f"{job.name}: the updates were changed"
    results = {}
    if job.numpy is not None:
        taken, results["numpy"] = times(lambda: job.numpy(x), seconds)
        row["ms"]["numpy"], row["calls"]["numpy"] = float(np.median(taken)), len(taken)
    np.save(folder / "updates.npy", x)
    for who, asked in (("torch", job.torch), ("byzfl", job.byzfl)):
        if peer is None or asked is None:
            continue
        given = {
            "who": who,
            "rule": asked[0],
            "arguments": asked[1],
            "seconds": seconds,
            "threads": os.cpu_count(),
        }
        answer = peer.ask({**given, "file": str(folder / "updates.npy"), "vector": str(folder / "found.npy")})
        if "error" in answer:
            row.setdefault("errors", {})[who] = answer["error"]
            continue
        taken = answer["ms"][1:] or answer["ms"]
        row["ms"][who], row["calls"][who] = float(np.median(taken)), len(taken)
        results[who] = np.load(folder / "found.npy")
    scale = float(np.abs(vector(mine)).max())
    row["difference"] = {
        who: float(np.abs(vector(r) - vector(mine)).max() / scale) for who, r in results.items()
    }
    for who in job.same:
        if who in row["difference"]:
            assert row["difference"][who] < 1e-3, (job.name, who, row["difference"][who])
    row["targets"] = {
        who: [row["ms"][who] / row["ms"]["dure"], t] for who, t in job.targets.items() if who in row["ms"]
    }
    if job.limit_ms is not None:
        row["targets"]["ms"] = [row["ms"]["dure"], job.limit_ms]
    return row


def cells(row: dict[str, Any]) -> list[str]:
    ms = row["ms"]
    others = []
    for who in ("numpy", "torch", "byzfl"):
        text = "failed" if who in row.get("errors", {}) else ""
        others.append(f"{ms[who]:,.1f} ({ms[who] / ms['dure']:.3g}×)" if who in ms else text)
    goals = []
    for who, (found, wanted) in row["targets"].items():
        met = found <= wanted if who == "ms" else found >= wanted
        goal = f"< {wanted:,.0f} ms" if who == "ms" else f"{wanted:g}× {who}"
        goals.append(f"{goal}: {'yes' if met else 'no'}")
    return [row["job"], f"{ms['dure']:,.2f}", *others, "; ".join(goals)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="time for each contestant of each job")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="jobs whose names begin so")
    files(parser)
    asked = parser.parse_args()
    load, out = os.getloadavg()[0], console()
    why = importable("byzfl")
    if why:
        out.print(f"PyTorch and ByzFL are left out: {why}")
    jobs = [job for job in JOBS if not asked.only or job.name.startswith(tuple(asked.only))]
    rows = []
    peer = None if why else Peer()
    with tempfile.TemporaryDirectory() as folder:
        for job in jobs:
            rows.append(measure(job, peer, asked.seconds, Path(folder)))
            out.print("  ".join(cells(rows[-1])))
    if peer is not None:
        peer.close()
    head = ["updates", "dure, ms", "NumPy, ms (times dure's)", "PyTorch", "ByzFL", "target"]
    tables = [("Robust aggregation, median of the calls", head, [cells(row) for row in rows])]
    known = {row["job"]: row["ms"] for row in rows}
    if "mean 50 × 10⁶" in known:
        plain = known["mean 50 × 10⁶"].get("numpy", np.nan)
        for name in ("median 50 × 10⁶", "trimmed mean 50 × 10⁶, f 10"):
            if name in known:
                out.print(
                    f"{name}: {known[name]['dure'] / plain:.1f} times a plain mean (target: at most 12)"
                )
    show(out, tables)
    save(asked, about(load), tables, {"jobs": rows})


if __name__ == "__main__":
    main()
