"""Where the clients of a round sit: on which device, in which chunk, and how that travels to the devices."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from dure.oracles.problem import ClientPlan
from dure.simulation.plan import bucket

#: (device, chunk, lane) of each client.
Seats = tuple[np.ndarray, np.ndarray, np.ndarray]


class Clients(NamedTuple):
    """The clients of a round in their places: (devices, chunks, width) each; empty places have weight 0.

    Attributes:
        plan: steps and rows of each client.
        weight: float32, w_k.
        turns: (devices, chunks) int32, loop turns of the chunk: its largest number of steps.
        blocks: (devices, chunks) int32, largest number of blocks of rows.
        chunks: (devices,) int32, how many of the chunks are in use.
        state: (devices, chunks, width, s) float32, packed client state, or None.
    """

    plan: ClientPlan
    weight: Any
    turns: Any
    blocks: Any
    chunks: Any
    state: Any = None


@dataclass(frozen=True)
class Places:
    """How many places a round has, and how its numbers lie in one int32 array (devices, `length`).

    Everything that the host sends for a round, apart from client state, is one array: to put a dozen small
    ones on the devices takes longer than many a round.

    Attributes:
        order: P, row numbers for the local steps.
        chunks: chunks on each device.
        width: clients in a chunk.
    """

    order: int
    chunks: int
    width: int

    def pack(self, round: int, unit: float, order: np.ndarray, clients: Clients) -> np.ndarray:
        """The round's numbers as (devices, `length`) int32; `unit` as in `RoundInputs`."""
        count = clients.weight.shape[0]
        plan = clients.plan
        parts = [
            np.broadcast_to(np.int32(round), (count, 1)),
            np.broadcast_to(np.float32(unit).view(np.int32), (count, 1)),
            np.broadcast_to(order, (count, self.order)),
            plan.first,
            plan.steps,
            plan.start,
            plan.size,
            plan.key.view(np.int32),
            plan.client,
            clients.weight.view(np.int32),
            clients.turns,
            clients.blocks,
            clients.chunks,
        ]
        return np.concatenate([x.reshape(count, -1) for x in parts], axis=1)

    def unpack(self, numbers: Array, state: Any) -> tuple[Array, Array, Array, Clients]:
        """(round, unit, order, clients) of one device from its (length,) numbers."""
        shape = (self.chunks, self.width)
        sizes = [
            (),
            (),
            (self.order,),
            shape,
            shape,
            shape,
            shape,
            (*shape, 2),
            shape,
            shape,
            (self.chunks,),
            (self.chunks,),
            (),
        ]
        parts, at = [], 0
        for size in sizes:
            end = at + int(np.prod(size, dtype=np.int64))
            parts.append(numbers[at:end].reshape(size))
            at = end
        round, unit, order, first, steps, start, rows, key, client, weight, turns, blocks, chunks = parts
        key = lax.bitcast_convert_type(key, jnp.uint32)
        weight, unit = (lax.bitcast_convert_type(x, jnp.float32) for x in (weight, unit))
        plan = ClientPlan(first, steps, start, rows, key, client)
        return round, unit, order, Clients(plan, weight, turns, blocks, chunks, state)


def deal(
    turns: np.ndarray, width: int, devices: int, spread: bool = False
) -> tuple[Seats, tuple[int, int, int]]:
    """Seats for clients that need so many loop turns, and the shape (devices, chunks, width) that holds them.

    Clients of similar length share a chunk; chunks are dealt to the devices there and back again. With `spread`
    the clients are: then every device has long and short ones, which suits a solver that drops who has finished.
    """
    rank = np.empty(len(turns), np.int64)
    rank[np.argsort(-turns, kind="stable")] = np.arange(len(turns))
    if spread:
        round, seat = rank // devices, rank % devices
        device = np.where(round % 2 == 0, seat, devices - 1 - seat)
        chunks = -(-max(-(-len(turns) // devices), 1) // width)
        return (device, round // width, round % width), (devices, bucket(chunks), width)
    chunk, lane = rank // width, rank % width
    row, seat = chunk // devices, chunk % devices
    device = np.where(row % 2 == 0, seat, devices - 1 - seat)
    chunks = -(-max(len(turns), 1) // width)
    return (device, row, lane), (devices, bucket(-(-chunks // devices)), width)


def put(values: np.ndarray, seats: Seats, shape: tuple[int, int, int], dtype: Any) -> np.ndarray:
    """One value (or row) per client in its seat; empty seats hold 0."""
    out = np.zeros((*shape, *values.shape[1:]), dtype)
    out[seats] = values
    return out


def chunks_in_use(seats: Seats, shape: tuple[int, int, int]) -> np.ndarray:
    """(devices,) int32: how many chunks hold somebody."""
    used = np.zeros(shape[0], np.int32)
    np.maximum.at(used, seats[0], seats[1].astype(np.int32) + 1)
    return used
