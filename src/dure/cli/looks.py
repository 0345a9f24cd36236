"""`dure compare`, `dure report`, `dure list`: looking at runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from dure.cli.terminal import guarded, out
from dure.errors import ConfigError, RunError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dure.report.personal import Served
    from dure.run import Run

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Open = Annotated[bool, typer.Option("--open/--no-open", help="Show it in the web browser.")]


Output = Annotated[Path | None, typer.Option("--output", "-o", help="The file; by default RUN/report.html.")]


def report(
    run: Annotated[Path, typer.Argument(help="The directory of a run.")],
    output: Output = None,
    open_: Open = False,
) -> None:
    """Write a run's report, one HTML file."""
    with guarded():
        from dure.run import Run

        path = Run.open(run).report(output)
        out.print(str(path), markup=False, soft_wrap=True)
        _show(path, open_)


def list_runs(
    directory: Annotated[Path, typer.Argument(help="Where to look, three levels down.")] = Path("runs"),
    json_: Json = False,
) -> None:
    """List the runs in a directory."""
    with guarded():
        from dure.report import words
        from dure.run import find_runs

        if not directory.is_dir():
            raise RunError(f"There is no directory {directory}. Say where the runs are: dure list DIR.")
        runs = find_runs(directory)
        rows = [_line(run) for run in runs]
        if json_:
            typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
            return
        if not rows:
            out.print(f"No runs in {directory}.", markup=False, soft_wrap=True)
            return
        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("run", "study", "seed", "state", "round", "result", "uplink"):
            right = head in ("seed", "round", "uplink")
            table.add_column(head, justify="right" if right else "left", overflow="fold")
        for row in rows:
            key = row["metric"]
            result = f"{words.label(key)} {words.metric(key, row['value'])}" if key else words.DASH
            where = [row["run"], row["study"], _text(row["seed"])]
            far = [row["state"], f"{row['round']}/{row['rounds']}"]
            table.add_row(*where, *far, result, words.bytes_(row["uplink_bytes"]))
        out.print(table)


def _line(run: "Run") -> dict[str, Any]:
    from dure.report import words

    status, key = run.status, words.headline_metric([run])
    return {
        "run": str(run.directory),
        "study": run.name,
        "seed": run.config.get("seed"),
        "state": status["state"],
        "round": status["round"],
        "rounds": status["rounds"],
        "metric": key,
        "value": run.final[key] if key else None,
        "uplink_bytes": words.uplink(run),
    }


Runs = Annotated[list[Path], typer.Argument(help="Runs, or directories of runs; seeds go together.")]
Target = Annotated[float | None, typer.Option(help="Count rounds, bytes and time until this is reached.")]
Metric = Annotated[str | None, typer.Option(help="What to compare, such as test_accuracy or test_loss.")]
Picture = Annotated[
    Path, typer.Option("--output", "-o", help=".html, .png, .svg or .pdf; without: both html and png.")
]


def compare(
    runs: Runs,
    target: Target = None,
    metric: Metric = None,
    output: Picture = Path("compare"),
    json_: Json = False,
    open_: Open = False,
) -> None:
    """Overlay runs: curves over uplink bytes and rounds, mean and 95 % band over seeds, cost to a target."""
    with guarded():
        from dure.report import hostile, html, personal, words
        from dure.report.curves import group_by_study, to_target

        opened = _opened(runs)
        key = _metric(opened, metric)
        groups = group_by_study(opened)
        aim = target if target is not None else float("nan")
        reached = [to_target(label, members, key, aim) for label, members in groups.items()]
        paths = _save(groups, key, reached, target, output)
        own = personal.metric_of(opened)
        served = {} if own is None else personal.served(groups, own)
        if json_:
            rows = [dict(vars(row)) for row in reached]
            for line in rows if served else []:
                line["personal"] = vars(served[line["label"]])
            for line in rows:
                first = groups[line["label"]][0]
                line |= {"rule": words.rule_of(first) or None, "attack": words.attack_of(first) or None}
            typer.echo(
                json.dumps({"metric": key, "target": target, "studies": rows}, indent=2, ensure_ascii=False)
            )
        else:
            table = Table(box=None, pad_edge=False, header_style="bold")
            for i, head in enumerate(html.reached_head(key, target is not None)):
                table.add_column(head, justify="left" if i == 0 else "right")
            for row in reached:
                table.add_row(*html.reached_cells(key, row, target is not None))
            out.print(table)
            if own is not None:
                out.print()
                out.print(_personal(served, own))
            if hostile.are_there(groups):
                out.print()
                out.print(_hostile(groups))
            out.print("  ".join(map(str, paths)), markup=False, soft_wrap=True)
        _show(paths[0], open_)


def _personal(served: "Mapping[str, Served]", metric: str) -> Table:
    """How well clients are served by the global model and by their own."""
    from dure.report import personal

    gain = any(row.gain is not None for row in served.values())
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, head in enumerate(personal.head(gain)):
        table.add_column(head, justify="left" if i == 0 else "right")
    for label, row in served.items():
        table.add_row(*personal.cells(label, row, metric, gain))
    return table


def _hostile(groups: "Mapping[str, list[Run]]") -> Table:
    """The rules and the attacks, and how the ones held against the others."""
    from dure.report import hostile

    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, head in enumerate(hostile.head()):
        table.add_column(head, justify="left" if i < 3 else "right")
    for label, runs in groups.items():
        table.add_row(*hostile.cells(label, runs))
    return table


def _opened(paths: list[Path]) -> list["Run"]:
    from dure.run import find_runs

    opened = []
    for path in paths:
        found = find_runs(path) if path.is_dir() else []
        if not found:
            raise RunError(f"There is no run in {path}.")
        opened += found
    return opened


def _metric(runs: list["Run"], metric: str | None) -> str:
    from dure.report import words

    known = sorted({k for run in runs for k, v in run.final.items() if isinstance(v, float)})
    if metric is None:
        found = words.headline_metric(runs)
        if found is None:
            raise RunError("These runs have recorded nothing in common. Choose one with --metric.")
        return found
    if metric not in known:
        raise ConfigError(f"--metric {metric}: the runs have no such value. {did_you_mean(metric, known)}")
    return metric


def _save(groups: Any, key: str, reached: Any, target: float | None, output: Path) -> list[Path]:
    from dure.report import curves, html
    from dure.run.layout import io_error, write_atomic

    suffixes = [output.suffix] if output.suffix else [".html", ".png"]
    paths = [output.with_suffix(suffix) for suffix in suffixes]
    for path in paths:
        if path.suffix == ".html":
            write_atomic(path, html.compare_html(groups, key, reached, target).encode())
        elif path.suffix in (".png", ".svg", ".pdf"):
            try:
                curves.figure(groups, key, target).savefig(path, dpi=150)
            except OSError as error:
                raise io_error("write", path, error) from error
        else:
            raise ConfigError(f"--output {output}: a picture ends in .html, .png, .svg or .pdf.")
    return paths


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _show(path: Path, wanted: bool) -> None:
    if wanted:
        import webbrowser

        webbrowser.open(path.resolve().as_uri())
