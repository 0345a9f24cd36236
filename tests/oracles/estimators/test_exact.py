"""The exact local solver against closed forms, finite differences and a general optimizer."""

from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from dure.oracles.estimators import exact, families
from dure.oracles.estimators.exact import Linear, NoMinimum

RNG = np.random.default_rng(3)
N, F = 40, 4
X = RNG.normal(size=(N, F))
SCORE = X @ np.array([1.0, -0.5, 0.3, 0.0]) + 0.4
TARGETS = {
    "SquaredError": SCORE + RNG.normal(size=N),
    "Logistic": (RNG.uniform(size=N) < 1 / (1 + np.exp(-SCORE))).astype(np.int32),
    "Softmax": RNG.integers(0, 3, N).astype(np.int32),
    "Poisson": RNG.poisson(np.exp(SCORE)).astype(np.float64),
    "Gamma": RNG.gamma(2.0, np.exp(SCORE)),
}
NAMES = list(TARGETS)


def plain_loss(name: str, eta: np.ndarray, y: np.ndarray) -> Any:
    """The same losses as the textbook has them."""
    if name == "SquaredError":
        return (y - eta[:, 0]) ** 2
    if name == "Logistic":
        p = 1 / (1 + np.exp(-eta[:, 0]))
        return -y * np.log(p) - (1 - y) * np.log(1 - p)
    if name == "Softmax":
        p = np.exp(eta) / np.exp(eta).sum(1, keepdims=True)
        return -np.log(p[np.arange(len(y)), y])
    mean = np.exp(eta[:, 0])
    if name == "Poisson":
        return y * np.log(np.where(y > 0, y, 1) / np.where(y > 0, mean, 1)) - y + mean
    return -np.log(y / mean) + (y - mean) / mean


def model(name: str, penalty: float = 0.1, intercept: bool = True, features: int = F) -> Linear:
    outputs = 3 if name == "Softmax" else 1
    columns = features + intercept
    coef = np.arange(outputs * features).reshape(outputs, features)
    ones = outputs * features + np.arange(outputs)[:, None]
    places = np.concatenate([coef, ones], 1) if intercept else coef
    assert places.size == outputs * columns
    return Linear(getattr(families, name)(), places, intercept, penalty)


