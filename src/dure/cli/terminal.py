"""What all commands share: consoles, exit codes, and errors as sentences instead of tracebacks."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from dure.errors import ConfigError, DataError, DureError

FAILED, WRONG, STOPPED = 1, 2, 130

# In a pipe or a file tables aren't squeezed into 80 columns.
out = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def complain(error: DureError) -> int:
    """Print an error to standard error and return its exit code."""
    err.print("[bold red]error:[/] ", end="")
    err.print(str(error), markup=False)
    return WRONG if isinstance(error, ConfigError | DataError) else FAILED


@contextmanager
def guarded() -> Iterator[None]:
    """Turn dure's errors into a sentence and an exit code; others are bugs and keep their traceback.

    Raises:
        typer.Exit: with the code.
    """
    try:
        yield
    except DureError as error:
        raise typer.Exit(complain(error)) from None
    except KeyboardInterrupt:
        err.print("Stopped.")
        raise typer.Exit(STOPPED) from None
