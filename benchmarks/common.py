"""What the benchmark commands share: where they ran, how they were called, their tables and their pictures."""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FILES = ("--json", "--markdown", "--picture")
# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
Named = tuple[str, Sequence[str], Sequence[Sequence[str]]]  # title, head, rows


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


def files(parser: argparse.ArgumentParser, *, picture: bool = False) -> None:
    """The options that save what was printed."""
    for option in FILES if picture else FILES[:2]:
        parser.add_argument(option, type=Path, metavar="FILE")


def show(console: Console, tables: Sequence[Named]) -> None:
    """Print tables; the first column is text, the others are numbers."""
    for title, head, rows in tables:
        table = Table(title=title)
        for i, name in enumerate(head):
            table.add_column(name, justify="right" if i else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)


def save(
    asked: argparse.Namespace,
    about: str,
    tables: Sequence[Named],
    report: dict[str, Any],
    picture: "Figure | None" = None,
) -> None:
    """Write the files that were asked for."""
    if asked.json:
        asked.json.write_text(json.dumps({"about": about, **report}, indent=1))
    if asked.markdown:
        parts = [f"{title}\n\n{markdown_table(head, rows)}" for title, head, rows in tables]
        asked.markdown.write_text("\n\n".join([about, *parts]) + "\n")
    if picture is not None and asked.picture:
        draw(picture, asked.picture)


def draw(picture: "Figure", path: Path) -> None:
    """A small PNG: 64 colours are enough for lines."""
    from PIL import Image

    raw = io.BytesIO()
    picture.savefig(raw, dpi=100)
    Image.open(raw).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(path, "PNG", optimize=True)
