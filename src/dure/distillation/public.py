"""The public inputs: which of them a round reads, in which order, and what a model learns from them."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from dure import keys
from dure.distillation.base import Method
from dure.oracles.local import JaxOracle
from dure.oracles.optimizer import Optimizer
from dure.oracles.problem import ClientPlan, Shared
from dure.simulation import hyper

#: Rows that are predicted at once.
BLOCK = 256
#: Sets the random numbers of a digest apart from those of local work.
_APART = 2**31 - 1


@dataclass(frozen=True, eq=False)
class PublicSet:
    """The public inputs and how they are read.

    Attributes:
        inputs: (P, …).
        classes: C, numbers in one prediction.
        per_round: r ≤ P rows are drawn for each round; None: all of them, always.
        batch: rows in a step of a digest, at most r.
        optimizer: of the digest.
    """

    inputs: np.ndarray
    classes: int
    per_round: int | None
    batch: int
    optimizer: Optimizer

    @property
    def size(self) -> int:
        """r, public inputs of a round."""
        return self.per_round or len(self.inputs)

    def rows(self, seed: int, number: int) -> np.ndarray | None:
        """(r,) the rows of the round, ascending; None: all."""
        if self.per_round is None:
            return None
        generator = keys.generator(seed, "public", number)
        return np.sort(generator.choice(len(self.inputs), self.per_round, replace=False)).astype(np.int32)

    def order(self, seed: int, number: int, epochs: int) -> np.ndarray:
        """Every epoch a fresh order of the round's rows, in batches: the same one for all clients."""
        order = np.full((epochs, -(-self.size // self.batch) * self.batch), -1, np.int32)
        for epoch in range(epochs):
            order[epoch, : self.size] = keys.generator(seed, "lesson", number, epoch).permutation(self.size)
        return order.reshape(-1)


@dataclass(frozen=True)
class Lesson:
    """What is learnt from the public inputs, and how."""

    method: Method
    optimizer: Optimizer


@dataclass(frozen=True)
class Shape:
    """Shapes of the public part: local steps, rows of a batch, rows that are predicted at once."""

    steps: int
    batch: int
    block: int


class Public(NamedTuple):
    """The public part of a round, whole on every device.

    Attributes:
        inputs: (r, …).
        order: (steps · batch,) int32 rows for the steps of a digest, −1 where a short batch ends.
        targets: (r, C) float32; zeros before there are some.
        usable: bool; False: nobody's predictions were usable, and nothing is learnt.
    """

    inputs: Any
    order: Any
    targets: Any
    usable: Any


def join(structure: Any, numbers: Array) -> Lesson:
    """The lesson with these numbers."""
    lesson: Lesson = hyper.join(structure, iter([numbers[i] for i in range(numbers.shape[0])]))
    return lesson


def predictions(oracle: Any, w: Array, inputs: Array, block: int) -> Array:
    """Logits (r, C) float32 for inputs (r, …), `block` rows at a time: activations of all would take memory."""
    rows = inputs.shape[0]
    blocks = -(-rows // block)
    padding = [(0, blocks * block - rows)] + [(0, 0)] * (inputs.ndim - 1)
    parts = jnp.pad(inputs, padding).reshape(blocks, block, *inputs.shape[1:])
    said: Array = lax.map(lambda x: oracle.predict(w, x), parts)
    return said.reshape(blocks * block, -1)[:rows].astype(jnp.float32)


def pupil(
    shared: Shared,
    lesson: Lesson,
    public: Public,
    shape: Shape,
    floats: Array,
    key: Array,
    client: Any,
) -> JaxOracle:
    """An oracle whose data are the public inputs with the round's targets.

    Args:
        shared: what the clients share for their local work: task, layout, counters.
        lesson: whose optimizer is used.
        public: the inputs, their order and the targets.
        shape: steps and batch.
        floats: (b,) the buffers that the model begins with.
        key: two words that name the client's random stream in this round.
        client: the client's number.
    """
    task, rows = shared.task, public.inputs.shape[0]
    shared = replace(
        shared,
        optimizer=lesson.optimizer,
        columns={task.input: public.inputs, task.target: public.targets},
        order=public.order,
        floats=floats,
        batch_size=shape.batch,
        max_steps=shape.steps,
    )
    typed = jax.random.wrap_key_data(key, impl="threefry2x32")
    words = jax.random.key_data(jax.random.fold_in(typed, _APART))
    steps, zero = jnp.int32(shape.steps), jnp.int32(0)
    plan = ClientPlan(zero, steps, zero, jnp.int32(rows), words, client)
    return JaxOracle(shared, plan, steps, jnp.int32(-(-rows // shared.block)))
