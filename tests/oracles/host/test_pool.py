"""Worker processes: arrays there and back, errors that say where they came from, and death."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dure.errors import ConfigError, RunError
from dure.oracles.host.channel import Arena, lay_out
from dure.oracles.host.pool import Pool


class Doubler:
    """Doubles what it is given; knows columns; can fail and die."""

    def __init__(self, number: int, columns: dict[str, np.ndarray] | None = None):
        self.number, self._columns = number, columns
        self._memory: Any = None

    def shared_columns(self) -> tuple[Any, int, Any]:
        if self._columns is None:
            return None, 0, None
        self._memory = Arena()
        return self._memory.write(self._columns), self._memory.size, self._memory

    def bind(self, columns: dict[str, np.ndarray]) -> None:
        self._columns = columns

    def __getstate__(self) -> dict[str, Any]:
        return {"number": self.number, "_columns": None, "_memory": None}

    def answer(self, job: str, given: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> list[Any]:
        if job == "fail":
            raise ValueError("as told")
        if job == "die" or (job == "die once" and not os.path.exists(str(given["path"].tobytes(), "utf8"))):
            if job == "die once":
                open(str(given["path"].tobytes(), "utf8"), "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if job == "column":
            assert self._columns is not None
            wanted["y"][...] = self._columns["x"].sum()
        elif job == "who":
            wanted["y"][...] = os.getpid()
        elif "x" in given:
            wanted["y"][...] = 2 * given["x"]
        else:
            wanted["y"][...] = 1
        return []


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(1)
    yield made
    made.close()


def ask(pool: Pool, job: str, x: Any = (), host: Doubler | None = None, **given: np.ndarray) -> Any:
    x = np.asarray(x, np.float32)
    y = np.empty_like(x) if x.size else np.empty(1, np.float32)
    if x.size:
        given["x"] = x
    return pool.ask(host or Doubler(1), job, given, {"y": y}), y


def test_arrays_of_any_shape_go_there_and_back(pool: Pool) -> None:
    for shape in ((3,), (2, 3, 4), (700_000,)):  # the last is more than the first memory holds
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        failures, y = ask(pool, "double", x)
        assert failures == []
        np.testing.assert_array_equal(y, 2 * x)


def test_columns_are_seen_in_shared_memory(pool: Pool) -> None:
    host = Doubler(2, {"x": np.arange(10, dtype=np.float32)})
    assert ask(pool, "column", host=host)[1][0] == 45


def test_an_error_comes_back_with_its_traceback(pool: Pool) -> None:
    failures, y = ask(pool, "fail", [1.0])
    ((row, message, trace),) = failures
    assert (row, message) == (-1, "ValueError: as told")
    assert "in answer" in trace
    assert np.isnan(y).all()


def test_a_killed_worker_is_replaced_and_the_question_asked_again(pool: Pool, tmp_path: Any) -> None:
    path = np.frombuffer(bytes(tmp_path / "once"), np.uint8)
    failures, y = ask(pool, "die once", [3.0], path=path)
    assert (failures, y[0]) == ([], 6.0)


def test_a_question_that_kills_its_workers_is_given_up(pool: Pool) -> None:
    with pytest.raises(
        RunError, match=r"2 worker processes died over the same question \(signal 9, signal 9\)"
    ):
        ask(pool, "die")
    assert ask(pool, "double", [1.0])[1][0] == 2  # and the next question finds another worker


def test_an_interrupted_question_leaves_no_answer_for_the_next(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C between question and answer: the late answer must not be taken for another question's."""

    def interrupted(_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dure.oracles.host.channel.receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(pool, "double", [1.0])
    assert ask(pool, "fail", [5.0])[0][0][1] == "ValueError: as told"
    assert ask(pool, "double", [5.0])[1][0] == 10


def test_what_cannot_be_sent_is_refused_and_costs_no_worker(pool: Pool) -> None:
    import threading

    host = Doubler(4)
    host.lock = threading.Lock()  # type: ignore[attr-defined]
    host.__class__ = Unsendable
    with pytest.raises(ConfigError, match=r"can't be sent to worker processes: TypeError.*lock"):
        pool.prepare(host, 1)
    assert ask(pool, "double", [2.0])[1][0] == 4


class Unsendable(Doubler):
    """Sends all that it has."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__


def test_what_cannot_be_read_there_is_an_error_and_no_crash(pool: Pool) -> None:
    class Unreadable(Doubler):
        def __reduce__(self) -> Any:
            return os.listdir, ("/nowhere/at/all",)

    failures, _ = ask(pool, "double", [1.0], host=Unreadable(3))
    assert "FileNotFoundError" in failures[0][1]


def test_workers_end_with_the_pool() -> None:
    pool = Pool(1)
    pid = int(ask(pool, "who")[1][0])
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_places_do_not_overlap_and_are_aligned() -> None:
    arrays = {"a": np.zeros(3, np.int8), "b": np.zeros((2, 5), np.float64), "c": np.zeros((), np.int32)}
    places, stop = lay_out(arrays, 0)
    starts = sorted(p.offset for p in places.values())
    assert all(s % 64 == 0 for s in starts)
    assert stop >= places["c"].offset + 4
    memory = Arena()
    memory.write({"a": np.full(3, 7, np.int8), "b": np.full((2, 5), 0.5), "c": np.int32(9)})
    np.testing.assert_array_equal(memory.array(places["b"]), 0.5)


def test_too_little_shared_memory_is_an_error_and_no_crash() -> None:
    """Writing to pages that can't be had would kill the process: they are had when the memory is made."""
    arena = Arena()
    arena.reserve(1 << 12)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(RunError, match=r"no room for 4 MB .*--shm-size"):
            arena.reserve(1 << 22)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert arena.size == 1 << 12
    arena.array(arena.write({"x": np.arange(3)})["x"])[1] = 7


def test_nothing_is_left_behind(pool: Pool) -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    other = Pool(1)
    ask(other, "double", [1.0])
    assert other.processes()
    other.close()
    time.sleep(0.05)
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert after <= before
