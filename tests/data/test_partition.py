"""Partitions: each example exactly once, termination, and what each partitioner promises."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.data import (
    Federated,
    Partition,
    by_column,
    dirichlet,
    iid,
    label_quantity,
    quantity_skew,
    shards,
    similarity,
)
from dure.errors import ConfigError, DataError

FAST = settings(deadline=None, max_examples=60)
LABELS = np.random.default_rng(0).integers(0, 10, 1000)

PARTITIONERS = {
    "iid": iid,
    "shards": shards,
    "dirichlet": lambda y, k, seed=0: dirichlet(y, k, 0.3, minimum=0, seed=seed),
    "label_quantity": lambda y, k, seed=0: label_quantity(y, k, len(np.unique(y)), seed=seed),
    "alpha": lambda y, k, seed=0: quantity_skew(y, k, alpha=0.5, seed=seed),
    "sigma": lambda y, k, seed=0: quantity_skew(y, k, sigma=1.0, seed=seed),
    "similarity": lambda y, k, seed=0: similarity(y, k, 0.3, seed=seed),
}


@pytest.mark.parametrize("kind", PARTITIONERS)
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    clients=st.integers(1, 12),
    seed=st.integers(0, 9),
)
@FAST
def test_a_partition_is_a_partition_or_a_named_error(kind, labels, clients, seed):
    y = np.array(labels)
    try:
        part = PARTITIONERS[kind](y, clients, seed=seed)
    except ConfigError as error:
        message = str(error)
    else:
        message = None
    if message is not None:  # impossible requests name the client count
        assert f"{clients}" in message
        return
    assert part.client.shape == y.shape
    assert part.client.dtype == np.int32
    assert part.client.min() >= 0
    assert part.client.max() < clients
    assert part.clients == clients
    order, offsets = part.indices()
    np.testing.assert_array_equal(np.sort(order), np.arange(len(y)))
    for k in range(clients):
        np.testing.assert_array_equal(order[offsets[k] : offsets[k + 1]], np.flatnonzero(part.client == k))
    assert part.counts(y).sum() == len(y)
    np.testing.assert_array_equal(part.counts(y).sum(axis=1), part.sizes)
    assert str(seed) in part.description
    again = PARTITIONERS[kind](y, clients, seed=seed)
    np.testing.assert_array_equal(part.client, again.client)


@pytest.mark.parametrize("kind", PARTITIONERS)
def test_seeds_give_different_partitions(kind):
    first, second = (PARTITIONERS[kind](LABELS, 10, seed=s) for s in (0, 1))
    assert first.fingerprint() != second.fingerprint()


# In an interpreter of its own: beartype, which checks the annotations here, draws from `random` itself.
UNTOUCHED = """
import random
import numpy as np
import sklearn.datasets  # draws from `random` while it is imported
from dure.data import dirichlet, digits, iid, synthetic
from dure.population import Poisson, Uniform, Weighted
before = random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2]
data = synthetic(clients=5)
digits(seed=1), iid(100, 5, seed=1), dirichlet(data.columns["y"], 5, 1.0)
for sampler in (Uniform(2), Poisson(0.5), Weighted(2)):
    sampler.sample(0, 1, data)
