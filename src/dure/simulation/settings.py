"""The keywords of `simulate`, checked before anything starts."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure import keys
from dure.aggregation import Mean, Rule
from dure.aggregation.exact import MAX_TERMS
from dure.errors import ConfigError, did_you_mean
from dure.oracles.optimizer import Optimizer, as_optimizer
from dure.population.samplers import Everyone, Sampler, Uniform, Weighted
from dure.simulation.hostile import Hostile, compares, hostile, trusted
from dure.simulation.plan import Work

WEIGHTINGS = ("examples", "uniform")
ESTIMATORS = ("ratio", "horvitz-thompson")
SCHEDULES = ("auto", "sequential", "vectorised")
PLACEMENTS = ("auto", "host", "device", "disk")
CLIENT_ERRORS = ("raise", "set aside")
EXECUTORS = ("local", "ray")
TOO_FEW = ("skip", "raise")
#: Host function (seed, round, ids (m,)) → (m,) bool: whose upload doesn't arrive.
LostUploads = Callable[[int, int, np.ndarray], np.ndarray]
#: Host function (seed, round, ids (m,), steps (m,)) → steps really done (m,): slow clients stop early.
WorkLimit = Callable[[int, int, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Settings:
    """Everything about a simulation but the algorithm, the task and the data. Make it with `settings`."""

    sampler: Sampler
    work: Work
    optimizer: Optimizer
    weighting: str
    estimator: str
    seed: int
    schedule: str
    width: int | None
    memory_budget: int
    client_state: str
    devices: int | None
    eager: bool
    work_limit: WorkLimit | None
    lost_uploads: float | LostUploads
    objective: str
    client_errors: str = "raise"
    executor: str = "local"
    aggregator: Rule | None = None
    too_few: str = "skip"
    weight_cap: float | None = None
    enemy: Hostile | None = None
    root: int | None = None
    always: tuple[int, ...] = ()

    def lost(self, round: int, ids: np.ndarray) -> np.ndarray:
        """(m,) bool: whose upload doesn't arrive in this round."""
        if callable(self.lost_uploads):
            found = np.asarray(self.lost_uploads(self.seed, round, ids))
            if found.shape != ids.shape or found.dtype != bool:
                raise ConfigError(
                    f"lost_uploads returned {found.dtype} of shape {found.shape} in round {round}; it must "
                    f"return one bool per client, shape {ids.shape}."
                )
            return found
        if self.lost_uploads == 0:
            return np.zeros(len(ids), bool)
        words = keys.words(self.seed, "upload", round, ids, np.zeros(1, np.int64))
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53 < self.lost_uploads

    @property
    def arrival(self) -> float:
        """The probability that an upload arrives, where it is known; part of the inclusion probability."""
        return 1.0 if callable(self.lost_uploads) else 1.0 - self.lost_uploads


