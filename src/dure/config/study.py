"""The sections of a study's TOML file: every key, its type and range, and what excludes what.

Sections with a name (data, partition, model, algorithm, aggregator, attack) also take the named thing's own
arguments, which `build` checks against its signature.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from dure.config import tables

Count = Annotated[int, Field(ge=1)]
Metric = Literal["accuracy", "cross_entropy", "balanced_accuracy", "f1", "mean_squared_error"]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _batch(value: Any) -> Any:
    """All of a client's examples at once may be written "all" or inf."""
    if value == "all" or (isinstance(value, float) and value == math.inf):
        return "all"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError('must be an integer of at least 1, or "all" for all of a client\'s examples at once')


def _cap(value: Any) -> Any:
    """JSON has no inf, so that it is kept as a text."""
    if value is None or value == "inf" or value == math.inf:
        return None if value is None else "inf"
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1:
        return value
    raise ValueError('must be a number of at least 1, or "inf" for no cap')


def _attackers(value: Any) -> Any:
    """A number of clients, or client numbers."""
    several = isinstance(value, list) and all(_is_count(one) for one in value)
    if not _is_count(value) and not several:
        raise ValueError("must be a number of clients, or a list of client numbers")
    if isinstance(value, list) and len(set(value)) < len(value):
        raise ValueError("names a client twice")
    return value


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Section(BaseModel):
    """A table of the TOML file: unknown keys are errors, types aren't guessed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Named(Section):
    """A section that names a thing and gives its arguments."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys that aren't the section's own."""
        return dict(self.model_extra or {})


class Partition(Section):
    """[data.partition]: how examples are dealt to clients, for data that have none (or to deal them anew)."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    kind: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The partitioner's own arguments: clients, alpha, …."""
        return dict(self.model_extra or {})


class Split(Section):
    """[data.split]: set a share of every client's examples aside to test on."""

    test_fraction: Annotated[float, Field(gt=0, lt=1)]
    stratify: bool = False


class Data(Named):
    """[data]: a loader of `dure data` with its arguments."""

    partition: Partition | None = None
    split: Split | None = None


class Lora(Section):
    """[model.lora]: low-rank adapters, of which only these (and what `train` matches) are trained; see `dure.lora`."""

    targets: Annotated[list[str], Field(min_length=1)]
    rank: Count = 8
    alpha: Positive = 16.0
    train: list[str] = []


class Model(Named):
    """[model]: a model of the library with its arguments."""

    lora: Lora | None = None


class Algorithm(Named):
    """[algorithm]: a method of `dure algorithms` with its hyper-parameters."""

    name: str = "FedAvg"


class Aggregator(Named):
    """[aggregator]: a rule of `dure aggregators` with its arguments, which sees every update on its own.

    Attributes:
        before: pre-aggregators, in this order, as tables with a name and arguments.
        too_few: what becomes of a round with too few updates for the rule: "skip" keeps the model, "raise" stops.
        weight_cap: a client's weight counts at most this many times the cohort's median; "inf": as it is.
        root: for FLTrust, the number of the client whose data stand for the server's clean root data.
    """

    before: list[dict[str, Any]] = []
    too_few: Literal["skip", "raise"] = "skip"
    weight_cap: Annotated[Any, BeforeValidator(_cap)] = None
    root: Annotated[int, Field(ge=0)] | None = None


class Attack(Named):
    """[attack]: an attack of `dure attacks` with its arguments, and the clients that it controls.

    Attributes:
        attackers: how many of them, drawn by the study's seed; or their numbers.
    """

    attackers: Annotated[Any, BeforeValidator(_attackers)]


class Clients(Section):
    """[clients]: who takes part in a round, and what a client does."""

    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    per_round: Count | None = None
    sampler: Literal["everyone", "uniform", "poisson", "weighted", "cyclic", "once"] | None = None
    order: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Annotated[Any, BeforeValidator(_batch)] = 10
    weighting: Literal["examples", "uniform"] = "examples"
    estimator: Literal["ratio", "horvitz-thompson"] = "ratio"
    lost_uploads: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> "Clients":
        if self.fraction is not None and self.per_round is not None:
            raise ValueError("fraction and per_round are two ways to say the same: keep one")
        if self.epochs is not None and self.steps is not None:
            raise ValueError("epochs and steps are two ways to say the same: keep one")
        if self.sampler == "everyone" and (self.fraction or self.per_round):
            raise ValueError("sampler = 'everyone' takes no fraction and no per_round: remove them")
        if self.sampler == "poisson" and self.fraction is None:
            raise ValueError("sampler = 'poisson' needs fraction, each client's probability of taking part")
        if self.sampler == "weighted" and self.per_round is None:
            raise ValueError("sampler = 'weighted' needs per_round, the number of draws")
        if self.sampler == "uniform" and self.fraction is None and self.per_round is None:
            raise ValueError("sampler = 'uniform' needs fraction or per_round")
        if self.sampler in ("cyclic", "once") and self.fraction is not None:
            raise ValueError(f"sampler = '{self.sampler}' takes per_round, not fraction")
        if self.sampler == "once" and self.per_round is None:
            raise ValueError("sampler = 'once' needs per_round, the number of new clients in a round")
        if self.order is not None and self.sampler != "cyclic":
            raise ValueError("order is the order of sampler = 'cyclic': set it, or remove order")
        if self.order is not None and len(set(self.order)) < len(self.order):
            raise ValueError("order names a client twice")
        return self


