"""Federated statistics are those of the pooled rows, whatever the division among clients."""

import re
from typing import Any

import numpy as np
import pytest
from sklearn import datasets
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.naive_bayes import GaussianNB

import dure
from dure.channel import wire
from dure.statistics.moments import squares_of

RNG = np.random.default_rng(2)
X, Y = datasets.load_breast_cancer(return_X_y=True)
X, LABELS = X[:, :6].astype(np.float32), Y.astype(np.int32)
FAR = (1e6 + RNG.normal(size=len(X))).astype(np.float32)  # mean 1e6, standard deviation 1
TARGET = (X @ np.array([0.3, -0.1, 0.02, 0.001, 5.0, 2.0]) + RNG.normal(size=len(X))).astype(np.float32)
#: Who has which rows: in one hand, in equal parts, sorted by label (so that clients lack classes), one nearly empty.
OWNERS = {
    "one": np.zeros(len(X), int),
    "some": RNG.integers(0, 7, len(X)),
    "sorted": np.argsort(np.argsort(Y, kind="stable")) // 100,
    "lonely": np.minimum(np.arange(len(X)), 1),
}
DIVISIONS = pytest.mark.parametrize("division", list(OWNERS))


def data(division: str, x: np.ndarray = X, y: np.ndarray = LABELS, **more: Any) -> dure.Federated:
    return dure.Federated.from_arrays({"x": x, "y": y}, OWNERS[division], **more)


@DIVISIONS
def test_moments(division: str) -> None:
    x = np.concatenate([X, FAR[:, None]], 1)
    for ddof in (0, 1):
        found = dure.statistics.moments(data(division, x), ddof=ddof)
        whole = x.astype(np.float64)
        np.testing.assert_allclose(found.mean, whole.mean(0), rtol=1e-14)
        np.testing.assert_allclose(found.variance, whole.var(0, ddof=ddof), rtol=1e-11)
        np.testing.assert_allclose(found.standard_deviation, whole.std(0, ddof=ddof), rtol=1e-11)
    assert found.count == len(x)
    assert found.cost.rounds == 1
    encoded = wire.encode(wire.Message(1, 0, 1.0, dict(squares_of(whole))))
    assert found.cost.bytes_per_client == len(encoded)
    naive = (whole**2).mean(0) - whole.mean(0) ** 2  # the formula that must not be used
    assert abs(naive[-1] / whole[:, -1].var() - 1) > 1e-6


def test_rows_of_any_shape_and_clients_without_rows() -> None:
    images = RNG.normal(size=(9, 2, 3)).astype(np.float32)
    sets = dure.Federated({"x": images, "y": np.zeros(9, np.int32)}, np.array([0, 4, 4, 9]))
    found = dure.statistics.moments(sets)
    np.testing.assert_allclose(found.mean, images.astype(float).mean(0), atol=1e-12)
    assert found.cost.clients == 2
    one = dure.statistics.moments(sets, column="y")
    assert (float(one.mean), float(one.variance)) == (0, 0)


@DIVISIONS
def test_histogram(division: str) -> None:
    edges = np.linspace(5, 25, 11)
    found = dure.statistics.histogram(data(division), 10, range=(5, 25))
    for f in range(X.shape[1]):
        np.testing.assert_array_equal(found.counts[f], np.histogram(X[:, f].astype(float), edges)[0])
    np.testing.assert_array_equal(found.below, (X < 5).sum(0))
    np.testing.assert_array_equal(found.above, (X > 25).sum(0))
    np.testing.assert_array_equal(
        dure.statistics.histogram(data(division), [0.0, 10.0, 11.0]).counts.sum(1),
        ((X >= 0) & (X <= 11)).sum(0),
    )
    labels = dure.statistics.histogram(data(division), [-0.5, 0.5, 1.5], column="y")
    np.testing.assert_array_equal(labels.counts, np.bincount(Y))


