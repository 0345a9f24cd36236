import json
import os

import pytest
from typer.testing import CliRunner, Result

from dure.cli import app
from dure.config import tables


def dure(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


@pytest.mark.parametrize(
    ("command", "known"),
    [("aggregators", [tables.aggregators, tables.pre_aggregators]), ("attacks", [tables.attacks])],
)
def test_all_are_listed(command: str, known: list) -> None:
    names = {name for table in known for name in table()}
    done = dure(command)
    assert done.exit_code == 0
    starts = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert names <= starts
    facts = json.loads(dure(command, "--json").stdout)
    assert {entry["name"] for entry in facts} == names
    assert all(entry["does"] for entry in facts)


def test_one_in_full() -> None:
    done = dure("aggregators", "krum")
    assert done.exit_code == 0
    for text in ("n ≥ 2f + 3", "must be given", 'name = "Krum"', "NeurIPS 2017", "all pairs"):
        assert text in done.stdout
    assert "root = 0" in dure("aggregators", "FLTrust").stdout
    assert 'before = [{name = "NNM", f = 1}]' in dure("aggregators", "nnm").stdout
    attack = dure("attacks", "alie").stdout
    assert "all honest updates" in attack
    assert "attackers = 2" in attack
    assert "From Python only" in dure("attacks", "EdgeCase").stdout
    (facts,) = json.loads(dure("attacks", "alie", "--json").stdout)
    assert facts["arguments"] == {"z": "none", "sign": "-1", "ddof": "1"}


def test_wrong_names() -> None:
    wrong = dure("aggregators", "Meadian")
    assert wrong.exit_code == 2
    assert "Did you mean 'Median'?" in wrong.stderr
    assert "Did you mean 'SignFlip'?" in dure("attacks", "signflop").stderr


@pytest.mark.parametrize("width", [60, 80, 200])
def test_tables_fit_the_terminal(width: int) -> None:
    from rich.console import Console

    from dure.cli import defences as shown
    from dure.config import defences

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    shown.show_rules(console, defences.rules())
    shown.show_attacks(console, defences.attacks())
    text = console.export_text()
    console.file.close()
    assert max(map(len, text.splitlines())) <= width
    for whole in ("TrimmedMean", "Bulyan", "LabelFlip", "PGD"):
        assert whole in text
