"""`dure run` and `dure resume`, and the table of all commands."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dure.cli import advise, catalogues, defences, looks, new
from dure.cli.terminal import STOPPED, complain, err, guarded, out
from dure.errors import ConfigError, DureError

if TYPE_CHECKING:
    from dure.config import Study
    from dure.run import Run

app = typer.Typer(
    name="dure",
    help="Federated learning: simulate, compare, report.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value, as in clients.fraction=0.1."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


def _version(wanted: bool | None) -> None:
    if wanted:
        from importlib.metadata import version

        out.print(f"dure {version('dure')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool | None, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = None,
) -> None:
    """Federated learning: simulate, compare, report."""


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="A TOML file (see `dure new`), or the config.json of a run.")],
    set_: Set = None,
    seeds: Annotated[int, typer.Option(min=1, help="Repeat with this many seeds, one run each.")] = 1,
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="Where to write; by default a new one in runs/.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Train what a file says, and write a run with its report."""
    with guarded():
        from dure import config

        plan = config.load(file, set_ or [])
        if directory is not None:
            plan = plan.model_copy(update={"directory": str(directory)})
        root = Path(plan.directory) if plan.directory else _free(Path("runs") / _slug(plan.name))
        for k in range(seeds):
            seeded = plan.model_copy(update={"seed": plan.seed + k})
            where = root if seeds == 1 else root / f"seed-{seeded.seed}"
            _train(seeded, where, str(file), quiet)
        if seeds > 1 and not quiet:
            out.print(f"Compare: dure compare {root}", markup=False, soft_wrap=True)


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The directory of a run that was stopped.")],
    quiet: Quiet = False,
) -> None:
    """Continue a run that was stopped, to the same end as if it hadn't been."""
    with guarded():
        from dure.run import Run

        opened = Run.open(run)
        if opened.state == "complete":
            if not quiet:
                out.print(f"{run} is complete already.", markup=False, soft_wrap=True)
            return
        from dure.config.build import rebuild
        from dure.simulation import simulate

        built = rebuild(opened.config)
        # The bits depend on the number of devices, so the run keeps the number that it began with.
        built.keywords["devices"] = opened.config["schedule"]["devices"]
        done = int(opened.status.get("round") or 0)
        finished = _watched(
            opened.name, int(built.keywords["rounds"]), run, quiet, done,
            lambda watch: simulate(
                built.algorithm, built.task, built.data, directory=run, resume=True,
                experiment=built.config, on_round=watch, **built.keywords,
            ),
        )  # fmt: skip
        _finish(finished, quiet)


def _train(plan: "Study", where: Path, source: str, quiet: bool) -> None:
    from dure.config import build
    from dure.simulation import simulate

    built = build(plan, source)
    for note in [] if quiet else built.notes:
        err.print(f"note: {note}", markup=False)
    finished = _watched(
        f"{plan.name} (seed {plan.seed})", plan.rounds, where, quiet, 0,
        lambda watch: simulate(
            built.algorithm, built.task, built.data,
            directory=where, experiment=built.config, on_round=watch, **built.keywords,
        ),
    )  # fmt: skip
    _finish(finished, quiet)


def _watched(name: str, rounds: int, where: Path, quiet: bool, done: int, work: Any) -> "Run":
    """Do the work under a progress display; on Ctrl-C or an error say how to go on.

    Raises:
        typer.Exit: stopped or failed.
    """
    from dure.cli.progress import Live

    try:
        with Live(out, name, rounds, done=done, quiet=quiet) as watch:
            finished: Run = work(watch)
            return finished
    except KeyboardInterrupt:
        err.print(f"Stopped. Go on with: dure resume {where}", markup=False)
        raise typer.Exit(STOPPED) from None
    except ConfigError:
        raise
    except DureError as error:
        code = complain(error)
        if (where / "checkpoint").exists():
            err.print(f"What was saved is intact. Go on with: dure resume {where}", markup=False)
        raise typer.Exit(code) from None


def _finish(finished: "Run", quiet: bool) -> None:
    report = finished.report()
    if not quiet:
        out.print(finished.summary(), markup=False, soft_wrap=True)
        out.print(f"  report: {report}", markup=False, soft_wrap=True)


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "_." else "-" for c in name)
    return re.sub("-{2,}", "-", kept).strip("-.") or "run"


def _free(path: Path) -> Path:
    """The path, or path-2, path-3, … if there's something already."""
    count, free = 1, path
    while free.exists():
        count += 1
        free = path.with_name(f"{path.name}-{count}")
    return free


app.command()(looks.compare)
app.command()(looks.report)
app.command("list")(looks.list_runs)
app.command()(new.new)
app.command()(catalogues.data)
app.command()(catalogues.algorithms)
app.command()(defences.aggregators)
app.command()(defences.attacks)
app.command()(advise.advise)
