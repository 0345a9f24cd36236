"""`dure advise`: which methods suit a setting, from options, a file, or questions on the terminal."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.padding import Padding
from rich.prompt import Prompt
from rich.table import Table
from rich.text import Text

from dure.cli.terminal import err, guarded, out
from dure.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from dure.config.advice import Advice

Kind = Annotated[str | None, typer.Option(help="cross-silo (institutions) or cross-device (devices).")]
Clients = Annotated[int | None, typer.Option(help="How many clients there are.")]
PerRound = Annotated[int | None, typer.Option(help="How many take part in a round.")]
Participation = Annotated[float | None, typer.Option(help="Or which share of them, in (0, 1].")]
Alike = Annotated[str | None, typer.Option(help="How much clients' data differ: iid, mild or strong.")]
KeepsState = Annotated[bool | None, typer.Option(help="Whether clients come again and can keep state.")]
Attackers = Annotated[bool | None, typer.Option(help="Whether some clients may send anything.")]
Links = Annotated[str | None, typer.Option(help="slow or fast.")]
Personal = Annotated[bool | None, typer.Option(help="Whether each client may have a model of its own.")]
Adapters = Annotated[bool | None, typer.Option(help="Whether low-rank adapters are trained.")]
Rounds = Annotated[int | None, typer.Option(help="How long the training is.")]
From = Annotated[Path | None, typer.Option("--file", help="A study, or a file with a [setting] table.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def advise(
    kind: Kind = None,
    clients: Clients = None,
    clients_per_round: PerRound = None,
    participation: Participation = None,
    alike: Alike = None,
    keeps_state: KeepsState = None,
    attackers: Attackers = None,
    links: Links = None,
    personal: Personal = None,
    adapters: Adapters = None,
    rounds: Rounds = None,
    file: From = None,
    json_: Json = False,
) -> None:
    """Say which methods suit a setting, which are out, and why. On a terminal it asks what isn't said."""
    given = {key: value for key, value in locals().items() if key not in ("file", "json_")}
    with guarded():
        from dure.config.advice import advice
        from dure.config.setting import checked, known, of_file

        method = None
        if file is not None:
            setting, method = of_file(file, given)
        else:
            if all(value is None for value in given.values()) and not json_:
                given = ask()
            setting = known(checked(given, "The setting", ""))
        found = advice(setting)
        if json_:
            typer.echo(json.dumps(_facts(found), indent=2, ensure_ascii=False))
            return
        show(out, found)
        if method is not None:
            verdict = f"is out: it {found.out[method]}." if method in found.out else "suits the setting."
            out.print(f"{method}, the file's method, {verdict}", style="bold", markup=False)


class Ask(Prompt):
    """A question ends with its own mark, not with a colon."""

    prompt_suffix = " "


def ask() -> dict[str, Any]:
    """The answers of who sits at the terminal; Enter leaves a question to what is usual.

    Raises:
        ConfigError: nobody sits there.
    """
    if not sys.stdin.isatty():
        raise ConfigError(
            "Nothing was said about the setting. Say at least how many clients there are, such as "
            "dure advise --clients 20; or give a file with --file."
        )
    err.print("Enter leaves an answer to what is usual.", style="dim")
    return {key: put() for key, put in QUESTIONS.items()}


def _choice(question: str, *answers: str) -> Callable[[], str | None]:
    shown = f"{question} ({'/'.join(answers)})"  # no brackets: rich would read them as a style
    known = [*answers, ""]
    return lambda: Ask.ask(shown, choices=known, default="", show_default=False, show_choices=False) or None


def _yes(question: str) -> Callable[[], bool | None]:
    answer = _choice(question, "yes", "no")

    def put() -> bool | None:
        said = answer()
        return None if said is None else said == "yes"

    return put


def _count(question: str, needed: bool = False) -> Callable[[], int | None]:
    def put() -> int | None:
        while True:
            said = Ask.ask(question, default="", show_default=False).replace(",", "").strip()
            if said.isdigit() and int(said) > 0:
                return int(said)
            if not said and not needed:
                return None
            err.print("A whole number, please.", style="red")

    return put


QUESTIONS: dict[str, Callable[[], Any]] = {
    "clients": _count("How many clients are there?", needed=True),
    "kind": _choice(
        "Are they institutions that stay, or devices that come and go?", "cross-silo", "cross-device"
    ),
    "keeps_state": _yes("Does a client come again, and can it keep something between rounds?"),
    "clients_per_round": _count("How many take part in a round?"),
    "alike": _choice("How much do their data differ?", "iid", "mild", "strong"),
    "links": _choice("How are their links?", "slow", "fast"),
    "personal": _yes("May each client end with a model of its own?"),
    "attackers": _yes("May some clients send anything?"),
}


def show(console: "Console", found: "Advice") -> None:
    """The advice for people."""
    console.print(Text(found.about(), style="dim"))
    for question in found.questions():
        before, mark, answer = question.partition("? ")
        console.print(Text(before + mark) + Text(answer, style="bold"))
    console.print()
    console.print(Text("Start with", style="bold cyan"))
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column("", style="bold green", no_wrap=True)
    table.add_column("")
    for name, why in found.start_with.items():
        table.add_row(name, why)
    console.print(Padding(table, (0, 0, 1, 2), expand=False))
    console.print(Text("Out", style="bold cyan"))
    for why, names in _by_reason(found.out).items():
        console.print(_inset(", ".join(names), 2, "bold"))
        console.print(_inset(f"each {why}" if len(names) > 1 else why, 4))
    console.print()
    console.print(Text("Possible too", style="bold cyan"))
    console.print(_inset(", ".join(found.possible), 2))
    for note in found.notes:
        console.print()
        console.print(Text(note, style="italic"))


def _by_reason(out_: Mapping[str, str]) -> dict[str, list[str]]:
    """Reason → the methods that are out for it, so that the reasons are what is read."""
    together: dict[str, list[str]] = {}
    for name, why in out_.items():
        together.setdefault(why, []).append(name)
    return together


def _inset(text: str, by: int, style: str = "") -> Padding:
    return Padding(Text(text, style=style), (0, 0, 0, by), expand=False)


def _facts(found: "Advice") -> dict[str, Any]:
    setting = {key: value for key, value in asdict(found.setting).items() if value is not None}
    return {
        "setting": setting,
        "start_with": dict(found.start_with),
        "out": dict(found.out),
        "possible": list(found.possible),
        "notes": list(found.notes),
    }
