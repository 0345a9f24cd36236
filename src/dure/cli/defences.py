"""`dure aggregators` and `dure attacks`: what there is against hostile clients, and what hostile clients do."""

import json
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dure.cli.catalogues import Json, heading, inset
from dure.cli.terminal import guarded, out

if TYPE_CHECKING:
    from rich.console import Console

    from dure.config.defences import AttackEntry, RuleEntry

OneRule = Annotated[str | None, typer.Argument(help="One rule, to see it in full.", metavar="[NAME]")]
OneAttack = Annotated[str | None, typer.Argument(help="One attack, to see it in full.", metavar="[NAME]")]

RULES_LEGEND = (
    "needs: of n updates, f hostile ones among them · weights: copies: they count as that many updates; kept: they "
    "weigh those that the rule keeps; equal: only equal ones are allowed · cost: what is read of n updates of d "
    "numbers: n d: each number a few times; n² d: all pairs; sort columns: n log n d"
)
ATTACKS_LEGEND = (
    "knows: what the attacker must know · acts on: what is sent (update), the attackers' data, their training, the "
    "number of examples that they claim (weight), a trigger found anew for every round's model · backdoor: how "
    "often it works is measured beside the accuracy"
)
SHORT = {
    "count as that many updates": "copies",
    "weigh the updates that the rule keeps": "kept",
    "must be equal": "equal",
}
COSTS = {
    "n d": "It reads each of the n · d numbers a few times.",
    "n² d": "It compares all pairs of updates, in time n² d.",
    "sort columns": "It sorts the n values of each of the d coordinates.",
}


def aggregators(name: OneRule = None, json_: Json = False) -> None:
    """List the aggregation rules against hostile clients, or show one in full."""
    with guarded():
        from dure.config import defences

        _listed("rule", defences.rules(), name, json_, show_rules, _about_rule)


def attacks(name: OneAttack = None, json_: Json = False) -> None:
    """List the attacks that a simulation can play, or show one in full."""
    with guarded():
        from dure.config import defences

        _listed("attack", defences.attacks(), name, json_, show_attacks, _about_attack)


def _listed(
    what: str, known: tuple[Any, ...], name: str | None, json_: bool, show_all: Any, about: Any
) -> None:
    from dure.config import defences

    chosen = known if name is None else (defences.find(what, known, name),)
    if json_:
        typer.echo(json.dumps([entry.facts() for entry in chosen], indent=2, ensure_ascii=False))
    elif name is None:
        show_all(out, chosen)
    else:
        show_one(out, chosen[0], about(chosen[0]))


def show_rules(console: "Console", entries: "tuple[RuleEntry, ...]") -> None:
    """One table, rules before pre-aggregators."""
    width = max(len(entry.name) for entry in entries)
    for i, group in enumerate(dict.fromkeys(entry.group for entry in entries)):
        table = Table(box=None, pad_edge=False, show_header=i == 0, header_style="dim", expand=True)
        table.add_column("", width=min(width, console.width // 4), style="bold", overflow="fold")
        table.add_column("", ratio=3)
        for head, wide, narrow in (("needs", 14, 8), ("weights", 7, 7), ("cost", 12, 7), ("", 22, 9)):
            table.add_column(
                head, width=wide if console.width >= 110 else narrow, style="dim" if not head else ""
            )
        for entry in entries:
            if entry.group == group:
                facts = [entry.needs or "–", SHORT[entry.weights], entry.cost]
                table.add_row(entry.name, entry.does, *facts, ", ".join(entry.remarks))
        console.print(Text(group, style="bold cyan"))
        console.print(table)
        console.print()
    console.print(RULES_LEGEND, style="dim", markup=False)
    console.print("One in full: dure aggregators NAME. Attacks to try it on: dure attacks.", style="dim")


def show_attacks(console: "Console", entries: "tuple[AttackEntry, ...]") -> None:
    """One table."""
    width = max(len(entry.name) for entry in entries)
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    table.add_column("", width=min(width, console.width // 4), style="bold", overflow="fold")
    table.add_column("", ratio=3)
    for head, wide, narrow in (("knows", 19, 9), ("acts on", 22, 8), ("", 18, 9)):
        table.add_column(
            head, width=wide if console.width >= 110 else narrow, style="dim" if not head else ""
        )
    for entry in entries:
        remarks = ["backdoor"] * entry.backdoor + ["from Python only"] * (not entry.in_file)
        table.add_row(entry.name, entry.does, entry.knows, ", ".join(entry.acts), ", ".join(remarks))
    console.print(table)
    console.print()
    console.print(ATTACKS_LEGEND, style="dim", markup=False)
    console.print("One in full: dure attacks NAME. Rules against them: dure aggregators.", style="dim")


def show_one(console: "Console", entry: Any, about: list[str]) -> None:
    """A rule or an attack: what it does, its arguments, what it needs, and how a file names it."""
    from dure.config import described

    console.print(Text(entry.name, style="bold"))
    for part in described.page(entry.kind).split("\n\n"):
        console.print(inset(" ".join(part.replace("`", "").split()), below=1))
    known = described.parameters(entry.kind)
    if known:
        heading(console, "Arguments")
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for p in known:
            default = "must be given" if p.default is None else p.default
            table.add_row(p.name, Text(p.type, style="dim"), default, Text(p.means, style="dim"))
        console.print(Padding(table, (0, 0, 1, 2), expand=False))
    heading(console, "Good to know")
    for line in about:
        console.print(inset(f"· {line}"))
    console.print()
    text = entry.file
    heading(console, "In a file" if text else "From Python only: a file can't hold its arrays")
    if text:
        console.print(Text(indent(text, "  ")), soft_wrap=True)
    if entry.kind.citation:
        console.print()
        heading(console, "Please cite")
        console.print(inset(entry.kind.citation))


def _about_rule(entry: "RuleEntry") -> list[str]:
    lines = [f"Needs {entry.needs}, for n updates with f hostile ones among them."] if entry.needs else []
    lines.append(f"Weights of clients {entry.weights}.")
    lines += [COSTS[part] for part in entry.cost.split(" + ")]
    return lines + [f"{remark[0].upper()}{remark[1:]}." for remark in entry.remarks]


def _about_attack(entry: "AttackEntry") -> list[str]:
    lines = [f"The attacker knows {entry.knows}."]
    if entry.acts:
        lines.append(f"It acts on: {', '.join(entry.acts)}.")
    if entry.backdoor:
        lines.append("How often the backdoor works is in backdoor_accuracy of every evaluated round.")
    return lines
