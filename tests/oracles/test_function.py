"""Any Python function as a client: what it is given, what it may return, and who can use it."""

from typing import Any

import numpy as np
import pytest

import dure
from dure.simulation.records import round_record
from problems import make_engine

RNG = np.random.default_rng(1)
SIZES = np.array([6, 10, 4])
X = RNG.normal(size=(SIZES.sum(), 3)).astype(np.float32)
DATA = dure.Federated(
    {"x": X, "y": X @ np.array([1, -2, 0.5], np.float32)}, np.concatenate([[0], np.cumsum(SIZES)])
)
LOCAL: dict[str, Any] = {"devices": 1}


def half_way(params: Any, data: Any, config: Any) -> Any:
    """Half of the way to the client's least-squares solution: its fixed point is known."""
    best = np.linalg.lstsq(data["x"], data["y"], rcond=None)[0]
    params["w"] += 0.5 * (best + config["client"] - params["w"])  # clients disagree by their number
    return params, len(data["y"]), float(np.mean((data["x"] @ params["w"] - data["y"]) ** 2))


def predict(params: Any, inputs: Any) -> Any:
    return inputs @ params["w"]


def task(train: Any = half_way, init: Any = None, **keywords: Any) -> dure.Task:
    return dure.oracle(train, init={"w": np.zeros(3)} if init is None else init, **keywords)


def squared(outputs: Any, targets: Any) -> Any:
    return (outputs - targets) ** 2


@pytest.mark.parametrize(
    "settings", [{"schedule": "sequential"}, {"schedule": "vectorised"}, {"eager": True}, {"devices": 2}]
)
def test_fedavg_of_a_function_reaches_its_fixed_point(settings: dict[str, Any]) -> None:
    """w = Σ p_k (½ w + ½ (b + k)) has the fixed point b + Σ p_k k."""
    engine = make_engine(dure.FedAvg(), task(), DATA, **{**LOCAL, **settings})
    for _ in range(25):
        result = engine.collect(engine.launch())
    assert result.status == ["ok"] * 3
    expected = np.array([1, -2, 0.5]) + (SIZES * np.arange(3)).sum() / SIZES.sum()
    np.testing.assert_allclose(engine.params()["w"], expected, rtol=0, atol=1e-5)


def test_a_server_optimizer_takes_it_and_evaluation_uses_predict() -> None:
    data = dure.Federated(DATA.columns, DATA.offsets, test=DATA.columns)
    t = task(predict=predict, loss=squared, metrics=())
    run = dure.simulate(dure.FedAvgM(server_lr=0.5), t, data, rounds=3)
    w = run.state_dict()["w"]
    np.testing.assert_allclose(run.final["test_loss"], np.mean((X @ w - DATA.columns["y"]) ** 2), rtol=1e-5)
    assert run.final["train_loss"] > 0


def test_without_predict_nothing_is_evaluated() -> None:
    run = dure.simulate(dure.FedAvg(), task(), DATA.split(0.3), rounds=2)
    assert run.state == "complete"
    assert not [key for key in run.final if key.startswith(("test_", "client_"))]


@pytest.mark.parametrize(
    "init",
    [
        np.zeros(3),
        [np.zeros((2, 2)), np.zeros(1), np.zeros(())],
        {"b": np.zeros(2, np.float64), "a": np.zeros(1)},
    ],
)
def test_parameters_come_as_they_were_given(init: Any) -> None:
    def check(params: Any, data: Any, config: Any) -> Any:

        assert type(params) is type(init)
        pairs = zip(params, init) if isinstance(init, list) else [(params, init)]  # noqa: B905
        if isinstance(init, dict):
            pairs = [(params[k], init[k]) for k in init]
        for found, given in pairs:
            assert (found.shape, found.dtype) == (given.shape, given.dtype)
        assert set(config) == {"round", "client", "seed"}
        if isinstance(params, dict):
            return {k: v + 1 for k, v in params.items()}, len(data["y"])
        return ([p + 1 for p in params] if isinstance(params, list) else params + 1), len(data["y"])

    engine = make_engine(dure.FedAvg(), dure.oracle(check, init=init), DATA, **LOCAL)
    assert engine.collect(engine.launch()).status == ["ok"] * 3
    np.testing.assert_array_equal(np.asarray(engine.vector()), np.ones(engine.layout.size))


def test_the_seed_is_the_clients_and_the_rounds_own() -> None:
    seen = []
    for _ in range(2):
        found: list[Any] = []

        def note(params: Any, data: Any, config: Any, found: list[Any] = found) -> Any:
            found.append((config["round"], config["client"], config["seed"]))
            return params, len(data["y"])

        engine = make_engine(dure.FedAvg(), task(note), DATA, eager=True)
        for _ in range(2):
            engine.collect(engine.launch())
        seen.append(found)
    assert seen[0] == seen[1]
    # Once for each client and round, and nothing before the first.
    assert sorted(call[:2] for call in seen[0]) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]
    assert len({seed for *_, seed in seen[0]}) == 6