assert before == (random.getstate(), np.random.get_state()[1].tolist(), np.random.get_state()[2])
"""


def test_global_generators_stay_as_they_were():
    subprocess.run([sys.executable, "-c", UNTOUCHED], check=True)


@pytest.mark.parametrize("kind", ["iid", "shards", "similarity"])
def test_equal_partitions_are_equal(kind):
    sizes = PARTITIONERS[kind](LABELS[:997], 10).sizes
    assert sizes.max() - sizes.min() <= (2 if kind == "shards" else 1)


def test_shards_are_mcmahans():
    y = np.repeat(np.arange(10), 600)
    part = shards(y, 100)  # 200 shards of 30; every shard has one label
    counts = part.counts(y)
    np.testing.assert_array_equal(part.sizes, 60)
    assert set(counts[counts > 0]) <= {30, 60}
    assert (counts > 0).sum(axis=1).max() == 2
    assert (counts > 0).sum(axis=1).mean() > 1.8  # the second shard has another label 9 times in 10


def test_similarity_ends_are_sorted_and_iid():
    y = np.repeat(np.arange(10), 100)
    np.testing.assert_array_equal(np.sort(similarity(y, 10, 0).counts(y).max(axis=1)), 100)
    assert similarity(y, 10, 1).summary(y).skew < 0.25
    counts = similarity(y, 10, 0.1).counts(y)
    assert counts.max(axis=1).min() >= 80  # nine tenths sorted, at most two labels in a cut


def test_label_quantity_gives_exactly_k_labels_shared_equally():
    y = np.repeat(np.arange(10), 100)
    for k in (1, 2, 3):
        counts = label_quantity(y, 20, k).counts(y)
        np.testing.assert_array_equal((counts > 0).sum(axis=1), k)
        np.testing.assert_array_equal((counts > 0).sum(axis=0), 2 * k)
        owned = counts[counts > 0]
        assert owned.max() - owned.min() <= 1
    with pytest.raises(ConfigError, match="between 1 and 10"):
        label_quantity(y, 20, 11)
    with pytest.raises(ConfigError, match="between 2 and 10"):
        label_quantity(y, 5, 1)
    with pytest.raises(ConfigError, match="label 0 has 1 examples for 2 owners"):
        label_quantity([0, 1, 1, 1], 2, 2)


@pytest.mark.parametrize("alpha", [1e-3, 1e-300, 0.1])
def test_dirichlet_terminates_for_any_alpha(alpha):
    part = dirichlet(LABELS, 100, alpha, minimum=0)
    assert part.sizes.sum() == 1000
    assert part.sizes.min() == 0
    with pytest.raises(ConfigError) as caught:
        dirichlet(LABELS, 100, alpha, tries=5)
    for word in (f"alpha={alpha:g}", "clients=100", "1000 examples", "5 tries", "minimum=1", "minimum=0"):
        assert word in str(caught.value)


def test_dirichlet_meets_its_minimum():
    assert dirichlet(LABELS, 10, 0.5, minimum=20).sizes.min() >= 20


@pytest.mark.parametrize("alpha", [0.02, 0.5, 5.0])
def test_dirichlet_has_the_moments_of_its_name(alpha):
    # E p = 1/N and Var p = (1/N)(1 − 1/N)/(Nα + 1) for one component
    clients, n = 8, 4000
    y = np.repeat(np.arange(50), n)
    shares = dirichlet(y, clients, alpha, minimum=0).counts(y) / n
    variance = (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    assert abs(shares.mean() - 1 / clients) < 1e-12
    assert shares.var() == pytest.approx(variance, rel=0.3)


def test_dirichlet_limits():
    y = np.repeat(np.arange(10), 100)
    np.testing.assert_array_equal(dirichlet(y, 10, math.inf).counts(y), 10)
    concentrated = dirichlet(y, 10, 1e-6, minimum=0).counts(y)
    np.testing.assert_array_equal(np.sort(concentrated, axis=0)[-1], 100)  # a class has one owner


def test_quantity_skew_is_skewed_in_size_only():
    part = quantity_skew(LABELS, 10, alpha=0.5, minimum=5)
    assert part.sizes.min() >= 5
    assert part.sizes.max() > 2 * part.sizes.mean()
    np.testing.assert_array_equal(quantity_skew(1000, 10, sigma=0).sizes, 100)
    with pytest.raises(ConfigError, match="one of them"):
        quantity_skew(LABELS, 10)
    with pytest.raises(ConfigError, match="one of them"):
        quantity_skew(LABELS, 10, alpha=1, sigma=1)
    with pytest.raises(ConfigError, match="sigma=-1"):
        quantity_skew(LABELS, 10, sigma=-1)


def test_by_column_names_the_clients():
    part = by_column(["b", "a", "b"])
    np.testing.assert_array_equal(part.client, [1, 0, 1])
    data = Federated.from_partition({"y": np.array([0, 1, 1])}, part)
    assert list(data.client_names) == ["a", "b"]
    with pytest.raises(DataError, match="missing"):
        by_column(np.array(["a", None], object))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: iid(5, 10), ["iid", "5 examples", "clients=10"]),
        (lambda: iid(0, 1), ["no examples"]),
        (lambda: iid(LABELS, 0), ["clients=0"]),
        (lambda: shards(LABELS, 600), ["1000 examples", "clients=600", "at most 500"]),
        (lambda: shards(LABELS, 10, per_client=0), ["per_client=0"]),
        (lambda: shards(LABELS.reshape(10, 100), 2), ["(10, 100)"]),
        (lambda: dirichlet(LABELS, 10, 0), ["alpha=0"]),
        (lambda: dirichlet(LABELS, 10, float("nan")), ["alpha=nan"]),
        (lambda: dirichlet(LABELS, 10, 1, minimum=101), ["clients=10", "at least 101"]),
        (lambda: dirichlet(LABELS, 10, 1, minimum=-1), ["minimum=-1"]),
        (lambda: dirichlet(LABELS, 10, 1, tries=0), ["tries=0"]),
        (lambda: similarity(LABELS, 10, 1.1), ["fraction=1.1"]),
        (lambda: iid(LABELS, 10, seed=-1), ["seed=-1"]),
        (lambda: Partition(np.array([0, 3]), 3), ["Example 1", "client 3", "[0, 3)"]),
        (lambda: Partition(np.array([0.5]), 3), ["integers"]),
        (lambda: Partition(np.array([0]), 0), ["empty population"]),
        (lambda: Partition(np.array([0]), 2, names=["a"]), ["1 names", "2 clients"]),
        (lambda: iid(LABELS, 10).counts(LABELS[:5]), ["5 labels", "1000 examples"]),
        (lambda: iid(LABELS, 10).counts(LABELS, classes=5), ["classes=5", "label 9"]),
    ],
)
def test_bad_requests_are_named(call, words):
    with pytest.raises((ConfigError, DataError)) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_text_labels_and_permuted_names_of_labels_give_the_same_partition():
    text = np.array([f"class {y}" for y in LABELS])
    np.testing.assert_array_equal(shards(text, 10).client, shards(LABELS, 10).client)
    assert iid(LABELS, 10).counts(text).shape == (10, 10)


def test_a_summary_can_be_printed_and_drawn():
    summary = shards(LABELS, 40).summary(LABELS)
    assert "shards(clients=40" in str(summary)
    assert "and 10 more clients" in str(summary)
    np.testing.assert_allclose(summary.shares.sum(axis=1), 1)
    assert 0.7 < summary.skew < 0.95
    assert iid(100, 3).summary().skew is None
    from rich.console import Console

    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with console.capture() as captured:
        console.print(summary)
    assert "examples" in captured.get()
    console.file.close()


def test_skew_is_the_mean_total_variation_distance():
    labels = np.array([0, 0, 1, 1])
    assert by_column(["a", "a", "b", "b"]).summary(labels).skew == 0.5
    assert by_column(["a", "b", "a", "b"]).summary(labels).skew == 0
