"""synthetic(α, β): what the family's definition implies."""

import numpy as np
import pytest

from dure.data import synthetic
from dure.data.loaders.synthetic import client_rows
from dure.errors import ConfigError

FAST = {"largest": 400}


def test_alpha_has_no_effect():
    prints = {synthetic(alpha, 1, **FAST).fingerprint() for alpha in (0, 0.5, 1, 100.0)}
    assert len(prints) == 1
    assert synthetic(0, 0, **FAST).fingerprint() not in prints  # β has one


def test_seeds():
    assert synthetic(0, 1, **FAST).fingerprint() == synthetic(0, 1, **FAST).fingerprint()
    assert synthetic(0, 1, seed=1, **FAST).fingerprint() != synthetic(0, 1, **FAST).fingerprint()


def test_sizes_are_heavy_tailed_from_fifty_up():
    data = synthetic(1, 1, clients=200)
    whole = data.sizes + np.diff(data.client_test_offsets)
    assert whole.min() >= 50
    assert whole.max() > 20 * np.median(whole)
    # the median of lognormal(4, 2) is e⁴
    assert np.median(whole) == pytest.approx(np.exp(4) + 50, rel=0.25)
    np.testing.assert_array_equal(data.sizes, np.floor(whole * 0.9 + 1e-9))
    assert synthetic(1, 1, largest=300).sizes.max() <= 270


def test_covariance_is_diagonal_with_a_power_law():
    rows = [client_rows(0, k, 0, 1)[0] for k in range(40)]
    centred = np.concatenate([x - x.mean(axis=0) for x in rows])
    covariance = centred.T @ centred / (len(centred) - len(rows))
    expected = np.arange(1, 61) ** -1.2
    np.testing.assert_allclose(np.diag(covariance), expected, rtol=0.1)
    correlation = covariance / np.sqrt(np.outer(expected, expected))
    assert np.abs(correlation - np.diag(np.diag(correlation))).max() < 0.1


def test_client_means_spread_with_beta():
    def spread(beta):
        means = np.array([client_rows(0, k, 0, beta, largest=200)[0].mean() for k in range(200)])
        return means.var()

    # the mean over 60 coordinates of v ~ N(B, 1) has variance β² + 1/60, and sampling adds a little
    assert spread(0) == pytest.approx(1 / 60, rel=0.4)
    assert spread(2) == pytest.approx(4 + 1 / 60, rel=0.4)


def test_iid_clients_share_one_model():
    from sklearn.linear_model import LogisticRegression

    def accuracy(data):  # labels are an argmax without noise, so one model for all separates them
        model = LogisticRegression(C=1e3, max_iter=2000).fit(data.columns["x"], data.columns["y"])
        return min(model.score(*data.client(k).values()) for k in range(data.clients))

    shared = synthetic(iid=True, clients=10, largest=200)
    assert np.abs(shared.columns["x"].mean(axis=0)).max() < 0.15
    assert accuracy(shared) > 0.97


def entropy(labels):
    p = np.bincount(labels, minlength=10) / len(labels)
    return -np.sum(p[p > 0] * np.log(p[p > 0]))


def published_recipe(rng, beta):
    """One client of the authors' generator, written out again, with at most 300 rows."""
    n = min(int(rng.lognormal(4, 2)) + 50, 300)
    mean = rng.normal(rng.normal(0, beta), 1, 60)
    weights, bias = rng.normal(0, 1, (60, 10)), rng.normal(0, 1, 10)
    x = rng.normal(mean, np.sqrt(np.arange(1, 61) ** -1.2), (n, 60))
    return np.argmax(x @ weights + bias, axis=1)


@pytest.mark.parametrize("beta", [0, 1])
def test_label_entropy_is_that_of_the_published_recipe(beta):
    rng = np.random.default_rng(beta)
    theirs = [entropy(published_recipe(rng, beta)) for _ in range(400)]
    ours = [entropy(client_rows(7, k, 0, beta, largest=300)[1]) for k in range(400)]
    assert abs(np.mean(ours) - np.mean(theirs)) < 4 * np.sqrt((np.var(ours) + np.var(theirs)) / 400)


def test_a_client_does_not_depend_on_how_many_there_are():
    few, many = synthetic(0, 1, clients=3, **FAST), synthetic(0, 1, clients=6, **FAST)
    np.testing.assert_array_equal(few.client(2)["x"], many.client(2)["x"])


def test_without_test_rows():
    assert synthetic(clients=2, test_fraction=0).client_test is None


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"alpha": -1}, "alpha=-1"),
        ({"beta": float("inf")}, "beta=inf"),
        ({"clients": 0}, "clients=0"),
        ({"iid": True, "beta": 1}, "beta=1"),
        ({"test_fraction": 1}, "test_fraction=1"),
        ({"largest": 10}, "largest=10"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments(arguments, word):
    with pytest.raises(ConfigError, match=word):
        synthetic(**arguments)
