"""The plan of a round: which rows each local step of each client reads. Built on the host, for all at once.

Every epoch of every client is a fresh random order of its rows, cut into batches of B; the last batch of an
epoch may be short. The order of a client's rows depends on (seed, round, client, epoch) alone.
"""

from typing import NamedTuple

import numpy as np

from dure import keys


class Work(NamedTuple):
    """How much each client does: `epochs` passes over its rows, or `steps` steps where that is given."""

    epochs: int | None
    steps: int | None
    batch_size: int | None  # None: all of a client's rows in one batch


class RoundPlan(NamedTuple):
    """Rows for every step of the clients, in the order in which the clients were given.

    Attributes:
        order: (P,) int32 row numbers, −1 where a short batch ends.
        first: (m,) int32, where each client's batches begin in `order`.
        steps: (m,) int32, local steps of each client.
    """

    order: np.ndarray
    first: np.ndarray
    steps: np.ndarray


def build(
    work: Work, seed: int, round: int, ids: np.ndarray, starts: np.ndarray, sizes: np.ndarray, batch_size: int
) -> RoundPlan:
    """The plan for the clients `ids`, whose rows are [starts, starts + sizes).

    Args:
        work: epochs or steps.
        seed: the experiment's seed.
        round: number of the round.
        ids: (m,) client ids.
        starts: (m,) first rows.
        sizes: (m,) numbers of rows; a client with none gets no steps.
        batch_size: B; at least the largest size when `work.batch_size` is None.
    """
    per_epoch = -(-sizes // batch_size)  # batches in one epoch, the short one included
    if work.steps is None:
        epochs = np.where(sizes > 0, work.epochs or 0, 0)
        steps = epochs * per_epoch
    else:
        steps = np.where(sizes > 0, work.steps, 0)
        epochs = -(-steps // np.maximum(per_epoch, 1))
    slots = epochs * per_epoch * batch_size
    first = np.concatenate([[0], np.cumsum(slots)[:-1]]) if len(ids) else np.zeros(0, np.int64)
    order = np.full(int(slots.sum()), -1, np.int32)
    if order.size:
        # One segment per (client, epoch), of `sizes` rows that go to the beginning of its slots.
        client = np.repeat(np.arange(len(ids)), epochs)
        epoch = np.arange(len(client)) - np.repeat(np.cumsum(epochs) - epochs, epochs)
        length = sizes[client]
        target = first[client] + epoch * per_epoch[client] * batch_size
        position = _positions(seed, round, ids, client, epoch, length, shuffled=length > batch_size)
        rank = np.arange(position.size) - np.repeat(np.cumsum(length) - length, length)
        order[np.repeat(target, length) + rank] = np.repeat(starts[client], length) + position
    return RoundPlan(order, first.astype(np.int32), steps.astype(np.int32))


def _positions(
    seed: int,
    round: int,
    ids: np.ndarray,
    client: np.ndarray,
    epoch: np.ndarray,
    length: np.ndarray,
    shuffled: np.ndarray,
) -> np.ndarray:
    """For each segment a permutation of range(length), one behind the other.

    A client whose rows fit into one batch reads them as they stand: the order in a batch has no meaning.
    """
    ends = np.cumsum(length)
    position = np.arange(ends[-1]) - np.repeat(ends - length, length)
    if not shuffled.any():
        return np.asarray(position)
    segment = np.repeat(np.arange(len(length)), length)
    chosen = shuffled[segment]
    where, inside = segment[chosen], position[chosen]
    index = (epoch[where].astype(np.uint64) << np.uint64(40)) | inside.astype(np.uint64)
    words = keys.words(seed, "plan", round, ids[client[where]], index)
    position[chosen] = inside[_sort_within(where, words)]
    return np.asarray(position)


def _sort_within(segment: np.ndarray, words: np.ndarray) -> np.ndarray:
    """The order that sorts by (segment, word, place): segments stay together, words decide inside."""
    bits = np.uint64(max(int(segment[-1]), 1).bit_length())
    combined = (segment.astype(np.uint64) << (np.uint64(64) - bits)) | (words >> bits)
    order = np.argsort(combined)
    ordered = combined[order]
    if (ordered[1:] == ordered[:-1]).any():  # the kept bits tie: decide by all 64, then by place
        return np.lexsort((words, segment))
    return order


def bucket(number: int, steps: int = 4) -> int:
    """The next of 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, …: few shapes, at most a quarter of waste."""
    if number <= 2 * steps:
        return max(number, 1)
    unit = 1 << (max(number - 1, 1).bit_length() - steps.bit_length())
    return -(-number // unit) * unit