def settings(
    data: Any,
    *,
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
    aggregator: Any = None,
    too_few: str = "skip",
    weight_cap: float | None = None,
    attack: Any = None,
    attackers: Any = None,
    root: Any = None,
) -> Settings:
    """Check the keywords against each other and against the data; the meanings are in `simulate`.

    Raises:
        ConfigError: naming the keyword, its value, and what is allowed.
        DomainError: cohorts are too small for the aggregator's f.
    """
    if not hasattr(data, "offsets") or not hasattr(data, "rows"):
        raise ConfigError(
            f"data={type(data).__name__} is not a federated data set: give a dure.Federated, such as "
            "dure.data.digits() or dure.Federated.from_arrays(columns, client=…)."
        )
    sampler = _sampler(fraction, clients_per_round, sampler)
    if weighting is None:
        weighting = "examples" if aggregator is None or isinstance(aggregator, Mean) else "uniform"
    for name, value, allowed in (
        ("weighting", weighting, WEIGHTINGS),
        ("estimator", estimator, ESTIMATORS),
        ("schedule", schedule, SCHEDULES),
        ("client_state", client_state, PLACEMENTS),
        ("client_errors", client_errors, CLIENT_ERRORS),
        ("executor", executor, EXECUTORS),
        ("too_few", too_few, TOO_FEW),
    ):
        if value not in allowed:
            raise ConfigError(f"{name}={value!r} is not known. {did_you_mean(str(value), allowed)}")
    if eager and executor != "local":
        raise ConfigError(f"eager=True runs everything in this process: leave out executor={executor!r}.")
    size = sampler.expected_size(data)
    if size > MAX_TERMS:
        raise ConfigError(
            f"A round of {size:.0f} clients is more than the {MAX_TERMS} that one aggregate takes. "
            "Sample fewer clients per round."
        )
    if isinstance(sampler, Weighted) and weighting == "examples" and estimator == "ratio":
        raise ConfigError(
            "Weighted sampling already draws clients in proportion to their examples; weighting them by "
            "examples again would optimise Σ n_k² F_k. Use weighting='uniform' for the plain mean of the "
            "draws, or estimator='horvitz-thompson'."
        )
    if seed is None or isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed={seed!r} must be a nonnegative integer.")
    enemy = hostile(attack, attackers, data.clients, seed)
    if aggregator is None and enemy is not None:
        aggregator = Mean()  # attackers act on single updates, so the mean must be made of them too
    check_rule(aggregator, sampler, weighting, estimator, weight_cap)
    always = check_trusted(aggregator, root, enemy, data.clients)
    if aggregator is not None:
        absent = len(always) * (1 - min(size / max(data.clients, 1), 1))
        aggregator.check(round(size + absent))
    if width is not None:
        _positive_int("width", width)
    if isinstance(memory_budget, bool) or not isinstance(memory_budget, int | float) or not memory_budget > 0:
        raise ConfigError(f"memory_budget={memory_budget!r} must be a positive number of bytes.")
    if not callable(lost_uploads) and not (
        isinstance(lost_uploads, int | float) and not isinstance(lost_uploads, bool) and 0 <= lost_uploads < 1
    ):
        raise ConfigError(
            f"lost_uploads={lost_uploads!r} is not allowed: it must be a probability in [0, 1), or a function "
            "(seed, round, ids) → one bool per client."
        )
    return Settings(
        sampler,
        _work(epochs, steps, batch_size),
        as_optimizer(optimizer),
        weighting,
        estimator,
        int(seed),
        schedule,
        width,
        int(memory_budget),
        client_state,
        devices,
        eager,
        work_limit,
        lost_uploads if callable(lost_uploads) else float(lost_uploads),
        objective(sampler, weighting, estimator),
        client_errors,
        executor,
        aggregator,
        too_few,
        None if weight_cap == math.inf else weight_cap,
        enemy,
        root,
        always,
    )


def check_rule(
    aggregator: Any, sampler: Sampler, weighting: str, estimator: str, weight_cap: float | None
) -> None:
    """An aggregation rule must suit the weights (law 7 of the design).

    Raises:
        ConfigError: saying what doesn't go together, and what does.
    """
    if aggregator is None:
        if weight_cap is not None:
            raise ConfigError(
                f"weight_cap={weight_cap!r} caps the weights of single updates: give aggregator= too, such as "
                "dure.aggregation.Mean()."
            )
        return
    name = type(aggregator).__name__
    if isinstance(aggregator, type) or not isinstance(aggregator, Rule):
        raise ConfigError(
            f"aggregator={aggregator!r} is not a rule: give an object such as dure.aggregation.Median(f=2)."
        )
    if estimator != "ratio":
        raise ConfigError(
            f"estimator={estimator!r} estimates a total from a sum of updates, and {name} is no sum. Use "
            "estimator='ratio'."
        )
    if weighting == "examples" and aggregator.weighting == "none":
        raise ConfigError(
            f"{name} has no meaning for unequal weights, and weighting='examples' weighs clients by what they say of "
            "themselves. Use weighting='uniform'."
        )
    if isinstance(sampler, Weighted) and aggregator.weighting == "none":
        raise ConfigError(
            f"{name} has no meaning for unequal weights, and Weighted draws with replacement: a client that is drawn "
            "twice weighs twice. Use another sampler, such as Uniform, or a rule that honours weights, such as Median."
        )
    if weighting == "examples" and weight_cap is None and not isinstance(aggregator, Mean):
        raise ConfigError(
            f"With weighting='examples' a hostile client decides its own weight in {name}. Give weight_cap=2.0 (at "
            "most twice the median of the cohort; math.inf: no cap), or use weighting='uniform'."
        )
    if weight_cap is not None and (
        isinstance(weight_cap, bool) or not isinstance(weight_cap, int | float) or not weight_cap >= 1
    ):
        raise ConfigError(f"weight_cap={weight_cap!r} is not allowed: it must be a number of at least 1.")
    if weighting == "uniform" and weight_cap is not None and weight_cap < math.inf:
        raise ConfigError(
            f"weight_cap={weight_cap!r} caps what clients say of themselves, and with weighting='uniform' (what a "
            "robust aggregator has unless another is given) that doesn't count. Give weighting='examples', or leave "
            "it out."
        )


