"""Hyper-parameters out of their range are refused where they are given."""

import math
from typing import Any

from dure.errors import ConfigError


def number(
    method: Any,
    name: str,
    low: float,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
) -> None:
    """Check that field `name` of a method is a number between low and high (open where said; never infinite).

    Raises:
        ConfigError: naming the method, the field, its value, and what is allowed.
    """
    value = getattr(method, name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if (
        known
        and (low < value if open_low else low <= value)
        and (value < high if open_high else value <= high)
    ):
        object.__setattr__(method, name, float(value))  # floats are traced, whatever was written
        return
    left = "(" if open_low or low == -math.inf else "["
    right = ")" if open_high or high == math.inf else "]"
    raise ConfigError(
        f"{type(method).__name__}({name}={value!r}) is not allowed: {name} must be a number in "
        f"{left}{low:g}, {high:g}{right}."
    )


def count(method: Any, name: str) -> None:
    """Check that field `name` is an integer of at least 1.

    Raises:
        ConfigError: naming the method, the field and its value.
    """
    value = getattr(method, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(
            f"{type(method).__name__}({name}={value!r}) is not allowed: {name} must be an integer of at least 1."
        )


def one_of(method: Any, name: str, allowed: tuple[Any, ...]) -> None:
    """Check that field `name` is one of the allowed values.

    Raises:
        ConfigError: naming the method, the field, its value, and what is allowed.
    """
    value = getattr(method, name)
    if value not in allowed:
        raise ConfigError(
            f"{type(method).__name__}({name}={value!r}) is not allowed: {name} must be one of "
            f"{', '.join(map(repr, allowed))}."
        )


def patterns(method: Any, name: str) -> None:
    """Check that field `name` is a nonempty tuple of name patterns; a single pattern or a list becomes one.

    Raises:
        ConfigError: naming the method, the field and its value.
    """
    value = getattr(method, name)
    value = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else value
    if not isinstance(value, tuple) or not value or not all(isinstance(p, str) and p for p in value):
        raise ConfigError(
            f"{type(method).__name__}({name}={value!r}) is not allowed: {name} must be name patterns of "
            "tensors, such as ('dense3',)."
        )
    object.__setattr__(method, name, value)
