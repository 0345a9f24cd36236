"""From a file and `--set` to a checked `Study`."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dure.config.messages import explain
from dure.config.study import Study
from dure.errors import ConfigError


def load(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Study:
    """Read a study from a TOML file, or from a run's config.json.

    Args:
        path: the file.
        overrides: "a.b=value", values as in TOML; a word without quotes is a text.

    Raises:
        ConfigError: the file is missing or isn't TOML, an unknown key, a wrong type, an impossible value.
            All problems are listed, each with its key, its value and what is allowed.
    """
    file = Path(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"There is no file {file}. `dure new NAME` writes one to start from.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 ({error}). Save it again with that encoding.") from error
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error}.") from error
    try:
        raw: dict[str, Any] = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"{file} is not valid {'JSON' if file.suffix == '.json' else 'TOML'}: {error}."
        ) from None
    if file.suffix == ".json":
        raw = raw.get("experiment") or raw  # the config.json of a run
    for text in overrides:
        override(raw, text)
    raw.setdefault("name", file.stem if file.suffix == ".toml" else "study")
    return study(raw, str(file))


def study(raw: Mapping[str, Any], source: str = "The configuration") -> Study:
    """Check a configuration that is already a mapping.

    Raises:
        ConfigError: see `load`.
    """
    try:
        return Study.model_validate(raw)
    except ValidationError as error:
        raise problems(source, explain(error, Study)) from None


def problems(source: str, lines: Sequence[str]) -> ConfigError:
    """All that is wrong, as one error."""
    if len(lines) == 1:
        return ConfigError(f"{source}: {lines[0]}")
    return ConfigError("\n  ".join([f"{source} has {len(lines)} problems:", *lines]))


def override(raw: dict[str, Any], text: str) -> None:
    """Set one value in a nested mapping, as in `--set clients.fraction=0.5`.

    Raises:
        ConfigError: no "=", an empty key, a value that isn't TOML, a path through what isn't a table.
    """
    key, equals, value = text.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: write --set a.b=value, such as --set clients.fraction=0.5.")
    table: Any = raw
    for i, part in enumerate(parts[:-1]):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {text}: {'.'.join(parts[: i + 1])} is a value, not a table.")
    table[parts[-1]] = _value(value.strip(), text)


def _value(value: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError as error:
        if re.fullmatch(r"[^\s\"'\[\]{}=,]+", value):  # a bare word or path, where the shell took the quotes
            return value
        raise ConfigError(f"--set {text}: {value!r} is not a TOML value: {error}.") from None
