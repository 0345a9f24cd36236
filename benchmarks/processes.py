"""CPU time and memory of a tree of processes, read from /proc.

A contestant may start workers that outlive the call that made them (Ray's do, and they leave the process
group), so its processes are recognised by an environment variable that they inherit. Without /proc only
this process and its finished children count.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from pathlib import Path

MARK = "DURE_BENCHMARK"
PROC = Path("/proc")


def marked(token: str) -> list[int]:
    """Ids of the processes whose environment has MARK=token."""
    needle, found = f"{MARK}={token}".encode(), []
    if not PROC.joinpath("self/environ").exists():
        return []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def mine() -> list[int]:
    """This contestant's processes, this one first."""
    others = [pid for pid in marked(os.environ.get(MARK, "")) if pid != os.getpid()]
    return [os.getpid(), *others]


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes and of the children that they have waited for."""
    tick, total = os.sysconf("SC_CLK_TCK"), 0.0
    for pid in pids:
        if pid == os.getpid():
            for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
                usage = resource.getrusage(who)
                total += usage.ru_utime + usage.ru_stime
            continue
        with contextlib.suppress(OSError):
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            total += sum(int(field) for field in fields[11:15]) / tick
    return total


def peak_bytes() -> int:
    """This process's own peak resident set.

    Not ru_maxrss where it can be helped: a process that was started by a large one inherits that one's peak.
    """
    with contextlib.suppress(OSError):
        for line in PROC.joinpath("self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes(pids: list[int]) -> int:
    """What these processes hold together now; a page shared by several counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def end(token: str) -> None:
    """End the processes marked with this token, and no others."""
    for pid in marked(token):
        if pid != os.getpid():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
