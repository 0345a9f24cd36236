"""From a checked study to the objects that `simulate` takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from dure.config import tables
from dure.config.keywords import check_population, keywords, without_unused
from dure.config.load import problems, study
from dure.config.methods import choose
from dure.config.probe import probe
from dure.config.robust import defence, with_weights
from dure.config.signature import arguments
from dure.config.study import Study, without_none
from dure.errors import ConfigError, DataError

#: What data keep when they are dealt out anew.
ABOUT = ("classes", "class_names", "name", "source", "licence", "citation")


@dataclass(frozen=True)
class Built:
    """What a study means: `simulate(algorithm, task, data, **keywords)`.

    `config` is the resolved configuration with every default and everything that was inferred from the data;
    `notes` are things worth saying, such as settings that the method doesn't use.
    """

    algorithm: Any
    task: Any
    data: Any
    keywords: dict[str, Any]
    config: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def build(plan: Study, source: str = "The configuration") -> Built:
    """Load the data and make the model, the task and the algorithm.

    Raises:
        ConfigError: an unknown name or argument, or one that doesn't fit the data.
        DataError: the data can't be loaded.
    """
    hostile, hostile_config = defence(plan, source)
    plan = with_weights(plan, hostile.get("aggregator"))
    config = plan.resolved()
    chosen = choose(plan, source)
    data, data_config = load_data(plan, source)
    check_population(plan, data.clients, source)
    method, algorithm_config = chosen.made(data, source)
    model, model_config = _model(plan, data, source)
    config |= {"algorithm": algorithm_config, "data": data_config, "model": model_config}
    config |= without_none(_jsonable(hostile_config))
    task = _task(plan, model, model_config["name"], data)
    config["task"] = {"name": task.name, "metrics": [metric.name for metric in task.metrics]}
    plan, notes = without_unused(plan, config, chosen.name, probe(method).asks)
    return Built(method, task, data, {**keywords(plan), **hostile}, config, notes)


def rebuild(config: Mapping[str, Any]) -> Built:
    """Build from a run's config.json.

    Raises:
        ConfigError: the run was started from Python, so that its model and data aren't in any file.
    """
    if not config.get("experiment"):
        raise ConfigError(
            "This run was started from Python. Resume it there: call dure.simulate again with the same "
            "arguments, directory= and resume=True."
        )
    return build(study(config["experiment"], "config.json"), "config.json")


def load_data(plan: Study, source: str) -> tuple[Any, dict[str, Any]]:
    """The study's data, and their resolved section.

    Raises:
        ConfigError: an unknown loader or partitioner, or an argument that it doesn't take.
        DataError: the data can't be loaded.
    """
    name, place = tables.find("data.name", tables.DATA, plan.data.name)
    loader = tables.imported(place)
    values, wrong = arguments(loader, _seeded(loader, plan.data.arguments, plan.seed), "data")
    if wrong:
        raise problems(source, wrong)
    config: dict[str, Any] = {"name": name, **values}
    # What the file says is what is saved: a seed that followed the study's follows it again when repeated.
    config = {k: v for k, v in config.items() if k != "seed" or "seed" in plan.data.arguments}
    loaded = _made(loader, values, source, "data")
    if plan.data.partition is not None:
        loaded, config["partition"] = _partitioned(plan, loaded, source)
    elif not hasattr(loaded, "offsets"):
        raise ConfigError(
            f"{source}: data.name = {name!r} has no clients of its own. Say how to deal its examples out, "
            'such as data.partition = {kind = "iid", clients = 100}.'
        )
    if plan.data.split is not None:
        split = plan.data.split
        loaded = loaded.split(split.test_fraction, seed=plan.seed, stratify=split.stratify)
        config["split"] = split.model_dump()
    return loaded, without_none(_jsonable(config))


def _partitioned(plan: Study, loaded: Any, source: str) -> tuple[Any, dict[str, Any]]:
    from dure.data import Federated

    assert plan.data.partition is not None
    part = plan.data.partition
    kind, place = tables.find("data.partition.kind", tables.PARTITIONS, part.kind)
    partitioner = tables.imported(place)
    train, test = _pooled(loaded)
    about = {key: getattr(loaded, key) for key in ABOUT if hasattr(loaded, key)}
    first = next(iter(arguments_of(partitioner)))
    given = _seeded(partitioner, part.arguments, plan.seed)
    values, wrong = arguments(partitioner, given, "data.partition", skip={first})
    if wrong:
        raise problems(source, wrong)
    if "y" not in train:
        raise ConfigError(f"{source}: data.partition deals out by labels, and the data have no column 'y'.")
    made = _made(partitioner, {first: train["y"], **values}, source, "data.partition")
    federated = Federated.from_partition(train, made, test=test, **about)
    config = {"kind": kind, **values}
    return federated, {k: v for k, v in config.items() if k != "seed" or "seed" in part.arguments}


def _made(function: Any, values: Mapping[str, Any], source: str, table: str) -> Any:
    """Call a function of the file's table; what it refuses is said with the file and the table."""
    try:
        return function(**values)
    except (ConfigError, DataError) as error:
        raise type(error)(f"{source}, [{table}]: {error}") from error


