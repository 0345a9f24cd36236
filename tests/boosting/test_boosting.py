"""Federated boosting: exactly the pooled trees, and scikit-learn's where the conventions are the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

import dure
from dure.boosting import GradientBoosting
from dure.boosting.clients import exact_sums, in_bins
from dure.channel import wire

RNG = np.random.default_rng(11)
N, F = 400, 5
#: Few whole values, so that both libraries' bins are the same: an edge between each two.
X = RNG.integers(0, 24, (N, F)).astype(np.float32)
EDGES = [np.arange(24) + 0.5] * F
SCORE = 0.15 * (X[:, 0] - 12) + 1.5 * (X[:, 1] > 15) * (X[:, 2] < 9) - 0.05 * X[:, 3]
REAL = (SCORE + 0.3 * RNG.normal(size=N)).astype(np.float32)
LABELS = (RNG.uniform(size=N) < 1 / (1 + np.exp(-2 * SCORE))).astype(np.int32)
THREE = np.digitize(SCORE + 0.3 * RNG.normal(size=N), [-0.8, 0.3]).astype(np.int32)
HOLES = X.copy()
HOLES[RNG.uniform(size=N) < 0.3 * (REAL > 0), 0] = np.nan  # missing says something about the target
HOLES[RNG.uniform(size=N) < 0.1, 1] = np.nan
KINDS = {"squared_error": REAL, "logistic": LABELS, "softmax": THREE}
SMALL = GradientBoosting(trees=8, depth=3, minimum_examples=5)


def data(x: np.ndarray, y: np.ndarray, owner: Any = 0, **more: Any) -> dure.Federated:
    return dure.Federated.from_arrays(
        {"x": x, "y": y}, np.broadcast_to(owner, len(x)), missing=("x",), **more
    )


# ----- exactly the pooled trees ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
def test_trees_do_not_depend_on_the_division(kind: str) -> None:
    """Not in one digit: one client, seven, one for each label (or sign), another order of rows."""
    x = (HOLES * 0.37 + 1e3).astype(np.float32)  # no round numbers
    y = KINDS[kind]
    pooled = dure.boosting.fit(SMALL, data(x, y))
    order = RNG.permutation(N)
    divisions = [
        data(x, y, RNG.integers(0, 7, N)),
        data(x, y, (y > 0) if y is REAL else y),
        data(x[order], y[order], np.arange(N) // 30),
    ]
    for other in divisions:
        model = dure.boosting.fit(SMALL, other)
        np.testing.assert_array_equal(model.baseline, pooled.baseline)
        assert model.trees == pooled.trees
        np.testing.assert_array_equal(model.decision_function(x), pooled.decision_function(x))
        np.testing.assert_allclose(model.train_loss, pooled.train_loss, rtol=1e-12)
    assert {t.examples[0] for trees in pooled.trees for t in trees} == {N}
    assert all(len(t.feature) > 5 for trees in pooled.trees for t in trees)


def test_trees_need_no_scaling() -> None:
    """Rising functions of the columns, of whatever range, and rows far out: the same predictions in every digit."""
    x = RNG.normal(size=(N, 2)).astype(np.float32)
    y = (x[:, 0] + 0.3 * x[:, 1] > 0).astype(np.int32)
    far = np.where(x >= np.sort(x, 0)[-5], np.float32(1e8) * x, x)
    wide = np.stack([np.exp(12 * x[:, 0].astype(float)), x[:, 1].astype(float) ** 5], 1).astype(np.float32)
    owner = np.arange(N) % 3
    model = dure.boosting.fit(SMALL, data(x, y, owner))
    assert (model.predict(x) == y).mean() > 0.95
    for other in (far, wide):
        assert (np.argsort(other, 0) == np.argsort(x, 0)).all()
        same = dure.boosting.fit(SMALL, data(other, y, owner))
        np.testing.assert_array_equal(same.decision_function(other), model.decision_function(x))


def test_sums_are_exact() -> None:
    values = RNG.integers(-(2**50), 2**50, 3000)
    index = RNG.integers(0, 7, 3000)
    found = exact_sums(index, values, 8)
    for k in range(8):
        assert int(found[k]) == sum(int(v) for v in values[index == k])
    floats = np.bincount(index, values, 8)
    assert (floats != found).any(), "the test can't tell exact sums from sums of floats"


def test_bins() -> None:
    x = np.array([[0.0, np.nan], [1.0, 5.0], [1.5, 6.0], [9.0, 7.0]])
    found = in_bins(x, [np.array([1.0, 2.0]), np.array([6.0])])
    np.testing.assert_array_equal(found, [[0, 3], [0, 0], [1, 0], [2, 1]])


# ----- an independent implementation -------------------------------------------------------------------------


def theirs(kind: str, x: Any, y: Any, **settings: Any) -> Any:
    """scikit-learn's, grown to the same depth without a limit on leaves."""
    make = HistGradientBoostingRegressor if kind == "squared_error" else HistGradientBoostingClassifier
    settings = {"max_iter": 20, "max_depth": 3, "min_samples_leaf": 5, "l2_regularization": 1.0, **settings}
    with threadpool_limits(1):  # many threads for small work are slow on busy cores
        return make(max_leaf_nodes=None, early_stopping=False, max_bins=255, **settings).fit(x, y)


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("kind", list(KINDS))
def test_predictions_are_scikit_learns(kind: str, holes: bool) -> None:
    x, y = (HOLES if holes else X), KINDS[kind]
    settings = GradientBoosting(trees=20, depth=3, minimum_examples=5, l2=1.0)
    model = dure.boosting.fit(settings, data(x, y, RNG.integers(0, 4, N)), edges=EDGES)
    other = theirs(kind, x, y)
    if kind == "squared_error":
        np.testing.assert_allclose(model.predict(x), other.predict(x), atol=1e-4)
    else:
        np.testing.assert_allclose(model.predict_proba(x), other.predict_proba(x), atol=1e-4)
        assert (model.predict(x) == other.predict(x)).mean() > 0.99


