"""Samplers: inclusion probabilities, exact where closed and statistical otherwise; cost of 10⁷ clients."""

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.data import Federated
from dure.errors import ConfigError
from dure.population import Cohort, Cyclic, Everyone, Once, Poisson, Population, Sampler, Uniform, Weighted

ROUNDS = 2000
SAMPLERS = [Everyone(), Uniform(2), Uniform(fraction=0.5), Poisson(0.4), Weighted(3)]


def population(sizes):
    return Federated({"x": np.zeros(sum(sizes), np.float32)}, np.cumsum([0, *sizes]))


PEOPLE = population([1, 2, 3, 4, 0])


def drawn(sampler, people=PEOPLE, rounds=ROUNDS):
    """(rounds, N): how often each client was drawn in each round."""
    table = np.zeros((rounds, people.clients))
    for r in range(rounds):
        cohort = sampler.sample(0, r, people)
        table[r, cohort.ids] = cohort.multiplicity
    return table


def test_a_federated_data_set_is_a_population():
    assert isinstance(PEOPLE, Population)
    assert all(isinstance(s, Sampler) for s in SAMPLERS)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_a_cohort_is_well_formed_and_addressed(sampler):
    for r in range(30):
        cohort = sampler.sample(3, r, PEOPLE)
        again = sampler.sample(3, r, PEOPLE)
        assert cohort.ids.dtype == cohort.multiplicity.dtype == np.int64
        assert cohort.inclusion.dtype == np.float64
        assert len(cohort) == len(cohort.inclusion) == len(cohort.multiplicity)
        assert np.all(np.diff(cohort.ids) > 0)
        assert np.all((cohort.ids >= 0) & (cohort.ids < 5))
        assert np.all(cohort.multiplicity >= 1)
        np.testing.assert_array_equal(cohort.ids, again.ids)
        np.testing.assert_array_equal(cohort.multiplicity, again.multiplicity)
    assert sampler.describe()


@pytest.mark.parametrize("sampler", [Uniform(2), Poisson(0.4), Weighted(3)], ids=lambda s: type(s).__name__)
def test_seeds_and_rounds_give_different_cohorts(sampler):
    people = population([3] * 1000)
    cohorts = {tuple(sampler.sample(s, r, people).ids) for s in range(5) for r in range(5)}
    assert len(cohorts) > 20


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_stated_inclusion_is_the_mean_count(sampler):
    table = drawn(sampler)
    stated = np.zeros(5)
    for r in range(200):
        cohort = sampler.sample(0, r, PEOPLE)
        stated[cohort.ids] = cohort.inclusion
    error = 5 * np.sqrt(np.maximum(table.var(axis=0), 1e-12) / ROUNDS)  # five standard errors
    assert np.all(np.abs(table.mean(axis=0) - stated) <= error + 1e-12)


def test_closed_forms():
    assert Everyone().sample(0, 0, PEOPLE).inclusion.tolist() == [1.0] * 5
    assert Uniform(2).sample(0, 0, PEOPLE).inclusion.tolist() == [0.4] * 2
    cohort = Weighted(3).sample(0, 0, PEOPLE)
    np.testing.assert_allclose(cohort.inclusion, 3 * np.array([1, 2, 3, 4, 0])[cohort.ids] / 10)
    assert cohort.multiplicity.sum() == 3


def test_horvitz_thompson_is_unbiased_with_the_stated_inclusions():
    values = np.array([3.0, -1.0, 4.0, 1.0, 0.0])  # the client without examples has no value to miss
    for sampler in SAMPLERS:
        totals = []
        for r in range(ROUNDS):
            c = sampler.sample(1, r, PEOPLE)
            totals.append(np.sum(c.multiplicity * values[c.ids] / c.inclusion))
        assert abs(np.mean(totals) - 7.0) <= 5 * np.std(totals) / np.sqrt(ROUNDS) + 1e-9


