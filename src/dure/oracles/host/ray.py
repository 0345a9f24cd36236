"""Workers of a Ray cluster: a question's rows are split over all its CPUs, and asked again where a worker dies.

What is sent how often: a host (model, function) and the columns that it reads are put into Ray's object store once,
an array that the rows of a question share (the model that all clients get) once for each of its values; Ray copies
them to a node once, and the processes there read them in place. Only what is a client's own travels with it.
"""

import os
import sys
import sysconfig
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray import exceptions

import dure
from dure.errors import ConfigError, DureError, RunError
from dure.oracles.host import worker
from dure.oracles.host.pool import TRIES, pickled

#: Smaller arrays travel with the question, as Ray itself would do it.
SMALL = 1 << 16
#: Values of a shared array that stay in the object store, and hosts that a worker keeps.
KEPT, HOSTS = 2, 8
#: Seconds until the first worker should have begun.
PATIENCE = 20
#: A worker, its node, or the only copy of its answer was lost. A client's own error is no such thing.
_LOST = (
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.ObjectLostError,
    exceptions.LocalRayletDiedError,
)

Arrays = Mapping[str, np.ndarray]


# ----- in the workers -------------------------------------------------------------------------------------

_hosts: OrderedDict[int, Any] = OrderedDict()


def _answer(
    number: int, where: list[Any], job: Any, given: Arrays, names: tuple[str, ...], shapes: Any, *shared: Any
) -> tuple[list[Any], dict[str, np.ndarray]]:
    """(what failed, the answer) about host `number`, which `where` refers to: its content and its columns."""
    results = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    arguments = {**given, **dict(zip(names, shared, strict=True))}
    return worker.answer(_host(number, where), job, arguments, results), results


def _host(number: int, where: list[Any]) -> Any:
    """The host, made once in each process."""
    if number not in _hosts:
        content, *columns = ray.get(where)
        _hosts[number] = host = worker.load(content)
        if columns and not isinstance(host, worker.Unreadable):
            host.bind(columns[0])
    _hosts.move_to_end(number)
    while len(_hosts) > HOSTS:
        _hosts.popitem(last=False)
    return _hosts[number]


def _version() -> str:
    return dure.__version__


# ----- in the program that asks ---------------------------------------------------------------------------


@dataclass(eq=False)
class _Piece:
    """Rows that are asked about together, whether they need to be, and what workers died of over them."""

    rows: np.ndarray
    given: dict[str, np.ndarray]
    whole: bool
    died: list[str] = field(default_factory=list)

    def again(self) -> list["_Piece"]:
        """What to ask after a death: each row by itself if it may be, so that only the one that kills is lost."""
        if self.whole:
            return [self]
        rows = range(len(self.rows))
        return [
            _Piece(
                self.rows[[k]],
                {n: a if len(a) == 1 else a[[k]] for n, a in self.given.items()},
                True,
                list(self.died),
            )
            for k in rows
        ]


@dataclass(eq=False)
class _Columns:
    """Columns in the object store; the originals are kept so that their ids stay their own."""

    originals: dict[str, np.ndarray]
    reference: Any


