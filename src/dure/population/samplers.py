"""Who takes part in a round: client ids with their inclusion probabilities, in O(cohort) time and memory.

A sampler is a pure function of (seed, round, population): a resumed run asks the same clients. Inclusion
probabilities let the aggregator weight without bias (Horvitz and Thompson 1952).
"""

import math
from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float64, Int, Int64

from dure import keys
from dure.errors import ConfigError


@runtime_checkable
class Population(Protocol):
    """What a sampler may ask about the registered clients; `dure.data.Federated` is one."""

    @property
    def clients(self) -> int:
        """Number of registered clients N."""

    @property
    def examples(self) -> int:
        """Number of training examples of all clients."""

    def rows(self, ids: Int[np.ndarray, "m"]) -> tuple[Int64[np.ndarray, "m"], Int64[np.ndarray, "m"]]:
        """First row and number of rows of each client, in O(m)."""

    def example_at(self, positions: Int[np.ndarray, "m"]) -> Int64[np.ndarray, "m"]:
        """The client that holds each example, in O(m log N)."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """The clients asked in one round.

    Attributes:
        ids: (m,) distinct client ids, ascending.
        inclusion: (m,) probability in (0, 1] that the client is asked in a round; with replacement, the
            expected number of times it is drawn, which may exceed 1.
        multiplicity: (m,) how often it was drawn; 1 except with replacement.
    """

    ids: Int64[np.ndarray, "m"]
    inclusion: Float64[np.ndarray, "m"]
    multiplicity: Int64[np.ndarray, "m"]

    def __len__(self) -> int:
        return len(self.ids)


@runtime_checkable
class Sampler(Protocol):
    """A rule for choosing cohorts."""

    def sample(self, seed: int, round: int, population: Population) -> Cohort:
        """The cohort of one round; the same arguments give the same cohort."""

    def expected_size(self, population: Population) -> float:
        """The expected number of distinct clients in a cohort."""

    def describe(self) -> str:
        """One line for the record."""


@dataclass(frozen=True)
class Everyone:
    """All clients, every round: inclusion probability 1."""

    def sample(self, seed: int, round: int, population: Population) -> Cohort:
        """All N clients."""
        return _without_replacement(np.arange(population.clients, dtype=np.int64), 1.0)

    def expected_size(self, population: Population) -> float:
        """N."""
        return float(population.clients)

    def describe(self) -> str:
        """One line for the record."""
        return "everyone"


@dataclass(frozen=True)
class Uniform:
    """m clients, uniformly and without replacement: inclusion probability m/N.

    Give `count` = m, or `fraction` = C with m = max(⌊C·N⌋, 1), McMahan's rule. C is read as the decimal
    number that was written, so 0.29 of 100 clients are 29 although 0.29·100 is 28.999… in floating point.

    Args:
        count: m ≥ 1.
        fraction: C in (0, 1].

    Raises:
        ConfigError: none or both given, or out of range; when sampling, m above N.
    """

    count: int | None = None
    fraction: float | int | None = None

    def __post_init__(self) -> None:
        if (self.count is None) == (self.fraction is None):
            raise ConfigError(
                f"Uniform takes count or fraction, one of them; got count={self.count}, "
                f"fraction={self.fraction}."
            )
        if self.count is not None:
            _count(self.count)
        known = isinstance(self.fraction, int | float | np.number) and not isinstance(self.fraction, bool)
        if self.fraction is not None and not (known and 0 < self.fraction <= 1):
            raise ConfigError(
                f"The client fraction C={self.fraction!r} must lie in (0, 1], a number such as 0.1."
            )

    def size(self, clients: int) -> int:
        """The cohort size m for a population of N clients.

        Raises:
            ConfigError: m > N.
        """
        if self.fraction is not None:
            return max(math.floor(Decimal(repr(float(self.fraction))) * clients), 1)
        assert self.count is not None
        if self.count > clients:
            raise ConfigError(
                f"A cohort of {self.count} clients cannot be drawn from a population of {clients} without "
                f"replacement. Take at most {clients}, or Everyone()."
            )
        return self.count

    def sample(self, seed: int, round: int, population: Population) -> Cohort:
        """The m distinct clients, in O(m)."""
        clients = population.clients
        m = self.size(clients)
        return _without_replacement(_subset(keys.generator(seed, "cohort", round), clients, m), m / clients)

    def expected_size(self, population: Population) -> float:
        """The cohort size m."""
        return float(self.size(population.clients))

    def describe(self) -> str:
        """One line for the record."""
        what = (
            f"{self.count} clients"
            if self.count is not None
            else f"a fraction {self.fraction:g} of the clients"
        )
        return f"uniform: {what}, without replacement"


@dataclass(frozen=True)
class Poisson:
    """Each client independently with probability `rate`; a cohort may be empty.

    The cohort's size is Binomial(N, rate) and, given the size, all cohorts are equally likely: so it is drawn
    that way, in O(m), rather than by N coin flips. This is the sampling that privacy accounting assumes.

    Args:
        rate: in (0, 1].

    Raises:
        ConfigError: a rate outside (0, 1].
    """

    rate: float | int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ConfigError(f"The sampling rate {self.rate} must lie in (0, 1], such as 0.01.")

    def sample(self, seed: int, round: int, population: Population) -> Cohort:
        """A random number of distinct clients, in O(m)."""
        rng = keys.generator(seed, "cohort", round)
        m = int(rng.binomial(population.clients, self.rate))
        return _without_replacement(_subset(rng, population.clients, m), float(self.rate))

    def expected_size(self, population: Population) -> float:
        """Rate·N."""
        return self.rate * population.clients

    def describe(self) -> str:
        """One line for the record."""
        return f"Poisson: each client with probability {self.rate:g}"


@dataclass(frozen=True)
class Weighted:
    """Draws m times with replacement, client k with probability p_k = n_k/n.

    The scheme of Li et al. (ICLR 2020, scheme I): each draw counts 1/m. `inclusion` is the expected count
    m·p_k and `multiplicity` the count. Takes O(m log N): a draw is a random example, and its owner is
    found by bisection. Clients without examples are never drawn.

    Args:
        count: m ≥ 1; may exceed N.

    Raises:
        ConfigError: a count below 1.
    """

    count: int

    def __post_init__(self) -> None:
        _count(self.count)

    def sample(self, seed: int, round: int, population: Population) -> Cohort:
        """The distinct clients drawn, with how often each was."""
        rng = keys.generator(seed, "cohort", round)
        drawn = population.example_at(rng.integers(population.examples, size=self.count))
        ids, multiplicity = np.unique(drawn, return_counts=True)
        share = population.rows(ids)[1] / population.examples
        return Cohort(ids, self.count * share, multiplicity.astype(np.int64))

    def expected_size(self, population: Population) -> float:
        """Σ_k 1 − (1 − p_k)^m, the expected number of distinct clients; takes O(N)."""
        share = population.rows(np.arange(population.clients))[1] / population.examples
        return float(np.sum(1 - (1 - share) ** self.count))

    def describe(self) -> str:
        """One line for the record."""
        return f"weighted: {self.count} draws with replacement, probability by examples"


@dataclass(frozen=True)
class Cyclic:
    """Clients in a fixed order, m after m, again and again: no random numbers.

    With m = 1 and FedAvg this is cyclic weight transfer (Chang et al., 2018): the model visits one client
    after the other. The order is a hyper-parameter: the last one visited pulls most.

    Args:
        count: m ≥ 1, at most N.
        order: client ids, each at most once; None: 0 … N − 1. Clients that are not in it never come.

    Raises:
        ConfigError: a count below 1 or an id twice; when sampling, an id or a count beyond the population.
    """

    count: int = 1
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _count(self.count)
        if self.order is not None:
            object.__setattr__(self, "order", tuple(int(k) for k in self.order))
            if len(set(self.order)) != len(self.order) or not self.order:
                raise ConfigError(f"Cyclic(order={self.order!r}) must name at least one client, each once.")

    def _length(self, population: Population) -> int:
        ids = range(population.clients) if self.order is None else self.order
        wrong = [k for k in self.order or () if not 0 <= k < population.clients]
        if wrong or self.count > len(ids):
            raise ConfigError(
                f"Cyclic(count={self.count}, order={self.order!r}) doesn't fit a population of "
                f"{population.clients} clients, numbered from 0."
            )
        return len(ids)

    def sample(self, seed: int, round: int, population: Population) -> Cohort:
        """The m clients whose turn it is; inclusion is the share of rounds in which a client comes."""
        length = self._length(population)
        places = (self.count * (round - 1) + np.arange(self.count)) % length
        ids = places if self.order is None else np.asarray(self.order, np.int64)[places]
        return _without_replacement(np.sort(ids).astype(np.int64), self.count / length)

    def expected_size(self, population: Population) -> float:
        """The cohort size m."""
        self._length(population)
        return float(self.count)

    def describe(self) -> str:
        """One line for the record."""
        return f"cyclic: {self.count} at a time, in a fixed order"


@dataclass(frozen=True)
class Once:
    """m clients a round, each client at most once in the whole training: a large fleet of devices.

    The order is a pseudo-random walk through all ids (an affine map modulo N), in O(m) time and memory.
    Methods that keep state with clients between rounds are refused with this sampler.

    Args:
        count: m ≥ 1.

    Raises:
        ConfigError: a count below 1; when sampling, more rounds than the population has cohorts.
    """

    count: int
    returning: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _count(self.count)

    def sample(self, seed: int, round: int, population: Population) -> Cohort:
        """The round's m clients."""
        clients = population.clients
        if self.count * round > clients:
            raise ConfigError(
                f"Once({self.count}) has used up the population in round {round}: {clients} clients make "
                f"{clients // self.count} cohorts. Run fewer rounds, or take Uniform({self.count})."
            )
        rng = keys.generator(seed, "cohort")
        shift, factor = int(rng.integers(clients)), int(rng.integers(1, max(clients, 2)))
        while math.gcd(factor, clients) != 1:
            factor = factor % clients + 1
        places = range(self.count * (round - 1), self.count * round)
        ids = np.array([(factor * i + shift) % clients for i in places], np.int64)
        return _without_replacement(np.sort(ids), self.count / clients)

    def expected_size(self, population: Population) -> float:
        """The cohort size m."""
        return float(self.count)

    def describe(self) -> str:
        """One line for the record."""
        return f"once: {self.count} clients a round, no client twice"


def _count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
        raise ConfigError(
            f"A cohort of {count!r} clients is impossible: the count is a whole number, at least 1."
        )


def _subset(rng: np.random.Generator, clients: int, m: int) -> Int64[np.ndarray, "m"]:
    """One of all m-subsets of N ids, equally likely, ascending; by Floyd's algorithm, O(m), when m ≪ N."""
    return np.sort(rng.choice(clients, m, replace=False, shuffle=False).astype(np.int64))


def _without_replacement(ids: Int64[np.ndarray, "m"], probability: float) -> Cohort:
    return Cohort(ids, np.full(len(ids), probability), np.ones(len(ids), np.int64))