def arguments_of(function: Any) -> list[str]:
    """The names of a function's parameters."""
    import inspect

    return list(inspect.signature(function).parameters)


def _pooled(loaded: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray] | None]:
    """Training columns and test columns of anything that a loader returns."""
    if hasattr(loaded, "offsets"):
        test = loaded.central_test
        return dict(loaded.columns), None if test is None else dict(test)
    return dict(loaded.train), None if loaded.test is None else dict(loaded.test)


def _seeded(function: Any, given: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """One seed, everything follows: a `seed` parameter that the file doesn't set is the study's."""
    values = dict(given)
    if "seed" in arguments_of(function):
        values.setdefault("seed", seed)
    return values


def _model(plan: Study, data: Any, source: str) -> tuple[Any, dict[str, Any]]:
    name, place = tables.find("model.name", tables.MODELS, plan.model.name)
    function = tables.imported(place)
    known = arguments_of(function)
    inferred = {key: value for key, value in _shapes(data).items() if key in known}
    if "shape" in known and "shape" not in inferred and "shape" not in plan.model.arguments:
        shape = tuple(np.shape(data.columns["x"])[1:])
        raise ConfigError(
            f"{source}: model.name = {name!r} reads images (height, width, channels); the data's x has shape "
            f"{shape}. Choose another model, such as two_nn or softmax_regression."
        )
    values, wrong = arguments(function, inferred | plan.model.arguments, "model")
    if wrong:
        raise problems(source, wrong)
    made, config = _made(function, values, source, "model"), _jsonable({"name": name, **values})
    if plan.model.lora is None:
        return made, config
    from dure.oracles.lora import lora

    adapters = plan.model.lora.model_dump()
    return _made(partial(lora, made), adapters, source, "model.lora"), {**config, "lora": adapters}


def _shapes(data: Any) -> dict[str, Any]:
    """What a model must know of the data: inputs, shape, classes."""
    shape = tuple(int(n) for n in np.shape(data.columns["x"])[1:])
    known: dict[str, Any] = {"inputs": int(np.prod(shape, dtype=np.int64))}
    if len(shape) == 3:
        known["shape"] = shape
    if len(shape) == 2:
        known["shape"] = (*shape, 1)
    if data.classes is not None:
        known["classes"] = known["outputs"] = int(data.classes)
    else:
        known["outputs"] = int(np.prod(np.shape(data.columns["y"])[1:], dtype=np.int64))
    return known


def _task(plan: Study, model: Any, model_name: str, data: Any) -> Any:
    from dure.oracles import metrics, task

    usual = {"logistic": "binary", "linear": "regression"}.get(model_name, "classification")
    name = plan.task.name or usual
    if model_name == "mlp" and data.classes is None and plan.task.name is None:
        name = "regression"
    make = {"classification": task.classification, "binary": task.binary, "regression": task.regression}[name]
    if plan.task.metrics is None:
        return make(model)
    chosen = []
    for key in plan.task.metrics:
        if key == "balanced_accuracy":
            chosen.append(metrics.balanced_accuracy(data.classes or 2))
        elif key == "accuracy" and name == "binary":
            chosen.append(metrics.binary_accuracy)
        else:
            chosen.append(getattr(metrics, key))
    return make(model, metrics=tuple(chosen))


def _jsonable(values: Mapping[str, Any]) -> dict[str, Any]:
    from dure.run.layout import plain

    return {key: plain(value) for key, value in values.items()}