def test_uniform_draws_every_subset_equally_often():
    table = drawn(Uniform(2)).astype(bool)
    counts = np.array([table[:, list(pair)].all(axis=1).sum() for pair in combinations(range(5), 2)])
    chi2 = np.sum((counts - ROUNDS / 10) ** 2 / (ROUNDS / 10))
    assert chi2 < 30  # 9 degrees of freedom: P(χ² > 30) < 5e-4, and the seed is fixed


def test_poisson_has_binomial_sizes_and_independent_clients():
    table = drawn(Poisson(0.4))
    sizes = table.sum(axis=1)
    assert sizes.var() == pytest.approx(5 * 0.4 * 0.6, rel=0.1)
    assert (sizes == 0).mean() == pytest.approx(0.6**5, abs=0.02)  # an empty cohort is possible
    correlation = np.corrcoef(table.T)[~np.eye(5, dtype=bool)]
    assert np.abs(correlation).max() < 5 / np.sqrt(ROUNDS)


def test_weighted_counts_are_multinomial_and_never_reach_empty_clients():
    table = drawn(Weighted(3))
    p = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    assert table[:, 4].sum() == 0
    np.testing.assert_allclose(np.cov(table.T), 3 * (np.diag(p) - np.outer(p, p)), atol=0.06)
    distinct = np.mean([(row > 0).sum() for row in table])
    assert Weighted(3).expected_size(PEOPLE) == pytest.approx(np.sum(1 - (1 - p) ** 3))
    assert distinct == pytest.approx(Weighted(3).expected_size(PEOPLE), abs=0.05)


