"""Per-client state as packed rows: allocated on first touch, gathered and scattered by cohort.

Three placements: "host" (a growing array), "device" (on the accelerator), "disk" (memory-mapped, for states
that don't fit in memory). Rows of clients that were never touched cost nothing but four bytes of address
space each.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dure.errors import RunError


class _HostRows:
    def __init__(self, width: int) -> None:
        self.rows = np.zeros((0, width), np.float32)

    def grow(self, capacity: int) -> None:
        grown = np.zeros((capacity, self.rows.shape[1]), np.float32)
        grown[: len(self.rows)] = self.rows
        self.rows = grown

    def read(self, slots: np.ndarray) -> np.ndarray:
        return np.asarray(self.rows[slots])  # a copy: slots are an array

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        self.rows[slots] = rows


class _DeviceRows:
    def __init__(self, width: int) -> None:
        self.rows = jnp.zeros((0, width), jnp.float32)
        self._read = jax.jit(lambda rows, slots: rows[slots])
        self._write = jax.jit(lambda old, slots, new: old.at[slots].set(new), donate_argnums=0)

    def grow(self, capacity: int) -> None:
        extra = capacity - self.rows.shape[0]
        self.rows = jnp.concatenate([self.rows, jnp.zeros((extra, self.rows.shape[1]), jnp.float32)])

    def read(self, slots: np.ndarray) -> np.ndarray:
        return np.array(self._read(self.rows, jnp.asarray(slots)))

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        self.rows = self._write(self.rows, jnp.asarray(slots), jnp.asarray(rows))


class _DiskRows:
    """Memory-mapped rows with an undo journal.

    A row that the last checkpoint counts on is copied to the journal before it is overwritten for the first
    time, so that a killed run can go back to that checkpoint without the checkpoint having copied all rows.
    """

    def __init__(self, width: int, directory: Path) -> None:
        self.path, self.width, self.directory = directory / "rows.f32", width, directory
        directory.mkdir(parents=True, exist_ok=True)
        self.rows: Any = np.zeros((0, width), np.float32)
        self.checkpoint = 0
        self.journaled = np.zeros(0, bool)

    def grow(self, capacity: int) -> None:
        try:
            with open(self.path, "ab") as file:
                file.truncate(capacity * self.width * 4)
            self.rows = np.memmap(self.path, np.float32, "r+", shape=(capacity, self.width))
        except OSError as error:
            raise RunError(f"Client state can't grow to {capacity} rows in {self.path}: {error}") from error

    def read(self, slots: np.ndarray) -> np.ndarray:
        rows: np.ndarray = np.asarray(self.rows)[slots]
        return rows

    def write(self, slots: np.ndarray, rows: np.ndarray) -> None:
        known = slots[slots < len(self.journaled)]
        fresh = known[~self.journaled[known]]
        if len(fresh):
            record = np.zeros(len(fresh), self._record())
            record["slot"], record["row"] = fresh, self.rows[fresh]
            try:
                with open(self._journal(self.checkpoint), "ab") as file:
                    file.write(record.tobytes())
            except OSError as error:
                raise RunError(f"Client state can't be kept in {self.directory}: {error}") from error
            self.journaled[fresh] = True
        self.rows[slots] = rows

    def _record(self) -> np.dtype:
        return np.dtype([("slot", "<i8"), ("row", "<f4", (self.width,))])

    def _journal(self, round: int) -> Path:
        return self.directory / f"undo-{round:08d}"

    def flush(self) -> None:
        if isinstance(self.rows, np.memmap):
            self.rows.flush()

    def commit(self, round: int, used: int, oldest: int) -> None:
        """From now on, undo goes back to this checkpoint; journals older than `oldest` aren't needed."""
        self.checkpoint, self.journaled = round, np.zeros(used, bool)
        for path in self.directory.glob("undo-*"):
            if int(path.name[5:]) < oldest:
                path.unlink()

    def undo(self, round: int, used: int) -> None:
        """Take the rows back to the checkpoint of `round`, which had `used` of them."""
        capacity = self.path.stat().st_size // (4 * self.width) if self.path.exists() else 0
        if capacity < used:
            raise RunError(f"{self.path} holds {capacity} rows of client state; the checkpoint needs {used}.")
        if capacity:
            self.grow(capacity)
        journals = sorted(
            (p for p in self.directory.glob("undo-*") if int(p.name[5:]) >= round), reverse=True
        )
        for path in journals:
            whole = path.stat().st_size // self._record().itemsize  # a record cut short was never acted on
            record = np.fromfile(path, self._record(), whole)
            self.rows[record["slot"]] = record["row"]
        if journals:
            self.rows.flush()
        for path in journals:
            path.unlink()
        self.checkpoint, self.journaled = round, np.zeros(used, bool)


