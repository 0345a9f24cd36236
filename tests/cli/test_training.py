"""The commands that train, on the digits: to the end, killed, interrupted, resumed, and with bad input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dure.cli import app
from dure.run import Run

TEXT = """
name = "study"
rounds = 4
[data]
name = "digits"
[model]
name = "softmax_regression"
[clients]
batch_size = 20
[optimizer]
learning_rate = 0.05
[engine]
devices = 1  # whatever started JAX in this process, and in the processes that are killed
"""
RECORDS = ("rounds.jsonl", "participation.jsonl", "clients.jsonl", "model.safetensors", "config.json")


def dure(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "study.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


SLOWLY = """
import signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell has it ignored
from dure.cli import main
from dure.simulation.loop import Loop
record = Loop._record
Loop._record = lambda *given: (record(*given), time.sleep(0.005))
main()
"""


def process(*words: object) -> subprocess.Popen[str]:
    """The command, in rounds that take long enough for a signal to come between two of them."""
    command = [sys.executable, "-c", SLOWLY, *map(str, words)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_round(directory: Path, number: int, child: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert child.poll() is None, child.communicate()
        path = directory / "rounds.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") > number:
            return
        time.sleep(0.01)
    raise AssertionError(f"round {number} didn't come within a minute")


def test_run_ends_with_a_summary_and_a_report(study: Path) -> None:
    done = dure("run", study)
    assert done.exit_code == 0, done.stderr
    assert "complete after 4 rounds" in done.stdout
    assert "uplink" in done.stdout
    assert Path("runs/study/report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    run = Run.open("runs/study")
    assert run.state == "complete"
    assert set(run.history["round"]) == {0, 1, 2, 3, 4}
    assert run.final["test_accuracy"] > 0.5
    # Without --directory each run gets a place of its own.
    assert dure("run", study, "--quiet").stdout == ""
    assert Run.open("runs/study-2").state == "complete"


def test_a_runs_own_configuration_repeats_it(study: Path) -> None:
    assert (
        dure("run", study, "-d", "a", "-q", "--set", "seed=3", "--set", "clients.fraction=0.5").exit_code == 0
    )
    assert dure("run", "a/config.json", "-d", "b", "-q").exit_code == 0
    for name in RECORDS:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


def test_seeds_make_runs_that_compare_as_one_study(study: Path) -> None:
    assert dure("run", study, "--seeds", 2, "-d", "all/avg", "-q").exit_code == 0
    sgd = ["--set", "algorithm.name=FedSGD", "--set", "name=sgd"]
    noted = dure("run", study, "--seeds", 2, "-d", "all/sgd", *sgd)
    assert noted.exit_code == 0
    assert "FedSGD doesn't use optimizer.learning_rate, clients.batch_size" in noted.stderr
    done = dure("compare", "all", "--target", 0.5, "--json")
    assert done.exit_code == 0, done.stderr
    studies = json.loads(done.stdout)["studies"]
    assert [(s["label"], s["seeds"]) for s in studies] == [("study", 2), ("sgd", 2)]
    first, second = (Run.open(f"all/avg/seed-{seed}") for seed in (0, 1))
    assert first.rounds != second.rounds
    assert (
        first.config["data"]["fingerprint"] != second.config["data"]["fingerprint"]
    )  # one seed, everything follows


def test_data_can_be_dealt_out_anew(study: Path) -> None:
    parts = "data.partition={kind='dirichlet', clients=5, alpha=0.3}"
    done = dure("run", study, "-d", "a", "-q", "--set", parts, "--set", "data.split.test_fraction=0.2")
    assert done.exit_code == 0, done.stderr
    run = Run.open("a")
    assert run.data["clients"] == 5
    assert run.config["experiment"]["data"]["partition"]["alpha"] == 0.3
    assert "client_accuracy_worst" in run.final


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
@pytest.mark.parametrize(
    ("sign", "code"), [pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow), (signal.SIGINT, 130)]
)
def test_a_stopped_run_is_resumed_bit_for_bit(study: Path, sign: signal.Signals, code: int) -> None:
    long = [
        "--set",
        "rounds=400",
        "--set",
        "engine.checkpoint_every=7",
        "--set",
        "evaluation.clients_every=50",
    ]
    assert dure("run", study, "-d", "whole", "-q", *long).exit_code == 0
    child = process("run", study, "-d", "cut", *long)
    wait_for_round(Path("cut"), 20, child)
    child.send_signal(sign)
    _, said = child.communicate(timeout=60)
    assert child.returncode == code
    assert Run.open("cut").state == "interrupted"
    if sign == signal.SIGINT:
        assert "Go on with: dure resume cut" in said
    resumed = dure("resume", "cut")
    assert resumed.exit_code == 0, resumed.stderr
    for name in RECORDS:
        assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes(), name
    again = dure("resume", "cut")
    assert again.exit_code == 0
    assert "complete already" in again.stdout


@pytest.mark.slow  # tests/simulation/test_resume.py resumes methods with client state
def test_a_method_with_client_state_is_resumed_bit_for_bit(study: Path) -> None:
    """SCAFFOLD on a sample whose uploads get lost: controls, sampler and losses go on where they were."""
    from dure import config
    from dure.simulation import simulate

    more = ["rounds=20", "engine.checkpoint_every=3", "clients.per_round=5", "clients.lost_uploads=0.2"]
    more += ["algorithm={name='Scaffold'}", "evaluation.every=20"]
    changes = [word for change in more for word in ("--set", change)]
    assert dure("run", study, "-d", "whole", "-q", *changes).exit_code == 0

    def stop(record: dict) -> None:
        if record["round"] == 11:  # between two checkpoints
            raise KeyboardInterrupt

    built = config.build(config.load(study, more))
    with pytest.raises(KeyboardInterrupt):
        simulate(
            built.algorithm,
            built.task,
            built.data,
            directory="cut",
            on_round=stop,
            experiment=built.config,
            **built.keywords,
        )
    assert Run.open("cut").state == "interrupted"
    resumed = dure("resume", "cut", "-q")
    assert resumed.exit_code == 0, resumed.stderr
    for name in RECORDS:
        assert Path("cut", name).read_bytes() == Path("whole", name).read_bytes(), name


@pytest.mark.parametrize(
    "method", ["FedADMM", *(pytest.param(m, marks=pytest.mark.slow) for m in ("FedSGD", "PFedMe", "FedOpt"))]
)
def test_methods_whose_files_say_more_or_less_than_others_are_resumed(study: Path, method: str) -> None:
    """Without a local optimizer, with a server's own, with a regulariser: the saved file makes the same method."""
    more = {"FedADMM": ", proximal={name='L1', strength=0.001}"}.get(method, "")
    changes = ["--set", f"algorithm={{name='{method}'{more}}}", "--set", "rounds=2"]
    assert dure("run", study, "-d", "a", "-q", *changes).exit_code == 0
    assert dure("run", "a/config.json", "-d", "b", "-q").exit_code == 0
    first, second = (Run.open(name).config for name in "ab")
    assert first == second
    for name in RECORDS:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


