"""Addressed randomness: pure, separate for every part of an address, and spread evenly."""

import random
import re

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure import keys
from dure.errors import ConfigError

SEEDS = st.integers(0, 2**63 - 1)


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.lists(st.integers(0, 2**40), max_size=3))
def test_equal_addresses_give_equal_streams(seed: int, address: list[int]) -> None:
    a, b = (keys.generator(seed, "cohort", *address) for _ in range(2))
    a.random(3)
    assert a.random() == (b.random(3), b.random())[1]
    first, second = (jax.random.key_data(keys.jax_key(seed, "init", *address)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_every_part_of_an_address_matters() -> None:
    """Also where a sloppy joining of the parts would not tell: (1, 23) and (12, 3), "plan1" and 1."""
    addresses = [
        (0, "cohort", ()), (1, "cohort", ()), (0, "plan", ()), (0, "cohort", (0,)), (0, "cohort", (1,)),
        (0, "cohort", (0, 0)), (0, "cohort", (1, 23)), (0, "cohort", (12, 3)), (0, "cohort", (123,)),
        (1, "plan", (1,)), (11, "plan", ()), (1, "plan1", ()), (2**32, "cohort", ()), (2**62, "cohort", ()),
    ]  # fmt: skip
    assert len({keys.digest(s, p, *a) for s, p, a in addresses}) == len(addresses)
    draws = {keys.generator(s, p, *a).integers(2**63) for s, p, a in addresses}
    assert len(draws) == len(addresses)


def test_known_answers() -> None:
    """SHA-256 of "7/plan/1,2", and SplitMix64's published first outputs for seed 1234567."""
    import hashlib

    assert keys.digest(7, "plan", 1, 2) == hashlib.sha256(b"7/plan/1,2").digest()
    golden = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + (i + 1) * golden) % 2**64 for i in range(3)], np.uint64)
    with np.errstate(over="ignore"):
        got = keys.mix(states)
    assert list(got) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [-1, 2**63, True, 1.5, "a", None])
def test_seeds_out_of_range_are_refused(seed: object) -> None:
    # The functions' own annotations refuse other types first, here in the tests.
    with pytest.raises((ConfigError, TypeError), match=r"seed") as caught:
        keys.digest(seed, "plan")  # type: ignore[arg-type]
    if isinstance(caught.value, ConfigError):
        assert re.search(rf"seed={seed!r}", str(caught.value))


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 10**6), st.lists(st.integers(0, 10**9), min_size=1, max_size=20, unique=True))
def test_words_do_not_depend_on_their_neighbours(seed: int, round: int, clients: list[int]) -> None:
    ids, index = np.array(clients), np.arange(len(clients))
    together = keys.words(seed, "plan", round, ids, index)
    for i in range(len(clients)):
        alone = keys.words(seed, "plan", round, ids[i : i + 1], index[i : i + 1])
        assert alone[0] == together[i]


def test_words_are_spread() -> None:
    words = keys.words(0, "plan", 1, np.arange(300)[:, None], np.arange(300)[None]).ravel()
    assert len(np.unique(words)) == words.size
    for shift in range(64):  # each bit is set in half of them: 6 standard deviations
        share = ((words >> np.uint64(shift)) & np.uint64(1)).mean()
        assert abs(share - 0.5) < 6 * 0.5 / np.sqrt(words.size)
    other = keys.words(0, "plan", 2, np.arange(300)[:, None], np.arange(300)[None]).ravel()
    assert not (words == other).any()


def test_global_generators_are_left_alone() -> None:
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    before, python = np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    keys.generator(0, "plan", 1).random(10)
    keys.words(0, "plan", 1, np.arange(5), np.arange(5))
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    assert random.getstate() == python
