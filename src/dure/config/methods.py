"""[algorithm]: from a name and its hyper-parameters in a file to the method."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, NamedTuple

from pydantic import ValidationError

from dure.algorithms import Algorithm
from dure.config import tables
from dure.config.load import problems
from dure.config.messages import explain
from dure.config.optimizers import as_table, optimizer
from dure.config.signature import arguments
from dure.config.study import Optimizer, Study, without_none
from dure.errors import ConfigError

#: Hyper-parameters that follow from the data where the file doesn't give them.
INFERRED = ("classes",)


class Chosen(NamedTuple):
    """A method whose hyper-parameters are checked, but for those that follow from the data."""

    name: str
    method: type[Algorithm]
    values: dict[str, Any]
    config: dict[str, Any]
    missing: tuple[str, ...]

    def made(self, data: Any, source: str) -> tuple[Algorithm, dict[str, Any]]:
        """The method, and its resolved section.

        Raises:
            ConfigError: what is missing doesn't follow from these data.
        """
        values = dict(self.values)
        for key in self.missing:
            found = getattr(data, key, None)
            if found is None:
                raise ConfigError(
                    f"{source}: algorithm.{key}: missing, and the data don't say it. {self.name} is for "
                    f"classification: add algorithm.{key}, or choose another method."
                )
            values[key] = int(found)
        made = self.method(**values)
        plain = {f.name: getattr(made, f.name) for f in fields(made) if f.init and f.name not in self.config}
        return made, without_none({"name": self.name, **plain, **self.config})


def choose(plan: Study, source: str) -> Chosen:
    """Find and check the study's method before any data are loaded.

    Raises:
        ConfigError: an unknown method or hyper-parameter, a wrong type, an impossible value.
    """
    name, method = tables.find("algorithm.name", tables.algorithms(), plan.algorithm.name)
    given = dict(plan.algorithm.arguments)
    known = {f.name for f in fields(method)}
    nested = {key: make for key, make in NESTED.items() if key in known}
    missing = tuple(key for key in INFERRED if key in known and key not in given)
    flat = {key: value for key, value in given.items() if key not in nested}
    values, wrong = arguments(method, flat, "algorithm", skip={*nested, *missing}, strict=True)
    config: dict[str, Any] = {}
    if "optimizer" in nested:  # the method's own default is built as the file would build it
        given.setdefault("optimizer", as_table(method().optimizer))
    for key in [key for key in nested if key in given]:
        values[key], found = nested[key](given[key], f"algorithm.{key}")
        config[key] = given[key]
        wrong += found
    if wrong:
        raise problems(source, wrong)
    chosen = Chosen(name, method, values, config, missing)
    if not missing:  # impossible values show before the data are loaded
        chosen.made(None, source)
    return chosen


def _optimizer(given: Any, path: str) -> tuple[Any, list[str]]:
    """The server's optimizer of FedOpt, from a table like [optimizer]."""
    if not isinstance(given, Mapping):
        return None, [
            f'{path} = {given!r}: must be a table, such as {{name = "adam", learning_rate = 0.01}}.'
        ]
    try:
        return optimizer(Optimizer.model_validate(given)), []
    except ValidationError as error:
        return None, explain(error, Optimizer, path)


def _proximal(given: Any, path: str) -> tuple[Any, list[str]]:
    """A regulariser or a set of the ADMM methods, from a table with its name."""
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        return None, [f'{path} = {given!r}: must be a table, such as {{name = "L1", strength = 0.1}}.']
    _, place = tables.find(f"{path}.name", tables.PROXIMALS, given["name"])
    kind = tables.imported(place)
    values, wrong = arguments(kind, {k: v for k, v in given.items() if k != "name"}, path, strict=True)
    return None if wrong else kind(**values), wrong


#: Hyper-parameters that are tables in a file.
NESTED: Mapping[str, Callable[[Any, str], tuple[Any, list[str]]]] = {
    "optimizer": _optimizer,
    "proximal": _proximal,
}
