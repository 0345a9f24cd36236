"""Sweeps equal single runs, whether they run together or not."""

import numpy as np
import pytest

import dure
from dure.errors import ConfigError

DATA = dure.data.synthetic(0.5, 0.5, clients=8, largest=60, seed=4)
TASK = dure.classification(dure.models.softmax_regression(60, 10))


def test_together_equals_one_by_one() -> None:
    grid = {"server_lr": [0.5, 1.0], "optimizer.learning_rate": [0.05, 0.2]}
    result = dure.sweep(dure.FedAvg(), TASK, DATA, rounds=4, grid=grid, seeds=(0, 3), clients_per_round=5)
    assert result.together
    assert len(result.points) == 8
    for point in (result.points[0], result.points[5]):
        single = dure.simulate(
            dure.FedAvg(server_lr=point.values["server_lr"]),
            TASK,
            DATA,
            rounds=4,
            clients_per_round=5,
            optimizer=point.values["optimizer.learning_rate"],
            seed=point.seed,
        )
        mine, theirs = point.run.state_dict(), single.state_dict()
        for name in theirs:
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-5, atol=1e-6)
        assert [r.get("clients") for r in point.run.rounds] == [r.get("clients") for r in single.rounds]
        assert point.run.participation["client"].tolist() == single.participation["client"].tolist()
        assert point.run.final["cumulative_uplink_bytes"] == single.final["cumulative_uplink_bytes"]


def test_what_does_not_fit_runs_one_after_another() -> None:
    keywords = {"rounds": 2, "grid": {"server_lr": [0.5, 1.0]}, "clients_per_round": 3}
    together = dure.sweep(dure.FedAvg(), TASK, DATA, **keywords)
    apart = dure.sweep(dure.FedAvg(), TASK, DATA, memory_budget=1000.0, **keywords)
    assert together.together
    assert not apart.together
    for one, other in zip(together.points, apart.points, strict=True):
        assert one.values == other.values
        assert one.run.final["test_loss"] == pytest.approx(other.run.final["test_loss"], rel=1e-5)


def test_best_averages_over_seeds_and_knows_its_direction() -> None:
    grid = {"optimizer.learning_rate": [1e-4, 0.3]}
    result = dure.sweep(dure.FedAvg(), TASK, DATA, rounds=5, grid=grid, seeds=range(2))
    assert result.best("test_loss", largest=False).values == {"optimizer.learning_rate": 0.3}
    assert result.best("test_loss", largest=True).values == {"optimizer.learning_rate": 1e-4}
    assert len(result.table()) == 4


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"grid": {"server_rate": [1.0]}}, "server_lr"),
        ({"grid": {"server_lr": []}}, "nothing to run"),
        ({"seeds": []}, "nothing to run"),
        ({"grid": {"optimizer.momentun": [0.9]}}, "optimizer.momentum"),
    ],
)
def test_bad_grids(keywords: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dure.sweep(dure.FedAvg(), TASK, DATA, rounds=1, **keywords)


def test_unknown_measure() -> None:
    result = dure.sweep(dure.FedAvg(), TASK, DATA, rounds=1, grid={"server_lr": [1.0, 0.5]})
    with pytest.raises(ConfigError, match="test_accuracy"):
        result.best("test_acuracy")
