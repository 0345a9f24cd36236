"""What the benchmark commands share: where they ran, how they were called, and their tables."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

FILES = ("--json", "--markdown")


def console() -> Console:
    """Wide enough for the tables where the output isn't a terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=170)


def command() -> str:
    """How this benchmark was called, without the files that it writes."""
    words, rest = [f"python benchmarks/{Path(sys.argv[0]).name}"], iter(sys.argv[1:])
    for word in rest:
        if word in FILES:
            next(rest, None)
        elif not word.startswith(tuple(f"{option}=" for option in FILES)):
            words.append(word)
    return " ".join(words)


def machine() -> dict[str, Any]:
    """The kind of machine, without its name."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text().splitlines()
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def about(load_before: float) -> str:
    """One line on where and how, for the head of a saved table."""
    m = machine()
    return (
        f"{m['processor']}, {m['cores']} cores, Python {m['python']}; load average before {load_before:.2f}, "
        f"after {os.getloadavg()[0]:.2f}. Command: `{command()}`."
    )


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)
