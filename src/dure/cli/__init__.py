"""The command line, `dure`. Heavy imports wait inside the commands, so that `dure --help` answers at once."""

from dure.cli.app import app


def main() -> None:
    """Entry point of the `dure` command.

    Exit codes: 0 done · 1 the run failed · 2 wrong configuration, data or arguments · 130 stopped by Ctrl-C.
    """
    app()


__all__ = ["app", "main"]