@DIVISIONS
def test_quantiles_are_within_their_bound(division: str) -> None:
    """Six rounds of 64 bins find NumPy's; fewer leave 2³²/binsʳ neighbouring numbers of float32."""
    x = np.concatenate([X, FAR[:, None], (X[:, :1] > 14), np.full((len(X), 1), 3.5, np.float32)], 1)
    x = np.concatenate([x, -np.exp(np.minimum(9 * X[:, :1] - 60, 80)), X[:, :1] - 14], 1).astype(np.float32)
    x[7, 2], x[8, 2], x[9, 2] = 3e38, -3e38, -0.0  # far out rows
    q = [0.0, 0.01, 0.25, 0.5, 0.9, 1.0]
    true = np.quantile(x.astype(np.float64), q, axis=0, method="inverted_cdf")
    for rounds in (1, 4):
        found = dure.statistics.quantiles(data(division, x), q, rounds=rounds)
        assert (np.abs(found.values - true) <= found.error).all()
        assert found.cost.rounds == rounds
    assert (found.error <= 128 * np.spacing(np.abs(true).astype(np.float32)) + 256 * 1.5e-45).all()
    assert found.error.max() > 0
    exact = dure.statistics.quantiles(data(division, x), q)
    np.testing.assert_array_equal(exact.values, true)
    assert (exact.error.max(), exact.cost.rounds) == (0, 6)
    few = dure.statistics.quantiles(data(division, x), q, bins=256, rounds=30)
    np.testing.assert_array_equal(few.values, true)
    assert few.cost.rounds == 4  # and no more than needed
    assert dure.statistics.quantiles(data(division, x), 0.5).values.shape == (1, x.shape[1])


def test_quantiles_of_whole_numbers() -> None:
    y = np.array([-(2**31), -5, -4, 0, 7, 7, 2**31 - 1], np.int32)  # more digits than float32 has
    sets = dure.Federated({"x": X[:7], "z": y}, np.array([0, 3, 7]))
    q = np.arange(0, 8) / 7
    found = dure.statistics.quantiles(sets, q, column="z")
    np.testing.assert_array_equal(found.values, np.sort(y)[[0, 0, 1, 2, 3, 4, 5, 6]])


def test_bytes_of_quantiles_are_those_of_the_messages() -> None:
    """One quantile: a number of each of 6 columns for each of 63 inner edges, and the columns' counts at first."""
    found = dure.statistics.quantiles(data("one"), 0.5, rounds=2)
    counts = {"not_above": np.zeros(6 * 63, np.int64)}
    assert found.cost.bytes_per_client == wire.size(counts) + wire.size(
        counts | {"count": np.zeros(6, np.int64)}
    )


def test_quantiles_of_what_is_there() -> None:
    x = X.copy()
    x[::3, 0] = np.nan
    x[:, 1] = np.nan
    found = dure.statistics.quantiles(data("some", x, missing=("x",)), [0.3, 0.7])
    true = np.nanquantile(x[:, 0].astype(float), [0.3, 0.7], method="inverted_cdf")
    assert (np.abs(found.values[:, 0] - true) <= found.error[:, 0]).all()
    assert np.isnan(found.values[:, 1]).all()
    assert np.isfinite(found.values[:, 2:]).all()
    with pytest.raises(dure.DataError, match="missing values"):
        dure.statistics.moments(data("some", x, missing=("x",)))


@DIVISIONS
@pytest.mark.parametrize("intercept", [True, False])
def test_linear_regression(division: str, intercept: bool) -> None:
    sets, whole = data(division, y=TARGET), X.astype(np.float64)
    found = dure.statistics.linear_regression(sets, fit_intercept=intercept)
    pooled = LinearRegression(fit_intercept=intercept).fit(whole, TARGET.astype(float))
    np.testing.assert_allclose(found.coefficients, pooled.coef_, rtol=1e-7)
    np.testing.assert_allclose(found.intercept, pooled.intercept_, rtol=1e-7)
    np.testing.assert_allclose(found.predict(whole), pooled.predict(whole), rtol=1e-9)
    design = np.concatenate([whole, np.ones((len(X), 1))], 1)[:, : 6 + intercept]
    rest = np.square(TARGET - pooled.predict(whole)).sum()
    variance = rest / (len(X) - design.shape[1]) * np.linalg.inv(design.T @ design)
    np.testing.assert_allclose(found.standard_errors, np.sqrt(np.diag(variance))[:6], rtol=1e-5)
    centre = TARGET.astype(float).mean() if intercept else 0
    np.testing.assert_allclose(
        found.r_squared, 1 - rest / np.square(TARGET.astype(float) - centre).sum(), rtol=1e-9
    )
    ridge = dure.statistics.linear_regression(sets, alpha=7.0, fit_intercept=intercept)
    pooled = Ridge(alpha=7.0, fit_intercept=intercept, solver="cholesky").fit(whole, TARGET.astype(float))
    np.testing.assert_allclose(ridge.coefficients, pooled.coef_, rtol=1e-6)
    np.testing.assert_allclose(ridge.intercept, pooled.intercept_, rtol=1e-6)
    assert np.isnan(ridge.standard_errors).all()


