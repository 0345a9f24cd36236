"""Who runs in `rounds.py`, in what variants, and how one job of one contestant is run in its own
interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import processes
import workloads

PEERS = Path(__file__).resolve().parent / "peers"
sys.path.insert(0, str(PEERS))

from _protocol import Job  # noqa: E402
from make_venv import importable, interpreter  # noqa: E402

CORES = os.cpu_count() or 1
TOLERANCE = 1e-5
OURS = ("dure", "dure-torch")  # run in this interpreter


@dataclass(frozen=True)
class Contestant:
    """One script in one variant. The best variant of a peer becomes its row of the table."""

    peer: str
    variant: str
    script: str
    threads: int = 1
    processes: int = 1

    @property
    def python(self) -> str:
        return sys.executable if self.peer in OURS else str(interpreter(self.peer))


def contestants(peers: list[str]) -> list[Contestant]:
    every = [
        Contestant("dure", "", "dure_rounds.py", threads=0),
        Contestant("dure-torch", "", "dure_torch_rounds.py", processes=CORES),
        Contestant("torch", "1 thread", "torch_loop.py"),
        Contestant("torch", f"{CORES} threads", "torch_loop.py", threads=CORES),
        Contestant("torch", f"{CORES} processes", "torch_processes.py", processes=CORES),
        Contestant("pfl", "1 thread", "pfl_rounds.py"),
        Contestant("pfl", f"{CORES} threads", "pfl_rounds.py", threads=CORES),
        Contestant("pfl", f"{CORES} processes", "pfl_rounds.py", processes=CORES),
        Contestant("flower", f"{CORES} actors", "flower_rounds.py", processes=CORES),
        Contestant("fedjax", "jit", "fedjax_rounds.py", threads=0),
        Contestant("fedjax", "pmap", "fedjax_rounds.py", threads=0, processes=CORES),
    ]
    return [c for c in every if c.peer in peers and not (CORES == 1 and f"{CORES} " in c.variant)]


def unavailable(peer: str) -> str | None:
    """Why a peer can't run here, or None."""
    if peer == "dure-torch":
        return (
            None if find_spec("torch") else "PyTorch is not installed beside dure (pip install 'dure[torch]')"
        )
    return None if peer in OURS else importable(peer)


class Memory(threading.Thread):
    """Samples what all processes of one job hold together, once a second."""

    def __init__(self, token: str) -> None:
        super().__init__(daemon=True)
        self.token, self.peak, self.stop = token, 0, threading.Event()

    def run(self) -> None:
        while not self.stop.wait(1.0):
            self.peak = max(self.peak, processes.resident_bytes(processes.marked(self.token)))


def environment(contestant: Contestant, token: str) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")}
    env |= {
        processes.MARK: token,
        "DURE_BENCHMARK_STARTED": repr(time.time()),
        "DURE_BENCHMARK_VARIANT": contestant.variant,
        "PYTHONPATH": os.pathsep.join([str(PEERS), str(PEERS.parent)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "JAX_PLATFORMS": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
    }
    if contestant.threads:
        env |= {"OMP_NUM_THREADS": str(contestant.threads), "MKL_NUM_THREADS": str(contestant.threads)}
    return env


def execute(contestant: Contestant, job: Job, folder: Path, limit: float) -> dict[str, Any]:
    """Run one job; a result with `error` where it failed or took longer than `limit` seconds."""
    token = uuid.uuid4().hex
    job_file, result, log = folder / f"{token}.json", Path(job.result), folder / f"{token}.log"
    result.unlink(missing_ok=True)
    job.save(job_file)
    memory, timed_out = Memory(token), False
    with log.open("w") as output:
        script = str(PEERS / contestant.script)
        process = subprocess.Popen(
            [contestant.python, script, str(job_file)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=folder,
            env=environment(contestant, token),
            start_new_session=True,
        )
        if not job.check and contestant.processes > 1:
            memory.start()
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            memory.stop.set()
            if process.poll() is None:
                process.kill()
            processes.end(token)
            process.wait()
    found = json.loads(result.read_text()) if result.exists() else {}
    if timed_out and not found.get("windows"):
        return {"error": f"> {limit:.0f} s", **{k: v for k, v in found.items() if k != "windows"}}
    if not found:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return {"error": f"exit {process.returncode}: {lines[-1] if lines else 'no output'}"[:300]}
    if memory.peak:
        found["peak_bytes"] = max(found.get("peak_bytes", 0), memory.peak)
    return found


def check(contestant: Contestant, model: str, folder: Path, limit: float) -> dict[str, Any]:
    """Does it compute the same model? One round of one full-batch step per client against float64 numpy."""
    workload, data = workloads.tiny(model)
    weights = workloads.initial(model)
    np.savez(folder / f"check-{model}.npz", **data._asdict())
    np.savez(folder / f"check-{model}-weights.npz", *weights)
    job = Job(
        workload=workload,
        check=True,
        data=str(folder / f"check-{model}.npz"),
        weights=str(folder / f"check-{model}-weights.npz"),
        result=str(folder / "check.json"),
        rounds=1,
        seconds=limit,
        threads=contestant.threads,
        processes=contestant.processes,
        variant=contestant.variant,
    )
    result = execute(contestant, job, folder, limit)
    if "error" in result:
        return {"passed": False, "error": result["error"]}
    with np.load(folder / "check.npz") as file:
        got = [file[f"arr_{i}"].astype(np.float64) for i in range(len(file.files))]
    wanted = workloads.reference_round(workload, data, weights)
    if [a.shape for a in got] != [a.shape for a in wanted]:
        return {"passed": False, "error": "weights of other shapes"}
    worst = max(float(np.abs(a - b).max()) for a, b in zip(got, wanted, strict=True))
    moved = float(np.sqrt(sum(np.sum((b - s) ** 2) for b, s in zip(wanted, weights, strict=True))))
    away = float(np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(got, wanted, strict=True))))
    passed = worst <= TOLERANCE and away <= 1e-3 * moved  # the second: a tiny update must be right too
    return {"passed": bool(passed), "largest_error": worst, "relative_error_of_update": away / moved}


def measure(contestant: Contestant, job: Job, folder: Path, limit: float) -> dict[str, Any]:
    """Time one contestant on one workload."""
    fitted = replace(
        job,
        threads=contestant.threads,
        processes=contestant.processes,
        variant=contestant.variant,
        result=str(folder / "timing.json"),
    )
    return execute(contestant, fitted, folder, limit)
