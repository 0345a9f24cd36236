"""`dure new NAME`: a study to edit, as TOML and as Python; both run as they are."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from dure.cli.terminal import guarded, out
from dure.errors import ConfigError


def new(
    name: Annotated[str, typer.Argument(help="Name of the study and of the directory that is made for it.")],
) -> None:
    """Write a commented TOML file and a study.py, to edit."""
    with guarded():
        from dure.run.layout import io_error, write_atomic

        directory = Path(name)
        if not directory.name or '"' in name or "\\" in name or not directory.name.isprintable():
            raise ConfigError(f"{name!r} can't be the name of a study: use letters, digits, - and _.")
        targets = [directory / f"{directory.name}.toml", directory / "study.py"]
        there = [str(path) for path in targets if path.exists()]
        if there:
            raise ConfigError(f"{' and '.join(there)} exist already. Choose another name.")
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise io_error("make", directory, error) from error
        for path, template in zip(targets, ("study.toml", "study.py.txt"), strict=True):
            text = files("dure.cli").joinpath("templates", template).read_text(encoding="utf-8")
            write_atomic(path, text.replace("NAME", directory.name).encode())
        out.print(f"dure run {targets[0]}", markup=False, soft_wrap=True)
        out.print(f"python {targets[1]}", markup=False, soft_wrap=True)