@given(st.integers(1, 999), st.integers(1, 10**7))
@settings(deadline=None, max_examples=200)
def test_fraction_rounds_down_the_decimal_that_was_written(thousandths, clients):
    m = Uniform(fraction=thousandths / 1000).size(clients)
    assert m == max(thousandths * clients // 1000, 1)


def test_mcmahans_rule():
    assert Uniform(fraction=0.1).size(100) == 10
    assert Uniform(fraction=0.1).size(3) == 1
    assert Uniform(fraction=0.29).size(100) == 29  # 0.29·100 = 28.999…
    assert Uniform(fraction=1).size(7) == 7
    assert Uniform(fraction=0.5).expected_size(PEOPLE) == 2
    assert Poisson(0.4).expected_size(PEOPLE) == 2
    assert Everyone().expected_size(PEOPLE) == 5


@pytest.mark.parametrize("sampler", [Uniform(1000), Uniform(fraction=1e-4), Poisson(1e-4), Weighted(1000)])
def test_ten_million_clients_cost_what_the_cohort_costs(sampler):
    people = population([3, 5, 0, 1]).replicate(10**7)
    sampler.sample(0, 0, people)
    tracemalloc.start()
    cohort = sampler.sample(0, 1, people)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 800 < len(cohort) < 1200
    assert peak < 400_000  # an array over the population would take 80 MB


def test_ten_million_stored_clients():
    sizes = np.full(10**7, 2, np.int64)
    people = Federated({"x": np.zeros(2 * 10**7, np.float32)}, np.concatenate([[0], np.cumsum(sizes)]))
    for sampler in (Uniform(1000), Weighted(1000)):
        tracemalloc.start()
        cohort = sampler.sample(0, 1, people)
        people.rows(cohort.ids)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 400_000


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Uniform(fraction=0), ["C=0", "(0, 1]"]),
        (lambda: Uniform(fraction=1.5), ["C=1.5", "(0, 1]"]),
        (lambda: Uniform(fraction=float("nan")), ["C=nan"]),
        (lambda: Uniform(0), ["cohort of 0", "at least 1"]),
        (lambda: Uniform(), ["one of them", "None"]),
        (lambda: Uniform(3, 0.5), ["one of them", "count=3", "fraction=0.5"]),
        (lambda: Uniform(6).sample(0, 0, PEOPLE), ["cohort of 6", "population of 5", "Everyone"]),
        (lambda: Poisson(0), ["rate 0", "(0, 1]"]),
        (lambda: Poisson(1.1), ["rate 1.1"]),
        (lambda: Weighted(-1), ["cohort of -1"]),
        (lambda: Uniform(2).sample(-1, 0, PEOPLE), ["seed=-1"]),
    ],
)
def test_impossible_cohorts_are_named(call, words):
    with pytest.raises(ConfigError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_a_cohort_checks_its_shapes():
    with pytest.raises(Exception, match="inclusion"):
        Cohort(np.arange(2), np.ones(3), np.ones(2, np.int64))


# ----- fixed orders ----------------------------------------------------------------------------------------


def test_cyclic_goes_round_in_its_order():
    people = population([1] * 7)
    cohorts = [Cyclic(3).sample(5, r, people).ids.tolist() for r in range(1, 6)]
    assert cohorts == [[0, 1, 2], [3, 4, 5], [0, 1, 6], [2, 3, 4], [0, 5, 6]]
    backwards = Cyclic(order=(6, 4, 2))
    assert [backwards.sample(0, r, people).ids.tolist() for r in range(1, 5)] == [[6], [4], [2], [6]]
    np.testing.assert_allclose(Cyclic(3).sample(0, 1, people).inclusion, 3 / 7)
    np.testing.assert_allclose(backwards.sample(0, 1, people).inclusion, 1 / 3)
    assert Cyclic(3).expected_size(people) == 3
    assert isinstance(Cyclic(), Sampler)
    np.testing.assert_array_equal(Cyclic(7).sample(0, 2, people).ids, np.arange(7))


@pytest.mark.parametrize("clients", [1, 2, 10, 97, 1000])
def test_once_asks_every_client_at_most_once(clients):
    people = population([1] * clients)
    for seed in range(4):
        count = max(clients // 9, 1)
        rounds = clients // count
        cohorts = [Once(count).sample(seed, r, people) for r in range(1, rounds + 1)]
        ids = np.concatenate([c.ids for c in cohorts])
        assert len(ids) == len(set(ids.tolist())) == rounds * count
        assert ids.min() >= 0
        assert ids.max() < clients
        assert all(np.all(np.diff(c.ids) > 0) for c in cohorts)
        np.testing.assert_array_equal(Once(count).sample(seed, rounds, people).ids, cohorts[-1].ids)
        with pytest.raises(ConfigError, match=rf"used up the population in round {rounds + 1}"):
            Once(count).sample(seed, rounds + 1, people)


def test_once_is_uniform_over_seeds_and_says_its_inclusion():
    people = population([1] * 20)
    counts = np.zeros(20)
    for seed in range(2000):
        cohort = Once(4).sample(seed, 2, people)
        counts[cohort.ids] += 1
    np.testing.assert_allclose(cohort.inclusion, 0.2)
    assert ((counts - 400) ** 2 / 400).sum() < 60  # χ² with 19 degrees of freedom, less for sets


def test_once_in_a_fleet_costs_what_the_cohort_costs():
    people = population([3, 1]).replicate(10**7)
    tracemalloc.start()
    ids = Once(1000).sample(1, 700, people).ids
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400_000
    assert len(set((ids // 10**5).tolist())) > 50, "from all over"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Cyclic(0), ["cohort of 0"]),
        (lambda: Cyclic(order=()), ["at least one client"]),
        (lambda: Cyclic(order=(1, 2, 1)), ["each once"]),
        (lambda: Cyclic(6).sample(0, 1, PEOPLE), ["count=6", "5 clients"]),
        (lambda: Cyclic(order=(1, 5)).sample(0, 1, PEOPLE), ["(1, 5)", "5 clients"]),
        (lambda: Once(0), ["cohort of 0"]),
        (lambda: Once(6).sample(0, 1, PEOPLE), ["used up", "Uniform(6)"]),
    ],
)
def test_impossible_orders_are_named(call, words):
    with pytest.raises(ConfigError) as caught:
        call()
    for word in words:
        assert word in str(caught.value)
