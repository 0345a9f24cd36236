"""The history of suspicion against what follows by hand from what the rule is said to have done."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dure.run import Run, RunWriter
from dure.run.suspicion import COLUMNS

NAN = math.nan


def round_of(clients: list[int], **columns: Any) -> dict[str, Any]:
    m = len(clients)
    usual = {
        "weight": np.ones(m),
        "status": ["ok"] * m,
        "selected": [True] * m,
        "rule_weight": np.full(m, NAN),
        "score": np.full(m, NAN),
        "distance": np.arange(m) + 1.0,
        "attacker": [False] * m,
    }
    return {"client": clients, **usual, **columns}


def written(
    directory: Path | None,
    *rounds: dict[str, Any],
    skipped: tuple[int, ...] = (),
    data: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
) -> Run:
    writer = RunWriter(directory, config=config or {}, data=data or {}, rounds=len(rounds))
    for i, columns in enumerate(rounds, 1):
        writer.participation(i, columns)
        writer.round({"round": i, "status": "skipped: too few" if i in skipped else "ok"})
    writer.close()
    return writer.run()


def test_a_rule_that_weighs(tmp_path: Path) -> None:
    first = round_of([0, 1, 2, 3], rule_weight=[0.5, 0.25, 0.25, 0.0], selected=[True, True, True, False])
    second = round_of([0, 2, 3], rule_weight=[0.0, 1.0, 0.0], selected=[False, True, False])
    for where in (None, tmp_path / "r"):
        table = written(where, first, second).suspicion().set_index("client")
        # n · weight: client 0 has 4 · 0.5 = 2 and 3 · 0 = 0, client 3 nothing twice
        assert table["relative_weight"].to_dict() == pytest.approx({0: 1.0, 1: 1.0, 2: 2.0, 3: 0.0})
        assert table["suspicion"].to_dict() == pytest.approx({0: 0.5, 1: 0.0, 2: 0.0, 3: 1.0})
        assert table["kept"].to_dict() == pytest.approx({0: 0.5, 1: 1.0, 2: 1.0, 3: 0.0})
        assert list(table.index) == [3, 0, 1, 2]  # equal ones by their number
        assert table["rounds"].to_dict() == {0: 2, 1: 1, 2: 2, 3: 2}
        assert table["last_round"].to_dict() == {0: 2, 1: 1, 2: 2, 3: 2}
        # distances 1, 2, 3, 4 of four, then 1, 2, 3 of three
        assert table["distance_rank"].to_dict() == pytest.approx(
            {0: 0.0, 1: 1 / 3, 2: (2 / 3 + 1 / 2) / 2, 3: 1.0}
        )
        assert table["score_rank"].isna().all()


def test_weights_are_measured_by_those_of_the_plain_mean() -> None:
    run = written(None, round_of([0, 1], weight=np.array([3.0, 1.0]), rule_weight=[0.75, 0.125]))
    table = run.suspicion().set_index("client")
    assert table["relative_weight"].to_dict() == pytest.approx({0: 1.0, 1: 0.5})
    assert table["suspicion"].to_dict() == pytest.approx({0: 0.0, 1: 0.5})


def test_scores_count_beside_the_choice() -> None:
    # As Krum: one is kept, so that the weights alone would say the same of all the others.
    run = written(
        None,
        round_of(
            [0, 1, 2], rule_weight=[1.0, 0.0, 0.0], selected=[True, False, False], score=[1.0, 2.0, 9.0]
        ),
    )
    table = run.suspicion()
    assert table["client"].tolist() == [2, 1, 0]
    assert table["suspicion"].tolist() == pytest.approx([1.0, 0.75, 0.0])
    assert table["score_rank"].tolist() == [1.0, 0.5, 0.0]


def test_a_rule_that_chooses_and_does_not_weigh() -> None:
    run = written(None, round_of([0, 1, 2], selected=[True, False, True]))
    assert run.suspicion().set_index("client")["suspicion"].to_dict() == {1: 1.0, 0: 0.0, 2: 0.0}


def test_a_rule_that_does_neither_leaves_the_distance() -> None:
    run = written(None, round_of([4, 5, 6], distance=[2.0, 2.0, 0.5]))
    table = run.suspicion()
    assert table["suspicion"].tolist() == [0.75, 0.75, 0.0]  # ties lie in the middle
    assert table["relative_weight"].isna().all()
    alone = written(None, round_of([4])).suspicion()
    assert alone["suspicion"].tolist() == [0.5]  # nobody to compare with


def test_what_is_not_finite_is_dropped_and_what_is_lost_is_not_judged(tmp_path: Path) -> None:
    columns = round_of(
        [0, 1, 2, 3],
        status=["ok", "update not finite", "upload lost", "update not finite; loss not finite"],
        selected=[True, False, False, False],
        rule_weight=[1.0, 0.0, NAN, 0.0],
        distance=[0.0, NAN, NAN, NAN],
        attacker=[False, True, False, False],
    )
    table = written(tmp_path / "r", columns).suspicion().set_index("client")
    assert table["dropped"].to_dict() == {0: 0, 1: 1, 2: 0, 3: 1}
    assert table["judged"].to_dict() == {0: 1, 1: 1, 2: 0, 3: 1}
    assert table["suspicion"].drop(2).to_dict() == {1: 1.0, 3: 1.0, 0: 0.0}
    assert table.loc[2, ["suspicion", "kept", "relative_weight", "distance_rank"]].isna().all()
    assert list(table.index) == [1, 3, 0, 2]  # who was never judged comes last
    assert table["attacker"].to_dict() == {0: False, 1: True, 2: False, 3: False}
    # The only usable update is as in the mean of one: those that were dropped have no share.
    assert table.loc[0, "relative_weight"] == 1.0


@pytest.mark.parametrize("memory", [True, False])
def test_skipped_rounds_accuse_nobody(tmp_path: Path, memory: bool) -> None:
    nothing = round_of(
        [0, 1, 2], selected=[False] * 3, distance=np.full(3, NAN), status=["ok", "ok", "update not finite"]
    )
    usual = round_of([0, 1], rule_weight=[0.5, 0.5], score=[1.0, 2.0])
    run = written(None if memory else tmp_path / "r", nothing, usual, skipped=(1,))
    table = run.suspicion().set_index("client")
    assert table["rounds"].to_dict() == {0: 2, 1: 2, 2: 1}
    assert table["judged"].to_dict() == {0: 1, 1: 1, 2: 0}
    assert table["kept"].drop(2).tolist() == [1.0, 1.0]
    assert table["dropped"].sum() == 0


def test_the_servers_own_update_is_no_suspect() -> None:
    run = written(
        None,
        round_of([0, 1, 2], rule_weight=[0.0, 0.5, 0.5], selected=[False, True, True]),
        config={"aggregator": {"rule": {"kind": "FLTrust"}, "root": 0}},
    )
    table = run.suspicion().set_index("client")
    assert table["judged"].to_dict() == {0: 0, 1: 1, 2: 1}
    assert table["relative_weight"].drop(0).tolist() == [1.0, 1.0]
    assert math.isnan(table.loc[0, "suspicion"])


def test_names_are_those_of_the_data() -> None:
    data = {"client_names": ["Ada", "Bo"], "shown_clients": [3, 7], "clients": 9}
    run = written(None, round_of([3, 7, 8]), data=data)
    assert dict(zip(run.suspicion()["client"], run.suspicion()["name"], strict=True)) == {
        3: "Ada",
        7: "Bo",
        8: "8",
    }


def test_without_a_rule_there_are_columns_only(tmp_path: Path) -> None:
    plain = {"client": [0, 1], "weight": np.ones(2), "status": ["ok", "ok"]}
    for run in (written(tmp_path / "a", plain), written(tmp_path / "b"), written(None, plain)):
        table = run.suspicion()
        assert {name: str(kind) for name, kind in table.dtypes.items()} == COLUMNS
        assert len(table) == 0
    assert {n: str(k) for n, k in written(None, round_of([1])).suspicion().dtypes.items()} == COLUMNS


def test_many_clients() -> None:
    rng = np.random.default_rng(0)
    rounds = [
        round_of(
            rng.choice(50_000, 500, replace=False).tolist(),
            score=rng.random(500),
            rule_weight=rng.random(500),
        )
        for _ in range(40)
    ]
    table = written(None, *rounds).suspicion()
    assert table["rounds"].sum() == 40 * 500
    assert table["suspicion"].is_monotonic_decreasing
    assert table["suspicion"].between(0, 1).all()
