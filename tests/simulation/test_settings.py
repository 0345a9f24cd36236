"""Every keyword with an impossible value is an error that names it, before anything starts."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dure
from dure.errors import ConfigError, DataError
from dure.simulation.settings import settings
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
