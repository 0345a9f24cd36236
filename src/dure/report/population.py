"""The report's pictures of the clients: what data they have, and how well the model serves each of them."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from dure.report import words
from dure.report.svg import heat_map, histogram

if TYPE_CHECKING:
    import pandas as pd

    from dure.run import Run

NAMED = 40  # up to this many clients are shown one by one with their names
BROAD = 240  # and at most this many as thin columns
CLASSES = 12  # more classes than this don't fit as a matrix with numbers


def class_picture(run: "Run") -> str:
    """Client × class: a matrix with numbers for few clients, thin columns for many."""
    counts: list[list[int]] = run.data.get("class_counts") or []
    if not counts:
        return ""
    names = [str(name) for name in run.data.get("class_names") or range(len(counts[0]))]
    few = len(counts) <= NAMED and len(names) <= CLASSES
    picture = _matrix(run, counts, names) if few else _broad(run, counts, names)
    scale = '<div class="scale">0 <i></i> all of the client’s examples</div>'
    return f'<div class="card">{picture}{scale}</div>'


def _matrix(run: "Run", counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    shown = run.data.get("shown_clients") or range(len(counts))
    columns = (
        f"grid-template-columns:minmax(3.2em,max-content) repeat({len(names)},minmax(0,1fr)) max-content"
    )
    cells = ['<span class="who"></span>', *(f'<span class="head">{escape(n)}</span>' for n in names)]
    cells.append('<span class="sum">examples</span>')
    for client, row in zip(shown, counts, strict=True):
        total = sum(row)
        cells.append(f'<span class="who">{escape(run.client_name(int(client)))}</span>')
        for name, count in zip(names, row, strict=True):
            share = count / total if total else 0.0
            # √ makes the small shares visible; the number says the rest.
            deep = " deep" if share**0.5 > 0.62 else ""
            cells.append(
                f'<span class="cell{deep}" style="--v:{share**0.5:.3f}" title="{escape(name, quote=True)}: '
                f'{count:,} of {total:,}"><span>{count if count else ""}</span></span>'
            )
        cells.append(f'<span class="sum">{total:,}</span>')
    return f'<div class="matrix" style="{columns}">{"".join(cells)}</div>'


def _broad(run: "Run", counts: Sequence[Sequence[int]], names: Sequence[str]) -> str:
    # Clients with the same main class stand together, so that a skew is seen as blocks; thinned only then, so
    # that every class keeps its share.
    chosen = sorted(
        counts, key=lambda row: (max(range(len(row)), key=lambda c: row[c]), -max(row) / (sum(row) or 1))
    )
    chosen = chosen[:: max(1, -(-len(counts) // BROAD))]
    rows = [[(row[c] / (sum(row) or 1)) ** 0.5 for row in chosen] for c in range(len(names))]
    every = max(1, -(-len(names) // 16))
    labels = "".join(f"<span>{escape(n) if i % every == 0 else ''}</span>" for i, n in enumerate(names))
    total = int(run.data["clients"])
    seen = f"{len(chosen):,} of {total:,} clients" if len(chosen) < total else words.plural(total, "client")
    return (
        f'<div class="broad"><div class="names">{labels}</div>{heat_map(rows)}<span></span>'
        f"<span>{seen}, one a column, sorted by main class</span></div>"
    )


def accuracy_picture(run: "Run") -> str:
    """How the last per-client evaluation spreads: each client when few, a histogram when many.

    Where clients have models of their own, these stand beside the global model.
    """
    frame = run.clients
    if frame.empty or "accuracy" not in frame:
        return ""
    last = frame[frame["round"] == frame["round"].max()].dropna(subset=["accuracy"])
    if last.empty:
        return ""
    own = "personal_accuracy" in last and bool(last["personal_accuracy"].notna().all())
    return f'<div class="grid2">{_spread(run, last, own)}{_each(run, last, own)}</div>'


def _spread(run: "Run", last: "pd.DataFrame", own: bool) -> str:
    values = [float(v) for v in last["accuracy"]]
    personal = [float(v) for v in last["personal_accuracy"]] if own else []
    label = "accuracy of a client"
    if not own:
        picture = histogram(values, _marks(run, "client_accuracy"), label)
        return f'<div class="card"><h3>Spread</h3>{picture}</div>'
    shared = histogram(values, _marks(run, "client_accuracy"), label, beside=personal)
    beside = histogram(personal, _marks(run, "client_personal_accuracy"), label, beside=values)
    return (
        f'<div class="card"><h3>Spread under the global model</h3>{shared}</div>'
        f'<div class="card"><h3>Spread under personal models</h3>{beside}</div>'
    )


def _marks(run: "Run", start: str) -> list[tuple[str, float, str]]:
    wanted = (
        ("mean", "mean", "var(--c2)"),
        ("p10", "10th percentile", "var(--c3)"),
        ("worst", "worst", "var(--c4)"),
    )
    known = [(title, run.final.get(f"{start}_{name}"), tone) for name, title, tone in wanted]
    return [(title, float(value), tone) for title, value, tone in known if value is not None]


def _each(run: "Run", last: "pd.DataFrame", own: bool) -> str:
    by = "personal_accuracy" if own else "accuracy"
    ordered = last.sort_values([by, "client"], kind="stable")
    shown = ordered if len(ordered) <= NAMED else ordered.head(12)
    title = "Every client" if len(ordered) <= NAMED else "The twelve worst served"
    bars = []
    for i, row in enumerate(shown.to_dict("records")):
        name = str(row.get("name") or run.client_name(int(row["client"])))
        css = "fill worst" if i == 0 and len(shown) > 1 else "fill"
        size = (
            f" of {int(row['examples']):,}"
            if row.get("examples") == row.get("examples") and "examples" in row
            else ""
        )
        mark = f'<span class="global" style="left:{100 * float(row["accuracy"]):.2f}%"></span>' if own else ""
        before = f"{words.percent(row['accuracy'], 1)} → " if own else ""
        bars.append(
            f'<span class="who">{escape(name)}</span><span class="track"><span class="{css}" '
            f'style="width:{100 * float(row[by]):.2f}%"></span>{mark}</span>'
            f"<span>{before}{words.percent(row[by], 1)}{size}</span>"
        )
    key = '<p class="muted">Bars: the client’s own model. Marks: the global model.</p>' if own else ""
    tied = int((ordered[by] == shown[by].iloc[-1]).sum() - (shown[by] == shown[by].iloc[-1]).sum())
    if tied:
        more = f"{words.plural(tied, 'more client')} at {words.percent(shown[by].iloc[-1], 1)}"
        key += f'<p class="muted">{more}, not shown.</p>'
    css = "card wide" if own else "card"  # below two histograms
    return f'<div class="{css}"><h3>{title}</h3>{key}<div class="bars">{"".join(bars)}</div></div>'
