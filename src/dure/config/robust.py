"""[aggregator] and [attack]: from names and arguments in a file to a rule and an attack, and back.

Arguments that are rules or attacks themselves (a backdoor's data, the rule of a fallback) are tables with a name.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_type_hints

import numpy as np

from dure.aggregation import Chain, Mean, PreAggregator, Rule, chain
from dure.attacks import Attack
from dure.config import tables
from dure.config.load import problems
from dure.config.signature import arguments
from dure.config.study import Study
from dure.errors import ConfigError

#: Kinds of things that tables with a name stand for: what a message calls them, and how one is written.
KINDS: Mapping[type[Any], tuple[str, str]] = {
    Rule: ("rule", '{name = "Median", f = 1}'),
    PreAggregator: ("pre-aggregator", '{name = "NNM", f = 1}'),
    Attack: ("attack", '{name = "LabelFlip"}'),
}


def defence(plan: Study, source: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What [aggregator] and [attack] mean: (keywords of `simulate`, resolved sections).

    Raises:
        ConfigError: an unknown name or argument, a value that isn't allowed, one that no file can hold.
    """
    words: dict[str, Any] = {}
    config: dict[str, Any] = {}
    wrong: list[str] = []
    if plan.aggregator is not None:
        own = {key: getattr(plan.aggregator, key) for key in ("too_few", "weight_cap", "root")}
        given = {"name": plan.aggregator.name, "before": plan.aggregator.before, **plan.aggregator.arguments}
        rule, found = made(Rule, given, "aggregator")
        wrong += found
        words |= {"aggregator": rule, **own, "weight_cap": _number(own["weight_cap"])}
        config["aggregator"] = as_table(rule) | own
    if plan.attack is not None:
        attack, found = made(Attack, {"name": plan.attack.name, **plan.attack.arguments}, "attack")
        wrong += found
        words |= {"attack": attack, "attackers": plan.attack.attackers}
        config["attack"] = as_table(attack) | {"attackers": plan.attack.attackers}
    if wrong:
        raise problems(source, wrong)
    return words, config


def with_weights(plan: Study, rule: Any) -> Study:
    """The study with what weighs a client, where the file doesn't say: what it says of itself only in a mean."""
    if rule is None or isinstance(rule, Mean) or "weighting" in plan.clients.model_fields_set:
        return plan
    return plan.model_copy(update={"clients": plan.clients.model_copy(update={"weighting": "uniform"})})


def made(kind: type[Any], given: Any, path: str) -> tuple[Any, list[str]]:
    """The rule, pre-aggregator or attack that a table names (None where something is wrong), and what is wrong.

    Args:
        kind: `Rule`, `PreAggregator` or `Attack`.
        given: the table: its name, its arguments, and `before` of a rule.
        path: of the table, for messages.

    Raises:
        ConfigError: there is none of this name.
    """
    what, example = KINDS[kind]
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        return None, [f"{path} = {given!r}: must be a table with the {what}'s name, such as {example}."]
    values = {key: value for key, value in given.items() if key != "name"}
    before = values.pop("before", []) if kind is Rule else []
    if not isinstance(before, list):
        return None, [
            f"{path}.before = {before!r}: must be a list of tables, such as [{KINDS[PreAggregator][1]}]."
        ]
    found, wrong = _of_class(_class(kind, given["name"], path), values, path)
    steps = [made(PreAggregator, step, f"{path}.before[{i}]") for i, step in enumerate(before)]
    wrong += [line for _, lines in steps for line in lines]
    if wrong or not steps:
        return (None if wrong else found), wrong
    return _called(chain, [step for step, _ in steps] + [found], {}, path)


