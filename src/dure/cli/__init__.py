"""The command line, `dure`. Heavy imports wait inside the commands, so that `dure --help` answers at once."""

import signal
from types import FrameType

from dure.cli.app import app


def main() -> None:
    """Entry point of the `dure` command.

    Exit codes: 0 done · 1 the run failed · 2 wrong configuration, data or arguments · 130 stopped by Ctrl-C or
    by SIGTERM, which leaves a run that can be resumed too.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    app()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


__all__ = ["app", "main"]