def test_accuracy_on_breast_cancer_and_on_hospitals() -> None:
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x, y = x.astype(np.float32), y.astype(np.int32)
    test = np.arange(len(x)) % 3 == 0
    settings = GradientBoosting(trees=40, depth=3)
    model = dure.boosting.fit(settings, data(x[~test], y[~test], np.arange((~test).sum()) % 5))
    other = theirs("logistic", x[~test], y[~test], max_iter=40, min_samples_leaf=20)
    ours = (model.predict(x[test]) == y[test]).mean()
    assert ours > other.score(x[test], y[test]) - 0.02
    assert ours > 0.94
    heart = dure.data.heart(normalise="none")
    model = dure.boosting.fit(settings, heart)
    x, y = heart.client_test["x"], heart.client_test["y"]  # type: ignore[index]
    other = theirs("logistic", heart.columns["x"], heart.columns["y"], max_iter=40, min_samples_leaf=20)
    ours = (model.predict(x) == y).mean()
    assert abs(ours - other.score(x, y)) < 0.06  # a standard deviation is 0.025
    assert ours > 0.72


def test_missing_values_find_their_side() -> None:
    """Half of the rows of label 1 lack the only feature that says anything."""
    y = (np.arange(200) % 2).astype(np.int32)
    x = np.stack([y * 1.0, RNG.normal(size=200)], 1).astype(np.float32)
    x[::5, 0] = np.nan
    x[(y == 0) & np.isnan(x[:, 0]), 0] = 0
    model = dure.boosting.fit(
        GradientBoosting(trees=1, depth=1, minimum_examples=1), data(x, y), edges=[[0.5], [0.0]]
    )
    root = model.trees[0][0]
    assert (root.feature[0], root.missing_left[0]) == (0, False)
    np.testing.assert_array_equal(model.predict(x), y)
    # Where none was missing in training, a missing value goes with the larger part.
    for share, left in ((0.7, True), (0.3, False)):
        x = (np.arange(100)[:, None] >= 100 * share).astype(np.float32)
        model = dure.boosting.fit(
            GradientBoosting(trees=1, depth=1), data(x, x[:, 0].astype(np.int32)), edges=[[0.5]]
        )
        assert model.trees[0][0].missing_left[0] == left


def test_only_a_missing_value_can_be_told_apart() -> None:
    x = np.ones((80, 1), np.float32)
    y = (np.arange(80) % 2).astype(np.int32)
    x[y == 1] = np.nan
    settings = GradientBoosting(trees=2, depth=2)
    model = dure.boosting.fit(settings, data(x, y, np.arange(80) % 3))
    np.testing.assert_array_equal(model.predict(x), y)
    model = dure.boosting.fit(settings, data(x, y, np.arange(80) % 3), edges=[[]])
    np.testing.assert_array_equal(model.predict(x), y)
    assert np.isinf(model.trees[0][0].threshold[0])


# ----- what settings mean ------------------------------------------------------------------------------------


def leaves(model: Any) -> Any:
    for trees in model.trees:
        for tree in trees:
            for node in np.flatnonzero(tree.feature < 0):
                yield tree, node


