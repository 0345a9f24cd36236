"""What every method must do in the engine: run compiled as it runs eagerly, and send what it declares."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import jax
import numpy as np
import pytest

import dure
from dure.algorithms import ALL
from dure.config.probe import is_required
from dure.models import mlp
from problems import make_engine

RNG = np.random.default_rng(2)
SIZES = np.array([5, 8])
DATA = dure.Federated(
    {
        "x": RNG.normal(size=(SIZES.sum(), 12)).astype(np.float32),
        "y": RNG.integers(0, 4, SIZES.sum()).astype(np.int32),
    },
    np.concatenate([[0], np.cumsum(SIZES)]),
)
TASK = dure.classification(mlp(12, (9,), 4))
#: For methods that average low-rank adapters: they have as many numbers as the adapted weight, 6 · (12 + 12) = 12².
ADAPTED = dure.classification(dure.lora(mlp(12, (12,), 4), targets="dense1", rank=6))
#: Hyper-parameters that have no default: for which clients, for which tensors.
GIVEN = {"edges": (0, 1), "private": ("dense2",), "classes": 4}
LOCAL = {"steps": 2, "batch_size": 4, "optimizer": 0.1, "devices": 1, "schedule": "sequential"}


def make(method: type[Any]) -> Any:
    given = {f.name: GIVEN[f.name] for f in fields(method) if is_required(f)}
    if method is dure.FedBN:
        given = {"private": ("*bias",)}
    return method(**given)


#: One of each kind: none, state, private parameters, clusters. The others take minutes: `make test-slow`.
#: (All of them train from files in `tests/config`, and have tests of their own.)
QUICK = {dure.FedAvg, dure.Scaffold, dure.FedRep, dure.IFCA}
METHODS = pytest.mark.parametrize(
    "method",
    [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in ALL],
    ids=lambda m: m.__name__,
)


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Nearly all of the time goes into compiling 36 methods: without optimisation it is half."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def after(engine: Any, rounds: int) -> list[np.ndarray]:
    """Everything that a training leaves behind."""
    for _ in range(rounds):
        result = engine.collect(engine.launch())
        assert result.status == ["ok"] * 2
    found = [np.asarray(x) for x in jax.tree.leaves(engine.model)]
    return found if engine.store is None else [*found, engine.store.gather(np.arange(2))]


@METHODS
def test_compiled_eager_and_declared(method: type[Any]) -> None:
    """The same page under the compiler and without it; needs × the model's bytes, within the small headers."""
    task = ADAPTED if method.needs.adapters else TASK
    compiled = make_engine(make(method), task, DATA, **LOCAL)
    needs, bytes_of_a_model = method.needs, 4 * compiled.layout.shared_size
    for declared, message in (
        (needs.uplink, compiled.uplink_message),
        (needs.downlink, compiled.downlink_message),
    ):
        headers = message - declared * bytes_of_a_model
        assert 0 <= headers <= (200 if declared else 0)
    eager = make_engine(make(method), task, DATA, **LOCAL, eager=True)
    before = np.array(compiled.vector())  # a copy: the next round takes its memory
    for a, b in zip(after(compiled, 2), after(eager, 2), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    moved = bool(np.any(np.asarray(compiled.vector()) != before))
    assert moved == (needs.uplink > 0), "only training alone leaves the server's model where it was"


CARRIED = [
    dure.FedAdam,
    dure.Scaffold,
    dure.Mime,
    dure.Moon,
    dure.FedADMM,
    dure.APFL,
    dure.FedRep,
    dure.HierFAVG,
]


@pytest.mark.parametrize("method", CARRIED, ids=lambda m: m.__name__)
def test_resumed_bit_for_bit(method: type[Any], tmp_path: Any) -> None:
    """Stopped after the third of five rounds and gone on: the records and the model of the run that was not."""
    data = DATA.split(0.3, seed=1)
    contents = []
    for name, stops in (("whole", (5,)), ("parts", (3, 5))):
        for rounds in stops:
            dure.simulate(
                make(method), TASK, data, rounds=rounds, directory=tmp_path / name, resume=rounds != stops[0],
                lost_uploads=0.2, evaluate_clients_every=1, **LOCAL,
            )  # fmt: skip
        contents.append(
            [
                (tmp_path / name / file).read_bytes()
                for file in ("rounds.jsonl", "clients.jsonl", "model.safetensors")
            ]
        )
    assert contents[0] == contents[1]
