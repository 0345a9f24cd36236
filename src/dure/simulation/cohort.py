"""What the host decides before a round: who takes part, what each one reads, what each one weighs, who sits where."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dure import keys
from dure.errors import ConfigError
from dure.oracles.problem import ClientPlan
from dure.population.samplers import Cohort
from dure.simulation.places import Clients, Places, Seats, chunks_in_use, deal, put
from dure.simulation.plan import Work, bucket, build
from dure.simulation.settings import Settings


class Sizes(NamedTuple):
    """Shapes that are the same in every round, so that no client's arithmetic depends on its cohort.

    Attributes:
        batch: B; 0 means all of a client's rows, read in blocks.
        block: rows in a block when all of a client's rows are read.
        one_step: no client ever takes more than one local step.
        spread: every device gets long and short clients, see `deal`.
    """

    batch: int
    block: int
    one_step: bool
    spread: bool = False


class Facts(NamedTuple):
    """What the record needs to know of the clients that were asked, (m,) each, and their seats."""

    ids: np.ndarray
    sizes: np.ndarray
    weights: np.ndarray
    inclusion: np.ndarray
    planned: np.ndarray
    lost: np.ndarray
    seats: Seats


class Room(NamedTuple):
    """The largest shapes of the rounds so far: shapes only grow, so that a program is soon used again.

    They can't be seen in the results: what is in them beyond a round's own work is never read.
    """

    order: int = 0
    chunks: int = 0
    max_steps: int = 0


class RoundInputs(NamedTuple):
    """A round, ready to be sent.

    `unit` turns the mean into a sum with the clients' weights in the population, see `RoundInfo.share`: the
    weight of the whole population's unit under the ratio estimator, the inclusion probability under
    Horvitz–Thompson's.
    """

    unit: float
    order: np.ndarray
    clients: Clients
    places: Places
    batch_size: int
    max_steps: int
    facts: Facts


def sizes_of(data: Any, settings: Settings, batch_statistics: bool, spread: bool = False) -> Sizes:
    """The shapes for a data set: from its largest and its mean client, once."""
    largest = int(np.diff(data.offsets).max())
    typical = -(-data.examples // max(data.clients, 1))
    work = settings.work
    # A batch that holds all rows of every client need not be longer than the longest.
    all_rows = bucket(max(largest, 1))
    batch = min(work.batch_size, all_rows) if work.batch_size else (all_rows if batch_statistics else 0)
    whole = batch == 0 or largest <= batch
    one_step = work.steps == 1 or (work.steps is None and work.epochs == 1 and whole)
    return Sizes(batch, min(max(bucket(typical), 8), 128), one_step, spread)


def plan_round(
    data: Any, settings: Settings, number: int, width: int, devices: int, shapes: Sizes, room: Room
) -> RoundInputs:
    """Cohort, plan, weights and seats of round `number`, for chunks of `width` clients on so many devices.

    `room`: shapes to use at least.
    """
    cohort = _joined(settings.sampler.sample(settings.seed, number, data), settings.always)
    ids = cohort.ids
    starts, sizes = data.rows(ids)
    if shapes.batch:
        rows = build(settings.work, settings.seed, number, ids, starts, sizes, shapes.batch)
        order, first, steps = rows
    else:
        order, first = np.zeros(0, np.int32), np.zeros(len(ids), np.int32)
        steps = np.where(sizes > 0, _whole_steps(settings.work), 0).astype(np.int32)
    planned = steps
    if settings.work_limit is not None:
        steps = _limited(settings.work_limit, settings.seed, number, ids, steps)
    lost = settings.lost(number, ids)
    inclusion = cohort.inclusion * settings.arrival
    weights = _weights(data, settings, sizes, inclusion, cohort.multiplicity) * ((steps > 0) & ~lost)
    blocks = -(-sizes // shapes.block)
    seats, shape = deal(steps * (blocks if not shapes.batch else 1) + blocks, width, devices, shapes.spread)
    shape = (devices, max(shape[1], room.chunks), width)
    words = keys.words(settings.seed, "local", number, ids, np.zeros(1, np.int64))
    client_plan = ClientPlan(
        put(first, seats, shape, np.int32),
        put(steps, seats, shape, np.int32),
        put(starts, seats, shape, np.int32),
        put(sizes, seats, shape, np.int32),
        put(words.view(np.uint32).reshape(-1, 2), seats, shape, np.uint32),
        put(ids, seats, shape, np.int32),
    )
    clients = Clients(
        client_plan,
        put(weights, seats, shape, np.float32),
        client_plan.steps.max(2),
        (-(-client_plan.size.max(2) // shapes.block)).astype(np.int32),
        chunks_in_use(seats, shape),
    )
    padded = np.full(max(bucket(max(len(order), shapes.batch), 1), room.order), -1, np.int32)
    padded[: len(order)] = order
    longest = 1 if shapes.one_step else max(bucket(int(planned.max(initial=1))), room.max_steps, 2)
    facts = Facts(ids, sizes, weights, inclusion, steps, lost, seats)
    places = Places(len(padded), *shape[1:])
    unit = _unit(data, settings, inclusion)
    return RoundInputs(unit, padded, clients, places, shapes.batch, longest, facts)


def _joined(cohort: Cohort, always: tuple[int, ...]) -> Cohort:
    """The cohort with these clients in it."""
    missing = np.setdiff1d(np.asarray(always, np.int64), cohort.ids)
    if not len(missing):
        return cohort
    ids = np.concatenate([cohort.ids, missing])
    order, ones = np.argsort(ids), np.ones(len(missing))
    return Cohort(
        ids[order],
        np.concatenate([cohort.inclusion, ones])[order],
        np.concatenate([cohort.multiplicity, ones.astype(np.int64)])[order],
    )


def _unit(data: Any, settings: Settings, inclusion: np.ndarray) -> float:
    if settings.estimator == "horvitz-thompson":
        return float(inclusion[0]) if len(inclusion) else 0.0
    return 1.0 / max(int(data.examples if settings.weighting == "examples" else data.clients), 1)


def _whole_steps(work: Work) -> int:
    """Local steps when each one reads all of a client's rows."""
    return work.steps or work.epochs or 1


def _weights(
    data: Any, settings: Settings, sizes: np.ndarray, inclusion: np.ndarray, multiplicity: np.ndarray
) -> np.ndarray:
    """w_k, rounded to float32 so that w_k times a float32 is exact in float64."""
    share = sizes.astype(np.float64) if settings.weighting == "examples" else np.ones(len(sizes))
    share = np.where(sizes > 0, share, 0.0) * multiplicity
    if settings.estimator == "horvitz-thompson":
        whole = data.examples if settings.weighting == "examples" else data.clients
        share = share / whole / inclusion
    return np.asarray(share, np.float32)


def _limited(
    limit: Callable[..., Any], seed: int, number: int, ids: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    done = np.asarray(limit(seed, number, ids, steps.copy()))
    if done.shape != steps.shape or not np.issubdtype(done.dtype, np.integer):
        raise ConfigError(
            f"work_limit returned {done.dtype} of shape {done.shape} in round {number}; it must return one "
            f"integer per client, shape {steps.shape}."
        )
    return np.asarray(np.clip(done, 0, steps), np.int32)
