"""Estimators that learn by `partial_fit`: rounds are epochs of scikit-learn's own, averaged."""

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

import dure
from dure.oracles.estimators.epochs import decision_losses
from dure.oracles.estimators.fitted import fitted
from problems import make_engine

RNG = np.random.default_rng(8)
SIZES = np.array([25, 40, 15])
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
N, F = int(SIZES.sum()), 4
X = RNG.normal(size=(N, F)).astype(np.float32)
SCORE = X @ np.array([1, -1, 0.5, 0]) + 0.2 * RNG.normal(size=N)
LABELS = (SCORE > 0).astype(np.int32)
THREE = np.digitize(SCORE, [-0.7, 0.7]).astype(np.int32)
REAL = SCORE.astype(np.float32)
LOCAL: dict[str, Any] = {"devices": 1}
ORDERED: dict[str, Any] = {"shuffle": False}


def data(y: np.ndarray, clients: int = 3) -> dure.Federated:
    return dure.Federated({"x": X, "y": y}, OFFSETS if clients == 3 else np.array([0, N]))


def rounds_of(engine: Any, rounds: int) -> Any:
    for _ in range(rounds):
        engine.collect(engine.launch())
    return engine.params()


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (SGDClassifier(**ORDERED), LABELS),  # whose learning rate falls with t_
        (SGDClassifier(loss="log_loss", learning_rate="invscaling", eta0=0.1, **ORDERED), THREE),
        (Perceptron(fit_intercept=False, **ORDERED), LABELS),
        (SGDRegressor(**ORDERED), REAL),
    ],
)
def test_one_client_is_scikit_learns_own_epochs(estimator: Any, y: np.ndarray) -> None:
    """Three rounds of two epochs are six calls of partial_fit: the number of steps t_ goes on."""
    found = rounds_of(make_engine(dure.FedAvg(), estimator, data(y, 1), epochs=2, **LOCAL), 3)
    from sklearn.base import clone

    own, other = clone(estimator), clone(estimator)
    for _ in range(6):
        classes = {} if y is REAL else {"classes": np.unique(y)}
        own.partial_fit(X.astype(np.float64), y, **classes)
        other.partial_fit(X.astype(np.float64), y, **classes)
        other.t_ = 1.0
    np.testing.assert_allclose(found["coef_"], own.coef_, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["intercept_"], own.intercept_, rtol=1e-4, atol=1e-5)
    if not isinstance(estimator, Perceptron):  # whose learning rate is constant
        assert np.abs(own.coef_ - other.coef_).max() > 1e-3, "the test can't tell that t_ goes on"


def test_a_round_is_the_mean_of_the_clients_epochs() -> None:
    engine = make_engine(dure.FedAvg(), SGDRegressor(**ORDERED), data(REAL), **LOCAL)
    found = rounds_of(engine, 1)
    own = []
    for k in range(3):
        rows = slice(OFFSETS[k], OFFSETS[k + 1])
        own.append(SGDRegressor(**ORDERED).partial_fit(X[rows].astype(np.float64), REAL[rows]).coef_)
    np.testing.assert_allclose(found["coef_"], SIZES @ np.array(own) / N, rtol=1e-5)
    assert int(np.asarray(engine.model.ints)[0]) == 1 + SIZES.max()


@pytest.mark.parametrize("solver", ["adam", "sgd"])
def test_a_networks_optimizer_is_new_in_every_round(solver: str) -> None:
    """As in `fit` with warm_start, which goes on from the weights with a new optimizer."""
    settings = {"hidden_layer_sizes": (6, 3), "solver": solver, "shuffle": False, "batch_size": 20}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = MLPClassifier(**settings, max_iter=1, warm_start=True, random_state=1).fit(
            X.astype(float), THREE
        )
        start = {f"coefs_{i}": w.astype(np.float32) for i, w in enumerate(own.coefs_)}
        start |= {f"intercepts_{i}": b.astype(np.float32) for i, b in enumerate(own.intercepts_)}
        for _ in range(3):
            own.fit(X.astype(float), THREE)
    task = dure.scikit_learn(MLPClassifier(**settings), data(THREE, 1))
    simulation = dure.Simulation(
        dure.FedAvg(), task, data(THREE, 1), initial=dure.Variables(start), devices=1
    )
    for _ in range(3):
        simulation.step(wait=True)
    for i, w in enumerate(own.coefs_):
        np.testing.assert_allclose(simulation.params()[f"coefs_{i}"], w, atol=2e-5)
    np.testing.assert_allclose(simulation.params()["intercepts_2"], own.intercepts_[2], atol=2e-5)


