"""The report: one HTML file that needs nothing else, about one run or about several side by side."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dure.errors import RunError
from dure.report import hostile, personal, population, sections, words
from dure.report.curves import Curve, Reached, curve
from dure.report.svg import Axis, Line, line_chart

if TYPE_CHECKING:
    from dure.run import Run

TONES = tuple(f"var(--c{i})" for i in range(1, 9))


def write_report(run: "Run", path: str | os.PathLike[str] | None = None) -> Path:
    """Write a run's report.

    Args:
        run: complete or not; a run in progress gets the report of what is there.
        path: the file; by default RUN/report.html.

    Raises:
        RunError: the file can't be written, or a run in memory gets no path.
    """
    from dure.run import layout

    if path is None and run.directory is None:
        raise RunError("This run is in memory: say where the report goes, as in run.report('report.html').")
    target = Path(path) if path is not None else Path(run.directory or ".") / layout.REPORT
    layout.write_atomic(target, report_html(run).encode())
    return target


def report_html(run: "Run") -> str:
    """The report's text."""
    status = run.status
    head = (
        f'<header><h1>{escape(run.name)}</h1><p class="kicker">{escape(_kicker(run))}</p>'
        f'<span class="state {escape(status["state"])}">{escape(words.state_sentence(run))}</span></header>'
    )
    how = "Each point is an evaluation of the server’s model. Point at a chart for its values."
    parts = [
        head,
        sections.tiles(run),
        sections.section(
            "Learning", how, sections.learning_curves(run) + sections.round_table(run) if run.rounds else ""
        ),
        sections.section(
            "How well each client is served",
            "Accuracy on each client’s own test examples, after the last round: of the final model"
            + (" and of the client’s own." if personal.metric_of([run]) else "."),
            population.accuracy_picture(run),
        ),
        sections.section("Hostile clients", hostile.lead(run), hostile.body(run)),
        sections.section("What the clients have", _data_sentence(run.data), population.class_picture(run)),
        sections.section(
            "Trouble", "Clients that hold a round up, and updates that were left out.", sections.trouble(run)
        ),
        sections.section("Method", _objective(run), _citations(run)),
        sections.section(
            "To repeat this run",
            sections.how_to_repeat(run),
            f'<div class="grid2">{sections.settings("Configuration", sections.experiment(run))}'
            f"{sections.settings('Environment', run.environment)}</div>",
        ),
    ]
    return page(run.name, "".join(parts), run.environment)


def compare_html(
    groups: Mapping[str, Sequence["Run"]], key: str, reached: Sequence[Reached], target: words.Number | None
) -> str:
    """Several studies on one page: curves with confidence bands, and the table to a target."""
    curves = {label: curve(runs, key) for label, runs in groups.items()}
    kind = "percent" if words.is_share(key) else "number"
    title = words.label(key).capitalize()
    charts = [
        line_chart(f"{title} against uplink bytes", _bands(curves, "bytes"), Axis("uplink bytes", "bytes"),
                   Axis("", kind), target=target),
        line_chart(f"{title} against rounds", _bands(curves, "rounds"), Axis("round", "count"),
                   Axis("", kind), target=target),
    ]  # fmt: skip
    rows = [reached_cells(key, row, target is not None) for row in reached]
    aim = "No target was given (--target): final values only."
    if target is not None:
        goal = f"{words.label(key)} reaches {words.metric(key, target)}"
        aim = f"Until {goal}; medians over the seeds that got there."
    how = "Means over the seeds; bands are 95 % confidence intervals of the mean (Student’s t)."
    cost = sections.table(reached_head(key, target is not None), rows)
    body = (
        f'<header><h1>Comparison</h1><p class="kicker">{escape(", ".join(groups))}</p></header>'
        + sections.section("Curves", how, f'<div class="grid2">{"".join(charts)}</div>')
        + sections.section("Cost", aim, f'<div class="card">{cost}</div>')
        + sections.section("Personal models", _PERSONAL, _served(groups))
        + sections.section("Hostile clients", _HOSTILE, _defended(groups))
    )
    return page("Comparison", body, next(iter(groups.values()))[0].environment)


def reached_head(key: str, target: bool) -> list[str]:
    """Column titles that go with `reached_cells`."""
    cost = ["reached", "rounds", "uplink", "time"] if target else []
    return ["study", f"final {words.label(key)}", *cost]


def reached_cells(key: str, row: Reached, target: bool) -> list[str]:
    """One study's line in the table to a target, in words."""
    final = words.metric(key, row.final)
    if row.seeds > 1:
        final += f" ± {words.metric(key, row.half_width)}"
    if not target:
        return [row.label, final]
    clock = "" if row.seconds is None or row.clock == "simulated" else " (host)"
    rounds = words.DASH if row.rounds is None else words.number(row.rounds)
    time = words.seconds(row.seconds) + clock
    return [row.label, final, f"{row.reached} of {row.seeds}", rounds, words.bytes_(row.bytes), time]


