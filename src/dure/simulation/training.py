"""`simulate`: a federated training from one call."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dure.aggregation import Rule
from dure.algorithms.base import Algorithm
from dure.attacks.base import Attack
from dure.devices import in_32_bits, in_step, is_first
from dure.errors import ConfigError
from dure.oracles.layout import Variables
from dure.population.samplers import Sampler
from dure.run import Run, RunWriter, data_summary, environment
from dure.simulation import describe
from dure.simulation.engine import Engine
from dure.simulation.loop import Loop, OnRound
from dure.simulation.settings import LostUploads, WorkLimit, settings


@in_32_bits
def simulate(
    algorithm: Algorithm,
    task: Any,
    data: Any,
    *,
    rounds: int,
    fraction: float | None = None,
    clients_per_round: int | None = None,
    sampler: Sampler | None = None,
    epochs: int | None = None,
    steps: int | None = None,
    batch_size: float = 10,
    optimizer: Any = 0.1,
    weighting: str | None = None,
    estimator: str = "ratio",
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    resume: bool = False,
    evaluate_every: int | None = 1,
    evaluate_clients_every: int | None = None,
    checkpoint_every: int | None = None,
    schedule: str = "auto",
    width: int | None = None,
    memory_budget: float = 2**30,
    client_state: str = "auto",
    devices: int | None = None,
    eager: bool = False,
    work_limit: WorkLimit | None = None,
    lost_uploads: float | LostUploads = 0.0,
    client_errors: str = "raise",
    executor: str = "local",
    aggregator: Rule | None = None,
    too_few: str = "skip",
    weight_cap: float | None = None,
    attack: Attack | None = None,
    attackers: int | Sequence[int] | None = None,
    root: int | None = None,
    initial: Variables | None = None,
    on_round: OnRound | None = None,
    experiment: Mapping[str, Any] | None = None,
) -> Run:
    """Train one model on the clients' data, in simulation.

    Args:
        algorithm: the method, such as `FedAvg()`.
        task: model, loss and measures, such as `classification(softmax_regression(64, 10))`, or a scikit-learn
            estimator, such as `LogisticRegression(C=1.0)`.
        data: the federated data set.
        rounds: number of rounds, at least 1.
        fraction: C in (0, 1], the share of clients in each round, m = max(⌊C·K⌋, 1) of K without replacement.
        clients_per_round: m itself. Neither: everyone takes part.
        sampler: any sampler instead, such as `Poisson(0.01)`.
        epochs: E, passes over a client's examples in a round (1).
        steps: a fixed number of local steps instead.
        batch_size: B; `math.inf` for all of a client's examples at once. The last batch of an epoch may be
            short; its mean is over the examples that are there.
        optimizer: local optimizer: a learning rate (plain SGD), `sgd(…)`, `Optimizer(…)`, or any optax one.
        weighting: "examples" (objective Σ (n_k/n) F_k) or "uniform" ((1/N) Σ F_k); None: "examples", with a robust
            aggregator "uniform", because what clients say of themselves must not weigh.
        estimator: "ratio" divides by the weights that came back (McMahan et al.), which is biased for small
            cohorts; "horvitz-thompson" divides each update by its inclusion probability and is unbiased.
        seed: everything random follows from it.
        directory: where the run is kept (records, checkpoints, model, report); None keeps it in memory.
        resume: continue the run in `directory` from its last checkpoint; all arguments must be the same,
            only `rounds` may grow and `executor` be another.
        evaluate_every: rounds between evaluations on the central test set (also before the first and after
            the last round); None: never.
        evaluate_clients_every: the same for every client's own test rows; None: after the last round.
        checkpoint_every: rounds between checkpoints; None: one every ten seconds.
        schedule: "sequential" (clients one by one on each device), "vectorised" (chunks of `width` clients
            together), or "auto".
        width: clients in a chunk; None: chosen.
        memory_budget: bytes that the models of a chunk may take.
        client_state: where per-client state is kept: "host", "device", "disk" or "auto".
        devices: how many of JAX's devices to use; None: all.
        eager: run the same code without compilation, for prints and breakpoints.
        work_limit: (seed, round, ids, steps) → steps that each client really does; slow clients stop early.
        lost_uploads: probability in [0, 1) that an update is lost on its way, or a function
            (seed, round, ids) → one bool per client. What was sent is counted; the client keeps its old state.
        client_errors: what becomes of a client whose own code raises (a PyTorch model's, a function's): "raise"
            ends the run, "set aside" goes on without its update and records why.
        executor: where the work of PyTorch models and functions is done: "local" (worker processes of this machine) or
            "ray" (a Ray cluster). The results are the same; see docs/clusters.md.
        aggregator: what makes one update of the clients' updates, such as `dure.aggregation.Median(f=2)`; None:
            their exact weighted mean.
        too_few: what becomes of a round that the aggregator can't aggregate, such as one with too few updates, or
            without a client that it trusts: "skip" keeps the model and records why, "raise" ends the run.
        weight_cap: with an aggregator, a client's weight counts at most this many times the cohort's median.
        attack: what hostile clients do, such as `dure.attacks.SignFlip()`.
        attackers: how many clients are hostile (drawn by the seed), or which client numbers.
        root: for FLTrust, the client whose data stand for the server's clean root data: it works in every round,
            and its update is what the others are compared with.
        initial: variables to start from; None: the model's `init`.
        on_round: called with each round's record; in the first process only, where there are several.
        experiment: the configuration file's content, kept with the run for `dure resume`.

    Returns:
        The run: its model, history, plots and report.

    Raises:
        ConfigError: an argument has an impossible value or the combination breaks a guarantee.
        DataError: the data don't fit the task.
        RunError: the run can't be written, read or resumed.
    """
    for name, value in (
        ("rounds", rounds),
        ("evaluate_every", evaluate_every),
        ("evaluate_clients_every", evaluate_clients_every),
        ("checkpoint_every", checkpoint_every),
    ):
        optional = name != "rounds" and value is None
        if not optional and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise ConfigError(f"{name}={value!r} is not allowed: it must be an integer of at least 1.")
    if resume and directory is None:
        raise ConfigError("resume=True needs the directory of the run: give directory=.")
    chosen = settings(
        data,
        fraction=fraction,
        clients_per_round=clients_per_round,
        sampler=sampler,
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        optimizer=optimizer,
        weighting=weighting,
        estimator=estimator,
        seed=seed,
        schedule=schedule,
        width=width,
        memory_budget=memory_budget,
        client_state=client_state,
        devices=devices,
        eager=eager,
        work_limit=work_limit,
        lost_uploads=lost_uploads,
        client_errors=client_errors,
        executor=executor,
        aggregator=aggregator,
        too_few=too_few,
        weight_cap=weight_cap,
        attack=attack,
        attackers=attackers,
        root=root,
    )
    place = None if directory is None else Path(directory)
    with in_step():
        stored = describe.stored_config(place) if resume and place is not None else None
    engine = Engine(
        algorithm,
        task,
        data,
        chosen,
        variables=initial,
        directory=place and place / "client_state",
        width=None if stored is None else int(stored["schedule"]["width"]),
    )
    config = describe.config(engine, rounds, evaluate_every, evaluate_clients_every, initial, experiment)
    describe.check_processes(config)
    own = place if is_first() else None
    with in_step():
        if stored is not None:
            describe.check_same(stored, config)
        writer = RunWriter(
            own,
            config=config,
            environment=environment(),
            data=data_summary(engine.data),
            rounds=rounds,
            resume=resume and is_first(),
        )
    on_round = on_round if is_first() else None
    loop = Loop(engine, writer, rounds, evaluate_every, evaluate_clients_every, checkpoint_every, on_round)
    return loop.run(place if resume else None)
