"""What a client's local problem is given: its plan, what it shares with the round, what is observed of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from dure.oracles.layout import Layout
from dure.oracles.optimizer import Optimizer
from dure.oracles.task import Task

#: Beside the columns of rows: the frozen parameters (f,), which every client has.
FROZEN = "frozen parameters"


class ClientPlan(NamedTuple):
    """What one client reads: its steps' rows in `Shared.order`, and its rows in the columns.

    Attributes:
        first: where the client's batches begin in `order`; step s reads order[first + s·B : first + (s+1)·B].
        steps: number of local steps.
        start: first row of the client in the columns.
        size: n_k, number of its rows.
        key: two words that name the client's random stream in this round.
        client: the client's number.
    """

    first: Any
    steps: Any
    start: Any
    size: Any
    key: Any
    client: Any


@dataclass(frozen=True)
class Shared:
    """What all clients of a round share.

    Attributes:
        columns: the training rows of all clients, (n, …) each; and `FROZEN` where the model has such.
        order: (P,) row numbers, batch after batch, −1 for a place in a short last batch that is not there.
        floats, ints: the buffers as the server sent them.
        round: number of the round, from 1.
        batch_size: B (static); 0: every step reads all of the client's rows, in blocks.
        max_steps: an upper bound on the steps of any client (static).
        block: rows per block when all data of a client are read.
        masked: clients of a chunk run together, so that some stop before the loop does.
        cpu: rewrite convolutions and small products for XLA's CPU compiler.
    """

    task: Task
    layout: Layout
    optimizer: Optimizer
    columns: Mapping[str, Array]
    order: Array
    floats: Array
    ints: Array
    round: Array
    batch_size: int
    max_steps: int
    block: int
    masked: bool
    cpu: bool

    @property
    def frozen(self) -> Array:
        """The frozen parameters (f,) that every client has."""
        return self.columns[FROZEN] if self.layout.frozen_size else jnp.zeros(0, jnp.float32)


class Observed(NamedTuple):
    """What the engine records of a client's work, beside what the algorithm returned.

    Attributes:
        loss: mean training loss; `dure.oracles.host.base.NOT_REPORTED` where the client reports none.
        steps: local steps taken.
        floats, ints: its buffers.
    """

    loss: Array
    steps: Array
    floats: Array
    ints: Array
