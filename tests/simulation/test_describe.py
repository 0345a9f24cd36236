"""A run is only resumed as the same experiment."""

from pathlib import Path

import optax
import pytest

import dure
from dure.errors import ConfigError
from dure.oracles.optimizer import as_optimizer, response
from problems import LINEAR, rows_data

DATA = rows_data([4, 6, 5])


@pytest.mark.parametrize("other", [optax.adam(0.02), optax.sgd(0.01), optax.adam(0.01, b1=0.5)])
def test_another_optax_transformation_is_noticed(tmp_path: Path, other: optax.GradientTransformation) -> None:
    keywords = {"directory": tmp_path / "run", "batch_size": 3}
    dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, optimizer=optax.adam(0.01), **keywords)
    with pytest.raises(ConfigError, match=r"local\.optimizer"):
        dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=2, optimizer=other, resume=True, **keywords)
    same = dure.simulate(
        dure.FedAvg(), LINEAR, DATA, rounds=2, optimizer=optax.adam(0.01), resume=True, **keywords
    )
    assert same.final["round"] == 2


def test_response_is_the_path_of_the_optimizer() -> None:
    assert response(as_optimizer(0.1)) == pytest.approx(
        [-0.1 * (1.0 + 0.5 - 1.25), -0.1 * (-2.0 + 3.0 + 0.25)]
    )
    decayed = response(dure.sgd(0.1, weight_decay=0.5))  # every step adds 0.5 · 1 to the gradient
    assert decayed == pytest.approx([-0.175, -0.275])
