from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dure.errors import RunError
from dure.run import Run, RunWriter, data_summary, environment, find_runs


def test_one_line_of_pandas_reads_the_rounds(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r", config={})
    for r in range(3):
        writer.round({"round": r, "test_accuracy": 0.5 + r / 10})
    frame = pd.read_json(tmp_path / "r" / "rounds.jsonl", lines=True)
    assert frame["test_accuracy"].tolist() == pytest.approx([0.5, 0.6, 0.7])


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="There is no directory"):
        Run.open(tmp_path / "nowhere")
    with pytest.raises(RunError, match=r"holds no run: it has no config\.json"):
        Run.open(tmp_path)
    writer = RunWriter(tmp_path / "r", config={})
    run = Run.open(tmp_path / "r")
    with pytest.raises(RunError, match="no final model yet"):
        run.state_dict()
    with pytest.raises(RunError, match="state_dict"):
        _ = run.model
    (tmp_path / "r/model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(RunError, match=r"model\.safetensors is damaged"):
        run.state_dict()
    writer.close()


@pytest.mark.parametrize("memory", [False, True])
def test_a_run_that_has_only_begun_can_be_looked_at(tmp_path: Path, memory: bool) -> None:
    run = RunWriter(None if memory else tmp_path / "r", config={}, rounds=4).run()
    assert len(run.history) == 0
    assert run.participation.empty
    assert run.clients.empty
    assert run.final == {}
    assert "round 0 of 4" in repr(run)
    assert "uplink 0 B" in run.summary()
    assert "<table>" in run._repr_html_()
    run.plot()


def test_runs_are_found_three_levels_down(tmp_path: Path) -> None:
    for place in ("a", "b/c", "b/d/e", "too/deep/down/here"):
        RunWriter(tmp_path / place, config={}).close()
    (tmp_path / "no").mkdir()
    assert [str(run.directory) for run in find_runs(tmp_path)] == [
        str(tmp_path / place) for place in ("a", "b/c", "b/d/e")
    ]
    assert len(find_runs(tmp_path / "a")) == 1


def test_the_environment_names_versions_and_no_host() -> None:
    import platform

    found = environment()
    assert found["packages"]["numpy"] == np.__version__
    assert platform.node() not in str(found).split()


class Crowd:
    """Ten million clients that share three rows: asking for all of them would be noticed."""

    clients, classes, name, source, licence, test, class_names = 10**7, 3, "crowd", "", "", None, None
    columns = {"x": np.zeros((3, 2), np.float32), "y": np.array([0, 1, 1], np.int32)}  # noqa: RUF012
    examples = 3 * 10**7
    client_names = client_test = None

    def rows(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert len(ids) <= 1000
        return np.zeros(len(ids), np.int64), np.full(len(ids), 3, np.int64)


def test_the_data_summary_costs_the_same_for_any_population() -> None:
    summary = data_summary(Crowd())  # type: ignore[arg-type]
    assert summary["clients"] == 10**7
    assert len(summary["class_counts"]) == 1000
    assert summary["class_counts"][0].tolist() == [1, 2, 0]
    shown = summary["shown_clients"]
    assert len(np.unique(shown)) == 1000
    assert shown[0] >= 0
    assert shown[-1] < 10**7
    assert len(set(shown % 1000)) > 500, "no stride that could miss what repeats"
