"""The worker processes of this program: one per core, one thread each, started when first needed."""

import atexit
import os
import queue
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import numpy as np

from dure.errors import ConfigError, RunError, sentence
from dure.oracles.host import channel
from dure.oracles.host.channel import Arena

#: A question that killed so many workers is given up.
TRIES = 2


class Worker:
    """One process and the memory shared with it."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "dure.oracles.host.worker", str(there.fileno())],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **one},
        )
        there.close()
        self._socket, self._memory = here, Arena()
        self._knows, self._jobs = set[int](), dict[Any, int]()
        self._memory.reserve(1 << 20)
        channel.send(here, ("path", [os.path.abspath(path) for path in sys.path]))
        channel.send(here, ("memory",))
        socket.send_fds(here, [b"."], [self._memory.file])

    def ask(
        self, host: Any, job: Any, given: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
    ) -> Any:
        """See `Pool.ask`.

        Raises:
            EOFError, ConnectionError: the process has died.
        """
        self.introduce(host)
        if job not in self._jobs:
            content = cloudpickle.dumps(job)
            self._jobs[job] = len(self._jobs)
            channel.send(self._socket, ("job", self._jobs[job], content))
        places, stop = channel.lay_out(given, 0)
        results, stop = channel.lay_out(wanted, stop)
        self._memory.reserve(stop)
        for name, place in places.items():
            self._memory.array(place)[...] = given[name]
        channel.send(self._socket, ("ask", host.number, self._jobs[job], places, results, self._memory.size))
        failures = channel.receive(self._socket)
        for name, place in results.items():
            wanted[name][...] = self._memory.array(place)
        return failures

    def introduce(self, host: Any, content: bytes | None = None) -> None:
        """Let the process get to know a host, once; `content` is what `pickled` makes of it."""
        if host.number in self._knows:
            return
        for number in self._knows & _forgotten:
            self.forget(number)
        content = content or pickled(host)
        places, size, columns = host.shared_columns()
        channel.send(self._socket, ("host", host.number, content, places, size))
        if places is not None:
            socket.send_fds(self._socket, [b"."], [columns.file])
        self._knows.add(host.number)

    def forget(self, number: int) -> None:
        """The host is not needed any more."""
        if number in self._knows:
            self._knows.discard(number)
            channel.send(self._socket, ("forget", number))

    def close(self) -> int:
        """End the process; returns its exit status, negative for a signal."""
        self._socket.close()
        try:
            return self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


class Pool:
    """Workers that any thread may ask; a question waits for a free one."""

    def __init__(self, size: int):
        self.size = size
        self._closing = False
        self._living: set[Worker] = set()
        self._free: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._free.put(None)  # started when first needed

    def ask(
        self, host: Any, job: Any, given: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]
    ) -> Any:
        """See `Workers`."""
        died = []
        for _ in range(TRIES):
            if self._closing:
                raise RunError("The program is ending: the worker processes are gone.")
            worker = self._free.get()
            try:
                worker = worker or self._new()
                failures = worker.ask(host, job, given, wanted)
                self._free.put(worker)
                return failures
            except (EOFError, ConnectionError):
                died.append(self._gone(worker))
            except BaseException:
                # Interrupted between question and answer: its answer would be taken for the next question's.
                if worker is not None:
                    worker.process.kill()
                self._gone(worker)
                raise
        how = ", ".join(f"signal {-status}" if status < 0 else f"exit status {status}" for status in died)
        raise RunError(
            f"{len(died)} worker processes died over the same question ({how}). Out of memory, or a crash in native "
            "code: try eager=True, which asks in this process, or fewer devices."
        )

    def prepare(self, host: Any, count: int) -> None:
        """See `Workers`: starts so many workers, without waiting for them."""
        content = pickled(host)
        for i, worker in enumerate(self._all()):
            if i >= count:
                self._free.put(worker)
                continue
            try:
                worker = worker or self._new()
                worker.introduce(host, content)
                self._free.put(worker)
            except (EOFError, ConnectionError):
                self._gone(worker)

    def processes(self) -> list[int]:
        """Process numbers of the workers that are free now."""
        workers = self._all()
        for worker in workers:
            self._free.put(worker)
        return [worker.process.pid for worker in workers if worker is not None]

    def _new(self) -> Worker:
        worker = Worker()
        self._living.add(worker)
        return worker

    def _gone(self, worker: Worker | None) -> int:
        """Close a worker that doesn't answer; its place is free for another."""
        self._free.put(None)
        if worker is None:
            return 0
        self._living.discard(worker)
        return worker.close()

    def _all(self) -> list[Worker | None]:
        """The free workers, taken out."""
        taken = []
        try:
            while True:
                taken.append(self._free.get_nowait())
        except queue.Empty:
            return taken

    def close(self) -> None:
        """End all workers, also those that are at work."""
        self._closing = True
        while self._living:
            worker = self._living.pop()
            worker.process.kill()
            worker.close()


def pickled(host: Any) -> bytes:
    """A host on its way to another process.

    Raises:
        ConfigError: something in it can't be sent.
    """
    try:
        content: bytes = cloudpickle.dumps(host)
    except Exception as error:
        raise ConfigError(
            f"The model can't be sent to worker processes: {sentence(f'{type(error).__name__}: {error}')} eager=True "
            "trains it in this process."
        ) from error
    return content


def forget_with(host: Any) -> None:
    """Let workers forget a host when nothing in this program refers to it any more."""
    weakref.finalize(host, _forgotten.add, host.number)


_forgotten: set[int] = set()
_pool: Pool | None = None
_lock = threading.Lock()


def pool() -> Pool:
    """The workers of this program."""
    global _pool
    with _lock:
        if _pool is None:
            from dure.devices import cores

            _pool = Pool(cores())
            atexit.register(_pool.close)
        return _pool
