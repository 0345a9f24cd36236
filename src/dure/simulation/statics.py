"""What shapes a round's program, and the tuples that go in and come out of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from jaxtyping import Array, PyTree

from dure.oracles.host.bridge import shapes_only
from dure.oracles.layout import Layout
from dure.oracles.task import Task
from dure.simulation import hyper
from dure.simulation.places import Places

AXIS = "devices"


class Model(NamedTuple):
    """What the server holds: the algorithm's state, float buffers (b,), counters (c,)."""

    server: PyTree
    floats: Array
    ints: Array


class Report(NamedTuple):
    """What is recorded of each client: (devices, chunks, width) each."""

    verdict: Array
    loss: Array
    steps: Array
    norm: Array


class Outcome(NamedTuple):
    """What is recorded of the round: accepted clients, 2-norm of the model's move, whether it was finite."""

    accepted: Array
    move: Array
    finite: Array


@dataclass(frozen=True)
class Statics:
    """All that shapes the program; equal statics share one compiled program.

    `gather`: what clients send comes out one by one, for a rule that must see it, instead of summed.
    """

    algorithm: Any  # hyper.Structure
    optimizer: Any  # hyper.Structure
    task: Task
    layout: Layout
    client_state: Any  # tree structure with shapes, or None
    mesh: Mesh
    width: int
    batch_size: int
    max_steps: int
    block: int
    population: int
    places: Places
    ratio: bool
    cpu: bool
    eager: bool
    gather: bool = False


class Payload(NamedTuple):
    """What is averaged: the algorithm's update and the float buffers."""

    update: PyTree
    floats: Array | None


class Phase(NamedTuple):
    """What came of one pass over the clients of a device; `sums` or `sent` (chunks, width, …)."""

    sums: Any
    ints: Array
    accepted: Array
    report: Report
    states: Any
    sent: Any = None


def things(statics: Statics, numbers: Array) -> tuple[Any, Any]:
    """The algorithm and the optimizer, with these numbers."""
    values = iter([numbers[i] for i in range(numbers.shape[0])])
    return hyper.join(statics.algorithm, values), hyper.join(statics.optimizer, values)


def shapes_of(statics: Statics, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function would return, in shapes, without asking a host.

    Eager mode computes it, as code may ask for values there.
    """
    if not statics.eager:
        return jax.eval_shape(function, *arguments)
    with shapes_only():
        found = function(*arguments)
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), found)