class ClientStore:
    """State of the clients, float32 rows of one width.

    Args:
        clients: N, registered clients.
        initial: (s,) the state of a client that was never touched.
        placement: "host", "device" or "disk".
        directory: where "disk" keeps its files.
    """

    def __init__(
        self, clients: int, initial: np.ndarray, placement: str = "host", directory: Path | None = None
    ):
        self.initial = np.asarray(initial, np.float32)
        self.placement = placement
        self.used = 0
        # 0 means "never touched"; the pages of an array of zeros come into being when they are written.
        self._slot_plus_1 = np.zeros(clients, np.int32)
        self._ids = np.zeros(0, np.int64)
        width = len(self.initial)
        make: dict[str, Callable[[], Any]] = {
            "host": lambda: _HostRows(width),
            "device": lambda: _DeviceRows(width),
            "disk": lambda: _DiskRows(width, directory or Path(".")),
        }
        self._rows: Any = make[placement]()
        self._capacity = 0

    def gather(self, ids: np.ndarray) -> np.ndarray:
        """(m, s) the clients' states; the initial one for those never touched, without allocating."""
        slots = self._slot_plus_1[ids].astype(np.int64) - 1
        new = slots < 0
        if new.all():
            return np.broadcast_to(self.initial, (len(ids), len(self.initial))).copy()
        # Always m rows, also where some are not needed: a device compiles once for each number of rows.
        rows: np.ndarray = self._rows.read(np.maximum(slots, 0))
        if new.any():
            rows[new] = self.initial
        return rows

    def scatter(self, ids: np.ndarray, rows: np.ndarray) -> None:
        """Set the states of distinct clients."""
        new = ids[self._slot_plus_1[ids] == 0]
        if len(new):
            self._allocate(new)
        if len(ids):
            self._rows.write(self._slot_plus_1[ids].astype(np.int64) - 1, np.asarray(rows, np.float32))

    def _allocate(self, ids: np.ndarray) -> None:
        needed = self.used + len(ids)
        if needed > self._capacity:
            self._capacity = max(needed, 2 * self._capacity, 64)
            self._rows.grow(self._capacity)
        self._slot_plus_1[ids] = np.arange(self.used + 1, needed + 1, dtype=np.int32)
        if needed > len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros(needed, np.int64)])
        self._ids[self.used : needed] = ids
        self.used = needed

    def snapshot(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps: ids in order of first touch and, unless they are on disk, the rows."""
        kept = {"client_ids": self._ids[: self.used].copy()}
        if self.placement != "disk":
            kept["client_rows"] = np.asarray(self._rows.read(np.arange(self.used)))
        return kept

    def flush(self) -> None:
        """Rows on disk are safe there; called before a checkpoint counts."""
        if self.placement == "disk":
            self._rows.flush()

    def commit(self, round: int, oldest: int) -> None:
        """A checkpoint of `round` is safe; `oldest` is the oldest one that may still be gone back to."""
        if self.placement == "disk":
            self._rows.commit(round, self.used, oldest)

    def restore(self, kept: dict[str, np.ndarray], round: int) -> None:
        """Go back to a snapshot."""
        ids = kept["client_ids"]
        self._slot_plus_1[self._ids[: self.used]] = 0
        self.used, self._capacity = 0, 0
        if self.placement == "disk":
            self._rows.undo(round, len(ids))
            self._capacity = len(self._rows.rows)
            self._allocate(ids)
        else:
            self._capacity = len(self._rows.rows)
            self._allocate(ids)
            if len(ids):
                self._rows.write(np.arange(len(ids)), kept["client_rows"])
