"""The catalogue of methods: what each one does, keeps, sends and asks for, read off its class and its page."""

import inspect
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from dure.algorithms import GROUPS, Algorithm, Needs
from dure.algorithms.base import has_survey
from dure.config import tables
from dure.config.methods import INFERRED
from dure.config.optimizers import as_table
from dure.config.probe import Found, example, is_required, probe

#: Types of hyper-parameters in a file's words.
TYPES: Mapping[Any, str] = {
    float: "number",
    int: "integer",
    bool: "true or false",
    str: "text",
    tuple[str, ...]: "list of texts",
    tuple[int, ...]: "list of integers",
}


@dataclass(frozen=True)
class HyperParameter:
    """One field of a method: its name, its type in words, and its default as in a file; None: must be given."""

    name: str
    type: str
    default: str | None
    inferred: bool = False


@dataclass(frozen=True)
class Entry:
    """One method of the catalogue.

    Attributes:
        method: the class.
        group: what it is for.
        does: one line.
        needs: what it says it needs.
        found: what it was seen to exchange, keep and ask.
        survey: whether clients answer a question before the local work.
        private: whether some parameters never leave the client.
    """

    method: type[Algorithm]
    group: str
    does: str
    needs: Needs
    found: Found
    survey: bool
    private: bool

    @property
    def name(self) -> str:
        """The method's name, as in a file and in Python."""
        return self.method.__name__

    @property
    def keeps(self) -> str:
        """What a client keeps between rounds, in words; empty for nothing."""
        if not self.found.state:
            return ""
        return "private part" if self.private else models(self.found.state)

    @property
    def sends(self) -> str:
        """What a client sends in a round."""
        return "shared part" if self.private else models(self.found.up)

    @property
    def receives(self) -> str:
        """What a client receives in a round; W: the adapted weights, whose size the model says."""
        if self.weights_down:
            return f"{models(self.found.up)} + W"
        return "shared part" if self.private else models(self.found.down)

    @property
    def weights_down(self) -> bool:
        """Whether adapted weights go down beside the adapters."""
        return self.needs.adapters and self.found.down > self.found.up

    @property
    def own_steps(self) -> bool:
        """Whether step sizes are the method's own, so that the local optimizer plays no part."""
        return "solve" not in self.found.asks

    @property
    def remarks(self) -> list[str]:
        """What a reader must know before choosing it, a few words each."""
        known = {
            "everyone": self.needs.everyone,
            "two exchanges": self.survey,
            "linear optimizer": self.needs.gain,
            "own steps": self.own_steps,
            "personal": self.needs.personal,
            "adapters": self.needs.adapters,
        }
        return [text for text, true in known.items() if true]

    def facts(self) -> dict[str, Any]:
        """All of it for scripts."""
        return {
            "name": self.name,
            "group": self.group,
            "does": self.does,
            "client_state_models": 0.0 if self.private else self.found.state,
            "private_part": self.private,
            "uplink_models": None if self.private else self.found.up,
            "downlink_models": None if self.private or self.weights_down else self.found.down,
            "everyone": self.needs.everyone,
            "survey": self.survey,
            "linear_optimizer": self.needs.gain,
            "own_step_sizes": self.own_steps,
            "personal": self.needs.personal,
            "adapters": self.needs.adapters,
            "hyper_parameters": {p.name: p.default for p in hyper_parameters(self.method)},
            "citation": self.method.citation,
        }


def models(number: float) -> str:
    """0 is "nothing", 1 is "1 model", 2 is "2 models"."""
    return "nothing" if not number else f"{number:g} model" + ("s" if number != 1 else "")


@cache
def entries() -> tuple[Entry, ...]:
    """All methods, in the order of the catalogue."""
    return tuple(_entry(method, group) for group, methods in GROUPS.items() for method in methods)


def entry(name: str) -> Entry:
    """One method, by its name in any case.

    Raises:
        ConfigError: there's none of this name; the nearest one is named.
    """
    known, _ = tables.find("method", tables.algorithms(), name)
    return next(e for e in entries() if e.name == known)


def _entry(method: type[Algorithm], group: str) -> Entry:
    made = example(method)
    private = bool(made.private_patterns)
    return Entry(method, group, one_line(method), made.needs, probe(made), has_survey(made), private)


def one_line(method: type[Algorithm]) -> str:
    """What a method does: the first sentence of its page, or of its class where a page has several methods."""
    page = _sentence(sys.modules[method.__module__].__doc__)
    neighbours = [m for m in tables.algorithms().values() if m.__module__ == method.__module__]
    own = _sentence(method.__doc__)
    # A class whose first sentence is little more than its name has nothing to add to the page.
    return page if len(neighbours) == 1 or len(own.split()) < 4 else own


def _sentence(text: str | None) -> str:
    first = re.split(r"\.(?:\s|$)", inspect.cleandoc(text or ""), maxsplit=1)[0]
    before, colon, after = " ".join(first.split()).partition(": ")
    said = after if colon else before
    word = said.split(" ")[0]
    return said[:1].lower() + said[1:] if word[1:].islower() else said  # but not FedAvg


def page(method: type[Algorithm]) -> str:
    """The page's text below its first line: source, equations, remarks."""
    text = inspect.cleandoc(sys.modules[method.__module__].__doc__ or "")
    return text.partition("\n\n")[2]


def hyper_parameters(method: type[Algorithm]) -> list[HyperParameter]:
    """The fields of a method as a file gives them."""
    hints = get_type_hints(method)
    found = []
    for f in fields(method):
        if not f.init:
            continue
        if is_required(f):
            default = None
        elif f.name == "optimizer":
            default = toml(as_table(getattr(example(method), f.name)))
        else:
            default = "none" if f.default is None else toml(f.default)
        found.append(HyperParameter(f.name, TYPES.get(hints[f.name], "table"), default, f.name in INFERRED))
    return found


def toml(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
