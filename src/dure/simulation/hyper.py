"""Numbers apart from structure: floats of an algorithm or optimizer become one traced vector.

A compiled round depends on the structure (classes, flags, counts, functions); learning rates, μ, β and the
like are its inputs, so that a sweep over them compiles once.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np


class _Number:
    """Stands for a float that was taken out."""

    def __repr__(self) -> str:
        return "<number>"


NUMBER = _Number()


@dataclass(frozen=True)
class Structure:
    """What is left of a dataclass or a mapping: its kind and its parts, with `NUMBER` for each float."""

    kind: Any
    parts: tuple[tuple[str, Any], ...]


def split(thing: Any) -> tuple[Any, list[float]]:
    """(structure, numbers): only `float`s are numbers; ints and bools shape the program and stay."""
    if type(thing) is float or isinstance(thing, np.floating):
        return NUMBER, [float(thing)]
    if is_dataclass(thing) and not isinstance(thing, type):
        names = [(f.name, getattr(thing, f.name)) for f in fields(thing)]
        kind: Any = type(thing)
    elif isinstance(thing, Mapping):
        names, kind = list(thing.items()), dict
    else:
        return thing, []
    parts, numbers = [], []
    for name, value in names:
        part, found = split(value)
        parts.append((name, part))
        numbers += found
    return Structure(kind, tuple(parts)), numbers


def join(structure: Any, numbers: Iterator[Any]) -> Any:
    """The thing again, with these numbers (traced or not) in the places of the old ones.

    Dataclasses are rebuilt without their constructor: it checked the values when they were plain numbers.
    """
    if structure is NUMBER:
        return next(numbers)
    if not isinstance(structure, Structure):
        return structure
    values = {name: join(part, numbers) for name, part in structure.parts}
    if structure.kind is dict:
        return values
    thing = object.__new__(structure.kind)
    for name, value in values.items():
        object.__setattr__(thing, name, value)
    return thing
