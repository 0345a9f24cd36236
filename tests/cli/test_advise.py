"""`dure advise`: from options, from files, by questions, and refusing nonsense."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dure.cli import advise, app


def dure(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_from_options() -> None:
    done = dure("advise", "--clients", 20, "--alike", "strong", "--kind", "cross-silo", "--attackers")
    assert done.exit_code == 0, done.stderr
    assert "Can a client keep state between rounds? yes (assumed)" in done.stdout
    assert "Does everyone take part in each round? yes (assumed)" in done.stdout
    assert done.stdout.index("Start with") < done.stdout.index("WorkerMomentum") < done.stdout.index("Out")
    assert "each gives clients models of their own" in done.stdout
    assert "TrimmedMean with NNM before it" in " ".join(done.stdout.split())


def test_as_json() -> None:
    done = dure(
        "advise", "--clients", 50, "--clients-per-round", 5, "--no-keeps-state", "--personal", "--json"
    )
    facts = json.loads(done.stdout)
    assert facts["setting"]["participation"] == 0.1
    assert facts["setting"]["keeps_state"] is False
    assert "keeps 1 model" in facts["out"]["Ditto"]
    assert "FineTuning" in facts["start_with"]


def test_from_a_file_with_options_before_it(tmp_path: Path) -> None:
    path = tmp_path / "setting.toml"
    path.write_text('[setting]\nkind = "cross-device"\nclients = 5000\nclients_per_round = 50\n')
    facts = json.loads(dure("advise", "--file", path, "--clients", 9000, "--json").stdout)
    assert (facts["setting"]["kind"], facts["setting"]["clients"]) == ("cross-device", 9000)


def test_a_studys_own_method_is_judged(tmp_path: Path) -> None:
    text = """
        rounds = 3
        data = {name = "digits"}
        model = {name = "softmax_regression"}
        algorithm = {name = "Scaffold"}
        clients = {sampler = "once", per_round = 2}
    """
    path = tmp_path / "study.toml"
    path.write_text(text)
    done = dure("advise", "--file", path)
    assert done.exit_code == 0, done.stderr
    assert "Scaffold, the file's method, is out: it keeps 1 model with each client" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Say at least how many clients there are"),
        (["--links", "slow"], "clients: missing. Say how many there are"),
        (["--clients", 1], "clients = 1: must be greater than or equal to 2"),
        (["--clients", 9, "--kind", "silo"], "kind = 'silo': must be 'cross-silo' or 'cross-device'"),
        (["--clients", 9, "--clients-per-round", 10], "clients_per_round = 10 is more than the 9 clients"),
        (["--file", "nothing.toml"], "There is no file nothing.toml"),
    ],
)
def test_nonsense_is_a_sentence_and_a_code(
    words: list[Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = dure("advise", *words)
    assert done.exit_code == 2
    assert message in done.stderr


def test_at_a_terminal_it_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["many", "0", "1,000", "cross-silo", "yes", "100", "strong", "", "no", ""])
    asked: list[str] = []

    def answer(question: str, **_: Any) -> str:
        asked.append(question)
        return next(answers)

    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(advise.Ask, "ask", answer)
    monkeypatch.setattr(advise.sys, "stdin", Terminal())
    assert advise.ask() == {
        "clients": 1000,
        "kind": "cross-silo",
        "keeps_state": True,
        "clients_per_round": 100,
        "alike": "strong",
        "links": None,
        "personal": False,
        "attackers": None,
    }
    assert asked.count("How many clients are there?") == 3