def test_limits_are_kept() -> None:
    sets = data(X, LABELS, np.arange(N) % 3)
    model = dure.boosting.fit(GradientBoosting(trees=3, depth=4, minimum_examples=37), sets, edges=EDGES)
    assert min(tree.examples[node] for tree, node in leaves(model)) >= 37
    model = dure.boosting.fit(
        GradientBoosting(trees=1, depth=9, minimum_examples=1, minimum_hessian=5.0), sets, edges=EDGES
    )
    p = LABELS.mean()
    assert min(tree.examples[node] * p * (1 - p) for tree, node in leaves(model)) >= 5.0 - 1e-9
    one = dure.boosting.fit(GradientBoosting(trees=1, depth=1, minimum_examples=1), sets, edges=EDGES)
    assert len(one.trees[0][0].feature) == 3
    none = dure.boosting.fit(GradientBoosting(trees=2, minimum_gain=1e9), sets, edges=EDGES)
    assert [len(t[0].feature) for t in none.trees] == [1, 1]


def test_a_leafs_value_and_a_splits_gain_have_their_formulas() -> None:
    sets, rate, l2 = data(X, LABELS, np.arange(N) % 3), 0.3, 2.5
    model = dure.boosting.fit(
        GradientBoosting(trees=1, depth=1, learning_rate=rate, l2=l2, minimum_examples=1), sets, edges=EDGES
    )
    tree = model.trees[0][0]
    p = LABELS.mean()
    np.testing.assert_allclose(model.baseline, np.log(p / (1 - p)))

    def sums(rows: Any) -> tuple[float, float]:
        return float((p - LABELS[rows]).sum()), float(rows.sum() * p * (1 - p))

    def gain(left: Any) -> float:
        parts = [sums(left), sums(~left)]
        return sum(g * g / (h + l2) for g, h in parts) - sum(parts[0][:1] + parts[1][:1]) ** 2 / (
            parts[0][1] + parts[1][1] + l2
        )

    best = max(gain(X[:, f] <= e) for f in range(F) for e in EDGES[f] if 0 < (X[:, f] <= e).sum() < N)
    np.testing.assert_allclose(tree.gain[0], best, rtol=1e-9)
    left = X[:, tree.feature[0]] <= tree.threshold[0]
    np.testing.assert_allclose(tree.gain[0], gain(left), rtol=1e-9)
    for rows, node in ((left, tree.left[0]), (~left, tree.right[0])):
        g, h = sums(rows)
        np.testing.assert_allclose(tree.value[node], -rate * g / (h + l2), rtol=1e-9)
    shares = model.importances()
    assert shares[tree.feature[0]] == 1 == shares.sum()


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_training_loss_falls_and_is_the_models(kind: str) -> None:
    y = KINDS[kind]
    model = dure.boosting.fit(SMALL, data(X, y, np.arange(N) % 4))
    assert (np.diff(model.train_loss) < 0).all()
    if kind == "squared_error":
        last = 0.5 * np.square(model.predict(X) - y).mean()
        np.testing.assert_allclose(model.train_loss[0], 0.5 * y.astype(float).var(), rtol=1e-9)
    else:
        p = model.predict_proba(X)
        np.testing.assert_allclose(p.sum(1), 1)
        last = -np.log(p[np.arange(N), y]).mean()
        share = np.bincount(y) / N
        np.testing.assert_allclose(model.train_loss[0], -(share * np.log(share)).sum(), rtol=1e-9)
    np.testing.assert_allclose(model.train_loss[-1], last, rtol=1e-9)


def test_a_target_of_any_size() -> None:
    """Exact sums have room for targets of 1e-6 and of 1e12: the same trees, scaled."""
    power = 2.0**40
    one = dure.boosting.fit(SMALL, data(X, REAL), edges=EDGES)
    large = dure.boosting.fit(SMALL, data(X, (REAL * power).astype(np.float32)), edges=EDGES)
    np.testing.assert_array_equal(large.predict(X), one.predict(X) * power)


def test_whole_numbers_as_real_targets() -> None:
    counts = RNG.poisson(np.exp(SCORE / 2)).astype(np.int32)
    settings = GradientBoosting(trees=3, loss="squared_error")
    model = dure.boosting.fit(settings, data(X, counts))
    assert model.classes is None
    np.testing.assert_allclose(model.baseline, counts.mean())


