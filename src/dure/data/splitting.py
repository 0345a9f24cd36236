"""Which rows of each client are held out for testing, decided for all clients at once."""

import numpy as np
from jaxtyping import Bool, Int, Int64

from dure import keys


def held_out(
    offsets: Int64[np.ndarray, "bounds"],
    fraction: float,
    seed: int,
    labels: Int[np.ndarray, "n"] | None = None,
) -> Bool[np.ndarray, "n"]:
    """Marks the test rows: each client keeps max(⌊(1 − fraction)·n_k⌋, 1) of its n_k rows for training.

    A row's chance comes from the address (seed, "split", client, position in the client), so a client's
    split is the same whatever other clients there are. With `labels`, every (client, label) group gives its
    quota fraction·size rounded down or up, the largest remainders first.
    """
    sizes = np.diff(offsets)
    n = int(offsets[-1])
    owner = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(n) - offsets[:-1][owner]
    # 1e-9 forgives a product such as 0.7·130 = 90.99…9 that should be whole
    train = np.floor(sizes * (1 - fraction) + 1e-9).astype(np.int64)
    test = sizes - np.maximum(train, np.minimum(sizes, 1))
    word = keys.words(seed, "split", 0, owner, position)
    if labels is None:
        return _first(owner, word, test)
    _, group = np.unique(owner * (int(labels.max()) + 1) + labels, return_inverse=True)
    counts = np.bincount(group)
    group_owner = np.zeros(len(counts), np.int64)
    group_owner[group] = owner
    quota = counts * (test / np.maximum(sizes, 1))[group_owner]
    whole = np.floor(quota + 1e-9).astype(np.int64)
    missing = test - np.bincount(group_owner, weights=whole, minlength=len(sizes)).astype(np.int64)
    tie = keys.words(seed, "split", 1, group_owner, np.arange(len(counts)))
    order = np.lexsort((tie, whole - quota, group_owner))
    extra = _ranks(group_owner[order]) < missing[group_owner[order]]
    whole[order[extra]] += 1
    return _first(group, word, whole)


def _first(
    owner: Int64[np.ndarray, "n"], key: np.ndarray, take: Int64[np.ndarray, "groups"]
) -> Bool[np.ndarray, "n"]:
    """Marks the `take[g]` rows of each group g that have the smallest keys."""
    order = np.lexsort((key, owner))
    chosen = np.zeros(len(owner), np.bool_)
    chosen[order] = _ranks(owner[order]) < take[owner[order]]
    return chosen


def _ranks(ordered: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """0, 1, 2, … within each run of equal values of a sorted vector."""
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    return np.arange(len(ordered)) - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
