"""pydantic's findings as lines: the key's path, its value, what is allowed, the nearest valid name."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from dure.errors import did_you_mean


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[str]:
    """One line per finding; `prefix` is the path of the section that `model` describes."""
    lines = []
    for item in error.errors(include_url=False):
        path = [str(part) for part in item["loc"]]
        where = ".".join([prefix, *path] if prefix else path)
        lines.append(f"{where}{_said(item, model, path)}".lstrip(" :"))
    return lines


def _said(item: Any, model: type[BaseModel], path: list[str]) -> str:
    kind, value, context = item["type"], item["input"], item.get("ctx", {})
    if kind == "extra_forbidden":
        names = keys_at(model, path[:-1])
        return f" = {_shown(value)}: there's no such key. {did_you_mean(path[-1], names)}"
    if kind == "missing":
        return ": missing. Add it."
    if kind == "value_error":
        shown = "" if isinstance(value, Mapping) else f" = {_shown(value)}"
        return f"{shown}: {context['error']}."
    if kind == "literal_error":
        nearest = did_you_mean(str(value), [name.strip("'") for name in _split(context["expected"])])
        near = f" {nearest}" if nearest.startswith("Did") else ""
        return f" = {_shown(value)}: must be {context['expected']}.{near}"
    if kind == "model_type" or kind.startswith("model_"):
        return f" = {_shown(value)}: must be a table, [{'.'.join(path)}]."
    allowed = item["msg"].removeprefix("Input should be ").split(", unable")[0].replace("a valid ", "a ")
    allowed = allowed.replace("a tuple", "a list")  # TOML's word for it
    return f" = {_shown(value)}: must be {allowed.replace('a integer', 'an integer')}."


def _split(expected: str) -> list[str]:
    return expected.replace(" or ", ", ").split(", ")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def keys_at(model: type[BaseModel], path: Iterable[str]) -> list[str]:
    """The valid keys of the section at a path."""
    current = model
    for part in path:
        field = current.model_fields.get(part)
        inner = _section(field.annotation) if field is not None else None
        if inner is None:
            return sorted(current.model_fields)
        current = inner
    return sorted(current.model_fields)


def _section(annotation: Any) -> type[BaseModel] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return candidate
    return None
