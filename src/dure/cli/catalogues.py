"""`dure data` and `dure algorithms`: what there is."""

import json
from textwrap import indent
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dure.cli.terminal import guarded, out

if TYPE_CHECKING:
    from rich.console import Console

    from dure.config.catalogue import Entry

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Name = Annotated[str | None, typer.Argument(help="One method, to see it in full.", metavar="[NAME]")]

LEGEND = (
    "keeps: what a client keeps between rounds, in models · up, down: models that it sends and receives in a round"
    " · everyone: every client in every round · two exchanges: clients answer a question before the local work · "
    "linear optimizer: SGD, momentum, schedules, not Adam · own steps: [optimizer] plays no part · personal: each "
    "client ends with a model of its own · adapters: for models of dure.lora; a model is what is trained, W the "
    "adapted weights"
)
#: Widths of the columns that are narrow: what is kept, up, down, remarks.
KEEPS, WAY, REMARKS = 5, 4, 13


def data() -> None:
    """List the data sets."""
    with guarded():
        from dure.data import CATALOGUE

        table = Table(box=None, pad_edge=False, header_style="bold")
        for head in ("name", "clients", "what it is", "needs", "licence"):
            table.add_column(head, overflow="fold")
        for entry in CATALOGUE:
            table.add_row(
                entry.name, str(entry.clients), entry.description, str(entry.needs or "–"), entry.licence
            )
        out.print(table)


def algorithms(name: Name = None, json_: Json = False) -> None:
    """List the methods, or show one in full: equations, hyper-parameters, needs, source."""
    with guarded():
        from dure.config import catalogue

        chosen = catalogue.entries() if name is None else (catalogue.entry(name),)
        if json_:
            typer.echo(json.dumps([entry.facts() for entry in chosen], indent=2, ensure_ascii=False))
        elif name is None:
            show_all(out, chosen)
        else:
            show_one(out, chosen[0])


def show_all(console: "Console", entries: "tuple[Entry, ...]") -> None:
    """One table, group by group; the columns stand in line from group to group."""
    width = max(len(entry.name) for entry in entries)
    for i, group in enumerate(dict.fromkeys(entry.group for entry in entries)):
        table = Table(box=None, pad_edge=False, show_header=i == 0, header_style="dim", expand=True)
        table.add_column("", width=width, no_wrap=True, style="bold")
        table.add_column("", ratio=1)
        for head, narrow in (("keeps", KEEPS), ("up", WAY), ("down", WAY)):
            table.add_column(head, width=narrow, justify="right")
        table.add_column("", width=REMARKS if console.width < 110 else 2 * REMARKS, style="dim")
        for entry in entries:
            if entry.group == group:
                numbers = [_short(text) for text in (entry.keeps, entry.sends, entry.receives)]
                table.add_row(entry.name, entry.does, *numbers, ", ".join(entry.remarks))
        console.print(Text(group, style="bold cyan"))
        console.print(table)
        console.print()
    console.print(LEGEND, style="dim", markup=False)
    console.print("One in full: dure algorithms NAME. Which one for you: dure advise.", style="dim")


def _short(text: str) -> str:
    """The number of models, or a word where it is only a part of one."""
    if text.endswith(" + W"):
        return text.split(" ")[0] + "+W"
    return "part" if text.endswith("part") else "0" if text == "nothing" else text.split(" ")[0]


def show_one(console: "Console", entry: "Entry") -> None:
    """A method's page: what it does, its equations, hyper-parameters and needs, and how a file names it."""
    from dure.config.catalogue import hyper_parameters, page

    console.print(Text(entry.name, style="bold") + Text(f"  {entry.group}", style="dim"))
    console.print(entry.does, markup=False)
    console.print()
    for part in page(entry.method).split("\n\n"):
        if part.startswith(" "):  # equations are laid out by hand: they aren't wrapped
            console.print(Text(indent(part, "  ")), soft_wrap=True)
            console.print()
        else:
            console.print(inset(" ".join(part.split()), below=1))
    heading(console, "Hyper-parameters")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for p in hyper_parameters(entry.method):
        default = "from the data" if p.inferred else "must be given" if p.default is None else p.default
        table.add_row(p.name, Text(p.type, style="dim"), default)
    if table.row_count:
        console.print(Padding(table, (0, 0, 0, 2), expand=False))
    doc = " ".join((entry.method.__doc__ or "").split())
    console.print(inset(doc, "dim", below=1))
    heading(console, "Needs")
    for line in needs(entry):
        console.print(inset(f"· {line}"))
    console.print()
    heading(console, "In a file")
    console.print(Text(indent(_section(entry), "  ")), soft_wrap=True)
    if entry.method.citation:
        console.print()
        heading(console, "Please cite")
        console.print(inset(entry.method.citation))


def inset(text: str, style: str = "", below: int = 0) -> Padding:
    """A paragraph, a little to the right."""
    return Padding(Text(text, style=style), (0, 0, below, 2), expand=False)


def heading(console: "Console", text: str) -> None:
    """A title above what follows."""
    console.print(Text(text, style="bold cyan"))


def needs(entry: "Entry") -> list[str]:
    """What a method asks of its setting, a sentence each."""
    keeps = f"A client keeps {_whole(entry.keeps)} between rounds, so clients must come again."
    lines = [keeps if entry.keeps else "Clients keep nothing between rounds."]
    lines.append(f"A client receives {_whole(entry.receives)} and sends {_whole(entry.sends)} in a round.")
    if entry.needs.everyone:
        lines.append("Every client takes part in every round: no fraction, no per_round.")
    if entry.survey:
        lines.append("Two exchanges a round: a question to all clients of the round before the local work.")
    if entry.needs.gain:
        lines.append(
            "A local optimizer that is linear in the gradients: SGD, momentum, schedules; not Adam, no clipping."
        )
    if entry.own_steps:
        lines.append("Its step sizes are its own: [optimizer] plays no part.")
    if entry.needs.mean_of_states:
        lines.append('Σ p_k of those who took part must be known: not sampler = "weighted".')
    if entry.needs.adapters:
        lines.append("A model with low-rank adapters: dure.lora, or [model.lora] in a file.")
    if entry.needs.personal:
        lines.append("Each client ends with a model of its own (client_personal_… in the records).")
    return lines


def _whole(text: str) -> str:
    return f"the {text}" if text.endswith("part") else text


def _section(entry: "Entry") -> str:
    from dure.config.catalogue import hyper_parameters, toml
    from dure.config.probe import example

    lines = ["[algorithm]", f'name = "{entry.name}"']
    for p in hyper_parameters(entry.method):
        given = p.default if p.default is not None else toml(getattr(example(entry.method), p.name))
        if not p.inferred and given != "none":
            lines.append(f"{p.name} = {given}")
    return "\n".join(lines)
