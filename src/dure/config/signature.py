"""Arguments in a file, checked against a function's signature: names, types, what is missing."""

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError

from dure.config.messages import explain


class _Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)


class _Strict(_Arguments):
    model_config = ConfigDict(strict=True)


def arguments(
    function: Callable[..., Any],
    given: Mapping[str, Any],
    path: str,
    skip: Collection[str] = (),
    *,
    strict: bool = False,
) -> tuple[dict[str, Any], list[str]]:
    """The arguments as the function takes them (defaults filled in), and what is wrong with them.

    Args:
        function: its signature says what is allowed.
        given: from the file.
        path: of the section, for messages.
        skip: parameters that the file doesn't give.
        strict: types aren't guessed: "0.1" is no number, true no integer. Lists are given for tuples.
    """
    base = _Strict if strict else _Arguments
    try:
        hints = get_type_hints(function)
    except Exception:
        hints = {}
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name in skip or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    try:
        model = create_model("Arguments", __base__=base, **fields)
    except PydanticSchemaGenerationError:  # an annotation that pydantic can't check: names only, then
        untyped: dict[str, Any] = {name: (Any, default) for name, (_, default) in fields.items()}
        model = create_model("Arguments", __base__=base, **untyped)
    try:
        checked = model.model_validate({name: _tupled(value, strict) for name, value in given.items()})
    except ValidationError as error:
        return {}, explain(error, model, path)
    return {name: getattr(checked, name) for name in fields}, []


def _tupled(value: Any, strict: bool) -> Any:
    """TOML has lists where a signature has tuples, which only a strict check tells apart."""
    return tuple(_tupled(item, strict) for item in value) if strict and isinstance(value, list) else value
