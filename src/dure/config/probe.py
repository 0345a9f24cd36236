"""What a method does, found by asking it: a client's round in shapes only, without data and without arithmetic.

The method's own functions run under `jax.eval_shape` with an oracle that answers with shapes and writes down
what it was asked. So the catalogue can't say anything that the method doesn't do.
"""

from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dure.algorithms import Algorithm
from dure.algorithms.base import exchange, has_personal
from dure.oracles.adapter import Adapter
from dure.oracles.layout import Layout, Variables

#: Parameters of the model that is asked about, and how many of them are private where a method has private ones.
SIZE, PRIVATE = 4096, 1024
#: Values for hyper-parameters without a default.
EXAMPLES = {int: 2, tuple[str, ...]: ("head*",), tuple[int, ...]: (0, 0)}


@dataclass(frozen=True)
class Found:
    """What one client exchanges, keeps and asks, in a round.

    Attributes:
        up: what it sends, in models (shared parts of models count as far as they go).
        down: what it receives, in models.
        state: what it keeps between rounds, in models.
        asks: what it asks of its data: "solve" (the local optimizer), "walk" (steps of the method's own),
            "gradient", "loss", "labels", and "gain" of a solution.
    """

    up: float
    down: float
    state: float
    asks: frozenset[str]


class _Solution:
    """A solution of which only the shapes are known."""

    def __init__(self, w: Array, asked: set[str]):
        self.w, self._asked = w, asked
        self.steps, self.loss = jnp.int32(1), jnp.float32(0)

    @property
    def gain(self) -> Array:
        self._asked.add("gain")
        return jnp.ones((), jnp.float32)

    free_gain = gain


class _Oracle:
    """Answers with shapes, and writes down what it was asked."""

    def __init__(self, private: int):
        self.asked: set[str] = set()
        self._shared = SIZE - private
        self.examples, self.client, self.steps = jnp.int32(1), jnp.int32(0), jnp.int32(1)
        self.frozen = jnp.zeros(SIDE * SIDE, jnp.float32)

    def solve(self, start: Array, **problem: Any) -> _Solution:
        self.asked.add("solve")
        return _Solution(start, self.asked)

    def walk(self, start: Any, step: Any, *, batches: int = 1) -> Any:
        self.asked.add("walk")
        return start

    def gradient(self, w: Array) -> Array:
        self.asked.add("gradient")
        return w

    def loss(self, w: Array) -> Array:
        self.asked.add("loss")
        return w[0]

    def labels(self, classes: int) -> Array:
        self.asked.add("labels")
        return jnp.zeros(classes, jnp.float32)

    def predict(self, w: Array, inputs: Any) -> Any:
        self.asked.add("predict")
        return inputs

    def join(self, shared: Array, private: Array) -> Array:
        return jnp.concatenate([shared, private])

    def shared(self, w: Array) -> Array:
        return w[: self._shared]

    def private(self, w: Array) -> Array:
        return w[self._shared :]


#: A weight with adapters that are as large as it is, so that what is trained has SIZE numbers.
SIDE = 64
ADAPTER = Adapter("w", "w", "w.lora_A", "w.lora_B", (SIDE, SIDE), SIDE, SIDE, SIDE // 2, 1.0, False)


def _bound(algorithm: Algorithm) -> Algorithm:
    """The method for a model with one adapted weight, if it is for such."""
    if not algorithm.needs.adapters:
        return algorithm
    shapes = {"w": (SIDE, SIDE), "w.lora_A": (SIDE // 2, SIDE), "w.lora_B": (SIDE, SIDE // 2)}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return algorithm.bind([ADAPTER], Layout.of(Variables(zeros), frozen="w"))


def example(method: type[Algorithm]) -> Algorithm:
    """The method with its defaults; hyper-parameters without one get some allowed value."""
    hints = get_type_hints(method)
    return method(**{f.name: EXAMPLES[hints[f.name]] for f in fields(method) if is_required(f)})


def is_required(field: Field[Any]) -> bool:
    """Whether a hyper-parameter has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def probe(algorithm: Algorithm) -> Found:
    """Ask a method for one client's round, in shapes."""
    private = PRIVATE if algorithm.private_patterns else 0
    oracle, algorithm = _Oracle(private), _bound(algorithm)

    def alone(w: Array) -> Any:
        # Without private parameters a client's state begins with the whole model.
        shared = oracle.shared(w)
        whole = jnp.concatenate([shared, oracle.frozen])
        server = algorithm.init(whole if algorithm.changes_frozen else shared)
        client = algorithm.init_client(oracle.private(w) if private else w)
        found = exchange(algorithm, server, client, oracle)
        if has_personal(algorithm):
            algorithm.personal(found.received, client, oracle)
        return (found.update, found.answer), (found.received, found.answer), client

    up, down, client = jax.eval_shape(alone, jax.ShapeDtypeStruct((SIZE,), jnp.float32))
    return Found(_models(up), _models(down), _models(client), frozenset(oracle.asked))


def _models(tree: Any) -> float:
    """How many models the arrays of a message are; single numbers beside them don't count."""
    sizes = [int(leaf.size) for leaf in jax.tree.leaves(tree)]
    return sum(size for size in sizes if size >= PRIVATE) / SIZE
