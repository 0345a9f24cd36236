"""dure, by its explicit loop: `Simulation.step()` starts a round, `block()` waits for those that were
started.

The first round's clock starts before the simulation is made, so choosing a schedule and compiling count.
Later rounds are timed in windows of some tenths of a second with one `block()` at the end, as a training
runs them (the next round is planned on the host while the devices compute). Cohorts are drawn by dure's
own sampler, inside the timed part.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from _protocol import Clock, Data, Job, Workload, main

from dure import FedAvg, Federated, Simulation, Task, Uniform, Variables, __version__, classification, models

WINDOW_SECONDS = 0.25
LAYERS = {"two_nn": ("dense1", "dense2", "dense3"), "small_cnn": ("conv1", "conv2", "dense1", "dense2")}


def model(name: str) -> models.Model:
    if name == "softmax":
        return models.softmax_regression(60, 10)
    return models.two_nn() if name == "two_nn" else models.small_cnn()


def to_tree(name: str, weights: list[np.ndarray]) -> dict:
    """Canonical weights as the model's parameters."""
    layers = [{"weight": w, "bias": b} for w, b in zip(weights[::2], weights[1::2], strict=True)]
    return layers[0] if name == "softmax" else dict(zip(LAYERS[name], layers, strict=True))


def from_tree(name: str, params: dict) -> list[np.ndarray]:
    layers = [params] if name == "softmax" else [params[layer] for layer in LAYERS[name]]
    return [np.asarray(layer[part]) for layer in layers for part in ("weight", "bias")]


def run(job: Job, data: Data, weights: list[np.ndarray], clock: Clock) -> list[np.ndarray]:
    name = job.workload.model
    start = Variables(to_tree(name, weights))
    simulation = train(job, data.x, data.y, data.offsets, clock, lambda: classification(model(name)), start)
    return from_tree(name, simulation.params())


def train(
    job: Job,
    x: np.ndarray,
    y: np.ndarray,
    offsets: np.ndarray,
    clock: Clock,
    task: Callable[[], Task],
    initial: Variables | None,
) -> Simulation:
    """The timed rounds; the task is made inside the first round's clock."""
    work, seed = job.workload, 0
    federated = Federated({"x": x, "y": y}, offsets, classes=10).replicate(work.population)
    sampler, simulation, window = Uniform(count=work.cohort), None, 1

    while clock.more():
        if simulation is None:
            simulation = Simulation(
                FedAvg(),
                task(),
                federated,
                initial=initial,
                sampler=sampler,
                epochs=work.epochs,
                batch_size=work.batch,
                optimizer=work.lr,
                seed=seed,
            )
        for _ in range(window):
            simulation.step()
        simulation.block()
        clock.done(window)
        if len(clock.rounds) > job.warmup:
            window = max(1, int(WINDOW_SECONDS / clock.rounds[-1]["seconds"]))
    assert simulation is not None
    clock.extra["compilations"] = simulation.engine.compilations
    clock.extra["schedule"] = str(simulation.engine.schedule)
    if not job.check:
        count(clock, work, sampler, seed, federated)
    return simulation


def count(clock: Clock, work: Workload, sampler: Uniform, seed: int, federated: Federated) -> None:
    """Fill in steps and rows: a sampler is a pure function, so its cohorts can be asked for again."""
    round = 1
    for window in clock.rounds:
        rounds = range(round, round + int(window["rounds"]))
        sizes = np.concatenate([federated.rows(sampler.sample(seed, r, federated).ids)[1] for r in rounds])
        window["steps"] = work.epochs * int(np.sum(-(-sizes // work.batch)))
        window["rows"] = work.epochs * int(sizes.sum())
        round = rounds.stop


if __name__ == "__main__":
    import jax

    main(run, {"dure": __version__, "jax": jax.__version__})