@pytest.mark.parametrize(
    ("changes", "code", "message"),
    [
        (["algorithm={name='FedPD'}", "clients.per_round=3"], 2, "right only when every client takes part"),
        (["algorithm={name='Scaffold'}", "clients={sampler='once', per_round=2}"], 2, "a client comes once"),
        (["algorithm={name='FedNova'}", "optimizer={name='adam'}"], 2, "linear"),
        (["algorithm={name='FedPer', private=['dens9']}"], 2, "dens9"),
        (["algorithm={name='HierFAVG', edges=[0, 1]}"], 2, "edges for 2 clients, and the data have 14"),
        (["clients={sampler='once', per_round=4}"], 2, "rounds = 4 is too many"),
        (["algorithm={name='FedOpt', optimizer={name='adm'}}"], 2, "Did you mean 'adam'?"),
        (["clients.epoch=2"], 2, "clients.epoch = 2: there's no such key. Did you mean 'epochs'?"),
        (["clients.fraction=1.5"], 2, "clients.fraction = 1.5"),
        (["clients.batch_size=0"], 2, "clients.batch_size = 0"),
        (["clients.per_round=15"], 2, "15"),
        (["algorithm.name=FedAvgg"], 2, "Did you mean 'FedAvg'?"),
        (["algorithm.serverlr=1.0"], 2, "Did you mean 'server_lr'?"),
        (["model.name=softmax_regresion"], 2, "Did you mean 'softmax_regression'?"),
        (["model.name=mcmahan_cnn"], 2, "reads images"),
        (["data.name=digit"], 2, "Did you mean 'digits'?"),
        (["data.test_fracton=0.5"], 2, "Did you mean 'test_fraction'?"),
        (["data.test_fraction=1.5"], 2, "1.5"),
        (["data.partition={kind='dirichlet', clients=10, alpha=-1.0}"], 2, "-1.0"),
        (["data.partition={kind='dirichlt', clients=10}"], 2, "Did you mean 'dirichlet'?"),
        (["data.partition={kind='iid'}"], 2, "data.partition.clients: missing"),
        (["directory=study.toml/x"], 1, "Cannot write to study.toml/x"),
    ],
)
def test_bad_input_is_a_sentence_and_a_code(study: Path, changes: list[str], code: int, message: str) -> None:
    done = dure("run", study, *(word for change in changes for word in ("--set", change)))
    assert message in done.stderr
    assert done.exit_code == code
    assert "Traceback" not in done.stderr
    assert not Path("runs").exists()


