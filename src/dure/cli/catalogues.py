"""`dure data` and `dure algorithms`: what there is."""

from rich.table import Table

from dure.cli.terminal import guarded, out


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


def algorithms() -> None:
    """List the methods, with their parameters and sources."""
    with guarded():
        from dataclasses import fields

        from dure.config.tables import algorithms as methods

        for name, method in methods().items():
            page = (method.__module__ and __import__(method.__module__, fromlist=["_"]).__doc__) or ""
            out.print(name, style="bold", end="  ")
            out.print(_first_sentence(page.split(":", 1)[-1]), markup=False)
            for f in fields(method):
                out.print(f"  algorithm.{f.name} = {f.default!r}", markup=False)
            citation = getattr(method, "citation", "")
            if citation:
                out.print(f"  {citation}", style="dim", markup=False)


def _first_sentence(text: str) -> str:
    return " ".join(text.strip().split("\n\n")[0].split())
