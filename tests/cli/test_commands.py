"""The commands that need no training; `test_training.py` has those that do."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dure.cli import app


def dure(*words: str) -> Result:
    return CliRunner().invoke(app, list(words), catch_exceptions=False)


def test_help_and_version_answer_without_jax() -> None:
    code = (
        "import sys\nfrom dure.cli import app\n"
        "try: app(['--help'])\nexcept SystemExit as done: assert done.code == 0, done.code\n"
        "heavy = {'jax', 'pandas', 'matplotlib', 'sklearn', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "COLUMNS": "100"}
    )
    assert done.returncode == 0, done.stderr
    for command in ("run", "resume", "compare", "report", "list", "new", "data", "algorithms", "advise"):
        assert command in done.stdout
    assert "aggregators" in done.stdout
    assert "attacks" in done.stdout


def test_new_writes_a_study_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dure("new", "first").exit_code == 0
    toml = tomllib.loads((tmp_path / "first/first.toml").read_text())
    assert toml["name"] == "first"
    compile((tmp_path / "first/study.py").read_text(), "study.py", "exec")
    again = dure("new", "first")
    assert again.exit_code == 2
    assert "exist already" in again.stderr
    assert dure("new", 'a"b').exit_code == 2


def test_new_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = dure("new", str(tmp_path / "file" / "study"))
    assert done.exit_code == 1
    assert "Cannot make" in done.stderr


def test_list(make_run: Callable, tmp_path: Path) -> None:
    make_run("runs/a", rounds=4)
    make_run("runs/b", rounds=9, stop=3, state="interrupted")
    done = dure("list", str(tmp_path / "runs"))
    assert done.exit_code == 0
    assert "complete" in done.stdout
    assert "3/9" in done.stdout
    rows = json.loads(dure("list", str(tmp_path / "runs"), "--json").stdout)
    assert [row["state"] for row in rows] == ["complete", "interrupted"]
    assert dure("list", str(tmp_path / "nowhere")).exit_code == 1


def test_report(make_run: Callable, tmp_path: Path) -> None:
    run = make_run("a", rounds=4)
    assert run.directory is not None
    done = dure("report", str(run.directory))
    assert done.exit_code == 0
    assert (run.directory / "report.html").exists()
    assert dure("report", str(run.directory), "-o", str(tmp_path / "x.html")).exit_code == 0
    assert (tmp_path / "x.html").exists()
    nothing = dure("report", str(tmp_path))
    assert nothing.exit_code == 1
    assert "holds no run" in nothing.stderr


def test_compare_groups_seeds_and_saves_pictures(make_run: Callable, tmp_path: Path) -> None:
    for name, speed in (("fast", 3.0), ("slow", 9.0)):
        for seed in range(3):
            make_run(f"runs/{name}/seed-{seed}", name=name, seed=seed, speed=speed)
    done = dure("compare", str(tmp_path / "runs"), "--target", "0.8", "-o", str(tmp_path / "cmp"))
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "cmp.html").exists()
    assert (tmp_path / "cmp.png").read_bytes().startswith(b"\x89PNG")
    assert "3 of 3" in done.stdout
    data = json.loads(
        dure(
            "compare", str(tmp_path / "runs"), "--target", "0.8", "--json", "-o", str(tmp_path / "c.svg")
        ).stdout
    )
    fast, slow = data["studies"]
    assert (fast["label"], fast["seeds"]) == ("fast", 3)
    assert fast["rounds"] < slow["rounds"]
    assert fast["bytes"] < slow["bytes"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--metric", "test_acuracy"], 2, "Did you mean 'test_accuracy'?"),
        (["-o", "a.docx"], 2, "a picture ends in"),
        (["--target", "high"], 2, "--target"),
    ],
)
def test_compare_with_bad_arguments(
    make_run: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    make_run("a", rounds=3)
    done = dure("compare", "a", *words)
    assert done.exit_code == code
    assert message in done.stderr


def test_compare_without_runs(tmp_path: Path) -> None:
    done = dure("compare", str(tmp_path))
    assert done.exit_code == 1
    assert "There is no run in" in done.stderr


def test_compare_shows_personal_measures_where_there_are_some(make_run: Callable, tmp_path: Path) -> None:
    make_run("runs/own", name="own", rounds=5, personal=True, method="Ditto")
    make_run("runs/alone", name="alone", rounds=5, personal=True, method="LocalOnly")
    done = dure("compare", str(tmp_path / "runs"), "-o", str(tmp_path / "cmp.html"))
    assert done.exit_code == 0, done.stderr
    for head in ("global worst", "personal mean", "personal p10", "personal worst", "gain over local only"):
        assert head in done.stdout
    rows = json.loads(
        dure("compare", str(tmp_path / "runs"), "--json", "-o", str(tmp_path / "c.html")).stdout
    )["studies"]
    assert [len(row["personal"]["personal"]) for row in rows] == [3, 3]


def test_algorithms_lists_all_methods_by_what_they_are_for() -> None:
    from dure.algorithms import ALL, GROUPS

    done = dure("algorithms")
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert [line for line in lines if line in GROUPS] == list(GROUPS)
    starts = [line.split()[0] for line in lines if line.strip()]
    assert all(method.__name__ in starts for method in ALL)
    (scaffold,) = [line for line in lines if line.startswith("Scaffold")]
    assert scaffold.split()[-5:] == ["1", "2", "2", "linear", "optimizer"]
    facts = json.loads(dure("algorithms", "--json").stdout)
    assert [entry["name"] for entry in facts] == [method.__name__ for method in ALL]


@pytest.mark.parametrize("width", [60, 80, 200])
def test_tables_fit_the_terminal_and_equations_are_whole(width: int) -> None:
    from rich.console import Console

    from dure.cli import advise, catalogues
    from dure.config import catalogue
    from dure.config.advice import advise as advice

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    catalogues.show_all(console, catalogue.entries())
    advise.show(console, advice(clients=20, attackers=True))
    assert max(map(len, console.export_text().splitlines())) <= width
    catalogues.show_one(console, catalogue.entry("scaffold"))
    text = console.export_text()
    console.file.close()
    for whole in ("gain = Σ η_s for SGD", "|S|/N times the mean", "server_lr  number   1.0", "ICML 2020"):
        assert whole in text


def test_one_method_in_full() -> None:
    done = dure("algorithms", "fedopt")
    assert done.exit_code == 0
    assert 'optimizer = {name = "adam", learning_rate = 0.01, eps = 0.001}' in done.stdout
    assert "Adaptive Federated Optimization. ICLR 2021." in done.stdout
    assert "classes  integer  from the data" in dure("algorithms", "FedLC").stdout
    wrong = dure("algorithms", "Scafold")
    assert wrong.exit_code == 2
    assert "Did you mean 'Scaffold'?" in wrong.stderr


def test_data_lists_the_catalogue() -> None:
    from dure.data import CATALOGUE

    done = dure("data")
    assert done.exit_code == 0
    assert all(entry.name in done.stdout for entry in CATALOGUE)