@pytest.mark.parametrize(
    ("estimator", "y"),
    [
        (MLPClassifier(hidden_layer_sizes=(5,), activation="tanh"), LABELS),
        (MLPClassifier(hidden_layer_sizes=(5, 4), activation="logistic"), THREE),
        (MLPRegressor(hidden_layer_sizes=(5, 4)), REAL),
        (SGDClassifier(loss="log_loss"), THREE),
        (SGDRegressor(), REAL),
        (Perceptron(), LABELS),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_fitted_estimator_predicts_what_the_model_does(estimator: Any, y: np.ndarray) -> None:
    task = dure.scikit_learn(estimator, data(y))
    start = task.model.init(jax.random.key(0))
    network = not hasattr(estimator, "eta0")
    if network:
        first, same, other = (task.model.init(jax.random.key(k)).params["coefs_0"] for k in (0, 0, 1))
        np.testing.assert_array_equal(first, same)
        assert (first != other).all()
    params = {name: RNG.normal(size=x.shape).astype(np.float32) for name, x in start.params.items()}
    outputs = np.asarray(task.model.apply(dure.Variables(params, start.buffers), X)[0])
    made = fitted(estimator, params | start.buffers)
    x = X.astype(float)
    if y is REAL:
        np.testing.assert_allclose(made.predict(x), outputs, atol=1e-5)
    elif network:
        expected = np.eye(3)[outputs.argmax(1)] if y is THREE else outputs > 0
        np.testing.assert_array_equal(np.eye(3)[made.predict(x)] if y is THREE else made.predict(x), expected)
        odds = np.diff(np.log(made.predict_proba(x)), axis=1)[:, 0]
        np.testing.assert_allclose(odds, outputs[:, 1] - outputs[:, 0] if y is THREE else outputs, atol=1e-4)
    else:
        np.testing.assert_allclose(made.decision_function(x), outputs, atol=1e-4)
    made.partial_fit(x, y)  # it can go on
    with pytest.raises(dure.ConfigError, match=r"not those of|have shapes"):
        fitted(SGDClassifier() if network else MLPClassifier(), params)


def test_a_run_gives_the_fitted_estimator(tmp_path: Path) -> None:
    sets = dure.Federated({"x": X, "y": LABELS}, OFFSETS, test={"x": X, "y": LABELS})
    run = dure.simulate(
        dure.FedAvgM(),
        MLPClassifier(hidden_layer_sizes=(5,)),
        sets,
        rounds=2,
        epochs=2,
        directory=tmp_path / "a",
    )
    assert run.final["test_accuracy"] == pytest.approx(run.estimator().score(X.astype(float), LABELS))
    opened = dure.Run.open(tmp_path / "a").estimator(MLPClassifier(hidden_layer_sizes=(5,)))
    np.testing.assert_array_equal(opened.predict(X), run.estimator().predict(X))


def test_the_seed_decides_and_nothing_else() -> None:
    """Not the number of devices."""
    estimator = MLPClassifier(hidden_layer_sizes=(4,), batch_size=5)

    def go(**settings: Any) -> np.ndarray:
        return np.asarray(
            rounds_of(make_engine(dure.FedAvg(), estimator, data(LABELS), **settings), 2)["coefs_0"]
        )

    one = go(devices=1, seed=4)
    np.testing.assert_array_equal(go(devices=2, seed=4), one)
    assert np.abs(go(devices=2, seed=5) - one).max() > 1e-3


def test_resumed(tmp_path: Path) -> None:
    def go(rounds: int, place: str, **more: Any) -> Any:
        return dure.simulate(
            dure.FedAvg(),
            SGDClassifier(),
            data(LABELS),
            rounds=rounds,
            directory=tmp_path / place,
            checkpoint_every=1,
            **more,
        )

    go(2, "a")
    resumed, whole = go(4, "a", resume=True).state_dict(), go(4, "b").state_dict()
    assert set(resumed) == {"coef_", "intercept_", "t_"}
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value)


def test_clients_that_lack_classes() -> None:
    order = np.argsort(THREE, kind="stable")
    sets = dure.Federated({"x": X[order], "y": THREE[order]}, OFFSETS)
    engine = make_engine(dure.FedAvg(), MLPClassifier(hidden_layer_sizes=(4,)), sets, **LOCAL)
    assert engine.collect(engine.launch()).status == ["ok"] * 3


def test_losses_of_decisions() -> None:
    y = np.array([0, 1, 1])
    z = np.array([0.5, 0.5, 2.0])
    np.testing.assert_allclose(decision_losses(np, False, z, y), [1.5, 0.5, 0])
    np.testing.assert_allclose(
        decision_losses(np, True, z, y),
        [-np.log(1 - 1 / (1 + np.exp(-0.5))), np.log1p(np.exp(-0.5)), np.log1p(np.exp(-2))],
    )
    three = np.array([[2.0, -3, 0.5]])
    np.testing.assert_allclose(decision_losses(np, False, three, np.array([0])), [1.5])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (dure.FedProx(mu=0.1), r"adds to the local problem \(.*prox.*an exact solution"),
        (dure.Scaffold(), "adds to the local problem"),
        (dure.FedSGD(), "asks for gradients"),
        (dure.FedNova(), "adds to the local problem"),
        (dure.FedPer(private=("intercept_",)), "can't have private ones"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else "",
)
def test_methods_that_must_see_inside_refuse_it(method: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        make_engine(method, SGDClassifier(), data(LABELS), **LOCAL).launch()


@pytest.mark.parametrize(
    ("estimator", "y", "message"),
    [
        (SGDClassifier(average=True), LABELS, "average=True can't be honoured"),
        (SGDClassifier(class_weight="balanced"), LABELS, "class_weight 'balanced' is not supported"),
        (SGDClassifier(loss="nonsense"), LABELS, "nonsense"),
        (SGDClassifier(early_stopping=True), LABELS, "early_stopping=True"),
        (MLPClassifier(solver="lbfgs"), LABELS, "lbfgs|partial_fit"),
        (MLPClassifier(solver="sgd", learning_rate="invscaling"), LABELS, "needs a state of the optimizer"),
        (MLPClassifier(warm_start=True), LABELS, "warm_start=True"),
        (MLPClassifier(), REAL, "takes labels"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str | np.ndarray) else "",
)
def test_what_cannot_be_honoured_is_refused(estimator: Any, y: np.ndarray, message: str) -> None:
    with pytest.raises((dure.ConfigError, dure.DataError), match=message):
        dure.scikit_learn(estimator, data(y))


def test_keywords_that_would_be_ignored() -> None:
    for keywords in ({"steps": 3}, {"batch_size": 32}, {"optimizer": 0.5}):
        with pytest.raises(dure.ConfigError, match="has an optimizer and batches of its own"):
            make_engine(dure.FedAvg(), SGDClassifier(), data(LABELS), **keywords)
