"""The READMEs stay in step, and every example in README and docs runs."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.M | re.S)


def shape(path: Path) -> list[str]:
    """What a translation must share: code, commands, links, pictures, levels of headings, table rows."""
    text = path.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return [
        *blocks(path, "python"),
        *blocks(path, "toml"),
        *re.findall(r"^    .*$", prose, re.M),
        *(link for link in re.findall(r"\]\(([^)]+)\)", prose) if not link.startswith("README")),
        *re.findall(r"^#+(?= )", prose, re.M),
        str(len(re.findall(r"^\|", prose, re.M))),
        str(len(re.findall(r"^- \*\*", prose, re.M))),
    ]


def test_readmes_have_the_same_content() -> None:
    assert shape(ROOT / "README.md") == shape(ROOT / "README.ko.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


#: Pages whose code trains for a while, and whose subject has tests of its own.
TRAINING = {"lora.md", "distillation.md"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p.name in TRAINING else ()) for p in PAGES],
    ids=lambda p: p.name,
)
def test_python_in_pages_runs(page: Path, tmp_path: Path) -> None:
    parts = blocks(page, "python")
    if not parts:
        pytest.skip("no Python on this page")
    run(["-c", "\n".join(parts)], tmp_path)


#: Examples whose page runs nearly the same code.
LONG = {"lora.py", "pytorch.py", "distillation.py", "gossip.py", "tabular.py"}


@pytest.mark.parametrize(
    "example",
    [pytest.param(p, marks=pytest.mark.slow if p.name in LONG else ()) for p in EXAMPLES],
    ids=lambda p: p.name,
)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    run([str(example)], tmp_path)


def test_toml_in_readme_runs(tmp_path: Path) -> None:
    (text,) = blocks(ROOT / "README.md", "toml")
    assert tomllib.loads(text)["rounds"] == 30
    (tmp_path / "study.toml").write_text(text)
    run(
        ["-m", "dure.cli", "run", "study.toml", "--set", "rounds=2", "--quiet", "--directory", "out"],
        tmp_path,
    )
    assert (tmp_path / "out" / "report.html").exists()


def test_main_job_runs(tmp_path: Path) -> None:
    study = ROOT / "examples" / "digits.toml"
    run(["-m", "dure.cli", "run", str(study), "--set", "rounds=3", "--directory", "out"], tmp_path)
    assert (tmp_path / "out" / "model.safetensors").exists()


def run(arguments: list[str], where: Path) -> None:
    """Compiled as users do, but for optimisations that don't matter here: without them it takes half."""
    quick = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    quick["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    done = subprocess.run(
        [sys.executable, *arguments], cwd=where, env=quick, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
