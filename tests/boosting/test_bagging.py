"""Bagging of XGBoost's trees, where it is installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets

import dure
from dure.boosting import XGBoostBagging

RNG = np.random.default_rng(6)
PARAMS = {"max_depth": 3, "learning_rate": 0.3}


def data(classes: int, clients: int = 3) -> dure.Federated:
    x, y = (
        datasets.load_iris(return_X_y=True) if classes == 3 else datasets.load_breast_cancer(return_X_y=True)
    )
    owner = RNG.integers(0, clients, len(x))
    return dure.Federated.from_arrays({"x": x.astype(np.float32), "y": y.astype(np.int32)}, owner)


@pytest.fixture
def xgboost() -> Any:
    return pytest.importorskip("xgboost")


def test_no_tree_is_lost(xgboost: Any) -> None:
    """Three clients, five rounds, three classes: 45 trees, 15 of each class."""
    sets = data(3)
    model = dure.boosting.fit(XGBoostBagging(rounds=5, params=PARAMS), sets)
    assert model.tree_count() == 45
    assert (model.predict(sets.columns["x"]) == sets.columns["y"]).mean() > 0.95
    np.testing.assert_allclose(model.predict_proba(sets.columns["x"]).sum(1), 1)
    assert model.cost.rounds == 6


@pytest.mark.parametrize("classes", [2, 3])
def test_one_client_is_xgboost_itself(classes: int, xgboost: Any) -> None:
    sets = data(classes, clients=1)
    x, y = sets.columns["x"], sets.columns["y"]
    model = dure.boosting.fit(XGBoostBagging(rounds=4, local_trees=2, params=PARAMS), sets)
    objective = (
        {"objective": "binary:logistic"} if classes == 2 else {"objective": "multi:softprob", "num_class": 3}
    )
    matrix = xgboost.DMatrix(x, label=y)
    start = np.repeat(model.baseline[None], len(x), 0)
    matrix.set_base_margin(start if classes == 3 else start[:, 0])
    own = xgboost.train({**PARAMS, **objective, "nthread": 1}, matrix, 8)
    np.testing.assert_allclose(model.decision_function(x), own.predict(matrix, output_margin=True), atol=1e-4)


def test_the_mean_of_equal_clients_is_one_of_them(xgboost: Any) -> None:
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x, y = x.astype(np.float32), (x[:, 0] / 10).astype(np.float32)  # a regression
    one = dure.Federated({"x": x, "y": y}, np.array([0, len(x)]))
    settings = XGBoostBagging(rounds=3, params=PARAMS)
    single = dure.boosting.fit(settings, one).predict(x)
    double = dure.boosting.fit(settings, one.replicate(2)).predict(x)
    np.testing.assert_allclose(double, single, atol=1e-5)
    summed = dure.boosting.fit(XGBoostBagging(rounds=3, params=PARAMS, combine="sum"), one.replicate(2))
    faster = {**PARAMS, "learning_rate": 0.6}
    np.testing.assert_allclose(
        summed.predict(x),
        dure.boosting.fit(XGBoostBagging(rounds=3, params=faster), one).predict(x),
        atol=1e-4,
    )


def test_files_and_errors(xgboost: Any, tmp_path: Path) -> None:
    sets = data(3)
    model = dure.boosting.fit(XGBoostBagging(rounds=2, params=PARAMS), sets)
    model.save(tmp_path / "model.json")
    other = dure.boosting.load(tmp_path / "model.json")
    x = sets.columns["x"]
    np.testing.assert_array_equal(other.decision_function(x), model.decision_function(x))
    assert repr(other) == repr(model)
    for wrong, message in (
        ({"rounds": 0}, "rounds=0"),
        ({"combine": "vote"}, "combine='vote'"),
        ({"params": {"objective": "binary:hinge"}}, "follows from the data"),
    ):
        with pytest.raises(dure.ConfigError, match=message):
            XGBoostBagging(**wrong)
    with pytest.raises(dure.ConfigError, match="no meaning for bagging"):
        dure.boosting.fit(XGBoostBagging(), sets, edges=[[0.0]] * 4)


def test_without_xgboost_it_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "xgboost", None)
    with pytest.raises(dure.ConfigError, match="pip install xgboost"):
        dure.boosting.fit(XGBoostBagging(rounds=1), data(2))


def test_every_round_and_client_draws_for_itself(xgboost: Any) -> None:
    """Clients with the same rows, and rounds at the same predictions (no learning), make trees of other columns."""
    x = np.repeat(RNG.normal(size=(60, 1)), 12, 1).astype(np.float32)  # every column would do
    y = (x[:, 0] > 0).astype(np.int32)
    sets = dure.Federated({"x": np.tile(x, (2, 1)), "y": np.tile(y, 2)}, np.array([0, 60, 120]))

    def columns(**more: int) -> list[str]:
        params = {"max_depth": 1, "colsample_bytree": 0.09, "learning_rate": 1e-6, **more}
        model = dure.boosting.fit(XGBoostBagging(rounds=6, params=params), sets)
        return [str(next(iter(booster.get_score()))) for _, booster in model.members]

    drawn = columns()
    assert min(len(set(drawn[::2])), len(set(drawn[1::2]))) > 2  # from round to round
    assert drawn[::2] != drawn[1::2]  # from client to client
    assert columns() == columns(seed=0) == drawn
    assert columns(seed=1) != drawn


def test_what_xgboost_refuses(xgboost: Any) -> None:
    with pytest.raises(dure.ConfigError, match=r"round 0 at client 0: .*max_depth"):
        dure.boosting.fit(XGBoostBagging(params={"max_depth": -1}), data(2))
    settings = XGBoostBagging()
    object.__setattr__(settings, "params", None)  # the tests' checker of types would be first
    with pytest.raises(dure.ConfigError, match="params=None"):
        settings.__post_init__()
    with pytest.raises(dure.ConfigError, match="'seed'"):
        XGBoostBagging(params={"random_state": 1})