class Optimizer(Section):
    """[optimizer]: the clients' local optimizer, new at the start of every client's work.

    FedOpt's [algorithm.optimizer], the server's, has the same keys.
    """

    name: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop", "yogi"] = "sgd"
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    clip_norm: Positive | None = None
    b1: Annotated[float, Field(ge=0, lt=1)] | None = None
    b2: Annotated[float, Field(ge=0, lt=1)] | None = None
    eps: Positive | None = None
    round_decay: Positive = 1.0

    @model_validator(mode="after")
    def _consistent(self) -> "Optimizer":
        if self.nesterov and self.momentum is None:
            raise ValueError("nesterov = true needs momentum, such as momentum = 0.9")
        for key in sorted(self.model_fields_set):
            if key not in tables.OPTIMIZER_KEYS[self.name] and getattr(self, key) not in (None, False):
                allowed = ", ".join(sorted(tables.OPTIMIZER_KEYS[self.name]))
                raise ValueError(f"{self.name} has no {key}; it takes {allowed}")
        return self


class Task(Section):
    """[task]: what is learnt; by default the kind that suits the model."""

    name: Literal["classification", "binary", "regression"] | None = None
    metrics: (
        list[Literal["accuracy", "cross_entropy", "balanced_accuracy", "f1", "mean_squared_error"]] | None
    ) = None


class Evaluation(Section):
    """[evaluation]: rounds between evaluations.

    `every`: on the central test set; 0 is never. `clients_every`: on each client's own test examples; by
    default after the last round only.
    """

    every: Annotated[int, Field(ge=0)] = 1
    clients_every: Count | None = None


class Engine(Section):
    """[engine]: how it is computed; nothing here changes what is computed beyond rounding."""

    schedule: Literal["auto", "sequential", "vectorised"] = "auto"
    width: Count | None = None
    checkpoint_every: Count | None = None
    memory_budget: Positive | None = None
    client_state: Literal["auto", "host", "device", "disk"] = "auto"
    devices: Count | None = None


class Setting(Section):
    """[setting]: where a training will run, for `dure advise`; `dure run` doesn't read it.

    Attributes:
        kind: "cross-silo" (a few institutions that stay) or "cross-device" (many devices that come and go).
        clients: how many there are.
        clients_per_round, participation: how many take part in a round, or which share of them.
        alike: how much clients' data resemble each other: "iid", "mild" or "strong" differences.
        keeps_state: whether a client comes again and can keep something between rounds.
        attackers: whether some clients may send anything.
        links: "slow" where bytes are what a round costs, else "fast".
        personal: whether each client may end with a model of its own.
        adapters: whether what is trained are low-rank adapters (`dure.lora`).
        rounds: how long the training is.
    """

    kind: Literal["cross-silo", "cross-device"] | None = None
    clients: Annotated[int, Field(ge=2)] | None = None
    clients_per_round: Count | None = None
    participation: Annotated[float, Field(gt=0, le=1)] | None = None
    alike: Literal["iid", "mild", "strong"] | None = None
    keeps_state: bool | None = None
    attackers: bool | None = None
    links: Literal["slow", "fast"] | None = None
    personal: bool | None = None
    adapters: bool | None = None
    rounds: Count | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Setting":
        if self.clients_per_round is not None and self.participation is not None:
            raise ValueError("clients_per_round and participation are two ways to say the same: keep one")
        if self.clients is None:
            return self
        if self.clients_per_round is not None and self.clients_per_round > self.clients:
            raise ValueError(
                f"clients_per_round = {self.clients_per_round} is more than the {self.clients} clients"
            )
        if self.participation is not None and self.participation * self.clients < 1:
            raise ValueError(
                f"participation = {self.participation:g} of {self.clients} clients is less than one client a round"
            )
        return self


class Study(Section):
    """A whole study: one TOML file, or a run's config.json."""

    name: Annotated[str, Field(min_length=1)] = "study"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Count
    directory: str | None = None
    data: Data
    model: Model
    algorithm: Algorithm = Algorithm()
    task: Task = Task()
    clients: Clients = Clients()
    aggregator: Aggregator | None = None
    attack: Attack | None = None
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    engine: Engine = Engine()
    setting: Setting | None = None

    def resolved(self) -> dict[str, Any]:
        """All that is needed to repeat the study, as JSON can hold it: no directory, no unset keys."""
        return without_none(self.model_dump(exclude={"directory"}))


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    """The mapping (and the mappings in it) without keys whose value is None."""
    return {
        key: without_none(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }
