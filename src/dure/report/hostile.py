"""Hostile clients in the report: the rule against them, how well it held, and whom it suspected."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from dure.report import sections, words
from dure.report.svg import Axis, Line, line_chart
from dure.run.suspicion import judgements

if TYPE_CHECKING:
    from dure.run import Run

SUSPECTS = 12
KAPPA = (
    "κ is the squared distance of the aggregate from the honest updates’ mean, over their variance: how far it was "
    "moved."
)
#: A bound that is further above the largest measured κ than this isn't drawn: it would flatten the line.
NEAR = 4.0


def lead(run: "Run") -> str:
    """The rule and the attack, in sentences."""
    rule, attack = words.rule_of(run), words.attack_of(run)
    first = f"The updates go through {rule}." if rule else ""
    if not attack:
        return f"{first} No attack was simulated."
    return f"{first} The attack: {attack}. {KAPPA}"


def body(run: "Run") -> str:
    """Tiles, charts, the most suspect clients, and what the rule said; nothing for a run without a rule."""
    if not words.rule_of(run):
        return ""
    charts = [chart for chart in (_kappa_chart(run), _treatment_chart(run), _backdoor_chart(run)) if chart]
    parts = [f'<div class="tiles low">{"".join(_tiles(run))}</div>']
    if charts:
        parts.append(f'<div class="grid{min(len(charts), 3)} gap">{"".join(charts)}</div>')
    parts.append(_suspects(run))
    parts.append(_said(run))
    return "".join(parts)


def head() -> list[str]:
    """Column titles that go with `cells`."""
    return ["study", "rule", "attack", "κ, mean", "backdoor accuracy", "not finite", "rounds skipped"]


def cells(label: str, runs: Sequence["Run"]) -> list[str]:
    """A study's line in a comparison, means over its seeds."""
    kappas = [value for run in runs for value in _values(run, "kappa")]
    backdoor = [float(run.final["backdoor_accuracy"]) for run in runs if "backdoor_accuracy" in run.final]
    dropped = [float(sum(_values(run, "rule_dropped"))) for run in runs]
    missed = [float(len(_skipped(run))) for run in runs]
    if not words.rule_of(runs[0]):
        dropped = missed = []
    return [
        label,
        words.rule_of(runs[0]) or words.DASH,
        words.attack_of(runs[0]) or words.DASH,
        words.number(_mean(kappas), 3),
        words.percent(_mean(backdoor)),
        words.number(_mean(dropped), 3),
        words.number(_mean(missed), 3),
    ]


def are_there(groups: Mapping[str, Sequence["Run"]]) -> bool:
    """Whether any of the studies has a rule."""
    return any(words.rule_of(run) for runs in groups.values() for run in runs)


# --- parts -----------------------------------------------------------------------------------------------


def _tiles(run: "Run") -> list[str]:
    asked = sum(_values(run, "clients"))
    kept, dropped = sum(_values(run, "rule_selected")), sum(_values(run, "rule_dropped"))
    share = words.percent(kept / asked, 1) if asked else words.DASH
    parts = [sections.tile("used by the rule", share, f"{words.number(dropped)} not finite", first=True)]
    names = words.parts_of(run)
    f = words.reckoned(run)
    parts.append(sections.tile("rule reckons with", f"f = {f}" if f else words.DASH, " + ".join(names)))
    attack = run.config.get("attack")
    if attack:
        of = f"of {int(run.data['clients']):,} clients" if run.data.get("clients") else ""
        parts.append(sections.tile("attackers", f"{len(attack['attackers']):,}", of))
    kappas = _values(run, "kappa")
    if kappas:
        bound = _bound(run)
        note = f"promised at most {words.number(bound, 3)}" if bound is not None else "no bound known"
        parts.append(sections.tile("largest κ", words.number(max(kappas), 3), note))
    backdoor = run.final.get("backdoor_accuracy")
    if backdoor is not None:
        parts.append(sections.tile("backdoor works", words.percent(backdoor, 1), "of triggered test rows"))
    skipped = len(_skipped(run))
    total = len([record for record in run.rounds if record["round"]])
    parts.append(sections.tile("rounds skipped", f"{skipped:,}", f"of {total:,}"))
    return parts


def _kappa_chart(run: "Run") -> str:
    x, y = _series(run, "kappa")
    if not any(map(math.isfinite, y)):
        return ""
    lines, note = [Line("measured", x, y, "var(--c1)")], ""
    bound = _bound(run)
    most = max(value for value in y if math.isfinite(value))
    if bound is not None and bound <= NEAR * most:
        lines.append(Line("promised at most", *_series(run, "kappa_bound"), "var(--c8)", thin=True))
    elif bound is not None:
        note = f" (promised: at most {words.number(bound, 3)})"
    return line_chart(f"The aggregate’s error κ{note}", lines, Axis("round", "count"), Axis("", low=0.0))


def _treatment_chart(run: "Run") -> str:
    """What became of attackers' updates and of honest ones, round by round: weights, choice, or else distances."""
    rows = judgements(run)
    if not run.config.get("attack") or rows.empty or not rows["judged"].any():
        return ""
    seen = rows[rows["judged"]]
    key, title, kind = "distance", "Distance from the aggregate", "number"
    if seen["relative_weight"].where(~seen["dropped"]).notna().any():
        key, title = "relative_weight", "Weight of an update (1: as in the mean)"
    elif (seen["kept"] < 1).any():
        key, title, kind = "kept", "Updates that the rule kept", "percent"
    lines = []
    for hostile, label, tone in (
        (True, "attackers, mean", "var(--c7)"),
        (False, "honest clients, mean", "var(--c1)"),
    ):
        means = seen[seen["attacker"].astype(bool) == hostile].groupby("round")[key].mean().dropna()
        lines.append(Line(label, [float(r) for r in means.index], [float(v) for v in means], tone))
    return line_chart(title, lines, Axis("round", "count"), Axis("", kind, low=0.0))


def _backdoor_chart(run: "Run") -> str:
    x, y = _series(run, "backdoor_accuracy")
    lines = [Line("backdoor accuracy", x, y, "var(--c7)")]
    accuracy = _series(run, "test_accuracy")
    if accuracy[0]:
        lines.append(Line("test accuracy", *accuracy, "var(--c1)", thin=True))
    title = "Backdoor accuracy"
    there = any(map(math.isfinite, y))
    return line_chart(title, lines, Axis("round", "count"), Axis("", "percent")) if there else ""


def _suspects(run: "Run") -> str:
    table = run.suspicion()
    table = table[table["suspicion"].notna()]
    if table.empty:
        return ""
    known = bool(run.config.get("attack"))
    rows = "".join(_suspect(row, known) for row in table.head(SUSPECTS).to_dict("records"))
    heads = [
        "client",
        "suspicion",
        "kept",
        "weight",
        "not finite",
        "distance rank",
        *(["in truth"] if known else []),
    ]
    titles = "".join(f"<th>{title}</th>" for title in heads)
    many = len(table) > SUSPECTS
    title = "The twelve most suspect clients" if many else "All clients, the most suspect first"
    return (
        f'<div class="card suspects"><h3>{title}</h3><p class="muted">{escape(_how(run, table))}</p>'
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>{rows}</tbody></table></div></div>'
    )


def _suspect(row: Mapping[Any, Any], known: bool) -> str:
    bad = known and bool(row["attacker"])
    value = float(row["suspicion"])
    bar = (
        f'<span class="track"><span class="fill{" hostile" if bad else ""}" style="width:{100 * value:.1f}%"></span>'
        f"</span><span>{value:.2f}</span>"
    )
    texts = [
        words.percent(float(row["kept"]), 0),
        f"{float(row['relative_weight']):.2f}" if math.isfinite(row["relative_weight"]) else words.DASH,
        f"{int(row['dropped']):,}",
        f"{float(row['distance_rank']):.2f}" if row["distance_rank"] >= 0 else words.DASH,
    ]
    truth = f"<td>{'<b class=bad>attacker</b>' if bad else 'honest'}</td>" if known else ""
    return (
        f'<tr><td>{escape(str(row["name"]))}</td><td class="level">{bar}</td>'
        + "".join(f"<td>{escape(text)}</td>" for text in texts)
        + f"{truth}</tr>"
    )


def _how(run: "Run", table: Any) -> str:
    seen = judgements(run)
    seen = seen[seen["judged"] & ~seen["dropped"]]
    judges = bool(seen[["relative_weight", "score_rank"]].notna().any(axis=None) or (seen["kept"] < 1).any())
    text = (
        "Suspicion, from 0 to 1, is what the rule did with the client’s updates: left out, weighed down, scored."
        if judges
        else "This rule neither chooses nor weighs clients: suspicion is 1 where an update was not finite, else its "
        "distance from the aggregate by rank, in which an attack that hides in the middle looks innocent."
    )
    count = int(table["attacker"].sum())
    if run.config.get("attack") and count:
        hit = int(table.head(count)["attacker"].sum())
        if count == 1:
            text += f" The most suspect client is {'' if hit else 'not '}the attacker’s."
        else:
            which = f"{words.number(hit)} are" if hit > 1 else "one is" if hit else "none is"
            text += f" Of the {count:,} most suspect clients {which} the attacker’s."
    return text


def _said(run: "Run") -> str:
    """Flags and skipped rounds: each text with the rounds that it was said in."""
    flags: dict[str, list[int]] = {}
    for record in run.rounds:
        for flag in record.get("rule_flags") or []:
            flags.setdefault(str(flag), []).append(int(record["round"]))
    for number, why in _skipped(run).items():
        flags.setdefault(f"Skipped, the model stays: {why}", []).append(number)
    if not flags:
        return ""
    rows = [[f"{text[0].upper()}{text[1:]}", in_ranges(at)] for text, at in flags.items()]
    listed = sections.table(["", "in rounds"], rows, frozenset({0, 1}))
    return f'<div class="card gap said"><h3>What the rule said</h3>{listed}</div>'


def in_ranges(numbers: Iterable[int], most: int = 12) -> str:
    """Ascending numbers as 1–4, 7, 9–10; more than `most` parts are cut."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [f"{low:,}" if low == high else f"{low:,}–{high:,}" for low, high in parts]
    return ", ".join(texts[:most]) + (", …" if len(texts) > most else "")


def _skipped(run: "Run") -> dict[int, str]:
    start = "skipped: "
    return {
        int(record["round"]): str(record["status"]).removeprefix(start)
        for record in run.rounds
        if str(record.get("status", "")).startswith(start)
    }


def _bound(run: "Run") -> float | None:
    """The largest κ that the rule promised in a round."""
    return max(_values(run, "kappa_bound"), default=None)


def _values(run: "Run", key: str) -> list[float]:
    return [float(record[key]) for record in run.rounds if record.get(key) is not None]


def _series(run: "Run", key: str) -> tuple[list[float], list[float]]:
    """Rounds and values, NaN where one was due and isn't known, as in rounds that were skipped."""
    skipped = _skipped(run)
    known = [record for record in run.rounds if key in record or record["round"] in skipped]
    values = [math.nan if record.get(key) is None else float(record[key]) for record in known]
    return [float(record["round"]) for record in known], values


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
