"""A study with a rule and an attack, from the command line: trained, stopped, resumed."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from dure.cli import app
from dure.cli.progress import Live
from dure.run import Run

TEXT = """
name = "hostile"
rounds = 4
[data]
name = "digits"
[model]
name = "softmax_regression"
[clients]
batch_size = 20
[aggregator]                 # remembers its last aggregate, as the attack remembers whom it mimics
name = "CenteredClipping"
radius = 1.0
f = 3
before = [{name = "NNM", f = 3}]
[attack]
name = "Mimic"
warmup = 2
attackers = 3
[engine]
devices = 1
checkpoint_every = 1
"""
RECORDS = ("rounds.jsonl", "participation.jsonl", "clients.jsonl", "model.safetensors", "config.json")


def dure(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_stopped_and_resumed_to_the_same_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hostile.toml").write_text(TEXT)
    done = dure("run", "hostile.toml", "-d", "whole")
    assert done.exit_code == 0, done.stderr
    assert "NNM + CenteredClipping (f = 3): used" in done.stdout
    assert "against Mimic, 3 attackers: κ at most" in done.stdout
    assert "<h2>Hostile clients</h2>" in Path("whole/report.html").read_text(encoding="utf-8")
    table = Run.open("whole").suspicion()
    assert len(table) == 14
    assert table["attacker"].sum() == 3
    assert (table["judged"] == 4).all()

    usual = Live.__call__

    def stop(self: Live, record: Mapping[str, Any]) -> None:
        usual(self, record)
        if record["round"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Live, "__call__", stop)
    assert dure("run", "hostile.toml", "-d", "parts", "-q").exit_code == 130
    monkeypatch.setattr(Live, "__call__", usual)
    assert dure("resume", "parts", "-q").exit_code == 0
    for name in RECORDS:
        assert Path("whole", name).read_bytes() == Path("parts", name).read_bytes(), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("aggregator.f=7", "2f < n for CenteredClipping"),
        ("algorithm.name=Scaffold", "Use FedAvg, FedProx"),
        ("clients.estimator=horvitz-thompson", "is no sum"),
        ("clients.weighting=examples", "no meaning for unequal weights"),
        ("aggregator={name='FLTrust'}", "give root="),
        ("aggregator.root=1", "root=1 is for FLTrust"),
        ("aggregator.radiuss=1", "Did you mean 'radius'?"),
    ],
)
def test_combinations_that_break_a_promise_are_refused(tmp_path: Path, change: str, message: str) -> None:
    path = tmp_path / "hostile.toml"
    path.write_text(TEXT)
    done = dure("run", path, "-q", "-d", tmp_path / "out", "--set", change)
    assert done.exit_code == 2, (done.stdout, done.stderr)
    assert message in done.stderr
