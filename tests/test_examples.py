"""The studies among the examples run (the Python ones: `test_documents.py`)."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dure.cli import app
from dure.run import Run

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize("rule", ["", "aggregator={name='Mean'}"], ids=["the file's rule", "mean"])
def test_the_mean_falls_and_the_rule_holds(rule: str, tmp_path: Path) -> None:
    words = ["run", str(EXAMPLES / "hostile.toml"), "-q", "-d", str(tmp_path / "run"), "--set", "rounds=6"]
    done = CliRunner().invoke(app, words + (["--set", rule] if rule else []), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    run = Run.open(tmp_path / "run")
    assert run.suspicion()["attacker"].sum() == 3
    # With −5 times the mean of 11 honest updates from 3 of 14 the mean moves by (11 − 15)/14 < 0: uphill.
    assert (run.final["test_accuracy"] < 0.2) == bool(rule)
    assert (run.final["test_accuracy"] > 0.8) != bool(rule)
