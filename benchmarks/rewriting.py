"""What the rewritings for XLA's CPU compiler are worth: `python benchmarks/rewriting.py`.

Three comparisons inside compiled loops, each the best of several runs: the gradient of a CNN with and without
canonical convolutions, small products AᵀB as products and as sums, and a flat update written slice by slice
instead of concatenated.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dure import classification, models
from dure.oracles.rewrite import for_cpu

import jax  # isort: skip  (after dure, which asks for one CPU device per core)
import jax.numpy as jnp  # isort: skip
from jax import lax  # isort: skip

STEPS = 5


def best(function: Callable[..., Any], *arguments: Any, runs: int = 5) -> float:
    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*arguments))
    seconds = []
    for _ in range(runs):
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def convolutions(rewritten: bool) -> float:
    """Seconds per local step of McMahan's CNN, batches of 10."""
    task = classification(models.mcmahan_cnn())
    variables = task.model.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(10, 28, 28, 1)), jnp.float32)
    y = jnp.asarray(rng.integers(0, 10, 10), jnp.int32)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return task.batch_loss(variables._replace(params=params), {"x": x, "y": y}, jnp.ones(10))[0]

    gradient = jax.grad(loss)
    gradient = for_cpu(gradient) if rewritten else gradient

    def loop(params: Any, x: Any, y: Any, steps: Any) -> Any:
        def step(carry: Any) -> Any:
            s, params = carry
            return s + 1, jax.tree.map(lambda p, g: p - 0.01 * g, params, gradient(params, x, y))

        return lax.while_loop(lambda c: c[0] < steps, step, (0, params))

    return best(loop, variables.params, x, y, STEPS) / STEPS


def products(rewritten: bool) -> float:
    """Seconds for one client's 8 × 60 by 8 × 10 product AᵀB among a thousand under vmap."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=(1000, 8, n)), jnp.float32) for n in (60, 10))

    def product(a: Any, b: Any) -> Any:  # as the gradient of a dense layer asks for it
        return lax.dot_general(a, b, (((0,), (0,)), ((), ())))

    chosen = for_cpu(product, together=True) if rewritten else product
    return best(jax.vmap(chosen), a, b, runs=100) / 1000


def joining(by_slices: bool) -> float:
    """Seconds to join eight tensors of 1.6 million numbers and subtract a vector, inside a loop."""
    shapes = [(32,), (3, 3, 3, 32), (64,), (3, 3, 32, 64), (128,), (12544, 128), (10,), (128, 10)]
    tensors = [jnp.ones(shape, jnp.float32) for shape in shapes]
    size = sum(t.size for t in tensors)

    def join(tensors: list[Any]) -> Any:
        if not by_slices:
            return jnp.concatenate([t.reshape(-1) for t in tensors])
        vector, at = jnp.zeros(size), 0
        for t in tensors:
            vector, at = lax.dynamic_update_slice(vector, t.reshape(-1), (at,)), at + t.size
        return vector

    def loop(tensors: list[Any], w: Any, turns: Any) -> Any:
        def turn(carry: Any) -> Any:
            i, tensors, total = carry
            return i + 1, [t * 1.01 for t in tensors], total + (join(tensors) - w)

        return lax.while_loop(lambda c: c[0] < turns, turn, (0, tensors, jnp.zeros(size)))

    return best(loop, tensors, jnp.ones(size), STEPS) / STEPS


def main() -> None:
    table = Table("what", "plain", "rewritten", "times")
    rows = [
        ("step of McMahan's CNN, batch 10", convolutions, 1e3, "ms"),
        ("product AᵀB of 8 × 60 and 8 × 10 under vmap", products, 1e6, "µs"),
        ("joining 1.6 million numbers, subtracted from", joining, 1e3, "ms"),
    ]
    for what, measure, unit, name in rows:
        plain, rewritten = measure(False) * unit, measure(True) * unit
        table.add_row(what, f"{plain:.3g} {name}", f"{rewritten:.3g} {name}", f"{plain / rewritten:.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
