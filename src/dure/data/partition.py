"""Partitions: which client gets each example of a data set that came without clients.

Every partitioner terminates and gives each example to exactly one client, or raises an error that says
which request cannot be met.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from dure import keys
from dure.data import _checks
from dure.data._dividing import codes, enough, equal, largest_remainder, positive, simplex, size, whole
from dure.data.summary import Summary
from dure.errors import ConfigError, DataError


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """The client of each of n examples.

    Attributes:
        client: (n,) int32, values in [0, clients).
        clients: number of clients N; some may have no example.
        kind: the partitioner, such as "dirichlet".
        description: one line with its parameters and seed.
        names: N names, or None.

    Raises:
        DataError: not one client in [0, clients) per example.
    """

    client: np.ndarray
    clients: int
    kind: str = "given"
    description: str = "given by the user"
    names: Sequence[str] | None = None

    def __post_init__(self) -> None:
        client = np.asarray(self.client)
        if client.ndim != 1 or client.dtype.kind not in "iu":
            raise DataError(
                f"A partition is a vector of integers, not {client.dtype} of shape {client.shape}."
            )
        if self.clients < 1:
            raise DataError(f"clients={self.clients}: an empty population. At least one client is needed.")
        wrong = np.flatnonzero((client < 0) | (client >= self.clients))
        if wrong.size:
            row = int(wrong[0])
            raise DataError(
                f"Example {row} goes to client {client[row]}; clients are in [0, {self.clients})."
            )
        if self.names is not None and len(self.names) != self.clients:
            raise DataError(f"There are {len(self.names)} names for {self.clients} clients.")
        client = client.astype(np.int32)
        client.flags.writeable = False
        object.__setattr__(self, "client", client)

    @property
    def sizes(self) -> Int64[np.ndarray, "clients"]:
        """Examples of each client."""
        return np.bincount(self.client, minlength=self.clients).astype(np.int64)

    def indices(self) -> tuple[Int64[np.ndarray, "n"], Int64[np.ndarray, "bounds"]]:
        """(order, offsets): client k has the examples `order[offsets[k]:offsets[k + 1]]`, ascending."""
        offsets = np.concatenate([[0], np.cumsum(self.sizes)])
        return np.argsort(self.client, kind="stable"), offsets

    def counts(self, labels: Any, classes: int | None = None) -> Int64[np.ndarray, "clients classes"]:
        """Examples of each class on each client.

        Args:
            labels: (n,) labels; integers count as class numbers, anything else is numbered in sorted order.
            classes: number of classes, when more than those that occur.
        """
        labels = codes(labels)
        if len(labels) != len(self.client):
            raise DataError(f"There are {len(labels)} labels for a partition of {len(self.client)} examples.")
        found = int(labels.max()) + 1 if len(labels) else 0
        classes = found if classes is None else classes
        if classes < found:
            raise DataError(f"classes={classes}, but there is a label {found - 1}.")
        cells = self.client.astype(np.int64) * classes + labels
        return np.bincount(cells, minlength=self.clients * classes).reshape(self.clients, classes)

    def summary(self, labels: Any = None) -> Summary:
        """Sizes and, given the labels, client × class counts, ready to print or draw."""
        counts = None if labels is None else self.counts(labels)
        return Summary(self.description, self.sizes, counts, client_names=self.names)

    def fingerprint(self) -> str:
        """SHA-256 of the partition (64 hexadecimal digits), for the record."""
        return hashlib.sha256(f"{self.clients}|".encode() + self.client.astype("<i4").tobytes()).hexdigest()

    def __repr__(self) -> str:
        return f"Partition({self.description}; {len(self.client)} examples)"


def iid(labels: Any, clients: int, seed: int = 0) -> Partition:
    """Shuffles the examples and cuts them into near-equal parts (McMahan et al. 2017).

    Args:
        labels: (n,) labels, or n itself.
        clients: N, at most n.
        seed: of the shuffle.
    """
    n = size(labels)
    enough(n, clients, "iid")
    order = keys.generator(seed, "partition").permutation(n)
    return _deal(order, equal(n, clients), clients, "iid", f"iid(clients={clients}, seed={seed})")


def shards(labels: Any, clients: int, per_client: int = 2, seed: int = 0) -> Partition:
    """McMahan's pathological split: sort by label, cut into N·s equal shards, deal s to each client.

    Sizes of shards differ by at most one when n is not a multiple of N·s.

    Args:
        labels: (n,) labels of any type that sorts.
        clients: N.
        per_client: s, shards per client (2 in the paper).
        seed: of the deal.
    """
    labels = codes(labels)
    whole("per_client", per_client)
    enough(len(labels), clients, "shards", per_client)
    pieces = clients * per_client
    order = np.argsort(labels, kind="stable")
    shard_owner = np.empty(pieces, np.int64)
    shard_owner[keys.generator(seed, "partition").permutation(pieces)] = np.arange(pieces) // per_client
    client = np.empty(len(labels), np.int32)
    client[order] = np.repeat(shard_owner, equal(len(labels), pieces))
    text = f"shards(clients={clients}, per_client={per_client}, seed={seed})"
    return Partition(client, clients, "shards", text)


def dirichlet(
    labels: Any, clients: int, alpha: float | int, *, minimum: int = 1, tries: int = 100, seed: int = 0
) -> Partition:
    """Splits every class over the clients in proportions drawn from Dirichlet(α, …, α).

    The usual label skew (Yurochkin et al., ICML 2019; Li et al., ICDE 2022): small α puts each class on few
    clients, large α approaches `iid`. Draws are repeated until every client has `minimum` examples.

    Args:
        labels: (n,) labels.
        clients: N.
        alpha: α > 0; `math.inf` for equal proportions.
        minimum: smallest number of examples a client may have; 0 allows clients without examples.
        tries: draws before giving up.
        seed: of the draws.

    Raises:
        ConfigError: α, minimum or tries out of range, N·minimum > n, or no draw met the minimum (the message
            names α, the client count and the best that was reached).
    """
    labels = codes(labels)
    n = len(labels)
    positive("alpha", alpha)
    whole("minimum", minimum, least=0)
    whole("tries", tries)
    enough(n, clients, "dirichlet", minimum)
    text = f"dirichlet(clients={clients}, alpha={alpha:g}, minimum={minimum}, seed={seed})"
    best, most = -1, 0
    for attempt in range(tries):
        rng = keys.generator(seed, "partition", attempt)
        client = np.empty(n, np.int32)
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.floor(np.cumsum(simplex(rng, alpha, clients)) * len(rows) + 1e-9)
            cuts[-1] = len(rows)  # the last client takes what rounding left over
            client[rows] = np.repeat(np.arange(clients), np.diff(np.append(0, cuts.astype(np.int64))))
        sizes = np.bincount(client, minlength=clients)
        if sizes.min() >= minimum:
            return Partition(client, clients, "dirichlet", text)
        best, most = max(best, int(sizes.min())), max(most, int((sizes >= minimum).sum()))
    raise ConfigError(
        f"dirichlet(alpha={alpha:g}, clients={clients}) of {n} examples: in {tries} tries no draw gave every "
        f"client minimum={minimum} examples (the best draw's smallest client had {best}; at most {most} of "
        f"{clients} clients had enough). "
        "Raise alpha or tries, take fewer clients, or allow empty clients with minimum=0."
    )


def label_quantity(labels: Any, clients: int, per_client: int, seed: int = 0) -> Partition:
    """Gives each client `per_client` labels, and shares a label's examples equally among its owners.

    "Quantity-based label imbalance" of NIID-Bench (Li et al., ICDE 2022). Labels are dealt so that their
    numbers of owners differ by at most one, where the paper draws them at random: no example is left over.

    Raises:
        ConfigError: N·per_client is below the number of labels (some would have no owner), per_client is
            above it, or a label has fewer examples than owners.
    """
    labels = codes(labels)
    values, sizes = np.unique(labels, return_counts=True)
    whole("per_client", per_client)
    enough(len(labels), clients, "label_quantity")
    if per_client > len(values) or clients * per_client < len(values):
        raise ConfigError(
            f"label_quantity(clients={clients}, per_client={per_client}): there are {len(values)} "
            f"labels; per_client must lie between {-(-len(values) // clients)} and {len(values)}, so that "
            "every label has an owner."
        )
    rng = keys.generator(seed, "partition")
    owners: list[list[int]] = [[] for _ in values]
    for k in range(clients):
        load = np.array([len(o) for o in owners])
        for label in np.lexsort((rng.random(len(values)), load))[:per_client]:
            owners[label].append(k)
    client = np.empty(len(labels), np.int32)
    for label, who in enumerate(owners):
        if len(who) > sizes[label]:
            raise ConfigError(
                f"label_quantity(clients={clients}, per_client={per_client}): label {values[label]} has "
                f"{sizes[label]} examples for {len(who)} owners. Take fewer clients or labels per client."
            )
        rows = rng.permutation(np.flatnonzero(labels == values[label]))
        client[rows] = np.repeat(rng.permutation(who), equal(len(rows), len(who)))
    text = f"label_quantity(clients={clients}, per_client={per_client}, seed={seed})"
    return Partition(client, clients, "label_quantity", text)


def quantity_skew(
    labels: Any,
    clients: int,
    *,
    alpha: float | int | None = None,
    sigma: float | int | None = None,
    minimum: int = 1,
    seed: int = 0,
) -> Partition:
    """Random examples, unequal amounts: sizes follow Dirichlet(α) or lognormal(σ) proportions.

    Every client first gets `minimum` examples; the rest is divided in the drawn proportions, rounded by
    largest remainder, so there is nothing to retry.

    Args:
        labels: (n,) labels, or n itself.
        clients: N.
        alpha: α > 0 of a symmetric Dirichlet distribution (NIID-Bench's quantity skew); or
        sigma: σ ≥ 0, the standard deviation of the logarithm of a client's share. Give one of the two.
        minimum: examples that every client has at least.
        seed: of the draw.
    """
    n = size(labels)
    whole("minimum", minimum, least=0)
    enough(n, clients, "quantity_skew", minimum)
    rng = keys.generator(seed, "partition")
    if (alpha is None) == (sigma is None):
        raise ConfigError(
            f"quantity_skew takes alpha or sigma, one of them; got alpha={alpha}, sigma={sigma}."
        )
    if alpha is not None:
        positive("alpha", alpha)
        parameter, shares = f"alpha={alpha:g}", simplex(rng, alpha, clients)
    else:
        assert sigma is not None
        if not 0 <= sigma < math.inf:
            raise ConfigError(f"sigma={sigma} must be a finite number, at least 0.")
        logs = sigma * rng.standard_normal(clients)
        raw = np.exp(logs - logs.max())
        parameter, shares = f"sigma={sigma:g}", raw / raw.sum()
    sizes = minimum + largest_remainder(shares, n - minimum * clients)
    text = f"quantity_skew(clients={clients}, {parameter}, minimum={minimum}, seed={seed})"
    return _deal(rng.permutation(n), sizes, clients, "quantity_skew", text)


def similarity(labels: Any, clients: int, fraction: float | int, seed: int = 0) -> Partition:
    """Deals a share s of the examples at random and the rest sorted by label in N consecutive parts.

    The "s % similarity" of SCAFFOLD (Karimireddy et al., ICML 2020): 1 is `iid`, 0 is fully sorted.

    Args:
        labels: (n,) labels.
        clients: N.
        fraction: s in [0, 1].
        seed: of the choice and of which part goes to which client.
    """
    labels = codes(labels)
    n = len(labels)
    if not 0 <= fraction <= 1:
        raise ConfigError(f"fraction={fraction} must lie in [0, 1].")
    enough(n, clients, "similarity")
    rng = keys.generator(seed, "partition")
    order = rng.permutation(n)
    common = round(fraction * n)
    rest = order[common:]
    rest = rest[np.argsort(labels[rest], kind="stable")]
    client = np.empty(n, np.int32)
    sizes = equal(n, clients)
    shared = equal(common, clients)
    client[order[:common]] = np.repeat(np.arange(clients), shared)
    # a client's sorted part fills what its random part leaves of an equal share of all examples
    client[rest] = np.repeat(np.arange(clients), sizes - shared)
    text = f"similarity(clients={clients}, fraction={fraction:g}, seed={seed})"
    return Partition(rng.permutation(clients)[client], clients, "similarity", text)


def by_column(values: Any) -> Partition:
    """One client for each distinct value, such as a hospital's name; clients in the sorted order of values.

    Raises:
        DataError: a missing value, or values that are neither integers nor strings.
    """
    client, names = _checks.one_id_per_row(values)
    return Partition(client, len(names), "by_column", f"by_column({len(names)} values)", names)


def _deal(
    order: Int64[np.ndarray, "n"], sizes: Int64[np.ndarray, "clients"], clients: int, kind: str, text: str
) -> Partition:
    client: Int32[np.ndarray, "n"] = np.empty(len(order), np.int32)
    client[order] = np.repeat(np.arange(clients), sizes)
    return Partition(client, clients, kind, text)