@pytest.mark.parametrize(
    ("losses", "status", "mean"),
    [
        ({}, ["ok"] * 3, None),
        ({0: 0.0, 2: 5.0}, ["ok"] * 3, (6 * 0 + 4 * 5) / 10),  # weighted by the examples of those who report
        ({0: 2.0, 1: float("nan")}, ["ok", "loss not finite", "ok"], 2.0),
    ],
)
def test_a_loss_that_is_not_reported_is_not_zero(losses: Any, status: Any, mean: Any) -> None:
    def some(params: Any, data: Any, config: Any) -> Any:
        k, n = config["client"], len(data["y"])
        return (params, n, losses[k]) if k in losses else (params, n, None)[: 2 + k % 2]

    engine = make_engine(dure.FedAvg(), task(some), DATA, eager=True)
    result = engine.collect(engine.launch())
    assert result.status == status
    expected = [losses.get(k, np.nan) for k in range(3)]
    np.testing.assert_array_equal(result.loss, np.array(expected, np.float32))
    assert round_record(engine, result, 0, 0)["train_loss"] == (None if mean is None else pytest.approx(mean))


def test_a_run_without_any_training_loss_has_a_report() -> None:
    run = dure.simulate(dure.FedAvg(), task(lambda p, d, c: (p, len(d["y"]))), DATA, rounds=1, **LOCAL)
    assert [record.get("train_loss") for record in run.rounds] == [None, None]
    assert run.summary()


@pytest.mark.parametrize(
    "settings",
    [{"epochs": 2}, {"steps": 3}, {"batch_size": 5}, {"optimizer": 0.5}],
    ids=lambda s: next(iter(s)),
)
def test_what_it_would_ignore_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(dure.ConfigError, match=r"epochs.*have no meaning: half_way trains in its own way"):
        make_engine(dure.FedAvg(), task(), DATA, **settings, **LOCAL)


def test_an_error_that_ends_in_a_full_stop_gets_no_second() -> None:
    def fails(params: Any, data: Any, config: Any) -> Any:
        raise ValueError("The disk is full.")

    engine = make_engine(dure.FedAvg(), task(fails), DATA, eager=True)
    with pytest.raises(dure.RunError, match=r"\(2 more failed\): ValueError: The disk is full\. Mend it"):
        engine.collect(engine.launch())


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (lambda p, d, c: p, "must return"),
        (lambda p, d, c: (p, 3), "n=3 examples, and the client has"),
        (lambda p, d, c: ({"v": p["w"]}, len(d["y"])), r"returned parameters \['v'\], it was given \['w'\]"),
        (lambda p, d, c: ({"w": p["w"][:2]}, len(d["y"])), r"'w' in shape \(2,\), it was given \(3,\)"),
        (lambda p, d, c: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_it_returns_is_checked_and_the_client_named(train: Any, message: str) -> None:
    engine = make_engine(dure.FedAvg(), task(train), DATA, schedule="vectorised", **LOCAL)
    with pytest.raises(dure.RunError, match="Client 0 failed in round 1.*" + message):
        engine.collect(engine.launch())


def test_only_some_clients_fail() -> None:
    def fails(params: Any, data: Any, config: Any) -> Any:
        if config["client"] == 1:
            raise ValueError("no disk")
        return half_way(params, data, config)

    engine = make_engine(dure.FedAvg(), task(fails), DATA, client_errors="set aside", **LOCAL)
    assert engine.collect(engine.launch()).status == ["ok", "raised ValueError: no disk", "ok"]


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (
            dure.FedProx(mu=0.1),
            r"adds to the local problem \(anchor, prox\)|adds to the local problem \(prox\)",
        ),
        (dure.Scaffold(), "adds to the local problem"),
        (dure.FedSGD(), "asks for gradients"),
        (dure.FedNova(), "adds to the local problem"),
        (dure.FedSAM(), "asks for gradients"),
    ],
    ids=lambda a: type(a).__name__,
)
def test_methods_that_must_see_inside_refuse_it(algorithm: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        make_engine(algorithm, task(), DATA, **LOCAL).launch()


def test_impossible_arguments() -> None:
    for keywords, message in (
        ({"train": 3}, "train=3 is not a function"),
        ({"predict": 3}, "predict=3 is not a function"),
        ({"init": {}}, "it holds nothing"),
        ({"init": [np.zeros(2, int)]}, "it holds int64"),
        ({"init": {"a": np.zeros(2), "b": np.array([1, np.nan])}}, "init has values in b that are NaN"),
        ({"init": np.array([1e300])}, "init has values that are NaN, infinite or too large"),
    ):
        with pytest.raises(dure.ConfigError, match=message):
            task(**keywords)


def test_rows_can_be_read_only_and_names_are_texts() -> None:
    def spoils(params: Any, data: Any, config: Any) -> Any:
        data["x"][...] = 0
        return params, len(data["y"])

    settings = {**LOCAL, "schedule": "vectorised", "client_errors": "set aside"}
    engine = make_engine(dure.FedAvg(), task(spoils), DATA, **settings)
    assert "read-only" in engine.collect(engine.launch()).status[0]
    with pytest.raises(dure.ConfigError, match="give texts, or a list"):
        task(init={0: np.zeros(1), 11: np.zeros(1)})


def test_many_arrays_keep_their_order() -> None:
    def check(params: Any, data: Any, config: Any) -> Any:
        import numpy as np

        assert [float(np.ravel(p)[0]) for p in params] == list(range(12))
        return params, len(data["y"])

    init = [np.full(2, float(i)) for i in range(12)]
    engine = make_engine(dure.FedAvg(), dure.oracle(check, init=init), DATA, **LOCAL)
    assert engine.collect(engine.launch()).status == ["ok"] * 3