def test_a_far_column_is_no_problem_for_a_regression() -> None:
    x = np.stack([FAR, X[:, 0]], 1)
    y = ((FAR.astype(float) - 1e6) * 2 + X[:, 0]).astype(np.float32)
    found = dure.statistics.linear_regression(data("some", x, y))
    np.testing.assert_allclose(found.coefficients, [2, 1], rtol=1e-5)


@DIVISIONS
def test_pca(division: str) -> None:
    x = np.concatenate([X, FAR[:, None]], 1)
    found = dure.statistics.pca(data(division, x), 4)
    whole = x.astype(np.float64)
    pooled = PCA(4, svd_solver="full").fit(whole)
    np.testing.assert_allclose(found.explained_variance, pooled.explained_variance_, rtol=1e-10)
    np.testing.assert_allclose(found.explained_variance_ratio, pooled.explained_variance_ratio_, rtol=1e-10)
    sign = np.sign((found.components * pooled.components_).sum(1))
    np.testing.assert_allclose(found.components * sign[:, None], pooled.components_, atol=1e-8)
    np.testing.assert_allclose(found.transform(whole) * sign, pooled.transform(whole), atol=1e-5)
    assert (found.components[np.arange(4), np.abs(found.components).argmax(1)] > 0).all()
    assert dure.statistics.pca(data(division, x)).components.shape == (7, 7)


@DIVISIONS
def test_naive_bayes(division: str) -> None:
    found = dure.statistics.gaussian_naive_bayes(data(division))
    whole = X.astype(np.float64)
    pooled = GaussianNB().fit(whole, Y)
    np.testing.assert_allclose(found.means, pooled.theta_, rtol=1e-12)
    np.testing.assert_allclose(found.variances, pooled.var_, rtol=1e-11)
    np.testing.assert_array_equal(found.counts, pooled.class_count_)
    np.testing.assert_allclose(found.log_probabilities(whole), pooled.predict_log_proba(whole), atol=1e-8)
    np.testing.assert_array_equal(found.predict(whole), pooled.predict(whole))


@DIVISIONS
def test_kmeans_from_given_centres(division: str) -> None:
    whole, start = X.astype(np.float64), X[[1, 50, 300]].astype(np.float64)
    for rounds in (1, 300):
        pooled = KMeans(3, init=start, n_init=1, max_iter=rounds, tol=0, algorithm="lloyd")
        with np.errstate(all="ignore"):
            pooled = _quietly(pooled, whole)
        found = dure.statistics.kmeans(data(division), 3, initial=start, rounds=rounds, tolerance=0)
        np.testing.assert_allclose(found.centres, pooled.cluster_centers_, rtol=1e-9)
        np.testing.assert_allclose(found.inertia, pooled.inertia_, rtol=1e-9)
        np.testing.assert_array_equal(found.predict(whole), pooled.predict(whole))
        assert found.converged == (rounds > 1)
    np.testing.assert_array_equal(found.counts, np.bincount(pooled.labels_))


def _quietly(estimator: Any, x: np.ndarray) -> Any:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(x)


def test_kmeans_finds_separate_clusters_whatever_the_seed() -> None:
    """Empty clusters are moved to where the rows are; the first centres are nobody's rows."""
    places = np.array([[0, 0], [10, 0], [0, 10]], np.float32)
    x = (np.repeat(places, 40, 0) + 0.1 * RNG.normal(size=(120, 2))).astype(np.float32)
    sets = dure.Federated({"x": x, "y": np.zeros(120, np.int32)}, np.array([0, 40, 100, 120]))
    found = [dure.statistics.kmeans(sets, 3, seed=s) for s in range(6)]
    best = min(found, key=lambda r: r.inertia)
    order = np.lexsort(best.centres.round().T)
    np.testing.assert_allclose(best.centres[order], places, atol=0.1)
    assert all((r.counts > 0).all() for r in found)
    lost = dure.statistics.kmeans(sets, 3, initial=np.array([[5.0, 5], [900, 900], [-900, 900]]))
    assert (lost.counts > 0).all()
    again = dure.statistics.kmeans(sets, 3, seed=3)
    np.testing.assert_array_equal(again.centres, found[3].centres)


def test_registered_clients_count_like_stored_ones() -> None:
    twice = data("some").replicate(14)
    assert dure.statistics.moments(twice).count == 2 * len(X)
    np.testing.assert_allclose(dure.statistics.moments(twice).mean, X.astype(float).mean(0), rtol=1e-13)


