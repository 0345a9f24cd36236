"""Numbers go in and out of dataclasses, and changed numbers don't compile again."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
import pytest

import dure
from dure.oracles.optimizer import Optimizer, sgd
from dure.simulation import hyper
from dure.simulation.program import compiled_round
from problems import LINEAR, Cyclic, make_engine, rows_data


@dataclass(frozen=True)
class Thing:
    rate: float
    count: int
    flag: bool
    inner: Any = None

    def __post_init__(self) -> None:
        assert isinstance(self.rate, float)


def test_split_and_join() -> None:
    thing = Thing(0.5, 3, True, {"a": 1.5, "b": Thing(2.5, 1, False), "c": "word", "d": None})
    structure, numbers = hyper.split(thing)
    assert numbers == [0.5, 1.5, 2.5]
    assert hyper.join(structure, iter(numbers)) == thing
    other = hyper.join(structure, iter([1.0, 2.0, 3.0]))
    assert other == Thing(1.0, 3, True, {"a": 2.0, "b": Thing(3.0, 1, False), "c": "word", "d": None})
    traced = hyper.join(structure, iter(["not a number"] * 3))
    assert traced.rate == "not a number", "no constructor runs on traced values"


def test_structures_are_equal_exactly_when_only_floats_differ() -> None:
    def structure(*args: Any) -> Any:
        return hyper.split(Thing(*args))[0]

    assert structure(0.5, 3, True) == structure(7.0, 3, True)
    assert hash(structure(0.5, 3, True)) == hash(structure(7.0, 3, True))
    assert structure(0.5, 3, True) != structure(0.5, 4, True)
    assert structure(0.5, 3, True) != structure(0.5, 3, False)
    assert structure(0.5, 3, True, sgd(0.1)) == structure(0.5, 3, True, sgd(0.2))
    assert structure(0.5, 3, True, sgd(0.1)) != structure(0.5, 3, True, sgd(0.1, momentum=0.9))
    assert hyper.split(np.float32(0.25))[1] == [0.25]


DATA = rows_data([5, 9, 2, 7])


def programs(engine: Any) -> int:
    """Compiled versions behind the engine's present round."""
    statics, _ = engine.plan(engine.round + 1)
    return int(compiled_round(statics)._cache_size())


def test_other_numbers_share_the_program() -> None:
    before = compiled_round.cache_info().misses
    models = []
    for algorithm, optimizer in (
        (dure.FedAvg(), sgd(0.1, momentum=0.5, round_decay=0.9)),
        (dure.FedAvg(0.5), sgd(0.3, momentum=0.1, round_decay=0.5)),
        (dure.FedAvg(1.5), sgd(0.01, momentum=0.9, round_decay=0.99)),
    ):
        engine = make_engine(algorithm, LINEAR, DATA, optimizer=optimizer, batch_size=4)
        engine.launch()
        engine.launch()
        models.append(np.asarray(engine.model.server.w).tobytes())
        assert programs(engine) == 1
    assert compiled_round.cache_info().misses == before + 1
    assert len(set(models)) == 3, "the numbers are used"


def test_numbers_of_optax_factories_too() -> None:
    models = []
    for rate in (0.01, 0.02):
        optimizer = Optimizer(optax.adam, {"learning_rate": rate, "b1": 0.8})
        engine = make_engine(dure.FedAvg(), LINEAR, DATA, optimizer=optimizer, batch_size=4)
        engine.launch()
        models.append(np.asarray(engine.model.server.w).tobytes())
        assert programs(engine) == 1
    assert models[0] != models[1]


def test_few_compilations_under_poisson_cohorts() -> None:
    """Cohorts of every size: shapes are bucketed, compilations are counted, and they are few."""
    data = rows_data(np.random.default_rng(0).integers(1, 40, 300), seed=2)
    engine = make_engine(dure.FedAvg(), LINEAR, data, sampler=dure.Poisson(0.1), batch_size=8, optimizer=0.01)
    before = compiled_round.cache_info().misses
    sizes = set()
    for _ in range(60):
        sizes.add(len(engine.launch().facts.ids))
    engine.block()
    assert len(sizes) > 12
    assert engine.compilations == compiled_round.cache_info().misses - before
    assert engine.compilations <= 12


def test_a_steady_cohort_compiles_once() -> None:
    engine = make_engine(dure.FedAvg(), LINEAR, DATA, sampler=Cyclic(2), steps=3, batch_size=math.inf)
    for _ in range(5):
        engine.launch()
    assert engine.compilations == 1
    assert programs(engine) == 1


def test_client_state_does_not_compile_again() -> None:
    engine = make_engine(dure.Scaffold(), LINEAR, DATA, sampler=Cyclic(2), steps=3, batch_size=4)
    for _ in range(5):
        engine.launch()
    assert engine.compilations <= 2
    assert programs(engine) == 1


@pytest.mark.parametrize("value", [0.25, 1e-30])
def test_numbers_arrive_as_they_are(value: float) -> None:
    structure, numbers = hyper.split(sgd(value))
    found = jax.jit(lambda x: hyper.join(structure, iter([x])).arguments["learning_rate"])(
        np.float32(numbers[0])
    )
    assert found == np.float32(value)
