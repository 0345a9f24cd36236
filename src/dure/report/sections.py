"""The parts of the report, each a function from a run to HTML. A part without data says so or is left out."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dure.report import words
from dure.report.svg import Axis, Line, line_chart

if TYPE_CHECKING:
    from dure.run import Run

TABLE_ROWS = 200


def section(title: str, lead: str, body: str) -> str:
    """A heading, one sentence on how to read what follows, and the body; nothing for an empty body."""
    if not body:
        return ""
    return f'<section><h2>{escape(title)}</h2><p class="lead">{escape(lead)}</p>{body}</section>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], text: frozenset[int] = frozenset()) -> str:
    """A table; columns in `text` are left-aligned and may wrap."""

    def css(column: int) -> str:
        return ' class="text"' if column in text else ""

    heads = "".join(f"<th{css(i)}>{escape(name)}</th>" for i, name in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{css(i)}>{escape(cell)}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def tiles(run: "Run") -> str:
    """The headline numbers."""
    parts = []
    key = words.headline_metric([run])
    if key:
        top = words.best(run, key)
        note = f"best {words.metric(key, top[0], 1)}, round {top[1]:,}" if top else ""
        parts.append(tile(words.label(key), words.metric(key, float(run.final[key])), note, first=True))
    parts.append(
        tile("uplink", words.bytes_(words.uplink(run)), f"downlink {words.bytes_(words.downlink(run))}")
    )
    trained = [record for record in run.rounds if int(record["round"]) > 0]
    rounds = run.status.get("rounds")
    parts.append(tile("rounds", f"{len(trained):,}", f"of {rounds:,}" if rounds else ""))
    if run.data.get("clients"):
        asked = [int(record["clients"]) for record in trained if record.get("clients") is not None]
        note = f"{words.number(sum(asked) / len(asked), 3)} a round" if asked else ""
        parts.append(tile("clients", f"{int(run.data['clients']):,}", note))
    worst = run.final.get("client_accuracy_worst")
    if worst is not None:
        p10 = run.final.get("client_accuracy_p10")
        parts.append(tile("worst client", words.percent(worst), f"10th pct {words.percent(p10, 1)}"))
    own = run.final.get("client_personal_accuracy_mean")
    if own is not None:
        least = run.final.get("client_personal_accuracy_worst")
        parts.append(tile("personal models", words.percent(own), f"worst {words.percent(least, 1)}"))
    spent = words.wall_seconds(run)
    if spent is not None:
        compiled = sum(int(t.get("compilations") or 0) for t in run.timings)
        note = f"host; {words.plural(compiled, 'compilation')}" if compiled else "on the host"
        parts.append(tile("time", words.seconds(spent), note))
    return f'<div class="tiles">{"".join(parts)}</div>'


def tile(name: str, value: str, note: str, first: bool = False) -> str:
    """One number with its name and a few words on it."""
    css = "tile first" if first else "tile"
    return (
        f'<div class="{css}"><div class="name">{escape(name)}</div><div class="value">{escape(value)}</div>'
        f'<div class="note">{escape(note) or "&nbsp;"}</div></div>'
    )


def learning_curves(run: "Run") -> str:
    """Score and loss against uplink bytes (first) and against rounds."""
    key = words.headline_metric([run])
    scores = _score_lines(run, key)
    losses = [
        ("test_loss", "test", "var(--c1)", False),
        ("client_loss_mean", "mean over clients", "var(--c2)", False),
        ("client_personal_loss_mean", "personal models, mean", "var(--c7)", False),
        ("train_loss", "training (clients of the round)", "var(--c8)", True),
    ]
    charts = []
    for x_key, x_label, kind in (
        ("cumulative_uplink_bytes", "uplink bytes", "bytes"),
        ("round", "round", "count"),
    ):
        x = Axis(x_label, kind)
        against = x_label if kind == "bytes" else "rounds"
        if scores:
            y = Axis("", "percent" if words.is_share(scores[0][0]) else "number")
            title = words.label(scores[0][0]).removeprefix("test ").removeprefix("client ")
            title = title.removesuffix(" mean").capitalize()
            charts.append(line_chart(f"{title} against {against}", _lines(run, scores, x_key), x, y))
        charts.append(line_chart(f"Loss against {against}", _lines(run, losses, x_key), x, Axis("")))
    return f'<div class="grid2">{"".join(charts)}</div>'


def _score_lines(run: "Run", key: str | None) -> list[tuple[str, str, str, bool]]:
    lines = []
    if key and not key.endswith("loss") and key != "objective" and key != "client_accuracy_mean":
        lines.append((key, "central test set", "var(--c1)", False))
    if not lines or "accuracy" in lines[0][0]:
        lines += [
            ("client_accuracy_mean", "mean over clients", "var(--c2)", False),
            ("client_accuracy_p10", "10th percentile of clients", "var(--c3)", True),
            ("client_accuracy_worst", "worst client", "var(--c4)", True),
            ("client_personal_accuracy_mean", "personal models, mean", "var(--c7)", False),
            ("client_personal_accuracy_worst", "personal models, worst", "var(--c7)", True),
        ]
    return [line for line in lines if line[0] in run.final]


def _lines(run: "Run", wanted: Sequence[tuple[str, str, str, bool]], x_key: str) -> list[Line]:
    lines = []
    for key, label, tone, thin in wanted:
        x: list[float] = []
        y: list[float] = []
        at, gap = 0.0, False
        for record in run.rounds:
            at = float(record.get(x_key) or (record["round"] if x_key == "round" else at))
            value = record.get(key)
            if value is None:
                # A value that was due but isn't finite is written as null: leave a visible gap for it.
                gap = gap or key in record
                continue
            if gap and y and key == "train_loss":
                x.append(at)
                y.append(math.nan)
            gap = False
            x.append(at)
            y.append(float(value))
        lines.append(Line(label, x, y, tone, thin=thin))
    return [line for line in lines if line.y]


def round_table(run: "Run") -> str:
    """All rounds (thinned to 200), for who wants numbers; closed at first."""
    keys: list[str] = []
    for record in run.rounds:
        keys += [key for key in record if key not in keys and key != "rejections"]
    keys = [key for key in keys if key in run.final]
    step = max(1, math.ceil(len(run.rounds) / TABLE_ROWS))
    chosen = [record for i, record in enumerate(run.rounds) if i % step == 0 or i == len(run.rounds) - 1]
    rows = [[_cell(key, record.get(key)) for key in keys] for record in chosen]
    note = f" (every {step}th)" if step > 1 else ""
    title = f"All values by round{note}"
    body = table([words.label(key) for key in keys], rows)
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if rows else ""


def _cell(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "; ".join(map(str, value))
    if value is None:
        return words.DASH
    return words.bytes_(value) if key.endswith("bytes") else words.metric(key, float(value))


def trouble(run: "Run") -> str:
    """Who worked longest and whose updates were set aside, from the record of participation."""
    import pandas as pd

    frame = run.participation
    if frame.empty:
        return ""
    cards = []
    work = "seconds" if "seconds" in frame else "steps"
    if work in frame:
        used = frame[frame["status"] == "ok"] if "status" in frame else frame
        by = used.groupby("client").agg(total=(work, "sum"), rounds=("round", "nunique"))
        by["each"] = by["total"] / by["rounds"]
        slow = by.sort_values(["each", "total"], ascending=False).head(8)
        unit = "seconds" if work == "seconds" else "local steps"
        rows = [
            [run.client_name(int(str(client))), words.number(float(row["each"])), f"{int(row['rounds']):,}"]
            for client, row in slow.iterrows()
        ]
        note = (
            ""
            if work == "seconds"
            else '<p class="muted">No device speeds were simulated: these had the most work.</p>'
        )
        cards.append(
            f'<div class="card"><h3>Slowest clients</h3>{note}'
            + table(["client", f"{unit} a round", "rounds"], rows)
            + "</div>"
        )
    bad = frame[frame["status"] != "ok"] if "status" in frame else pd.DataFrame()
    text = '<p class="empty">Every update that arrived was used.</p>'
    if len(bad):
        reasons = bad["status"].value_counts()
        total = ", ".join(f"{reason} {count:,}×" for reason, count in reasons.items())
        rows = [
            [f"{row['round']:,}", run.client_name(int(row["client"])), str(row["status"])]
            for row in bad.head(20).to_dict("records")
        ]
        more = (
            f'<p class="muted">…and {len(bad) - 20:,} more in participation.jsonl</p>'
            if len(bad) > 20
            else ""
        )
        text = f'<p class="muted">{escape(total)}</p>'
        text += table(["round", "client", "reason"], rows, frozenset({1, 2})) + more
    cards.append(f'<div class="card"><h3>Updates set aside</h3>{text}{_lost_rounds(run)}</div>')
    return f'<div class="grid2 short">{"".join(cards)}</div>'


def _lost_rounds(run: "Run") -> str:
    lost = [str(record["round"]) for record in run.rounds if record.get("status") == "no usable update"]
    if not lost:
        return ""
    which = ", ".join(lost[:20]) + (", …" if len(lost) > 20 else "")
    return f'<p class="muted">Rounds without any usable update, which kept the model: {which}</p>'


def experiment(run: "Run") -> dict[str, Any]:
    """What the run's file said, resolved, and how it was computed; of a run from Python, all."""
    config = run.config
    study = config.get("experiment")
    if not study:
        return {k: v for k, v in config.items() if k not in ("citation", "objective", "experiment")}
    computed = {k: config[k] for k in ("schedule", "messages") if k in config}
    return {**study, **computed}


def how_to_repeat(run: "Run") -> str:
    """One sentence: with the command line, or with the script that made the run."""
    if run.config.get("experiment"):
        return "The resolved configuration is enough: dure run RUN/config.json"
    return (
        "Call dure.simulate again with these settings: equal settings give equal bits on one kind of machine."
    )


def settings(title: str, values: Mapping[str, Any]) -> str:
    """Nested settings as a list of terms; long values are shortened."""
    body = _terms(values)
    return f'<div class="card"><h3>{escape(title)}</h3><dl>{body}</dl></div>' if body else ""


def _terms(values: Mapping[str, Any]) -> str:
    plain = {k: v for k, v in values.items() if not isinstance(v, Mapping) and v is not None and v != ""}
    nested = {k: v for k, v in values.items() if isinstance(v, Mapping) and v}
    text = "".join(f"<dt>{escape(str(k))}</dt><dd>{escape(_short(v))}</dd>" for k, v in plain.items())
    for name, inner in nested.items():
        text += f"<h4>{escape(str(name))}</h4>{_terms(inner)}"
    return text


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 300 else text[:297] + "…"
