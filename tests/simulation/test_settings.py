"""Every keyword with an impossible value is an error that names it, before anything starts."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import dure
from dure.errors import ConfigError, DataError
from dure.simulation.settings import settings
from dure.simulation.setup import check_parts
from problems import LINEAR, rows_data

DATA = rows_data([3, 5, 0, 4])


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"fraction": 0.0}, "C=0.0 must lie in (0, 1]"),
        ({"fraction": 1.5}, "C=1.5 must lie in (0, 1]"),
        ({"fraction": -0.1}, "C=-0.1 must lie in (0, 1]"),
        ({"fraction": math.nan}, "C=nan must lie in (0, 1]"),
        ({"clients_per_round": 0}, "A cohort of 0 clients"),
        ({"clients_per_round": 5}, "cohort of 5 clients cannot be drawn from a population of 4"),
        ({"fraction": 0.5, "clients_per_round": 2}, "fraction and clients_per_round are different ways"),
        ({"fraction": 0.5, "sampler": dure.Everyone()}, "fraction and sampler"),
        ({"sampler": dure.Weighted(2)}, "Σ n_k² F_k"),
        ({"epochs": 2, "steps": 3}, "epochs=2 and steps=3 exclude each other"),
        ({"epochs": 0}, "epochs=0 is not allowed"),
        ({"epochs": -1}, "epochs=-1"),
        ({"steps": 0}, "steps=0 is not allowed"),
        ({"batch_size": 0}, "batch_size=0 is not allowed"),
        ({"batch_size": -3}, "batch_size=-3"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"batch_size": math.nan}, "batch_size=nan"),
        ({"batch_size": -math.inf}, "batch_size=-inf"),
        ({"optimizer": "adam"}, "optimizer='adam' is not an optimizer"),
        ({"optimizer": -0.1}, "learning_rate=-0.1"),
        ({"weighting": "example"}, "weighting='example' is not known. Did you mean 'examples'?"),
        ({"estimator": "ht"}, "estimator='ht' is not known"),
        ({"schedule": "vectorized"}, "Did you mean 'vectorised'?"),
        ({"client_state": "gpu"}, "client_state='gpu' is not known"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": True}, "seed=True"),
        ({"width": 0}, "width=0 is not allowed"),
        ({"memory_budget": 0}, "memory_budget=0"),
        ({"devices": 0}, "devices=0 is not possible"),
        ({"devices": 999}, "devices=999 is not possible: JAX has"),
        ({"rounds": 0}, "rounds=0 is not allowed"),
        ({"evaluate_every": 0}, "evaluate_every=0"),
        ({"evaluate_clients_every": -1}, "evaluate_clients_every=-1"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"rounds": True}, "rounds=True"),
    ],
    ids=lambda value: ",".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_impossible_keywords(keywords: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        dure.simulate(dure.FedAvg(), LINEAR, DATA, **{"rounds": 1, "directory": tmp_path / "run", **keywords})
    assert not (tmp_path / "run").exists(), "nothing was started"


def test_unknown_keywords_are_python_errors() -> None:
    with pytest.raises(TypeError, match="leraning_rate"):
        dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, leraning_rate=0.1)  # type: ignore[call-arg]


def test_missing_columns_are_named() -> None:
    data = dure.Federated(
        {"pixels": np.ones((2, 3), np.float32), "y": np.ones(2, np.float32)}, np.array([0, 2])
    )
    with pytest.raises(DataError, match=r"column 'x'.*pixels, y"):
        dure.simulate(dure.FedAvg(), LINEAR, data, rounds=1)


def test_wrong_work_limits_are_refused() -> None:
    def floats(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> Any:
        return steps / 2

    def short(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> Any:
        return steps[:1]

    for limit, message in ((floats, "float64"), (short, r"shape \(1,\)")):
        with pytest.raises(ConfigError, match=rf"work_limit returned .*{message}.*round 1"):
            dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, work_limit=limit)


def test_work_limits_cannot_add_work() -> None:
    def more(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> Any:
        steps += 100  # the plan is not theirs to change
        return steps

    run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, steps=2, work_limit=more)
    assert run.participation["steps"].tolist() == [2, 2, 0, 2]


def test_the_objective_is_said() -> None:
    def objective(**keywords: Any) -> str:
        return settings(DATA, **keywords).objective

    assert objective() == "Σ (n_k/n) F_k: everyone takes part"
    assert objective(weighting="uniform") == "(1/N) Σ F_k: everyone takes part"
    assert "bias of the ratio" in objective(clients_per_round=2)
    assert "unbiased" in objective(clients_per_round=2, estimator="horvitz-thompson")
    assert objective(clients_per_round=2, weighting="uniform").startswith("(1/N) Σ F_k")
    assert objective(sampler=dure.Weighted(2), weighting="uniform").startswith("Σ (n_k/n) F_k: unbiased")
    run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, clients_per_round=2)
    assert "bias of the ratio" in run.config["objective"]


def test_fractions_round_down_but_never_to_nobody() -> None:
    for fraction, wanted in ((0.5, 2), (0.74, 2), (0.75, 3), (0.01, 1), (1.0, 4)):
        run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, fraction=fraction)
        assert run.rounds[1]["clients"] == wanted


def test_global_generators_are_neither_read_nor_advanced() -> None:
    """In its own interpreter, because the tests' type checker draws from Python's generator itself."""
    code = f"""
