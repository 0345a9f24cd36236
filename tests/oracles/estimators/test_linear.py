"""scikit-learn's generalised linear models: federated methods reach what `fit` makes of the pooled rows."""

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from sklearn import linear_model as sk
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dure
from dure.oracles.estimators.fitted import fitted
from dure.oracles.estimators.host import EstimatorHost
from problems import make_engine

RNG = np.random.default_rng(5)
SIZES = np.array([30, 60, 20, 45])
N, F = int(SIZES.sum()), 3
OFFSETS = np.concatenate([[0], np.cumsum(SIZES)])
CLIENT = np.repeat(np.arange(4), SIZES)
X = (RNG.normal(size=(N, F)) + 0.5 * np.sin(CLIENT)[:, None]).astype(np.float32)
SCORE = X @ np.array([0.8, -0.5, 0.3]) + 0.3 * np.cos(CLIENT)
LABELS = (RNG.uniform(size=N) < 1 / (1 + np.exp(-SCORE))).astype(np.int32)
THREE = np.argmax(RNG.gumbel(size=(N, 3)) + np.outer(SCORE, [0, 1, -1]), 1).astype(np.int32)
REAL = (SCORE + RNG.normal(size=N)).astype(np.float32)
COUNTS = RNG.poisson(np.exp(SCORE)).astype(np.float32)
POSITIVE = RNG.gamma(2, np.exp(SCORE)).astype(np.float32)
LOCAL: dict[str, Any] = {"devices": 1}


def data(y: np.ndarray, **more: Any) -> dure.Federated:
    return dure.Federated({"x": X, "y": y}, OFFSETS, **more)


def pooled(estimator: Any, y: np.ndarray) -> np.ndarray:
    """Its own fit to all rows, as tightly as it can."""
    tight = {"tol": 1e-10, "max_iter": 10_000}
    estimator.set_params(**{k: v for k, v in tight.items() if k in estimator.get_params()})
    fitted = estimator.fit(X.astype(np.float64), y)
    parts = [fitted.coef_, *([fitted.intercept_] if fitted.fit_intercept else [])]
    return np.concatenate([np.ravel(p) for p in parts])


def flat(engine: Any) -> np.ndarray:
    found = engine.params()
    return np.concatenate([np.ravel(found[name]) for name in sorted(found)])


ESTIMATORS = [
    (sk.LinearRegression(), REAL),
    (sk.LinearRegression(fit_intercept=False), REAL),
    (sk.Ridge(alpha=3.0), REAL),
    (sk.LogisticRegression(C=0.1), LABELS),
    (sk.LogisticRegression(C=1.0, fit_intercept=False), LABELS),
    (sk.LogisticRegression(C=np.inf), LABELS),
    (sk.LogisticRegression(C=0.5), THREE),
    (sk.PoissonRegressor(alpha=0.1), COUNTS),
    (sk.GammaRegressor(alpha=0.1), POSITIVE),
]


@pytest.mark.slow
def test_eager_solves_each_client_once_and_equals_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row alone has no minimum here: nothing may be asked about but the clients' own rows."""
    solved: list[int] = []
    solve = EstimatorHost.answer

    def note(self: Any, job: Any, given: Any, wanted: Any) -> Any:
        solved.extend(given["size"].tolist())
        return solve(self, job, given, wanted)

    found = []
    for settings in ({"eager": True}, {"schedule": "sequential", "devices": 1}):
        with monkeypatch.context() as patch:
            patch.setattr(EstimatorHost, "answer", note)
            engine = make_engine(dure.FedAvg(), sk.LogisticRegression(), data(LABELS), **settings)
            assert engine.collect(engine.launch()).status == ["ok"] * 4
        found.append(flat(engine))
    assert sorted(solved) == sorted(SIZES)  # the compiled round's work is in other processes
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)


