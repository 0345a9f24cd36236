"""Client state: SCAFFOLD's invariants under sampling, and the three places where states are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.algorithms import Scaffold
from dure.errors import ConfigError, RunError
from dure.oracles.optimizer import sgd
from dure.simulation.engine import Engine
from dure.simulation.settings import settings as chosen
from dure.simulation.store import ClientStore
from problems import Q10, QUADRATIC, Cyclic, make_engine, q10

LOCAL = {"steps": 10, "batch_size": float("inf"), "weighting": "uniform"}


def mean_control(engine: Any) -> np.ndarray:
    return engine.store.gather(np.arange(10)).astype(np.float64).mean(0)


@pytest.mark.parametrize(
    ("optimizer", "keywords", "rounds"),
    [
        (0.1, {}, 60),
        (0.1, {"sampler": Cyclic(3)}, 160),
        (0.1, {"clients_per_round": 2}, 250),
        (sgd(0.1, momentum=0.5), {}, 60),
        (sgd(0.1, round_decay=0.995), {"sampler": Cyclic(3)}, 160),
    ],
    ids=["everyone", "cyclic", "uniform", "momentum", "decay"],
)
def test_scaffold(optimizer: Any, keywords: dict[str, Any], rounds: int) -> None:
    """c = mean of the c_k after every round, and the limit is the optimum, drift or no drift."""
    engine = make_engine(Scaffold(), QUADRATIC, q10(), optimizer=optimizer, **LOCAL, **keywords)
    for t in range(rounds):
        engine.launch()
        if t < 20 or t == rounds - 1:
            np.testing.assert_allclose(engine.model.server.c, mean_control(engine), atol=2e-5)
    error = np.linalg.norm(engine.model.server.w - Q10.optimum(Q10.uniform))
    assert error < 1e-4
    controls = engine.store.gather(np.arange(10))
    wanted = np.einsum("ijk,ik->ij", Q10.A, Q10.optimum(Q10.uniform) - Q10.b)
    np.testing.assert_allclose(controls, wanted, atol=1e-3)


def test_option_two_with_one_full_batch_is_the_gradient_at_any_round_of_a_schedule() -> None:
    """K = 1: c_k⁺ = ∇f_k(x), also when the rate decays over the rounds: dividing by the undecayed rate is off."""
    engine = make_engine(
        Scaffold(), QUADRATIC, q10(), optimizer=sgd(0.2, round_decay=0.5), **{**LOCAL, "steps": 1}
    )
    for _ in range(3):
        before = np.asarray(engine.model.server.w, np.float64)
        engine.launch()
    wanted = np.einsum("ijk,ik->ij", Q10.A, before - Q10.b)
    np.testing.assert_allclose(engine.store.gather(np.arange(10)), wanted, atol=2e-5)


def test_stopped_early_the_normaliser_is_the_work_done() -> None:
    def slow(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return np.maximum(steps - ids, 1)  # client k does 10 − k steps

    engine = make_engine(Scaffold(), QUADRATIC, q10(), optimizer=0.1, work_limit=slow, **LOCAL)
    for _ in range(120):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.c, mean_control(engine), atol=2e-5)
    assert np.linalg.norm(engine.model.server.w - Q10.optimum(Q10.uniform)) < 1e-4


def test_only_the_asked_clients_change(tmp_path: Path) -> None:
    engine = make_engine(Scaffold(), QUADRATIC, q10(), sampler=Cyclic(3), optimizer=0.1, **LOCAL)
    engine.launch()
    engine.launch()
    before = engine.store.gather(np.arange(10))
    assert (before[[6, 7, 8, 9]] == 0).all()
    engine.launch()  # clients 6, 7, 8
    after = engine.store.gather(np.arange(10))
    changed = (after != before).any(1)
    assert np.flatnonzero(changed).tolist() == [6, 7, 8]


@pytest.mark.parametrize("schedule", [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 2}])
def test_placements_give_the_same_bits(tmp_path: Path, schedule: dict[str, Any]) -> None:
    states, models = [], []
    for placement in ("host", "device", "disk"):
        keywords = {"sampler": Cyclic(3), "optimizer": 0.1, "client_state": placement, **LOCAL, **schedule}
        engine = Engine(
            Scaffold(), QUADRATIC, q10(), chosen(q10(), **keywords), directory=tmp_path / placement
        )
        assert engine.store.placement == placement
        for _ in range(7):
            engine.launch()
        states.append(engine.store.gather(np.arange(10)).tobytes())
        models.append(np.asarray(engine.model.server.w).tobytes())
    assert len(set(states)) == len(set(models)) == 1


def test_disk_needs_a_directory() -> None:
    with pytest.raises(ConfigError, match="client_state='disk' needs a directory"):
        make_engine(Scaffold(), QUADRATIC, q10(), client_state="disk", **LOCAL)


# ----- the store by itself, against a dictionary -----------------------------------------------------------

N, WIDTH = 12, 3
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("scatter"), st.sets(st.integers(0, N - 1))),
        st.tuples(st.just("commit"), st.just(frozenset())),
        st.tuples(st.just("restore"), st.just(frozenset())),
    ),
    max_size=14,
)


@pytest.mark.parametrize("placement", ["host", "device", "disk"])
@settings(deadline=None, max_examples=25)
@given(operations=OPERATIONS)
def test_the_store_is_a_dictionary_with_checkpoints(
    placement: str, operations: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    initial = np.float32([1, 2, 3])
    store = ClientStore(N, initial, placement, tmp_path_factory.mktemp("store") / "rows")
    model: dict[int, np.ndarray] = {}
    saved: list[tuple[int, dict[str, np.ndarray], dict[int, np.ndarray]]] = []
    counter = 0

    def save(round: int) -> None:
        store.flush()
        saved.append((round, store.snapshot(), {k: v.copy() for k, v in model.items()}))
        store.commit(round, saved[-2:][0][0])

    save(0)
    for number, (what, clients) in enumerate(operations, 1):
        if what == "scatter":
            ids = np.array(sorted(clients), np.int64)
            counter += 1
            rows = (counter * 100 + ids[:, None] + np.arange(WIDTH)).astype(np.float32)
            store.scatter(ids, rows)
            model.update(zip(ids.tolist(), rows, strict=True))
        elif what == "commit":
            save(number)
        else:
            round, snapshot, content = saved[-1]
            store.restore(snapshot, round)
            model = {k: v.copy() for k, v in content.items()}
        wanted = np.stack([model.get(k, initial) for k in range(N)])
        np.testing.assert_array_equal(store.gather(np.arange(N)), wanted)
    assert store.used == len(model)


def test_disk_goes_back_two_checkpoints(tmp_path: Path) -> None:
    """The last checkpoint may be damaged: the one before it can still be gone back to."""
    store = ClientStore(5, np.zeros(2, np.float32), "disk", tmp_path)
    ids = np.arange(5)

    def value(v: float) -> np.ndarray:
        return np.full((5, 2), v, np.float32)

    store.commit(0, 0)
    store.scatter(ids, value(1))
    first = store.snapshot()
    store.flush()
    store.commit(1, 0)
    store.scatter(ids, value(2))
    store.scatter(ids[:2], value(3)[:2])
    store.flush()
    store.commit(2, 1)
    store.scatter(ids, value(4))
    again = ClientStore(5, np.zeros(2, np.float32), "disk", tmp_path)  # another process
    again.restore(first, 1)
    np.testing.assert_array_equal(again.gather(ids), value(1))


def test_missing_rows_are_an_error(tmp_path: Path) -> None:
    store = ClientStore(5, np.zeros(2, np.float32), "disk", tmp_path)
    with pytest.raises(RunError, match="holds 0 rows"):
        store.restore({"client_ids": np.arange(3)}, 1)


def test_untouched_clients_cost_almost_nothing() -> None:
    """10⁷ registered clients with states of 4 kB: only the touched ones are allocated (law 10)."""
    import time
    import tracemalloc

    tracemalloc.start()
    store = ClientStore(10**7, np.zeros(1000, np.float32))
    ids = np.array([5, 123_456, 9_999_999])
    begin = time.perf_counter()
    store.scatter(ids, np.ones((3, 1000), np.float32))
    got = store.gather(np.array([5, 6, 9_999_999]))
    assert time.perf_counter() - begin < 0.5
    np.testing.assert_array_equal(got[:, 0], [1, 0, 1])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60e6  # four bytes of address for each, and a few rows
