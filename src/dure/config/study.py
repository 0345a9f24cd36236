"""The sections of a study's TOML file: every key, its type and range, and what excludes what.

Sections with a name (data, partition, model, algorithm) also take the named thing's own arguments, which
`build` checks against its signature.
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


class Algorithm(Named):
    """[algorithm]: a method of `dure algorithms` with its hyper-parameters."""

    name: str = "FedAvg"


class Clients(Section):
    """[clients]: who takes part in a round, and what a client does."""

    fraction: Annotated[float, Field(gt=0, le=1)] | None = None
    per_round: Count | None = None
    sampler: Literal["everyone", "uniform", "poisson", "weighted"] | None = None
    epochs: Count | None = None
    steps: Count | None = None
    batch_size: Annotated[Any, BeforeValidator(_batch)] = 10
    weighting: Literal["examples", "uniform"] = "examples"
    estimator: Literal["ratio", "horvitz-thompson"] = "ratio"

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
        return self


class Optimizer(Section):
    """[optimizer]: the clients' local optimizer, new at the start of every client's work."""

    name: Literal["sgd", "adam", "adamw", "adagrad", "rmsprop"] = "sgd"
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    nesterov: bool = False
    weight_decay: Annotated[float, Field(ge=0)] | None = None
    clip_norm: Positive | None = None
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


class Study(Section):
    """A whole study: one TOML file, or a run's config.json."""

    name: Annotated[str, Field(min_length=1)] = "study"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    rounds: Count
    directory: str | None = None
    data: Data
    model: Named
    algorithm: Algorithm = Algorithm()
    task: Task = Task()
    clients: Clients = Clients()
    optimizer: Optimizer = Optimizer()
    evaluation: Evaluation = Evaluation()
    engine: Engine = Engine()

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