def test_a_run_is_never_written_over(study: Path) -> None:
    assert dure("run", study, "-d", "a", "-q").exit_code == 0
    before = Path("a/rounds.jsonl").read_bytes()
    done = dure("run", study, "-d", "a")
    assert done.exit_code == 1
    assert "already holds a run (complete, round 4 of 4)" in done.stderr
    assert Path("a/rounds.jsonl").read_bytes() == before


def test_resume_without_a_run_or_with_one_from_python(study: Path, tmp_path: Path) -> None:
    assert dure("resume", tmp_path / "nothing").exit_code == 1
    import dure as package
    from dure.data import digits
    from dure.models import softmax_regression

    def stop(record: dict) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    task = package.classification(softmax_regression(64, 10))
    with pytest.raises(KeyboardInterrupt):
        package.simulate(package.FedAvg(), task, digits(), rounds=3, directory=tmp_path / "p", on_round=stop)
    done = dure("resume", tmp_path / "p")
    assert done.exit_code == 2
    assert "started from Python" in done.stderr


def test_a_corrupted_checkpoint_is_named(study: Path) -> None:
    stop = ["--set", "rounds=400", "--set", "engine.checkpoint_every=5"]
    child = process("run", study, "-d", "cut", *stop)
    wait_for_round(Path("cut"), 12, child)
    child.kill()
    child.communicate()
    # The manifest counts: a kill may have come between the two files of a checkpoint.
    newest = sorted(Path("cut/checkpoint").glob("*.json"))[-1].with_suffix(".safetensors")
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    records = Path("cut/rounds.jsonl").read_bytes()
    done = dure("resume", "cut")
    assert done.exit_code == 1
    assert newest.name in done.stderr
    assert Path("cut/rounds.jsonl").read_bytes() == records


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from dure.cli import main
import dure.simulation
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
sys.argv = ["dure", "run", *sys.argv[1:], "-d", "full"]
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="the file size limit is POSIX's")
def test_a_full_disk_ends_the_run_with_a_code_and_can_be_resumed(study: Path) -> None:
    quiet = {**os.environ, "JAX_ENABLE_COMPILATION_CACHE": "false"}
    long = ["--set", "rounds=24", "--set", "engine.checkpoint_every=2"]
    command = [sys.executable, "-c", FULL, str(study), *long]
    done = subprocess.run(command, capture_output=True, text=True, env=quiet)
    assert done.returncode == 1, done.stderr
    assert "Cannot write full/" in done.stderr
    assert "Go on with: dure resume full" in done.stderr
    assert "Traceback" not in done.stderr
    assert dure("resume", "full", "-q").exit_code == 0
    assert dure("run", study, "-d", "whole", "-q", *long).exit_code == 0
    for name in RECORDS:
        assert Path("full", name).read_bytes() == Path("whole", name).read_bytes(), name


def test_what_new_writes_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert dure("new", "first").exit_code == 0
    done = dure("run", "first/first.toml")
    assert done.exit_code == 0, done.stderr
    script = subprocess.run([sys.executable, "first/study.py"], capture_output=True, text=True)
    assert script.returncode == 0, script.stderr
    assert Path("report.html").exists()
    # The file and the script say the same.
    line = next(line for line in done.stdout.splitlines() if "test accuracy" in line and "best" in line)
    assert line in script.stdout
