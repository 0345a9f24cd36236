"""What a docstring and a signature say of a rule or an attack, and how a file names it."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints

import numpy as np

from dure.aggregation import Mean, PreAggregator, Rule
from dure.attacks import Attack, PixelTrigger
from dure.config.catalogue import TYPES, toml
from dure.config.robust import as_table, nested, unwritable

#: Hostile updates that an example reckons with.
F = 1


@dataclass(frozen=True)
class Argument:
    """One argument of a rule or an attack.

    Attributes:
        name: as in a file.
        type: in words.
        default: as a file writes it; None: it must be given.
        means: what the docstring says of it.
    """

    name: str
    type: str
    default: str | None
    means: str


def example(kind: type[Any]) -> Any:
    """A rule or an attack with its defaults; arguments without one get some allowed value, and f is 1."""
    hints = get_type_hints(kind)
    known: Mapping[Any, Any] = {
        int: 2,
        float: 1.0,
        Rule: Mean(),
        Attack: PixelTrigger(target=2),
        np.ndarray: np.zeros((2, 2)),
    }
    required = [f for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
    values = {f.name: known[hints[f.name]] for f in required}
    if issubclass(kind, Rule | PreAggregator) and any(f.name == "f" and f.init for f in fields(kind)):
        values["f"] = F
    return kind(**values)


def explained(kind: type[Any]) -> dict[str, str]:
    """What a docstring says of each argument."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("\nArgs:\n")[2]
    parts = re.findall(r"^    ([\w, ]+): (.*?)(?=^    [\w, ]+: |^\S|\Z)", text, re.M | re.S)
    said = {names: " ".join(words.split()).replace("`", "") for names, words in parts}
    return {name.strip(): words for names, words in said.items() for name in names.split(",")}


def as_file(kind: type[Any]) -> str:
    """The lines of a TOML file that ask for a rule, a pre-aggregator or an attack; empty where none can."""
    if unwritable(kind):
        return ""
    table = as_table(example(kind))
    if issubclass(kind, PreAggregator):
        return f'[aggregator]\nname = "TrimmedMean"\nf = {F}\nbefore = [{toml(table)}]'
    rule = issubclass(kind, Rule)
    table |= {} if rule else {"attackers": 2}
    lines = [f"{key} = {toml(value)}" for key, value in table.items()]
    return "\n".join(["[aggregator]" if rule else "[attack]", *lines])


def parameters(kind: type[Any]) -> list[Argument]:
    """The arguments of a rule or an attack as a file gives them."""
    hints, inner, foreign = get_type_hints(kind), nested(kind), unwritable(kind)
    found, means = [], explained(kind)
    for f in fields(kind):
        if not f.init:
            continue
        given = f.default if f.default is not MISSING else None
        if f.default_factory is not MISSING:
            given = f.default_factory()
        required = f.default is MISSING and f.default_factory is MISSING
        shown = (
            "none"
            if given is None or type(given) is Attack
            else toml(as_table(given) if f.name in inner else given)
        )
        type_ = "table" if f.name in inner else "array" if f.name in foreign else in_words(hints[f.name])
        found.append(Argument(f.name, type_, None if required else shown, means.get(f.name, "")))
    return found


def in_words(hint: Any) -> str:
    """A type hint as a file's words."""
    from types import NoneType
    from typing import Literal, Union, get_args, get_origin

    if hint in TYPES:
        return TYPES[hint]
    if get_origin(hint) is Literal:
        return " or ".join(toml(value) for value in get_args(hint))
    if get_origin(hint) is tuple:
        return "list"
    if get_origin(hint) is Union or type(hint).__name__ == "UnionType":
        return " or ".join(dict.fromkeys(in_words(part) for part in get_args(hint) if part is not NoneType))
    return str(getattr(hint, "__name__", hint))


def shared(kind: type[Any]) -> dict[str, Any]:
    """What scripts get of both."""
    return {
        "arguments": {p.name: p.default for p in parameters(kind)},
        "citation": str(kind.citation),
    }


def does(kind: type[Any]) -> str:
    """The first sentence of a class's docstring."""
    first = re.split(r"\.(?:\s|$)", inspect.cleandoc(kind.__doc__ or ""), maxsplit=1)[0]
    return " ".join(first.replace("`", "").split())


def page(kind: type[Any]) -> str:
    """The docstring of a rule or an attack, without its arguments."""
    text = inspect.cleandoc(kind.__doc__ or "")
    return re.split(r"^Args:$", text, maxsplit=1, flags=re.M)[0].strip()