ASKS: tuple[Any, ...] = (
    dure.statistics.moments,
    dure.statistics.pca,
    dure.statistics.gaussian_naive_bayes,
    dure.statistics.linear_regression,
    lambda d, **k: dure.statistics.quantiles(d, 0.5, **k),
    lambda d, **k: dure.statistics.histogram(d, [0.0, 1.0], **k),
    lambda d, **k: dure.statistics.kmeans(d, 2, **k),
)


def test_too_few_clients_or_rows() -> None:
    for ask in ASKS:
        with pytest.raises(dure.DataError, match="2 clients have rows, and minimum_clients=3"):
            ask(data("lonely"), minimum_clients=3)
        with pytest.raises(dure.DataError, match="Client 0 has 1 rows, and minimum_examples=5"):
            ask(data("lonely"), minimum_examples=5)
        with pytest.raises(dure.ConfigError, match="minimum_examples=0"):
            ask(data("lonely"), minimum_examples=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dure.statistics.moments(data("one"), column="z"), "no column 'z'"),
        (lambda: dure.statistics.moments(data("one"), ddof=569), "ddof=569 with 569 rows"),
        (lambda: dure.statistics.histogram(data("one"), 10), "needs range="),
        (lambda: dure.statistics.histogram(data("one"), [1.0, 0.0]), "edges that rise"),
        (lambda: dure.statistics.histogram(data("one"), [1.0, 2.0], range=(0, 1)), "has no meaning"),
        (lambda: dure.statistics.quantiles(data("one"), 1.5), "q=1.5"),
        (lambda: dure.statistics.quantiles(data("one"), np.array(["a"])), "q=array.*numbers in"),
        (lambda: dure.statistics.quantiles(data("one"), 0.5, bins=1), "bins=1"),
        (lambda: dure.statistics.pca(data("one"), 7), "components=7 of 6"),
        (lambda: dure.statistics.pca(data("one"), column="y"), "a matrix"),
        (lambda: dure.statistics.linear_regression(data("one"), alpha=-1), "alpha=-1"),
        (lambda: dure.statistics.linear_regression(data("one"), alpha=np.inf), "alpha=inf"),
        (
            lambda: dure.statistics.linear_regression(
                data("one", y=np.where(Y > 0, np.nan, 1), missing=("y",))
            ),
            "without a target",
        ),
        (lambda: dure.statistics.linear_regression(data("one", X * 0)), "same in all rows"),
        (lambda: dure.statistics.linear_regression(data("one", X[:, [0, 1, 0]])), "combinations"),
        (lambda: dure.statistics.gaussian_naive_bayes(data("one", y=TARGET)), "classes are integers"),
        (lambda: dure.statistics.gaussian_naive_bayes(data("one", classes=3)), "row of class 2"),
        (lambda: dure.statistics.gaussian_naive_bayes(data("one"), smoothing=-1), "smoothing=-1"),
        (lambda: dure.statistics.kmeans(data("one"), 0), "clusters=0"),
        (lambda: dure.statistics.kmeans(data("one"), 2, initial=np.zeros((3, 6))), "2 centres of 6"),
    ],
)
def test_impossible_arguments(call: Any, message: str) -> None:
    with pytest.raises((dure.ConfigError, dure.DataError), match=message):
        call()


def test_predictions_are_for_rows_of_the_same_features() -> None:
    found = dure.statistics
    for predict in (
        found.gaussian_naive_bayes(data("some")).predict,
        found.kmeans(data("some"), 2, rounds=1).predict,
        found.pca(data("some")).transform,
        found.linear_regression(data("some", y=TARGET)).predict,
    ):
        assert len(predict(X[:3])) == 3
        for wrong in (X[:, :1], X[0], X[:, 0], X[:, :5], X[None]):
            with pytest.raises(dure.ConfigError, match=r"this model takes \(B, 6\)"):
                predict(wrong)
        holes = X[:4].copy()
        holes[2, 1] = np.nan
        with pytest.raises(dure.DataError, match="Row 2 has nan in feature 1"):
            predict(holes)


def test_what_is_no_federated_data_set() -> None:
    for ask in ASKS:
        for wrong in (X, {"x": X, "y": Y}):
            with pytest.raises(dure.DataError, match=f"data is a {type(wrong).__name__}: give a federated"):
                ask(wrong)
        with pytest.raises(dure.DataError, match="not one number"):
            ask(data("some", X[:, :0]))


def test_results_say_what_they_are() -> None:
    text = repr(dure.statistics.moments(data("some", X[:, :2])))
    assert text.startswith("Moments(count=569, mean=[")
    assert re.search(r"; 1 round, \d+ bytes per client\)$", text)
    assert "of shape (6, 6)" in repr(dure.statistics.pca(data("some")))