@pytest.mark.parametrize(("estimator", "y"), ESTIMATORS, ids=lambda x: type(x).__name__)
def test_the_clients_objectives_add_up_to_the_pooled_one(estimator: Any, y: np.ndarray) -> None:
    """Σ p_k ∇F_k is zero where scikit-learn's own fit ends, and nowhere near it."""
    task = dure.scikit_learn(estimator, data(y))
    layout = dure.Layout.of(task.model.init(jax.random.key(0)))
    outside = task.model.outside
    assert outside is not None
    host = outside.bind(task, data(y).columns, layout, "local").handle.host  # type: ignore[attr-defined]
    best = pooled(estimator, y)

    def gradient(w: np.ndarray) -> Any:
        parts = [host.model.problem(X[k == CLIENT], y[k == CLIENT]).own(w)[1] for k in range(4)]
        return np.linalg.norm(SIZES @ np.array(parts) / N)

    assert gradient(best) < 2e-6
    assert gradient(best * 1.01) > 1e-4


@pytest.mark.parametrize(
    ("method", "estimator", "y", "rounds"),
    [
        (dure.FedDyn(alpha=1.0), sk.Ridge(alpha=3.0), REAL, 80),
        (dure.ConsensusADMM(rho=0.15), sk.LogisticRegression(C=0.5), THREE, 120),
        (dure.Scaffold(option=1), sk.LogisticRegression(C=1.0, fit_intercept=False), LABELS, 30),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, int | np.ndarray) else "",
)
def test_methods_reach_the_pooled_fit(method: Any, estimator: Any, y: np.ndarray, rounds: int) -> None:
    engine = make_engine(method, estimator, data(y), **LOCAL)
    for _ in range(rounds):
        result = engine.collect(engine.launch())
    assert result.status == ["ok"] * 4
    np.testing.assert_allclose(flat(engine), pooled(estimator, y), atol=3e-5)


def test_a_sample_of_clients_reaches_it_too() -> None:
    engine = make_engine(
        dure.FedADMM(rho=0.3), sk.LogisticRegression(C=1.0), data(LABELS), clients_per_round=2, **LOCAL
    )
    for _ in range(150):
        engine.launch()
    np.testing.assert_allclose(flat(engine), pooled(sk.LogisticRegression(C=1.0), LABELS), atol=3e-5)


@pytest.mark.parametrize("settings", [{"schedule": "sequential"}, {"devices": 2}, {"eager": True}])
def test_one_round_of_fedprox_is_the_mean_of_closed_forms(settings: dict[str, Any]) -> None:
    start, mu, alpha = np.array([1.0, -1.0, 0.5, 2.0]), 0.3, 4.0
    found = []
    for k in range(4):
        x, y = X[k == CLIENT].astype(float), REAL[k == CLIENT].astype(float)
        x = np.concatenate([x, np.ones((len(x), 1))], 1)
        h = 2 * x.T @ x / len(x) + 2 * alpha / N * np.diag([1, 1, 1, 0]) + mu * np.eye(4)
        found.append(np.linalg.solve(h, 2 * x.T @ y / len(x) + mu * start))
    task = dure.scikit_learn(sk.Ridge(alpha=alpha), data(REAL))
    variables = dure.Variables({"coef_": np.float32(start[:3]), "intercept_": np.float32(start[3])})
    simulation = dure.Simulation(dure.FedProx(mu=mu), task, data(REAL), initial=variables, **settings)
    simulation.step(wait=True)
    np.testing.assert_allclose(flat(simulation), SIZES @ found / N, rtol=2e-6)


