"""How a run shows that it's alive: a live line on a terminal, plain lines elsewhere, nothing when quiet."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dure.report import words

NOTES = 3  # rounds with rejected updates that are mentioned while they happen
LINES = 20  # about so many plain lines a run, whatever its length


def facts(values: Mapping[str, Any]) -> str:
    """A record's most telling values: accuracy (or the loss), uplink bytes."""
    parts = []
    for key in ("test_accuracy", "client_accuracy_mean", "test_loss", "train_loss"):
        if values.get(key) is not None:
            parts.append(f"{words.label(key)} {words.metric(key, float(values[key]))}")
            break
    parts.append(f"uplink {words.bytes_(float(values.get('cumulative_uplink_bytes') or 0))}")
    return "  ".join(parts)


class Live:
    """Follows a run round by round; call it with each round's record.

    Args:
        console: where; live on a terminal, else plain lines.
        name: of the run.
        rounds: how many there will be.
        done: rounds that are there already, when a run is resumed.
        quiet: show nothing.
    """

    def __init__(self, console: Console, name: str, rounds: int, *, done: int = 0, quiet: bool = False):
        self._console, self._name, self._rounds, self._quiet = console, name, rounds, quiet
        self._known: dict[str, Any] = {}
        self._noted = 0
        self._every = -(-rounds // LINES)
        self._begun, self._done, self._warm = time.monotonic(), done, False
        self._bar: Progress | None = None
        if console.is_terminal and not quiet:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=24 if console.width >= 100 else 8),
                MofNCompleteColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(compact=True),
                console=console,
            )
            # TOML names may hold brackets, which rich would read as styles.
            self._task = self._bar.add_task(
                name.replace("[", r"\["), total=rounds, completed=done, facts="compiling"
            )

    def __enter__(self) -> "Live":
        """Show the bar, if there is one."""
        if self._bar is not None:
            self._bar.start()
        elif not self._quiet:
            self._console.print(f"{self._name}: {words.plural(self._rounds, 'round')}", markup=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        """Leave the last state of the bar on the screen."""
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, record: Mapping[str, Any]) -> None:
        """One round is done."""
        self._known.update({key: value for key, value in record.items() if value is not None})
        number = int(record["round"])
        if self._done < number and not self._warm:  # the first round compiles: no measure for the others
            self._warm, self._begun, self._done = True, time.monotonic(), number
        if self._bar is not None:
            self._bar.update(self._task, completed=number, facts=facts(self._known))
        elif not self._quiet and (number % self._every == 0 or number == self._rounds):
            place = f"{number:>{len(str(self._rounds))}}/{self._rounds}"
            line = f"  round {place}  {facts(self._known)}{self._left(number)}"
            self._console.print(line, markup=False, soft_wrap=True)
        rejected = int(record.get("rejected") or 0)
        if rejected and not self._quiet and self._noted < NOTES:
            self._noted += 1
            note = f"  round {number}: {words.plural(rejected, 'update')} set aside (see participation.jsonl)"
            more = ", and so on" if self._noted == NOTES else ""
            self._console.print(note + more, markup=False, soft_wrap=True)

    def _left(self, number: int) -> str:
        if not self._done < number < self._rounds:
            return ""
        each = (time.monotonic() - self._begun) / (number - self._done)
        return f"  {words.seconds(each * (self._rounds - number))} left"
