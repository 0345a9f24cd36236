"""Every client's own model on its own test rows, against a computation by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dure
from dure.simulation.personal import PersonalEvaluation
from problems import LINEAR, make_engine

#: Rows for training, rows for testing. Client 2 has none to train on, client 3 none to be tested on.
TRAIN, TEST = np.array([5, 9, 0, 4, 3]), np.array([3, 2, 4, 0, 70])
RNG = np.random.default_rng(6)


def rows(sizes: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    n = int(sizes.sum())
    columns = {"x": RNG.normal(size=(n, 3)).astype(np.float32), "y": RNG.normal(size=n).astype(np.float32)}
    return columns, np.concatenate([[0], np.cumsum(sizes)])


COLUMNS, OFFSETS = rows(TRAIN)
TEST_COLUMNS, TEST_OFFSETS = rows(TEST)
DATA = dure.Federated(COLUMNS, OFFSETS, client_test=TEST_COLUMNS, client_test_offsets=TEST_OFFSETS)
LOCAL = {"steps": 3, "batch_size": math.inf, "optimizer": 0.1}


def own(client: int) -> tuple[np.ndarray, np.ndarray]:
    at = slice(OFFSETS[client], OFFSETS[client + 1])
    return COLUMNS["x"][at].astype(np.float64), COLUMNS["y"][at].astype(np.float64)


def gradient(client: int, w: np.ndarray) -> np.ndarray:
    x, y = own(client)
    return x.T @ (x @ w - y) / max(len(y), 1)


def loss_there(client: int, w: np.ndarray) -> float:
    at = slice(TEST_OFFSETS[client], TEST_OFFSETS[client + 1])
    x, y = TEST_COLUMNS["x"][at].astype(np.float64), TEST_COLUMNS["y"][at]
    return float(0.5 * np.mean((x @ w - y) ** 2)) if len(y) else math.nan


def fine_tuned(engine: Any, client: int) -> np.ndarray:
    w = np.asarray(engine.model.server.w, np.float64)
    for _ in range(3):
        w = w - 0.1 * gradient(client, w)
    return w


def one_step(engine: Any, client: int) -> np.ndarray:
    w = np.asarray(engine.model.server.w, np.float64)
    return w - 0.3 * gradient(client, w)


def kept(engine: Any, client: int) -> np.ndarray:
    return engine.store.gather(np.array([client]))[0].astype(np.float64)


def mixed(engine: Any, client: int) -> np.ndarray:
    *v, alpha = kept(engine, client)
    return alpha * np.array(v) + (1 - alpha) * np.asarray(engine.model.server.w, np.float64)


def best_cluster(engine: Any, client: int) -> np.ndarray:
    models = np.asarray(engine.model.server.models, np.float64)
    x, y = own(client)
    return models[np.argmin([np.sum((x @ w - y) ** 2) for w in models])]


SEQUENTIAL = {"schedule": "sequential", "devices": 1}
TWO = {"schedule": "vectorised", "width": 2, "devices": 2}
CASES = [
    (dure.FineTuning(), fine_tuned, SEQUENTIAL),
    (dure.FineTuning(), fine_tuned, {**SEQUENTIAL, "devices": 2}),
    (dure.FineTuning(), fine_tuned, TWO),
    (dure.FineTuning(), fine_tuned, {"eager": True}),
    (dure.Ditto(0.5), kept, SEQUENTIAL),
    (dure.Ditto(0.5), kept, TWO),
    (dure.Ditto(0.5), kept, {"eager": True}),
    (dure.LocalOnly(), kept, SEQUENTIAL),
    (dure.PerFedAvg(adaptation_lr=0.3), one_step, TWO),
    (dure.APFL(), mixed, SEQUENTIAL),
    (dure.IFCA(), best_cluster, TWO),
]


@pytest.mark.parametrize(
    ("algorithm", "by_hand", "place"),
    CASES,
    ids=[f"{type(a).__name__}-{i}" for i, (a, _, _) in enumerate(CASES)],
)
def test_by_hand(algorithm: Any, by_hand: Callable[..., Any], place: dict[str, Any]) -> None:
    engine = make_engine(algorithm, LINEAR, DATA, **LOCAL, **place)
    evaluation = PersonalEvaluation(engine)
    for rounds in (0, 2):
        for _ in range(rounds):
            engine.launch()
        found = evaluation.measure()["loss"]
        wanted = [loss_there(k, by_hand(engine, k)) for k in range(5)]
        np.testing.assert_allclose(found, wanted, rtol=2e-5)
    assert np.isnan(found[3])


def test_evaluation_changes_nothing() -> None:
    """Whether and when clients are evaluated leaves no trace in the training."""
    keywords = {"rounds": 4, "batch_size": 2, "optimizer": 0.1, "lost_uploads": 0.3, "clients_per_round": 3}
    often = dure.simulate(dure.Ditto(), LINEAR, DATA, evaluate_clients_every=1, **keywords)
    once = dure.simulate(dure.Ditto(), LINEAR, DATA, **keywords)
    np.testing.assert_array_equal(often.model["w"], once.model["w"])
    last = often.clients[often.clients["round"] == 4]
    np.testing.assert_array_equal(last["personal_loss"], once.clients["personal_loss"])


def test_the_record_says_how_it_spreads() -> None:
    run = dure.simulate(dure.FineTuning(), LINEAR, DATA, rounds=2, **LOCAL)
    clients, final = run.clients, run.final
    assert clients["client"].tolist() == [0, 1, 2, 4]
    for measure in ("loss", "personal_loss"):
        values = clients[measure].to_numpy()
        assert final[f"client_{measure}_mean"] == pytest.approx(values.mean())
        assert final[f"client_{measure}_worst"] == pytest.approx(values.max())
        assert final[f"client_{measure}_p10"] == pytest.approx(np.percentile(values, 90))
    plain = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=2, **LOCAL)
    assert "personal_loss" not in plain.clients
    np.testing.assert_allclose(plain.clients["loss"], clients["loss"], rtol=1e-6)


def test_more_clients_than_fit_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(dure.FineTuning(), LINEAR, DATA, **LOCAL, **SEQUENTIAL)
    whole = PersonalEvaluation(engine).measure()["loss"]
    monkeypatch.setattr("dure.simulation.personal._TOGETHER", 2)
    np.testing.assert_array_equal(PersonalEvaluation(engine).measure()["loss"], whole)
