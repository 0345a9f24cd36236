"""What the engine writes through: records as they happen, small files atomically, or all of it in memory."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from dure.errors import DureError, RunError
from dure.run import layout

if TYPE_CHECKING:
    from dure.run.reader import Run

STATES = ("running", "complete", "interrupted", "failed")


class RunWriter:
    """Writes one run, into a directory or (directory=None) into memory.

    A new writer refuses a directory that already holds a run; `resume=True` opens an existing one, and then
    `truncate(positions)` takes the records back to the checkpoint that the engine continues from.

    Args:
        directory: where; it's made if missing. None keeps everything in memory.
        config: the resolved configuration, written to config.json (ignored when resuming).
        environment: versions and kind of machine, written to environment.json.
        data: what `summarise` says about the data, written to data.json (ignored when resuming).
        rounds: how many rounds are planned, for status.json.
        resume: open an existing run.

    Raises:
        RunError: the directory holds a run already, holds none (resume), is in use by another process, or
            cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        *,
        config: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
        data: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        resume: bool = False,
    ):
        self._files: dict[str, IO[bytes]] = {}
        self._lock: IO[bytes] | None = None
        self.directory = None if directory is None else Path(directory)
        self.rounds = rounds
        self.memory: dict[str, list[Any]] = {name: [] for name in layout.RECORDS}
        self.small: dict[str, Any] = {}
        self.tensors: dict[str, np.ndarray] | None = None
        if self.directory is not None:
            self._claim(self.directory, resume)
        if not resume:
            self._small(layout.ENVIRONMENT, environment or {})
            self._small(layout.DATA, data or {})
        try:
            self._open_records()
            if not resume:
                # Last, because a directory counts as a run as soon as it has a config.json.
                self._small(layout.CONFIG, config or {})
                self.status("running", 0)
        except DureError:
            self.close()
            raise

    def _claim(self, directory: Path, resume: bool) -> None:
        exists = (directory / layout.CONFIG).exists()
        if resume and not exists:
            raise RunError(f"{directory} holds no run to resume: it has no {layout.CONFIG}.")
        if exists and not resume:
            raise RunError(
                f"{directory} already holds a run{_where_it_stands(directory)}. "
                f"Resume it (dure resume {directory}) or choose another directory."
            )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = open(directory / layout.LOCK, "ab")  # noqa: SIM115  (held until close)
        except OSError as error:
            raise layout.io_error("write to", directory, error) from error
        try:
            layout.lock(self._lock)
        except OSError:
            self.close()
            raise RunError(f"Another process is writing {directory}. Wait for it, or stop it.") from None

    def _open_records(self) -> None:
        if self.directory is None:
            return
        for name in layout.RECORDS:
            path = layout.record_path(self.directory, name)
            try:
                self._files[name] = open(path, "ab", buffering=0)  # noqa: SIM115
            except OSError as error:
                raise layout.io_error("write", path, error) from error

    # --- records -----------------------------------------------------------------------------------------

    def round(self, record: Mapping[str, Any]) -> None:
        """Append one round's totals to rounds.jsonl; see `layout` for how values are written."""
        self._append("rounds", dict(record))

    def participation(self, round: int, columns: Mapping[str, Any]) -> None:
        """Append one round's clients to participation.jsonl.

        Args:
            round: number of the round.
            columns: equal-length arrays or lists (client, examples, weight, steps, loss, norm, status, …).
                Kept by reference in memory, so give arrays that are not written to again.

        Raises:
            RunError: the columns have different lengths.
        """
        _same_length("participation", round, columns)
        self._append("participation", {"round": round, **columns})

    def clients(self, round: int, rows: "Rows") -> None:
        """Append per-client evaluation to clients.jsonl, one line per client.

        Args:
            round: number of the round.
            rows: equal-length columns (client, name, examples, loss, accuracy, …) or a list of rows.
        """
        if self.directory is None:
            self.memory["clients"].append((round, rows))
        else:
            self._write("clients", b"".join(layout.encode(row) for row in client_rows(round, rows)))

    def timing(self, record: Mapping[str, Any]) -> None:
        """Append what the clock said (seconds, compilations, …) to timings.jsonl."""
        self._append("timings", dict(record))

    def _append(self, name: str, record: dict[str, Any]) -> None:
        if self.directory is None:
            self.memory[name].append(record)
        else:
            self._write(name, layout.encode(record))

    def _write(self, name: str, content: bytes) -> None:
        file = self._files[name]
        try:
            while content:  # a raw file may write less than it was given, as a disk does that is filling up
                content = content[file.write(content) :]
        except OSError as error:
            raise layout.io_error("write", Path(file.name), error) from error

    # --- where a resumed run continues -------------------------------------------------------------------

    def positions(self) -> dict[str, int]:
        """Lengths of the record files (bytes; entries in memory), made durable first, for a checkpoint."""
        if self.directory is None:
            return {name: len(entries) for name, entries in self.memory.items()}
        lengths = {}
        for name, file in self._files.items():
            try:
                os.fsync(file.fileno())
                lengths[name] = os.fstat(file.fileno()).st_size
            except OSError as error:
                raise layout.io_error("write", Path(file.name), error) from error
        return lengths

    def truncate(self, positions: Mapping[str, int]) -> None:
        """Take the records back to `positions()` of a checkpoint.

        Raises:
            RunError: a record is shorter than the checkpoint says, so something was lost or edited, or the
                checkpoint doesn't say how long each record was.
        """
        unknown = (self.memory if self.directory is None else self._files).keys() - positions.keys()
        if unknown:
            raise RunError(
                f"The checkpoint of {self.directory} is damaged: it doesn't say how long {', '.join(sorted(unknown))} "
                "was. Delete it to go back to the one before."
            )
        if self.directory is None:
            self.memory = {name: entries[: positions[name]] for name, entries in self.memory.items()}
            return
        for name, file in self._files.items():
            size = os.fstat(file.fileno()).st_size
            if size < positions[name]:
                raise RunError(
                    f"{file.name} has {size} bytes, the checkpoint was made when it had {positions[name]}: "
                    "the record was cut or edited since. Start the run again in a new directory."
                )
            os.ftruncate(file.fileno(), positions[name])

    # --- small files -------------------------------------------------------------------------------------

    def status(self, state: str, round: int, error: str | None = None) -> None:
        """Write status.json: "running", "complete", "interrupted" or "failed", after `round`."""
        assert state in STATES, state
        self._small(layout.STATUS, {"state": state, "round": round, "rounds": self.rounds, "error": error})

    def model(self, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
        """Write model.safetensors, tensors in their own dtypes."""
        from safetensors.numpy import save

        # An explicit C-ordered copy: safetensors writes the buffer as it lies, and 0-d must stay 0-d.
        self.tensors = {name: np.array(tensor, order="C") for name, tensor in tensors.items()}
        if self.directory is not None:
            content = layout.stable_safetensors(save(self.tensors, dict(metadata or {})))
            layout.write_atomic(self.directory / layout.MODEL, content)

    def _small(self, name: str, value: Mapping[str, Any]) -> None:
        self.small[name] = layout.plain(value)
        if self.directory is not None:
            layout.write_atomic(self.directory / name, layout.encode_pretty(value))

    def fail(self, error: BaseException, round: int) -> None:
        """Note that the run failed or (Ctrl-C) was interrupted. Never raises, as it's called in raising."""
        state = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        text = None if state == "interrupted" else f"{type(error).__name__}: {error}"
        try:
            self.status(state, round, text)
        except RunError:
            pass  # the disk is full: status.json still says "running", which reads as interrupted
        finally:
            self.close()

    def close(self) -> None:
        """Close the files and let another process in. Closing twice does nothing."""
        for file in self._files.values():
            file.close()
        self._files = {}
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __del__(self) -> None:
        self.close()  # a writer that is forgotten lets others at the run

    def run(self, model: Any = None, estimator: Any = None) -> "Run":
        """The run so far, for reading.

        `model` is the parameters' pytree, `estimator` the unfitted scikit-learn estimator, which files can't give back.
        """
        from dure.run.reader import Run

        return Run(self.directory, memory=None if self.directory else self, model=model, estimator=estimator)


Rows = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def client_rows(round: int, rows: Rows) -> Iterator[dict[str, Any]]:
    """Per-client columns (or rows) as one dict per client that starts with the round."""
    if isinstance(rows, Mapping):
        _same_length("clients", round, rows)
        names = list(rows)
        values = [layout.plain(rows[name]) for name in names]
        for row in zip(*values, strict=True):
            yield {"round": round, **dict(zip(names, row, strict=True))}
    else:
        for entry in rows:
            yield {"round": round, **layout.plain(entry)}


def _same_length(what: str, round: int, columns: Mapping[str, Any]) -> None:
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise RunError(f"{what} of round {round}: columns have different lengths {lengths}.")


def _where_it_stands(directory: Path) -> str:
    try:
        status = layout.read_json(directory / layout.STATUS)
        return f" ({status['state']}, round {status['round']} of {status['rounds']})"
    except (DureError, KeyError, TypeError):
        return ""