def as_table(thing: Any) -> dict[str, Any]:
    """A rule or an attack as the table that makes it, defaults filled in."""
    if thing is None:
        return {}
    if isinstance(thing, Chain):
        return {**as_table(thing.rule), "before": [as_table(step) for step in thing.before]}
    parts = {f.name: getattr(thing, f.name) for f in fields(thing) if f.init}
    # A bare Attack is honest work: what a table without the key means.
    parts = {key: value for key, value in parts.items() if type(value) is not Attack and value is not None}
    return {
        "name": type(thing).__name__,
        **{key: as_table(value) if is_dataclass(value) else value for key, value in parts.items()},
    }


def nested(kind: type[Any]) -> dict[str, type[Any]]:
    """The arguments of a class that are rules, pre-aggregators or attacks themselves, with their kind."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in _arguments(kind) if hints[f.name] in KINDS}


def unwritable(kind: type[Any]) -> list[str]:
    """The arguments of a class that no file can hold: arrays and functions."""
    hints = get_type_hints(kind)
    return [f.name for f in _arguments(kind) if any(map(_is_foreign, _parts(hints[f.name])))]


def _of_class(kind: type[Any], given: dict[str, Any], path: str) -> tuple[Any, list[str]]:
    foreign, inner = unwritable(kind), nested(kind)
    required = {f.name for f in _arguments(kind) if f.default is MISSING and f.default_factory is MISSING}
    wrong = [
        f"{path}.{key}: {kind.__name__} takes an array here, which can't be in a file. Call dure.simulate from Python."
        for key in foreign
        if key in given or key in required
    ]
    wrong += [
        f"{path}.{key}: missing. Add it, a table such as {KINDS[inner[key]][1]}."
        for key in inner
        if key in required and key not in given
    ]
    flat = {key: value for key, value in given.items() if key not in {*foreign, *inner}}
    values, found = arguments(kind, flat, path, skip={*foreign, *inner}, strict=True)
    wrong += found
    for key in [key for key in inner if key in given]:
        values[key], found = made(inner[key], given[key], f"{path}.{key}")
        wrong += found
    return (None, wrong) if wrong else _called(kind, [], values, path)


def _called(function: Any, parts: list[Any], values: dict[str, Any], path: str) -> tuple[Any, list[str]]:
    try:
        return function(*parts, **values), []
    except ConfigError as error:
        return None, [f"{path}: {error}"]


def _class(kind: type[Any], name: str, path: str) -> type[Any]:
    known: Mapping[type[Any], Mapping[str, type[Any]]] = {
        Rule: tables.aggregators(),
        PreAggregator: tables.pre_aggregators(),
        Attack: tables.attacks(),
    }
    lower = name.lower().replace("-", "_")
    for other, there in known.items():
        if other is not kind and lower in map(str.lower, there) and lower not in map(str.lower, known[kind]):
            raise ConfigError(
                f"{path}.name = {name!r} is {_with_article(other)}, no {KINDS[kind][0]}. {_PLACES[other]}"
            )
    found: type[Any] = tables.find(f"{path}.name", known[kind], name)[1]
    return found


_PLACES: Mapping[type[Any], str] = {
    Rule: "It stands in [aggregator] as the name.",
    PreAggregator: 'It stands before a rule: before = [{name = "NNM", f = 1}] in [aggregator].',
    Attack: "It stands in [attack].",
}


def _with_article(kind: type[Any]) -> str:
    what = KINDS[kind][0]
    return f"an {what}" if what[0] in "aeiou" else f"a {what}"


def _arguments(kind: type[Any]) -> list[Any]:
    return [f for f in fields(kind) if f.init]


def _parts(hint: Any) -> list[Any]:
    """A type hint and all that is in it."""
    return [hint, *(part for inner in get_args(hint) for part in _parts(inner))]


def _is_foreign(hint: Any) -> bool:
    return hint is np.ndarray or getattr(hint, "__origin__", None) is np.ndarray or _is_function(hint)


def _is_function(hint: Any) -> bool:
    from collections.abc import Callable

    return hint is Callable or getattr(hint, "__origin__", None) is Callable


def _number(cap: Any) -> float | None:
    return None if cap is None else float(cap)