class RayPool:
    """The CPUs of the cluster that this program is connected to, as `Workers`: one question's piece on each.

    Args:
        connection: to which cluster, see `_connection`.
    """

    def __init__(self, connection: tuple[str, str]) -> None:
        self.connection = connection
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._options = {
            "num_cpus": 1,
            "max_retries": 0,  # counted here, as in `pool`: Ray would go on for ever where memory is short
            "runtime_env": {"env_vars": {**one, "PYTHONPATH": os.pathsep.join(_own_paths())}},
        }
        self._send = ray.remote(_answer).options(**self._options)
        self._lock = threading.Lock()
        self._references: dict[int, list[Any]] = {}
        self._columns: weakref.WeakValueDictionary[Any, _Columns] = weakref.WeakValueDictionary()
        self._shared: dict[tuple[int, str], list[tuple[np.ndarray, Any]]] = {}
        self._checked = False

    # ----- questions ----------------------------------------------------------------------------------

    def ask(self, host: Any, job: Any, given: Arrays, wanted: Arrays) -> list[Any]:
        """See `Workers`. Rows that workers died over again and again are failures; the others are answered."""
        try:
            return self._asked(host, job, given, wanted)
        except DureError:
            raise
        except (Exception, SystemExit) as error:  # a connection that has ended is told in several ways
            raise RunError(f"The Ray cluster could not be asked: {_first_line(error)}") from error

    def _asked(self, host: Any, job: Any, given: Arrays, wanted: Arrays) -> list[Any]:
        rows = len(next(iter(wanted.values())))
        where = self._known(host)
        shared = {
            name: self._reference(host.number, name, array)
            for name, array in given.items()
            if len(array) == 1 and array.nbytes > SMALL
        }
        own = {name: array for name, array in given.items() if name not in shared}
        waiting = {
            self._ask(host.number, where, job, piece, shared, wanted): piece
            for piece in self._pieces(host, job, own, rows)
        }
        failures: list[Any] = []
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            piece = waiting.pop(done)
            try:
                failed, results = ray.get(done)
            except _LOST as error:
                piece.died.append(type(error).__name__)
                if len(piece.died) < TRIES:
                    for part in piece.again():
                        waiting[self._ask(host.number, where, job, part, shared, wanted)] = part
                    continue
                failed, results = [(-1, _gave_up(piece), "")], {}
            except exceptions.RayError as error:
                raise RunError(
                    f"A worker of the Ray cluster could not answer: {_first_line(error)}"
                ) from error
            for name, array in wanted.items():
                array[piece.rows] = results.get(name, np.nan if array.dtype.kind == "f" else 0)
            for row, *what in failed:
                failures.extend((int(k), *what) for k in (piece.rows if row < 0 else piece.rows[[row]]))
        return failures

    def _pieces(self, host: Any, job: Any, own: Arrays, rows: int) -> list[_Piece]:
        """The question cut into as many pieces as the cluster has CPUs, or where the host says that it may be."""
        cuts = together = host.groups(job, own, rows)
        if cuts is None:
            count = min(max(int(ray.cluster_resources().get("CPU", 1)), 1), rows)
            cuts = [np.arange(rows)[k::count] for k in range(count)]  # the longest clients come first
        return [
            _Piece(cut, {n: a if len(a) == 1 else a[cut] for n, a in own.items()}, together is not None)
            for cut in cuts
        ]

    def _ask(
        self, number: int, where: Any, job: Any, piece: _Piece, shared: Mapping[str, Any], wanted: Arrays
    ) -> Any:
        shapes = {n: ((len(piece.rows), *a.shape[1:]), a.dtype.str) for n, a in wanted.items()}
        return self._send.remote(number, where, job, piece.given, tuple(shared), shapes, *shared.values())

    # ----- what is put into the object store ----------------------------------------------------------

    def _known(self, host: Any) -> list[Any]:
        """References to a host's content and columns, put there once."""
        with self._lock:
            if host.number not in self._references:
                found = [ray.put(pickled(host))]
                if host.columns is not None:
                    columns = self._put_columns(host.columns)
                    host.in_store = columns  # lives as long as a host that reads them
                    found.append(columns.reference)
                self._references[host.number] = found
                weakref.finalize(host, self._forget, host.number).atexit = False
            return self._references[host.number]

    def _put_columns(self, columns: Arrays) -> _Columns:
        key = tuple(sorted((name, id(column)) for name, column in columns.items()))
        found = self._columns.get(key)
        if found is None:
            kept = dict(columns)
            found = self._columns[key] = _Columns(kept, ray.put(kept))
        return found

    def _reference(self, number: int, name: str, array: np.ndarray) -> Any:
        """A reference to an array that rows share; one for all questions that bring the same bits."""
        bits = np.ascontiguousarray(array).view(np.uint8 if array.itemsize == 1 else f"u{array.itemsize}")
        with self._lock:
            known = self._shared.setdefault((number, name), [])
            for there, reference in known:
                if there.shape == bits.shape and np.array_equal(there, bits):
                    return reference
            reference = ray.put(np.ascontiguousarray(array))
            known.append((ray.get(reference).view(bits.dtype), reference))
            del known[:-KEPT]
            return reference

    def _forget(self, number: int) -> None:
        self._references.pop(number, None)
        for key in [key for key in list(self._shared) if key[0] == number]:
            del self._shared[key]

    # ----- before the first question ------------------------------------------------------------------

    def prepare(self, host: Any, count: int) -> None:
        """See `Workers`: one worker must be able to import dure, in the version that is here."""
        self._known(host)
        if self._checked:
            return
        try:
            asked = ray.remote(_version).options(**self._options).remote()
            if not ray.wait([asked], timeout=PATIENCE)[0]:
                _tell_why()
            there = ray.get(asked)
        except exceptions.RayError as error:
            raise ConfigError(
                f"Workers of the Ray cluster can't run dure: {_first_line(error)} Install dure, with what the model "
                "needs, on every machine of the cluster, or give the job a runtime_env that has it."
            ) from error
        if there != dure.__version__:
            raise ConfigError(
                f"Workers of the Ray cluster have dure {there}, and this program has {dure.__version__}: install the "
                "same version everywhere."
            )
        self._checked = True