def objective(name: str, penalty: float, v: Any, mu: float, a: Any) -> Any:
    """F + ⟨v, w⟩ + (μ/2)‖w − a‖² as a function of w, written anew."""
    outputs = 3 if name == "Softmax" else 1

    def of(w: np.ndarray) -> float:
        coef, intercept = w[: outputs * F].reshape(outputs, F), w[outputs * F :]
        loss = plain_loss(name, X @ coef.T + intercept, TARGETS[name]).mean()
        return float(loss + penalty / 2 * (coef**2).sum() + v @ w + mu / 2 * ((w - a) ** 2).sum())

    return of


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_slopes_are_the_textbook_ones(name: str) -> None:
    problem = model(name).problem(X, TARGETS[name])
    w = RNG.normal(size=problem.ridge.size) / 3
    of = objective(name, 0.1, np.zeros(w.size), 0.0, w)
    value, gradient = problem.own(w)
    assert value == pytest.approx(of(w), rel=1e-12)
    step = 1e-5 * np.eye(w.size)
    differences = [(of(w + s) - of(w - s)) / 2e-5 for s in step]
    np.testing.assert_allclose(gradient, differences, atol=1e-8)
    weights = problem.family.weights(problem.eta(w), problem.y)
    bent = [(problem.gradient(w + s) - problem.gradient(w - s)) / 2e-5 for s in step]
    np.testing.assert_allclose(problem.hessian(weights), bent, atol=1e-8)
    np.testing.assert_allclose(problem.diagonal(weights), np.diag(bent), atol=1e-8)
    np.testing.assert_allclose(problem.times(weights, w), np.asarray(bent) @ w, atol=1e-8)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_the_solution_is_a_general_optimizers(name: str, dense: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(exact, "DENSE", 500 if dense else 0)
    d = model(name).places.size
    v, a, start = 0.1 * RNG.normal(size=(3, d))
    if name == "Softmax":  # without μ nothing holds all intercepts together
        v[-3:] -= v[-3:].mean()
    problem = model(name).problem(X, TARGETS[name], v, 0.3, a)
    found = exact.solve(problem, start, (0, d))
    of = objective(name, 0.1, v, 0.3, a)
    expected = minimize(of, np.zeros(d), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert np.linalg.norm(problem.gradient(found)) < 1e-9
    for without in ({"linear": None}, {"prox": 0.0}, {"anchor": None}):
        given = {"linear": v, "prox": 0.3, "anchor": a, **without}
        other = exact.solve(model(name).problem(X, TARGETS[name], **given), start, (0, d))
        assert np.linalg.norm(other - expected) > 1e-3, f"{without} changes nothing"


@pytest.mark.parametrize("intercept", [True, False])
def test_ridge_has_its_closed_form(intercept: bool) -> None:
    linear = model("SquaredError", 0.2, intercept)
    d = F + intercept
    v, a = RNG.normal(size=(2, d))
    whole = np.concatenate([X, np.ones((N, 1))], 1)[:, :d]
    ridge = np.diag([0.2] * F + [0.0] * intercept)
    h = 2 * whole.T @ whole / N + ridge + 0.7 * np.eye(d)
    expected = np.linalg.solve(h, 2 * whole.T @ TARGETS["SquaredError"] / N - v + 0.7 * a)
    problem = linear.problem(X, TARGETS["SquaredError"], v, 0.7, a)
    np.testing.assert_allclose(exact.solve(problem, np.zeros(d), (0, d)), expected, rtol=1e-10)
    # Only some of the numbers move.
    first = slice(0, 2)
    start = RNG.normal(size=d)
    some = np.linalg.solve(
        h[first, first],
        (2 * whole.T @ TARGETS["SquaredError"] / N - v + 0.7 * a - h[:, 2:] @ start[2:])[first],
    )
    found = exact.solve(problem, start, (0, 2))
    np.testing.assert_allclose(found[:2], some, rtol=1e-10)
    np.testing.assert_array_equal(found[2:], start[2:])


def test_columns_of_any_scale() -> None:
    """Weights scale inversely to their columns, from 1e-4 to 1e4."""
    scale = np.array([1e-4, 1.0, 1e4, 30.0])
    y = TARGETS["Logistic"]
    plain = exact.solve(model("Logistic", 0.0).problem(X, y), np.zeros(F + 1), (0, F + 1))
    scaled = exact.solve(model("Logistic", 0.0).problem(X * scale, y), np.zeros(F + 1), (0, F + 1))
    np.testing.assert_allclose(scaled * np.append(scale, 1), plain, rtol=1e-7)


def test_fewer_rows_than_columns_gives_the_nearest_minimiser() -> None:
    x, y, start = X[:3], TARGETS["SquaredError"][:3], RNG.normal(size=F)
    found = exact.solve(model("SquaredError", 0.0, False).problem(x, y), start, (0, F))
    np.testing.assert_allclose(found, start + np.linalg.pinv(x) @ (y - x @ start), atol=1e-9)
    beside = np.linalg.qr(x.T, mode="complete")[0][:, -1]  # no row has a part along it
    with pytest.raises(NoMinimum, match="linear term points where"):
        exact.solve(model("SquaredError", 0.0, False).problem(x, y, linear=beside), start, (0, F))
    tame = exact.solve(model("SquaredError", 0.0, False).problem(x, y, beside, 1.0, start), start, (0, F))
    assert np.isfinite(tame).all()


def test_softmax_keeps_the_part_that_nothing_determines() -> None:
    """The same number on all intercepts changes no probability: it stays as it was."""
    start = np.concatenate([np.zeros(3 * F), [5.0, 5.0, 5.0]])
    found = exact.solve(model("Softmax").problem(X, TARGETS["Softmax"]), start, (0, 3 * F + 3))
    assert found[-3:].sum() == pytest.approx(15)


@pytest.mark.parametrize("name", ["Logistic", "Softmax", "Poisson"])
def test_a_far_start_is_no_matter(name: str) -> None:
    problem, d = model(name, 0.0).problem(X, TARGETS[name]), model(name).places.size
    far = np.where(np.arange(d) % 2, 80.0, -90.0)
    near, found = exact.solve(problem, np.zeros(d), (0, d)), exact.solve(problem, far, (0, d))
    np.testing.assert_allclose(problem.own(found)[0], problem.own(near)[0], rtol=1e-12)
    if name != "Softmax":
        np.testing.assert_allclose(found, near, atol=1e-8)


def test_what_is_left_of_a_perfect_fit_is_not_rounded_away() -> None:
    left = np.exp(-40.0)
    one, three = np.array([[40.0]]), np.array([[0.0, 40.0, -5.0]])
    y = np.array([1], np.int32)
    for family, eta, rest in (
        (families.Logistic(), one, left),
        (families.Softmax(), three, left + np.exp(-45.0)),
    ):
        np.testing.assert_allclose(family.loss(eta, y), rest, rtol=1e-9)
        own = 1 if eta.shape[1] > 1 else 0
        np.testing.assert_allclose(family.slope(eta, y)[0, own], -rest, rtol=1e-9)
        np.testing.assert_allclose(family.weights(eta, y)(own, own), rest, rtol=1e-9)


SIGN = (X[:, 0] > 0).astype(np.int32)


def test_classes_that_some_rows_separate() -> None:
    """Where one indicator is 1 all labels are 1. Turned columns hide it: every column has rows that are undecided."""
    indicator = np.arange(N) % 4 == 0
    y = np.where(indicator, 1, TARGETS["Logistic"])
    turn = np.linalg.qr(RNG.normal(size=(2, 2)))[0]
    for x in (np.stack([X[:, 0], indicator], 1), np.stack([X[:, 0], indicator], 1) @ turn):
        with pytest.raises(NoMinimum, match="no minimum that can be found"):
            exact.solve(model("Logistic", 0.0, features=2).problem(x, y), np.zeros(3), (0, 3))


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize(
    ("name", "penalty", "y"),
    [
        ("Logistic", 0.0, SIGN),  # separable
        ("Logistic", 0.1, np.zeros(N, np.int32)),  # one class only: the intercept runs away
        ("Softmax", 0.0, SIGN + (X[:, 0] > 1)),
        ("Softmax", 0.1, SIGN),  # a class is lacking
        ("Poisson", 0.1, np.zeros(N)),
    ],
)
def test_what_has_no_minimum_says_so(
    name: str, penalty: float, y: Any, dense: bool, monkeypatch: Any
) -> None:
    monkeypatch.setattr(exact, "DENSE", 500 if dense else 0)
    linear = model(name, penalty)
    d = linear.places.size
    with pytest.raises(NoMinimum, match="no minimum that can be found"):
        exact.solve(linear.problem(X, y), np.zeros(d), (0, d))
    anchored = linear.problem(X, y, prox=0.01, anchor=np.zeros(d))
    assert np.linalg.norm(anchored.gradient(exact.solve(anchored, np.zeros(d), (0, d)))) < 1e-8
