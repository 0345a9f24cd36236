"""A plan reads what it must: every example exactly E times, in fresh orders, whoever else takes part."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.simulation.places import deal
from dure.simulation.plan import RoundPlan, Work, bucket, build

SIZES = st.lists(st.integers(0, 23), min_size=1, max_size=7)
BATCHES = st.integers(1, 12)
SEEDS = st.integers(0, 2**32)


def make(
    work: Work, seed: int, sizes: list[int], batch: int, round: int = 1, ids: object = None
) -> RoundPlan:
    n = np.array(sizes, np.int64)
    starts = 100 * np.arange(len(n)) if ids is None else 100 * np.asarray(ids)
    return build(work, seed, round, np.arange(len(n)) if ids is None else np.asarray(ids), starts, n, batch)


def steps_of(plan: RoundPlan, k: int, batch: int) -> np.ndarray:
    first, steps = int(plan.first[k]), int(plan.steps[k])
    return plan.order[first : first + steps * batch].reshape(steps, batch)


@settings(deadline=None, max_examples=150)
@given(SIZES, st.integers(1, 4), BATCHES, SEEDS)
def test_every_example_is_read_exactly_once_an_epoch(
    sizes: list[int], epochs: int, batch: int, seed: int
) -> None:
    plan = make(Work(epochs, None, batch), seed, sizes, batch)
    for k, n in enumerate(sizes):
        steps = steps_of(plan, k, batch)
        per_epoch = -(-n // batch)
        assert len(steps) == epochs * per_epoch
        for e in range(epochs):
            epoch = steps[e * per_epoch : (e + 1) * per_epoch]
            flat = epoch.ravel()
            np.testing.assert_array_equal(np.sort(flat[flat >= 0]), 100 * k + np.arange(n))
            there = epoch >= 0
            assert there[:-1].all(), "only an epoch's last batch may be short"
            assert (np.diff(there.astype(int), axis=1) <= 0).all(), "-1 only behind what is there"


@settings(deadline=None, max_examples=100)
@given(SIZES, st.integers(1, 9), BATCHES, SEEDS)
def test_a_number_of_steps(sizes: list[int], count: int, batch: int, seed: int) -> None:
    """Whole epochs as long as they last; no example is read twice more often than another."""
    plan = make(Work(None, count, batch), seed, sizes, batch)
    for k, n in enumerate(sizes):
        steps = steps_of(plan, k, batch)
        assert len(steps) == (count if n else 0)
        assert ((steps >= 0).sum(1) >= 1).all()
        if n:
            reads = np.bincount(steps[steps >= 0] - 100 * k, minlength=n)
            assert reads.max() - reads.min() <= 1


@settings(deadline=None, max_examples=100)
@given(SIZES, st.integers(1, 3), BATCHES, SEEDS, st.data())
def test_a_client_reads_the_same_whoever_takes_part(
    sizes: list[int], epochs: int, batch: int, seed: int, data: st.DataObject
) -> None:
    k = data.draw(st.integers(0, len(sizes) - 1))
    others = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    cohort = sorted({k, *others})
    work = Work(epochs, None, batch)
    whole = make(work, seed, sizes, batch)
    part = make(work, seed, [sizes[i] for i in cohort], batch, ids=cohort)
    np.testing.assert_array_equal(steps_of(whole, k, batch), steps_of(part, cohort.index(k), batch))


def test_orders_are_fresh_for_every_epoch_round_seed_and_client() -> None:
    work, n = Work(2, None, 8), 64
    orders = []
    for seed in (0, 1):
        for round in (1, 2):
            plan = build(work, seed, round, np.array([0, 1]), np.zeros(2, np.int64), np.full(2, n), 8)
            orders += list(plan.order.reshape(4, n))
    assert len({o.tobytes() for o in orders}) == len(orders) == 16


def test_shuffles_are_uniform() -> None:
    """Which row comes first, and which place row 0 gets: 4000 clients of 5 rows, χ² with 4 degrees of freedom."""
    m, n = 4000, 5
    plan = build(Work(1, None, 1), 3, 1, np.arange(m), np.zeros(m, np.int64), np.full(m, n), 1)
    table = plan.order.reshape(m, n)
    for counts in (np.bincount(table[:, 0], minlength=n), np.bincount(np.argmin(table, 1), minlength=n)):
        assert ((counts - m / n) ** 2 / (m / n)).sum() < 25


def test_a_thousand_clients_at_once() -> None:
    """Many segments: few bits of the words are left to sort by, and ties are still broken well."""
    sizes = np.random.default_rng(0).integers(0, 60, 5000)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    plan = build(Work(2, None, 7), 0, 1, np.arange(5000), starts, sizes, 7)
    reads = np.bincount(plan.order[plan.order >= 0], minlength=sizes.sum())
    assert (reads == 2).all()
    alone = build(Work(2, None, 7), 0, 1, np.array([77]), starts[[77]], sizes[[77]], 7)
    first, end = plan.first[77], plan.first[77] + plan.steps[77] * 7
    np.testing.assert_array_equal(plan.order[first:end], alone.order)


def test_nobody() -> None:
    none = np.zeros(0, np.int64)
    plan = build(Work(1, None, 4), 0, 1, none, none, none, 4)
    assert [len(x) for x in plan] == [0, 0, 0]


def test_buckets_are_few_and_waste_little() -> None:
    sizes = [bucket(n) for n in range(1, 5000)]
    assert all(b >= n for n, b in zip(range(1, 5000), sizes, strict=True))
    assert all(b <= 1.34 * n for n, b in zip(range(1, 5000), sizes, strict=True))
    assert sizes == sorted(sizes)
    assert len(set(sizes)) < 50
    assert bucket(0) == 1


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 9), st.integers(1, 5))
def test_every_client_gets_its_own_seat(turns: list[int], width: int, devices: int) -> None:
    (device, row, lane), shape = deal(np.array(turns, np.int64), width, devices)
    seats = set(zip(device.tolist(), row.tolist(), lane.tolist(), strict=True))
    assert len(seats) == len(turns)
    assert all(0 <= d < shape[0] and 0 <= r < shape[1] and 0 <= s < shape[2] for d, r, s in seats)
    assert shape[0] == devices
    assert shape[2] == width
    load = np.bincount(device, minlength=devices)
    assert load.max() - load.min() <= width