def test_bytes_are_those_of_the_messages() -> None:
    settings = GradientBoosting(trees=2, depth=2, minimum_examples=1)
    model = dure.boosting.fit(settings, data(X, LABELS, np.arange(N) % 3), edges=EDGES)
    assert [len(t[0].feature) for t in model.trees] == [7, 7]

    def histograms(nodes: int) -> int:
        shape = (nodes, F, 26)
        return wire.size(
            {
                "counts": np.zeros(shape, np.int32),
                "gradients": np.zeros(shape, np.int64),
                "hessians": np.zeros(shape, np.int64),
            }
        )

    loss = wire.size({"loss": np.zeros(())})
    classes = wire.size({"counts": np.zeros(2, np.int64)})
    assert model.cost.bytes_per_client == classes + 2 * (histograms(1) + histograms(2)) + 3 * loss
    assert model.cost.rounds == 1 + 2 * 2 + 1
    assert model.cost.clients == 3


# ----- files and errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_saved_model_is_the_same(kind: str, tmp_path: Path) -> None:
    model = dure.boosting.fit(SMALL, data(HOLES, KINDS[kind]))
    model.save(tmp_path / "model.json")
    other = dure.boosting.load(tmp_path / "model.json")
    assert other.trees == model.trees
    assert (other.settings, other.cost, repr(other)) == (model.settings, model.cost, repr(model))
    np.testing.assert_array_equal(other.decision_function(HOLES), model.decision_function(HOLES))
    assert b"Infinity" not in (tmp_path / "model.json").read_bytes()


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    with pytest.raises(dure.RunError, match="can't be read"):
        dure.boosting.load(path)
    dure.boosting.fit(SMALL, data(X, LABELS)).save(path)
    whole = path.read_text()
    for text, message in (
        (whole[:-100], "damaged"),
        (whole.replace("boosting 1", "boosting 9"), "format"),
        ("[]", "no boosted model"),
        (whole.replace('"baseline"', '"base"'), "damaged"),
    ):
        path.write_text(text)
        with pytest.raises(dure.RunError, match=message):
            dure.boosting.load(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trees": 0}, "trees=0"),
        ({"depth": True}, "depth=True"),
        ({"max_bins": 70_000}, "at most 65535"),
        ({"learning_rate": 1.5}, "learning_rate=1.5"),
        ({"l2": -1.0}, "l2=-1.0"),
        ({"loss": "hinge"}, "loss='hinge'"),
    ],
)
def test_impossible_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        GradientBoosting(**settings)


def test_data_that_do_not_fit() -> None:
    for sets, keywords, message in (
        (data(X, REAL), {"features": "z"}, "no column 'z'"),
        (data(X, REAL), {"edges": EDGES[1:]}, "edges are given for 4 features"),
        (data(X, REAL), {"edges": [[2.0, 1.0], *EDGES[1:]]}, "must be finite and rise"),
        (data(X, REAL), {"edges": [["a"]] * F}, "edges=.*max_bins"),
        (data(X, np.zeros(N, np.int32)), {}, "needs two classes"),
        (data(X, LABELS + 1), {}, "row of class 0 in column 'y'"),
        (data(X, LABELS * 2), {}, "row of class 1 in column 'y'"),
        (data(X, LABELS, classes=3), {}, "row of class 2 in column 'y'"),
        (data(X, LABELS), {"minimum_examples": 1000}, "minimum_examples=1000"),
    ):
        with pytest.raises((dure.DataError, dure.ConfigError), match=message):
            dure.boosting.fit(SMALL, sets, **keywords)
    with pytest.raises(dure.DataError, match="log_loss needs labels"):
        dure.boosting.fit(GradientBoosting(loss="log_loss"), data(X, REAL))
    with pytest.raises(dure.DataError, match="missing=\\('x',\\)"):
        dure.Federated({"x": HOLES, "y": REAL}, np.array([0, N]))
    with pytest.raises(dure.DataError, match=r"missing values .*only dure\.boosting"):
        dure.simulate(
            dure.FedAvg(),
            dure.classification(dure.models.softmax_regression(F, 2)),
            data(HOLES, LABELS),
            rounds=1,
        )
    holes = dure.Federated({"x": X, "y": np.where(REAL > 0, np.nan, REAL)}, np.array([0, N]), missing=("y",))
    with pytest.raises(dure.DataError, match="without a target"):
        dure.boosting.fit(SMALL, holes)
    with pytest.raises(dure.ConfigError, match=r"by dure\.boosting\.fit\(dure\.boosting\.GradientBoosting"):
        dure.simulate(dure.FedAvg(), SMALL, data(X, REAL), rounds=1)
    model = dure.boosting.fit(SMALL, data(X, REAL))
    with pytest.raises(dure.ConfigError, match=r"takes \(B, 5\)"):
        model.predict(X[:, :4])
    with pytest.raises(dure.ConfigError, match="no probabilities"):
        model.predict_proba(X)