def test_fedsgd_takes_the_gradient_with_the_penalty() -> None:
    """From w = 1: the gradient of mean log-loss + ‖coef‖²/(2Cn), by hand."""
    task = dure.scikit_learn(sk.LogisticRegression(C=0.01), data(LABELS))
    ones = dure.Variables({"coef_": np.ones((1, F), np.float32), "intercept_": np.ones(1, np.float32)})
    simulation = dure.Simulation(dure.FedSGD(learning_rate=1.0), task, data(LABELS), initial=ones, **LOCAL)
    result = simulation.step(wait=True)
    x = np.concatenate([X, np.ones((N, 1))], 1).astype(float)
    wrong = 1 / (1 + np.exp(-x.sum(1))) - LABELS
    expected = 1 - (x.T @ wrong / N + np.array([1, 1, 1, 0]) / (0.01 * N))
    np.testing.assert_allclose(flat(simulation), expected, rtol=1e-5)
    assert result is not None
    losses = np.log1p(np.exp(x.sum(1))) - LABELS * x.sum(1)
    first = losses[: SIZES[0]].mean() + 3 / (2 * 0.01 * N)
    assert result.loss[0] == pytest.approx(first, rel=1e-5)


def test_parts_that_stay_with_the_clients() -> None:
    """FedPer with intercepts of their own: every client's first solution is its own ridge."""
    engine = make_engine(dure.FedPer(private=("intercept_",)), sk.Ridge(alpha=1.0), data(REAL), **LOCAL)
    engine.launch()
    own = []
    for k in range(4):
        n = SIZES[k]
        fit = sk.Ridge(alpha=n / N).fit(X[k == CLIENT].astype(float), REAL[k == CLIENT])
        own.append([*fit.coef_, fit.intercept_])
    np.testing.assert_allclose(engine.model.server.w, SIZES @ np.array(own)[:, :3] / N, rtol=1e-4)
    np.testing.assert_allclose(engine.store.gather(np.arange(4))[:, 0], np.array(own)[:, 3], rtol=1e-4)


# ----- what a run gives back ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("estimator", "y"), ESTIMATORS, ids=lambda x: type(x).__name__)
def test_a_fitted_estimator_predicts_what_the_model_does(estimator: Any, y: np.ndarray) -> None:
    task = dure.scikit_learn(estimator, data(y))
    start = task.model.init(jax.random.key(0)).params
    params = {name: RNG.normal(size=x.shape).astype(np.float32) for name, x in start.items()}
    outputs = np.asarray(task.model.apply(dure.Variables(params), X)[0])
    made = fitted(estimator, params)
    assert made.get_params() == estimator.get_params()
    if y.dtype == np.int32:
        np.testing.assert_allclose(made.decision_function(X.astype(float)), outputs, atol=1e-5)
        np.testing.assert_array_equal(made.classes_, np.unique(y))
        assert made.predict_proba(X).shape == (N, len(np.unique(y)))
    else:
        np.testing.assert_allclose(made.predict(X.astype(float)), outputs, rtol=1e-4, atol=1e-5)
    other = sk.LinearRegression() if y.dtype == np.int32 else sk.LogisticRegression()
    for wrong in (other, type(estimator)(fit_intercept=not estimator.fit_intercept)):
        with pytest.raises(dure.ConfigError, match="not those of"):
            fitted(wrong, params)


def test_a_run_gives_the_fitted_estimator(tmp_path: Path) -> None:
    estimator, test = sk.LogisticRegression(C=1.0), {"x": X[::3], "y": LABELS[::3]}

    def go(estimator: Any, **more: Any) -> Any:
        return dure.simulate(
            dure.FedDyn(alpha=0.3),
            estimator,
            data(LABELS, test=test),
            directory=tmp_path / "run",
            rounds=2,
            **more,
        )

    run = go(estimator)
    made = run.estimator()
    assert not hasattr(estimator, "coef_")
    np.testing.assert_array_equal(made.coef_, run.state_dict()["coef_"])
    assert run.final["test_accuracy"] == pytest.approx(made.score(test["x"], test["y"]))
    # One from disk needs to be told its settings,
    opened = dure.Run.open(tmp_path / "run")
    np.testing.assert_array_equal(opened.estimator(estimator).coef_, made.coef_)
    with pytest.raises(dure.RunError, match="needs one with the run's settings"):
        opened.estimator()
    # and with others it is another experiment.
    with pytest.raises(dure.ConfigError, match=r"LogisticRegression\(\).*LogisticRegression\(C=2"):
        go(sk.LogisticRegression(C=2.0), resume=True)