def page(title: str, body: str, environment: Mapping[str, Any]) -> str:
    """A whole HTML document with style and script inside."""
    version = environment.get("packages", {}).get("dure", "")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head>"
        f"<body><main>{body}<footer>Written by dure {escape(str(version))}. "
        "Bytes are the lengths of encoded messages; 1 MB = 10⁶ bytes.</footer></main>"
        f"<script>{_asset('page.js')}</script></body></html>\n"
    )


def notebook_card(run: "Run") -> str:
    """What a notebook shows for a run: the headline numbers in a small table without a style of its own."""
    key = words.headline_metric([run])
    rows = [("state", words.state_sentence(run))]
    if key:
        rows.append((words.label(key), words.metric(key, float(run.final[key]))))
    if words.rule_of(run):
        rows.append(("rule", words.rule_of(run)))
    if words.attack_of(run):
        rows.append(("attack", words.attack_of(run)))
    rows.append(("uplink", words.bytes_(words.uplink(run))))
    spent = words.wall_seconds(run)
    if spent is not None:
        rows.append(("time on the host", words.seconds(spent)))
    if run.directory is not None:
        rows.append(("directory", str(run.directory)))
    body = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in rows)
    heading = escape(f"{run.name}: {words.title_of(run)}".rstrip(": "))
    return f"<table><caption>{heading}</caption><tbody>{body}</tbody></table>"


# --- parts -----------------------------------------------------------------------------------------------


@cache
def _asset(name: str) -> str:
    return files("dure.report").joinpath(name).read_text(encoding="utf-8")


def _kicker(run: "Run") -> str:
    parts = [words.title_of(run)]
    if run.config.get("seed") is not None:
        parts.append(f"seed {run.config['seed']}")
    return " · ".join(part for part in parts if part)


def _data_sentence(data: Mapping[str, Any]) -> str:
    if not data:
        return ""
    clients = words.plural(int(data["clients"]), "client")
    text = f"{words.plural(int(data['examples']), 'training example')} at {clients}"
    if data.get("test_examples"):
        text += f", {words.plural(int(data['test_examples']), 'test example')}"
    sizes = sorted(data.get("sizes") or [])
    if sizes:
        spread = f"{sizes[0]:,} to {sizes[-1]:,} examples (median {sizes[len(sizes) // 2]:,})"
        spread = f"{sizes[0]:,} examples" if sizes[0] == sizes[-1] else spread
        text += f"; a client has {spread}"
    source = f" Source: {data['source']}." if data.get("source") else ""
    licence = f" Licence: {data['licence']}." if data.get("licence") else ""
    return text + "." + source + licence


def _objective(run: "Run") -> str:
    goal = run.config.get("objective")
    return f"Objective: {goal}." if goal else "Please cite what you use."


def _citations(run: "Run") -> str:
    found = [
        ("Algorithm", str(run.config.get("citation") or "")),
        ("Data", str(run.data.get("citation") or "")),
    ]
    text = "".join(f"<dt>{what}</dt><dd>{escape(cited)}</dd>" for what, cited in found if cited)
    return f'<div class="card"><dl>{text}</dl></div>' if text else ""


_PERSONAL = (
    "After the last round, on each client’s own test examples: the global model, and the models that clients use. "
    "What counts is the gain over training alone: compare with a study of LocalOnly."
)


def _served(groups: Mapping[str, Sequence["Run"]]) -> str:
    metric = personal.metric_of(run for runs in groups.values() for run in runs)
    if metric is None:
        return ""
    found = personal.served(groups, metric)
    gain = any(row.gain is not None for row in found.values())
    rows = [personal.cells(label, row, metric, gain) for label, row in found.items()]
    return f'<div class="card">{sections.table(personal.head(gain), rows)}</div>'


_HOSTILE = (
    "κ is the squared distance of the aggregate from the honest updates’ mean, over their variance: measured in every "
    "round, as far as an attack was simulated. Means over rounds and seeds."
)


def _defended(groups: Mapping[str, Sequence["Run"]]) -> str:
    if not hostile.are_there(groups):
        return ""
    rows = [hostile.cells(label, runs) for label, runs in groups.items()]
    return f'<div class="card">{sections.table(hostile.head(), rows, frozenset({1, 2}))}</div>'


def _bands(curves: Mapping[str, Curve], x: str) -> list[Line]:
    lines = []
    for i, (label, line) in enumerate(curves.items()):
        text = label if line.seeds < 2 else f"{label} ({line.seeds} seeds)"
        band = (line.low.tolist(), line.high.tolist()) if line.seeds > 1 else (None, None)
        xs = (line.bytes if x == "bytes" else line.rounds).tolist()
        lines.append(Line(text, xs, line.mean.tolist(), TONES[i % len(TONES)], *band))
    return lines