def _own_paths() -> list[str]:
    """Where this program finds modules, beside its Python's own and installed ones, which each machine has itself."""
    own = {
        os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    paths = dict.fromkeys(os.path.realpath(path) for path in sys.path)
    return [p for p in paths if os.path.isdir(p) and not any(p == o or p.startswith(o + os.sep) for o in own)]


def _gave_up(piece: _Piece) -> str:
    return (
        f"{len(piece.died)} workers of the Ray cluster died over the same {len(piece.rows)} clients "
        f"({', '.join(piece.died)}). Out of memory, a crash in native code, or lost nodes: `ray logs` on the cluster "
        "knows more; eager=True asks in this process."
    )


def _tell_why() -> None:
    """Ray itself waits for ever and says nothing."""
    has, free = (f"{found.get('CPU', 0):g}" for found in (ray.cluster_resources(), ray.available_resources()))
    warnings.warn(
        f"No worker of the Ray cluster has begun for {PATIENCE} seconds. It needs a CPU, and the cluster has {has}, of "
        f"which {free} are free; starting a process may take a while too. Still waiting: `ray status` tells more.",
        RuntimeWarning,
        stacklevel=2,
    )


def _first_line(error: BaseException) -> str:
    cause = getattr(error, "cause", None) or error
    lines = [line for line in str(cause).strip().splitlines() if line.strip()]
    return f"{type(cause).__name__}: {lines[-1].strip() if lines else 'no message'}."


_pool: RayPool | None = None
_lock = threading.Lock()


def ray_pool() -> RayPool:
    """The workers of the cluster that this program is connected to; connects it if it isn't.

    Raises:
        ConfigError: there is no cluster.
    """
    global _pool
    with _lock:
        if not ray.is_initialized():
            try:
                ray.init(address="auto")
            except ConnectionError as error:
                raise ConfigError(
                    "executor='ray' finds no Ray cluster: start one with `ray start --head`, set RAY_ADDRESS to one "
                    "that runs, or call ray.init() for one on this machine."
                ) from error
        connection = _connection()
        if _pool is None or _pool.connection != connection:
            _pool = RayPool(connection)
        return _pool


def _connection() -> tuple[str, str]:
    """What no other connection has: job numbers begin at 1 in every cluster, and one of this program may end."""
    context = ray.get_runtime_context()
    return context.get_job_id(), context.get_node_id()