def check_trusted(aggregator: Rule | None, root: Any, enemy: Hostile | None, clients: int) -> tuple[int, ...]:
    """The clients that a rule must hear in every round: those that it trusts, and the one with the root data.

    Raises:
        ConfigError: one that isn't there or is hostile, root data that no rule asks for, or a rule without them.
    """
    found = set() if aggregator is None else trusted(aggregator)
    asks = aggregator is not None and compares(aggregator)
    if root is None and asks:
        raise ConfigError(
            "FLTrust compares updates with the server's own: give root=, the number of the client whose data are the "
            "server's clean root data."
        )
    if root is not None:
        if not asks:
            raise ConfigError(f"root={root!r} is for FLTrust, which compares updates with the server's own.")
        if isinstance(root, bool) or not isinstance(root, int | np.integer):
            raise ConfigError(f"root={root!r} must be a client's number.")
        found.add(int(root))
    for client in sorted(found):
        if not 0 <= client < clients:
            raise ConfigError(f"Client {client}, which the rule trusts, is not among the {clients} clients.")
        if enemy is not None and client in enemy.ids:
            raise ConfigError(
                f"Client {client}, which the rule trusts, is among the attackers: give other attackers."
            )
    return tuple(sorted(found))


def objective(sampler: Sampler, weighting: str, estimator: str) -> str:
    """Which objective the rounds optimise, in a sentence for the record."""
    goal = "Σ (n_k/n) F_k" if weighting == "examples" else "(1/N) Σ F_k"
    if isinstance(sampler, Everyone):
        return f"{goal}: everyone takes part"
    if estimator == "horvitz-thompson":
        return f"{goal}: unbiased, each update divided by its inclusion probability"
    if isinstance(sampler, Weighted):
        return "Σ (n_k/n) F_k: unbiased, plain mean of clients drawn in proportion to their examples"
    if weighting == "examples":
        return (
            "Σ (n_k/n) F_k, with the bias of the ratio n_k / Σ_cohort n_j: large clients count less than "
            "their share in small cohorts (estimator='horvitz-thompson' removes it)"
        )
    return f"{goal}: plain mean of a uniform sample"


def _sampler(fraction: float | None, clients_per_round: int | None, sampler: Sampler | None) -> Sampler:
    given = {
        "fraction": fraction,
        "clients_per_round": clients_per_round,
        "sampler": sampler,
    }
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)} are different ways to choose clients: give one.")
    if sampler is not None:
        if isinstance(sampler, type) or not isinstance(sampler, Sampler):
            raise ConfigError(
                f"sampler={sampler!r} is not a sampler: give an object such as dure.Poisson(0.01), or one of your "
                "own with sample(seed, round, population), expected_size(population) and describe()."
            )
        return sampler
    if fraction is not None:
        if isinstance(fraction, int | float) and fraction == 1.0:
            return Everyone()
        return Uniform(fraction=fraction)
    if clients_per_round is not None:
        return Uniform(count=clients_per_round)
    return Everyone()


def _work(epochs: int | None, steps: int | None, batch_size: float) -> Work:
    if epochs is not None and steps is not None:
        raise ConfigError(f"epochs={epochs} and steps={steps} exclude each other: give one.")
    if steps is not None:
        _positive_int("steps", steps)
    if epochs is not None:
        _positive_int("epochs", epochs)
    if isinstance(batch_size, float) and math.isinf(batch_size) and batch_size > 0:
        size = None
    else:
        _positive_int("batch_size", batch_size, " or math.inf for all of a client's examples at once")
        size = int(batch_size)
    return Work(None if steps is not None else int(epochs or 1), steps, size)


def _positive_int(name: str, value: Any, more: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be an integer of at least 1{more}.")