import random, sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
import numpy as np
from problems import LINEAR, rows_data
import dure
models = []
for seed in (0, 1):
    np.random.seed(seed)
    random.seed(seed)
    before, python = np.random.get_state()[1].copy(), random.getstate()
    run = dure.simulate(dure.FedAvg(), LINEAR, rows_data([3, 5, 4]), rounds=2, clients_per_round=2, batch_size=2)
    models.append(np.asarray(run.model["w"]).tobytes())
    assert (np.random.get_state()[1] == before).all() and random.getstate() == python
assert models[0] == models[1]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


# ----- what is given must be what its place is for ---------------------------------------------------------


def labelled(labels: np.ndarray, **more: Any) -> dure.Federated:
    x = np.random.default_rng(0).normal(size=(len(labels), 5)).astype(np.float32)
    return dure.Federated.from_arrays({"x": x, "y": labels}, client=np.arange(len(labels)) % 6, **more)


THREE = dure.classification(dure.models.softmax_regression(5, 3))


def test_a_label_that_the_model_has_no_output_for_is_refused() -> None:
    labels = np.arange(60) % 3
    labels[17] = 7
    with pytest.raises(dure.DataError, match=r"training rows holds label 7.*labels 0 … 2.*8 classes"):
        dure.simulate(dure.FedAvg(), THREE, labelled(labels), rounds=1)


def test_a_label_of_the_test_rows_alone_is_refused_too() -> None:
    test = {"x": np.zeros((2, 5), np.float32), "y": np.array([0, 5])}
    with pytest.raises(dure.DataError, match="central test rows holds label 5"):
        dure.simulate(dure.FedAvg(), THREE, labelled(np.arange(60) % 3, test=test), rounds=1)


@pytest.mark.parametrize(
    ("algorithm", "task", "message"),
    [
        (dure.FedAvg, THREE, "is not a method.*brackets"),
        (None, THREE, "is not a method"),
        (
            dure.boosting.GradientBoosting(),
            THREE,
            r"trained by dure\.boosting\.fit\(.*GradientBoosting\(…\), data\)",
        ),
        (
            dure.boosting.XGBoostBagging,
            THREE,
            r"trained by dure\.boosting\.fit\(.*XGBoostBagging\(…\), data\)",
        ),
        (dure.FedAvg(), None, "is not a task"),
    ],
)
def test_parts_of_another_kind_are_refused(algorithm: Any, task: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        check_parts(algorithm, task)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ((lambda key: {}, lambda params, x: x[:, :3]), "has no parameters"),
        (dure.models.softmax_regression(4, 3), "takes 4 inputs"),
        (
            (lambda key: {"w": np.zeros((4, 3), np.float32)}, lambda params, x: x @ params["w"]),
            r"fails on column 'x', of which a batch of one is float32\(1, 5\)",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_rows_is_refused(model: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        dure.simulate(dure.FedAvg(), dure.classification(model), labelled(np.arange(60) % 3), rounds=1)


def test_a_batch_size_beyond_every_client_costs_nothing() -> None:
    data = labelled(np.arange(60) % 3)
    huge, whole = (
        dure.simulate(dure.FedAvg(), THREE, data, rounds=2, batch_size=size) for size in (10**12, math.inf)
    )
    np.testing.assert_allclose(
        huge.history["train_loss"].dropna(), whole.history["train_loss"].dropna(), rtol=1e-6
    )


def test_sixty_four_bit_sessions_train_the_same_float32_model() -> None:
    data = labelled(np.arange(60) % 3)
    narrow = dure.simulate(dure.FedAvg(), THREE, data, rounds=2)
    with jax.enable_x64(True):
        wide = dure.simulate(dure.FedAvg(), THREE, data, rounds=2)
    assert np.array_equal(np.asarray(wide.model["weight"]), np.asarray(narrow.model["weight"]))


@pytest.mark.parametrize("algorithm", [dure.FedAvg, dure.FedSGD])
@pytest.mark.parametrize("value", [-1.0, 0.0, math.nan])
def test_impossible_server_rates_are_refused(algorithm: Any, value: Any) -> None:
    with pytest.raises(dure.ConfigError, match="is not allowed"):
        algorithm(value)


def test_a_server_step_that_is_not_finite_keeps_the_model_and_says_so() -> None:
    run = dure.simulate(dure.FedAvg(3e38), THREE, labelled(np.arange(60) % 3), rounds=2, optimizer=1e6)
    assert "not finite" in run.final["status"]
    assert np.isfinite(np.asarray(run.model["weight"])).all()
