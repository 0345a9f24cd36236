"""The files of a run directory, and how their bytes are made.

    config.json           the resolved configuration: all that is needed to repeat the run
    environment.json      versions and kind of machine (no host names)
    data.json             what the data look like: sizes, client × class counts
    status.json           {"state", "round", "rounds", "error"}
    rounds.jsonl          one object per round                                   deterministic
    participation.jsonl   one object of equal-length lists per round             deterministic
    clients.jsonl         one object per (evaluated round, client)               deterministic
    timings.jsonl         seconds, compilations: the only record that differs between two equal runs
    checkpoint/           the engine's
    model.safetensors     the final model
    report.html           the picture of it all

"Deterministic" means byte for byte: keys keep the order in which the engine gives them, floats are written
by `repr` (shortest text that reads back to the same value), and values that are not finite are written as
null, because JSON has no NaN (the `status` beside them says what happened).
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from dure.errors import RunError

try:
    import fcntl
except ImportError:  # pragma: no cover  (Windows: two writers of one run aren't noticed there)
    fcntl = None  # type: ignore[assignment]

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
DATA = "data.json"
STATUS = "status.json"
MODEL = "model.safetensors"
REPORT = "report.html"
LOCK = "lock"
RECORDS = ("rounds", "participation", "clients", "timings")


def record_path(directory: Path, name: str) -> Path:
    """Path of one of the four record files."""
    return directory / f"{name}.jsonl"


def io_error(action: str, path: Path, error: OSError) -> RunError:
    """An operating system's refusal as a `RunError` that names the path and the way out."""
    reason = error.strerror or str(error)
    return RunError(
        f"Cannot {action} {path}: {reason}. What was saved before is intact; "
        "make room (or choose a writable directory) and resume."
    )


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: NumPy scalars and arrays become Python's, NaN and ±inf become None.

    float32 scalars become the float64 with the same shortest text (0.1, not 0.10000000149011612).

    Raises:
        RunError: something that isn't a number, a text, a list or a mapping.
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray) or hasattr(value, "__array__"):
        return _plain_array(np.asarray(value))
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, os.PathLike):
        return str(value)
    raise RunError(f"{type(value).__name__} {value!r} cannot be recorded: numbers and texts only.")


def _plain_array(array: np.ndarray) -> Any:
    if array.ndim == 0:
        scalar = array.item()
        if array.dtype == np.float32 and math.isfinite(scalar):
            return float(str(np.float32(scalar)))
        return plain(scalar)
    if array.dtype.kind in "iubU":
        return array.tolist()
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        values = array.astype(np.float64)
        if np.isfinite(values).all():
            return values.tolist()
    return [plain(item) for item in array.tolist()]


def encode(value: Any) -> bytes:
    """One line of a record, with its newline."""
    text = json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode() + b"\n"


def encode_pretty(value: Any) -> bytes:
    """A small JSON file that people read."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def stable_safetensors(content: bytes) -> bytes:
    """The same safetensors file with its metadata in sorted order: the library's order changes by process.

    The format is 8 bytes of header length (little-endian), the header as JSON padded with spaces to a
    multiple of 8, and the tensors' bytes.
    """
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    metadata = dict(sorted(header.pop("__metadata__", {}).items()))
    text = json.dumps({"__metadata__": metadata, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[8 + size :]


def write_atomic(path: Path, content: bytes) -> None:
    """Write so that at every instant the file is either the old one or the new one, whole.

    Raises:
        RunError: the disk is full, the directory isn't writable, ….
    """
    if not path.name or path.is_dir():
        raise RunError(f"{path} is a directory: give the name of a file in it.")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise io_error("write", path, error) from error


def sync_directory(directory: Path) -> None:
    """Make a rename durable, where the system can (POSIX)."""
    if not hasattr(os, "O_DIRECTORY"):  # pragma: no cover  (Windows)
        return
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_json(path: Path) -> Any:
    """Read a small JSON file.

    Raises:
        RunError: it's missing or isn't JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RunError(f"{path} is missing. Is {path.parent} the directory of a run?") from None
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror or error}.") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}.") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a last line without a newline was torn by a kill and doesn't count.

    Raises:
        RunError: a whole line isn't JSON (the number of the line is named).
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"Cannot read {path}: {error.strerror or error}.") from error
    records: list[dict[str, Any]] = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            records.append(json.loads(line))
        except ValueError as error:
            raise RunError(f"{path} is damaged in line {number}: {error}.") from error
    return records


def lock(file: IO[bytes], *, shared: bool = False) -> None:
    """Hold a file until it's closed (the system lets go when the process dies, however it dies).

    Raises:
        OSError: another process holds it.
    """
    if fcntl is not None:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
