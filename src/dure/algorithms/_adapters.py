"""Where low-rank adapters lie in the vectors, for the methods that average them."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms.base import Algorithm, Needs
from dure.errors import ConfigError
from dure.oracles.adapter import Adapter
from dure.oracles.layout import Layout


class Place(NamedTuple):
    """One adapter: where A and B begin in the model's vector (d,), and W in the frozen one (f,)."""

    adapter: Adapter
    a: int
    b: int
    weight: int

    def a_of(self, w: Array) -> Array:
        """A (r, inputs)."""
        shape = (self.adapter.rank, self.adapter.inputs)
        return w[self.a : self.a + shape[0] * shape[1]].reshape(shape)

    def b_of(self, w: Array) -> Array:
        """B (outputs, r)."""
        shape = (self.adapter.outputs, self.adapter.rank)
        return w[self.b : self.b + shape[0] * shape[1]].reshape(shape)

    def put(self, w: Array, a: Array, b: Array) -> Array:
        """The vector with these factors."""
        return (
            w.at[self.a : self.a + a.size].set(a.reshape(-1)).at[self.b : self.b + b.size].set(b.reshape(-1))
        )

    @property
    def size(self) -> int:
        """Elements of W."""
        return self.adapter.inputs * self.adapter.outputs


@dataclass(frozen=True)
class Adapted(Algorithm):
    """A method that knows the adapters of its model: their places and d, set when it is bound to a model."""

    needs: ClassVar[Needs] = Needs(adapters=True)
    places: tuple[Place, ...] = field(default=(), init=False, repr=False)
    trained: int = field(default=0, init=False, repr=False)

    def bind(self, adapters: Sequence[Adapter], layout: Layout) -> "Adapted":
        entries = {e.name: e for e in layout.params}
        places = []
        for adapter in adapters:
            a, b, weight = (entries[n] for n in (adapter.a, adapter.b, adapter.weight))
            if (a.group, b.group, weight.group) != ("shared", "shared", "frozen"):
                raise ConfigError(
                    f"{type(self).__name__} averages the products of both factors, and of {adapter.name!r} A is "
                    f"{a.group}, B {b.group} and the weight {weight.group}; they must be shared, shared and frozen. "
                    "Use FedIT or FFALoRA for such a model."
                )
            places.append(Place(adapter, a.start, b.start, weight.start - layout.size))
        bound = copy(self)
        object.__setattr__(bound, "places", tuple(places))
        object.__setattr__(bound, "trained", layout.size)
        return bound

    def parts(self, whole: Float[Array, " e"]) -> tuple[Array, Array]:
        """What is trained (d,) and what is frozen (f,) of a whole vector."""
        return whole[: self.trained], whole[self.trained :]

    def products(self, b: Float[Array, " d"], a: Float[Array, " d"]) -> Float[Array, " c"]:
        """(α/r) B A of every adapter, as one vector of all weights: B from the first vector, A from the second."""
        return jnp.concatenate([p.adapter.added(p.b_of(b), p.a_of(a)).reshape(-1) for p in self.places])

    def weights(self, frozen: Float[Array, " f"]) -> Float[Array, " c"]:
        """The adapted weights W among the frozen parameters."""
        return jnp.concatenate([frozen[p.weight : p.weight + p.size] for p in self.places])

    def fresh(self, w: Float[Array, " d"], number: Array) -> list[Array]:
        """A new A for every adapter, drawn at an address that follows from an old one in w and the round's number."""
        drawn = []
        for i, p in enumerate(self.places):
            bits = jax.lax.bitcast_convert_type(w[p.a].astype(jnp.float32), jnp.uint32)
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(i), number), bits)
            drawn.append(p.adapter.fresh(key).astype(w.dtype))
        return drawn

    def with_weights(self, frozen: Float[Array, " f"], weights: Float[Array, " c"]) -> Float[Array, " f"]:
        """The frozen parameters with these adapted weights."""
        at = 0
        for p in self.places:
            frozen = frozen.at[p.weight : p.weight + p.size].set(weights[at : at + p.size])
            at += p.size
        return frozen


class Based(NamedTuple):
    """What the server keeps: what is trained (d,), and the frozen parameters (f,), of which W changes."""

    w: Array
    frozen: Array


class Sent(NamedTuple):
    """What goes down: what is trained (d,), and the adapted weights W (c,), which the client doesn't have."""

    w: Array
    weights: Array


class Factors(NamedTuple):
    """The change of the factors (d,), and what the server makes of it: (α/r) ΔB ΔA (c,)."""

    delta: Array
    product: Any
