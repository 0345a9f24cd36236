"""A worker process: answers questions about clients' local problems until its socket closes.

Started as `python -m dure.oracles.host.worker DESCRIPTOR`, so that nothing of the caller's program runs again.
"""

import contextlib
import pickle
import signal
import socket
import sys
import traceback
from typing import Any

import numpy as np

from dure.oracles.host import channel
from dure.oracles.host.channel import Arena


def serve(peer: socket.socket) -> None:
    """Answer until the peer is gone."""
    memory: Arena | None = None
    hosts: dict[int, Any] = {}
    jobs: dict[int, Any] = {}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            kind, *message = channel.receive(peer)
            if kind == "path":  # what the caller can import must be importable here
                sys.path[:] = message[0]
            elif kind == "memory":
                memory = Arena(socket.recv_fds(peer, 1, 1)[1][0])
            elif kind == "host":
                number, content, places, size = message
                columns = None if places is None else Arena(socket.recv_fds(peer, 1, 1)[1][0])
                hosts[number] = host = load(content)
                if columns is not None and not isinstance(host, Unreadable):
                    columns.follow(size)
                    host.bind({name: columns.array(place) for name, place in places.items()})
            elif kind == "job":
                jobs[message[0]] = load(message[1])
            elif kind == "forget":
                hosts.pop(message[0], None)
            else:
                assert memory is not None
                number, job, given, wanted, size = message
                memory.follow(size)
                arguments = {name: memory.array(place) for name, place in given.items()}
                results = {name: memory.array(place) for name, place in wanted.items()}
                channel.send(peer, answer(hosts[number], jobs[job], arguments, results))


class Unreadable:
    """Stands for what could not be unpickled: whoever asks about it gets the error."""

    def __init__(self, error: Exception):
        self._error = error

    def answer(self, *_: Any) -> list[Any]:
        """Raises what was raised."""
        raise self._error


def load(content: bytes) -> Any:
    """What was pickled; `Unreadable` where that fails."""
    try:
        return pickle.loads(content)
    except Exception as error:
        return Unreadable(error)


def answer(
    host: Any, job: Any, arguments: dict[str, np.ndarray], results: dict[str, np.ndarray]
) -> list[Any]:
    """Ask the host; what it says goes into `results`. Returns what failed: (row, message, traceback).

    Results of what failed are NaN (integers 0); row −1 stands for all.
    """
    try:
        if isinstance(job, Unreadable):
            host = job
        return list(host.answer(job, arguments, results))
    except Exception as error:
        for result in results.values():
            result[...] = np.nan if result.dtype.kind == "f" else 0
        return [failure(-1, error)]


def failure(row: int, error: Exception) -> tuple[int, str, str]:
    """What is told of an error in another process."""
    return row, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's, who closes the socket
    serve(socket.socket(fileno=int(sys.argv[1])))
