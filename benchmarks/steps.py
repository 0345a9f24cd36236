"""µs per local step, dure's engine against the bare arithmetic: `python benchmarks/steps.py [MODEL …]`.

The bare arithmetic is SGD on the same model and batch size with nothing federated around it: no cohort, no
plan, no gathering (its batches lie ready), no weights, no checks, no averaging. It's compiled in three ways, a
loop over steps, a vmap over clients around that loop, and a single step that Python calls, and the fastest
counts (on a CPU convolutions only the last, since XLA's loops convolve ten times slower there). Overhead is
dure's time on one device over the bare time on one device; the last columns let dure use every device.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

import common
from dure import Everyone, FedAvg, Federated, Model, Simulation, Task, classification, models

import jax  # isort: skip  (after dure, which asks for one CPU device per core)
from jax import lax

RATE = 0.01


@dataclass(frozen=True)
class Case:
    title: str
    model: Callable[[], Model]
    shape: tuple[int, ...]
    clients: int
    examples: int
    batch: int = 10

    @property
    def steps(self) -> int:
        """Per client."""
        return math.ceil(self.examples / self.batch)


CASES = {
    "softmax": Case("softmax 784→10", lambda: models.softmax_regression(784, 10), (784,), 64, 600),
    "two_nn": Case("2NN 784-200-200-10", models.two_nn, (784,), 8, 600),
    "mcmahan_cnn": Case("McMahan CNN 28×28×1", models.mcmahan_cnn, (28, 28, 1), 4, 100),
    "small_cnn": Case("small CNN 32×32×3", models.small_cnn, (32, 32, 3), 4, 50),
}
Run = Callable[[], Any]


def bare(case: Case, task: Task, x: np.ndarray, y: np.ndarray) -> dict[str, Run]:
    """The arithmetic alone; each runs all clients' steps once."""
    clients, steps, batch = case.clients, case.steps, case.batch
    start = task.model.init(jax.random.key(0))
    mask = np.ones(batch, np.float32)

    def step(params: Any, batch: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
        def loss(p: Any) -> jax.Array:
            rows = {task.input: batch[0], task.target: batch[1]}
            return task.batch_loss(start._replace(params=p), rows, mask, train=True, key=None)[0]

        return jax.tree.map(lambda p, g: p - RATE * g, params, jax.grad(loss)(params)), None

    device = jax.local_devices()[0]
    xs = jax.device_put(x.reshape(clients, steps, batch, *case.shape), device)
    ys = jax.device_put(y.reshape(clients, steps, batch), device)
    params = jax.device_put(start.params, device)
    client = lambda x, y: lax.scan(step, params, (x, y))[0]  # noqa: E731
    loop = jax.jit(lambda x, y: lax.map(lambda b: client(*b), (x, y)))
    together = jax.jit(jax.vmap(client))
    single = jax.jit(lambda p, x, y: step(p, (x, y))[0], donate_argnums=0)
    copy = jax.jit(lambda p: jax.tree.map(lambda a: a + 0, p))
    batches = [[(xs[k, s], ys[k, s]) for s in range(steps)] for k in range(clients)]

    def called() -> Any:
        for mine in batches:
            p = copy(params)
            for x, y in mine:
                p = single(p, x, y)
        return p

    if len(case.shape) == 3 and jax.default_backend() == "cpu":
        return {"calls": called}  # XLA's loops on a CPU convolve ten times slower
    return {"loop": lambda: loop(xs, ys), "vmap": lambda: together(xs, ys), "calls": called}


def engine(case: Case, task: Task, data: Federated, devices: int) -> Run:
    simulation = Simulation(
        FedAvg(),
        task,
        data,
        sampler=Everyone(),
        epochs=1,
        batch_size=case.batch,
        optimizer=RATE,
        devices=devices,
    )

    def run() -> Any:
        simulation.step()
        simulation.block()

    return run


def timed(runs: dict[str, Run], seconds: float) -> dict[str, list[float]]:
    """Seconds of each, in turns, so that a busy moment of the machine hits all alike."""
    for run in runs.values():
        for _ in range(2):
            jax.block_until_ready(run())
    found: dict[str, list[float]] = {name: [] for name in runs}
    started = time.perf_counter()
    while any(len(times) < 5 for times in found.values()) or time.perf_counter() - started < seconds:
        for name, run in runs.items():
            start = time.perf_counter()
            jax.block_until_ready(run())
            found[name].append(time.perf_counter() - start)
    return found


def measure(name: str, seconds: float) -> dict[str, Any]:
    case = CASES[name]
    task = classification(case.model())
    rng = np.random.default_rng(0)
    n = case.clients * case.examples
    x, y = rng.standard_normal((n, *case.shape), dtype=np.float32), rng.integers(0, 10, n, dtype=np.int32)
    offsets = np.arange(case.clients + 1) * case.examples
    data = Federated({"x": x, "y": y}, offsets, classes=10)
    runs = {f"bare {kind}": run for kind, run in bare(case, task, x, y).items()}
    count = len(jax.local_devices())
    runs["dure, 1 device"] = engine(case, task, data, 1)
    if count > 1:
        runs[f"dure, {count} devices"] = engine(case, task, data, count)
    total = case.clients * case.steps
    micro = {what: statistics.median(times) / total * 1e6 for what, times in timed(runs, seconds).items()}
    kind = min((what for what in micro if what.startswith("bare")), key=micro.get)
    return {
        "model": name,
        "title": case.title,
        "batch": case.batch,
        "microseconds_per_step": micro,
        "bare": micro[kind],
        "bare_kind": kind.removeprefix("bare "),
        "dure": micro["dure, 1 device"],
        "overhead": micro["dure, 1 device"] / micro[kind],
        "dure_all": micro.get(f"dure, {count} devices", micro["dure, 1 device"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--seconds", type=float, default=10.0, help="measuring time per model, about (10)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    asked = parser.parse_args()
    if unknown := [m for m in asked.models if m not in CASES]:
        parser.error(f"unknown model {', '.join(unknown)}; there are {', '.join(CASES)}")
    console, found, load = common.console(), [], os.getloadavg()[0]
    count = len(jax.local_devices())
    head = (
        "model",
        "B",
        "bare µs / step",
        "how",
        "dure µs / step",
        "overhead",
        f"dure, {count} devices",
        "gain",
    )
    rows = []
    for name in asked.models:
        r = measure(name, asked.seconds)
        found.append(r)
        rows.append(
            (
                r["title"],
                str(r["batch"]),
                f"{r['bare']:,.1f}",
                r["bare_kind"],
                f"{r['dure']:,.1f}",
                f"{r['overhead']:.2f}×",
                f"{r['dure_all']:,.1f}",
                f"{r['dure'] / r['dure_all']:.2f}×",
            )
        )
    table = Table(*head, title="µs per local step")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    about = common.about(load)
    if asked.json:
        asked.json.write_text(json.dumps({"about": about, "jax": jax.__version__, "rows": found}, indent=1))
    if asked.markdown:
        asked.markdown.write_text(f"{about}\n\n{common.markdown_table(head, rows)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
