"""Which schedule a round runs on: one client after another, or chunks of clients under `vmap`.

Small models are dominated by the cost of starting operations, which a chunk shares; large ones by memory
traffic and matrix products, which gain nothing. Clear cases follow from the model's size; between them both
are tried on the first round's work and the faster one is kept, and remembered for the process. A run writes
its choice into its configuration, so that resuming uses the same one.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from dure.devices import as_first
from dure.oracles.layout import Layout, Variables
from dure.oracles.rewrite import has_convolution
from dure.oracles.task import Task

SMALL, LARGE = 30_000, 150_000  # parameters; measured on CPUs, see docs/engine.md
CHUNK = 32


class Schedule(NamedTuple):
    """`width` 1 is sequential; more is the number of clients that run together."""

    name: str
    width: int


def of_width(width: int) -> Schedule:
    """The schedule of a given width."""
    return Schedule("sequential" if width == 1 else "vectorised", width)


def candidates(
    name: str,
    width: int | None,
    eager: bool,
    platform: str,
    layout: Layout,
    convolutions: bool,
    per_device: int,
    memory_budget: int,
    outside: bool = False,
) -> list[Schedule]:
    """One schedule where the choice is clear, else those to be measured.

    Args:
        name: "auto", "sequential" or "vectorised".
        width: the user's chunk width, or None.
        eager: without compilation; then clients run one by one.
        platform: "cpu", "gpu" or "tpu".
        layout: of the model.
        convolutions: the model has some, which are slower under `vmap` on a CPU.
        per_device: clients of a round on one device.
        memory_budget: bytes for the chunk's models.
        outside: another framework trains the model, and is asked about a whole chunk at once.
    """
    if eager or name == "sequential":
        return [of_width(1)]
    # Parameters, gradients, optimizer state and the loop's second copy: about six models per client.
    size = layout.whole_size
    affordable = max(memory_budget // (24 * max(size, 1)), 1)
    if width is None and outside:
        width = max(min(per_device, affordable), 1)
    elif width is None:
        # Several chunks for each device, so that clients of different lengths can be dealt evenly.
        wanted = min(CHUNK, max(per_device // 6, 8)) if platform == "cpu" else 256
        width = max(min(wanted, per_device, affordable), 1)
    vectorised = of_width(width)
    if name == "vectorised" or width == 1:
        return [vectorised]
    if outside:
        return [of_width(1)] if convolutions else [vectorised, of_width(1)]
    if platform != "cpu" or (size <= SMALL and not convolutions):
        return [vectorised]
    if size >= LARGE or convolutions:
        return [of_width(1)]
    return [of_width(1), vectorised]


_remembered: dict[Any, Schedule] = {}


def choose(options: list[Schedule], key: Any, run: Callable[[Schedule], Any]) -> Schedule:
    """The fastest option: each runs twice, the second time counts."""
    if len(options) == 1:
        return options[0]
    if key in _remembered:
        return _remembered[key]
    seconds = []
    for option in options:
        jax.block_until_ready(run(option))
        begin = time.perf_counter()
        jax.block_until_ready(run(option))
        seconds.append(time.perf_counter() - begin)
    _remembered[key] = options[as_first(seconds.index(min(seconds)))]
    return _remembered[key]


def uses_convolutions(task: Task, layout: Layout, variables: Variables, example: Any) -> bool:
    """Whether the model's forward pass holds a convolution that doesn't gain by `vmap`."""
    if task.model.outside is not None:
        return not task.model.outside.vectorises

    def forward(variables: Variables, inputs: Any) -> Any:
        return task.model.apply(variables, inputs, train=False, key=None, mask=None)[0]

    return has_convolution(jax.make_jaxpr(forward)(variables, example).jaxpr)