def test_a_sweep_over_mu() -> None:
    sweep = dure.sweep(
        dure.FedProx(), sk.Ridge(alpha=1.0), data(REAL), rounds=2, grid={"mu": [0.1, 10.0]}, evaluate_every=1
    )
    near, far = (np.linalg.norm(p.run.state_dict()["coef_"]) for p in sweep.points)
    assert near > far > 0  # strong proximal terms keep it near zero


# ----- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (dure.Scaffold(), "Scaffold\\(option=1\\)"),
        (dure.FedNova(), "does not exist"),
        (dure.FedDC(), "`gain`"),
        (dure.Mime(), "variance-reduced steps|minibatches"),
        (dure.FedLin(), "variance-reduced steps"),
        (dure.FedSAM(), "gradients of minibatches"),
        (dure.FedLC(classes=2), "gradients of minibatches"),
        (dure.PFedMe(), "gradients of minibatches"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str) else "",
)
def test_methods_that_need_local_steps_are_refused(method: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        make_engine(method, sk.LogisticRegression(), data(LABELS), **LOCAL).launch()


@pytest.mark.parametrize(
    ("estimator", "y", "message"),
    [
        (sk.LogisticRegression(class_weight="balanced"), LABELS, "class_weight='balanced' can't be honoured"),
        (sk.LogisticRegression(l1_ratio=0.5, solver="saga"), LABELS, "proximal=dure.L1"),
        (sk.LogisticRegression(solver="liblinear"), LABELS, "penalises the intercept"),
        (sk.LogisticRegression(warm_start=True), LABELS, "warm_start=True"),
        (sk.LogisticRegression(C=0), LABELS, "C=0"),
        (sk.LogisticRegression(), REAL, "takes labels"),
        (sk.LogisticRegression(), np.zeros(N, np.int32), "one class only"),
        (sk.LinearRegression(positive=True), REAL, "positive=True can't be honoured"),
        (sk.Ridge(alpha=np.ones(2)), REAL, "alpha=.* must be one number"),
        (sk.Ridge(alpha=-1.0), REAL, "alpha=-1.0 must be one number of at least 0"),
        (sk.PoissonRegressor(), REAL, "needs targets of at least 0"),
        (sk.GammaRegressor(), COUNTS, "needs targets above 0"),
        (sk.Lasso(), REAL, r"Lasso can't be trained here.*dure\.L1"),
        (sk.LogisticRegressionCV(), LABELS, "LogisticRegressionCV can't be trained here"),
        (make_pipeline(StandardScaler(), sk.Ridge()), REAL, "prepare the columns first"),
    ],
    ids=lambda x: type(x).__name__ if not isinstance(x, str | np.ndarray) else "",
)
def test_what_cannot_be_honoured_is_refused(estimator: Any, y: np.ndarray, message: str) -> None:
    with pytest.raises((dure.ConfigError, dure.DataError), match=message):
        dure.scikit_learn(estimator, data(y))


def test_a_penalty_of_none_is_honoured() -> None:
    """The older way to write C=inf."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tasks = [
            dure.scikit_learn(e, data(LABELS))
            for e in (sk.LogisticRegression(penalty=None), sk.LogisticRegression(C=np.inf))
        ]
    assert [t.model.outside.penalty for t in tasks if t.model.outside] == [0.0, 0.0]


def test_columns_and_keywords_that_do_not_fit() -> None:
    square = dure.Federated({"x": X[:, None], "y": LABELS}, OFFSETS)
    with pytest.raises(dure.DataError, match=r"x\.reshape"):
        dure.scikit_learn(sk.LogisticRegression(), square)
    with pytest.raises(dure.DataError, match="reads column 'z'"):
        dure.scikit_learn(sk.LogisticRegression(), data(LABELS), input="z")
    for keywords in ({"epochs": 5}, {"batch_size": 32}, {"optimizer": 0.5}, {"steps": 3}):
        with pytest.raises(dure.ConfigError, match="have no meaning: LogisticRegression is solved exactly"):
            make_engine(dure.FedAvg(), sk.LogisticRegression(), data(LABELS), **keywords)
    with pytest.raises(dure.ConfigError, match="scikit-learn estimator, which brings its own loss"):
        dure.classification(sk.LogisticRegression())


def test_a_client_whose_problem_has_no_minimum_is_named() -> None:
    y = LABELS.copy()
    y[OFFSETS[2] : OFFSETS[3]] = 1  # the third client has one label only
    named = data(y, client_names=["Seoul", "Busan", "Jeju", "Daegu"])
    engine = make_engine(dure.FedAvg(), sk.LogisticRegression(), named, **LOCAL)
    with pytest.raises(dure.RunError, match=r"Client Jeju failed in round 1 .*no minimum.*FedProx"):
        engine.collect(engine.launch())
    aside = make_engine(dure.FedAvg(), sk.LogisticRegression(), named, client_errors="set aside", **LOCAL)
    status = aside.collect(aside.launch()).status
    assert status[2].startswith("raised NoMinimum")
    assert status[:2] == ["ok", "ok"]
    held = make_engine(dure.FedProx(mu=0.1), sk.LogisticRegression(), named, **LOCAL)
    assert held.collect(held.launch()).status == ["ok"] * 4


def test_labels_are_the_declared_ones() -> None:
    """A class that a client lacks still has its place: all clients must mean the same by it."""
    first = np.where(CLIENT == 0, 0, THREE).astype(np.int32)  # client 0 has one class
    task = dure.scikit_learn(sk.LogisticRegression(), data(first))
    assert task.model.init(jax.random.key(0)).params["coef_"].shape == (3, F)
    with pytest.warns(UserWarning, match=r"class 2 of 4 \(and of 1 more\): SGDClassifier learns never"):
        steps = dure.scikit_learn(sk.SGDClassifier(), data(LABELS, classes=4))  # needs no minimum
    assert steps.model.init(jax.random.key(0)).params["coef_"].shape == (4, F)


# ----- a task and the data that it meets ----------------------------------------------------------------------


def test_a_class_that_nobody_has_is_refused() -> None:
    """Its intercept would go to −∞; where labels skip a number, `fit` would have had fewer classes."""
    for sets, missing in (
        (data(LABELS + 1), 0),
        (data(2 * LABELS), 1),
        (data(LABELS, classes=3), 2),
    ):
        with pytest.raises(dure.DataError, match=f"row of class {missing} of 3"):
            dure.scikit_learn(sk.LogisticRegression(), sets)


@pytest.mark.parametrize("estimator", [sk.LogisticRegression(), sk.SGDClassifier()])
def test_a_task_for_other_data(estimator: Any) -> None:
    task = dure.scikit_learn(estimator, data(LABELS))
    local = {"epochs": 1} if isinstance(estimator, sk.SGDClassifier) else {}
    narrow = dure.Federated({"x": X[:, :2], "y": LABELS}, OFFSETS)
    for sets, message in (
        (data(THREE), "labels 0 … 2, .* made for 2 classes"),
        (data(REAL), "made for one label"),
        (narrow, "made for 3 features"),
    ):
        with pytest.raises(dure.DataError, match=message):
            dure.simulate(dure.FedAvg(), task, sets, rounds=1, **local, **LOCAL)


def test_a_class_is_no_estimator() -> None:
    for call in (
        lambda: dure.simulate(dure.FedAvg(), sk.LogisticRegression, data(LABELS), rounds=1),  # type: ignore[arg-type]
        lambda: dure.scikit_learn(sk.LogisticRegression, data(LABELS)),
        lambda: fitted(sk.LogisticRegression, {"coef_": np.zeros((1, F))}),
    ):
        with pytest.raises(dure.ConfigError, match=r"give an instance, such as LogisticRegression\(\)"):
            call()
