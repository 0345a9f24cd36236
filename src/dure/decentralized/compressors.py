"""What CHOCO sends in the place of a whole vector. `decode(encode(v))` is C(v).

CHOCO needs a contraction: E‖C(v) − v‖² ≤ (1 − δ) ‖v‖² with δ > 0. Stich, Cordonnier, Jaggi: Sparsified SGD with
Memory, NeurIPS 2018.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.errors import ConfigError


@runtime_checkable
class Compressor(Protocol):
    """A compressor of one vector, to be used under `jax.vmap`; equal ones must be equal and hashable."""

    def contraction(self, d: int) -> float:
        """δ in (0, 1] for vectors of d entries, or a `ConfigError` that says why there is none."""
        ...

    def encode(self, v: Float[Array, " d"], key: Array) -> dict[str, Array]:
        """The message for v (d,): tensors by name. `key`: this node's in this round; receivers know it too."""
        ...

    def decode(self, message: dict[str, Array], key: Array, d: int) -> Float[Array, " d"]:
        """C(v) (d,) of a message."""
        ...


@dataclass(frozen=True)
class TopK:
    """The k entries of largest magnitude (of equal ones the first), with their places. δ = k / d."""

    k: int

    def __post_init__(self) -> None:
        check.count(self, "k")

    def contraction(self, d: int) -> float:
        """δ = k / d.

        Raises:
            ConfigError: k is larger than d.
        """
        return _share(self, d)

    def encode(self, v: Float[Array, " d"], key: Array) -> dict[str, Array]:
        """The message: "values" (k,) and "places" (k,) int32."""
        _, places = lax.top_k(jnp.abs(v), self.k)
        return {"values": v[places], "places": places.astype(jnp.int32)}

    def decode(self, message: dict[str, Array], key: Array, d: int) -> Float[Array, " d"]:
        """The values in their places, 0 elsewhere."""
        values = message["values"]
        return jnp.zeros(d, values.dtype).at[message["places"]].set(values)


@dataclass(frozen=True)
class RandomK:
    """k entries at random places, which follow from the key and aren't sent.

    Attributes:
        k: how many.
        unbiased: multiply them by d / k, so that E C(v) = v. Then E‖C(v) − v‖² = (d/k − 1) ‖v‖²: a contraction
            only where k > d/2. Without the factor δ = k / d.
    """

    k: int
    unbiased: bool = False

    def __post_init__(self) -> None:
        check.count(self, "k")
        check.one_of(self, "unbiased", (False, True))

    def contraction(self, d: int) -> float:
        """δ = k / d, or 2 − d/k if unbiased.

        Raises:
            ConfigError: k is larger than d; an unbiased one with k ≤ d/2, which enlarges what it should shrink.
        """
        share = _share(self, d)
        if not self.unbiased:
            return share
        if share <= 0.5:
            raise ConfigError(
                f"{self} of {d} entries is not a contraction: E‖C(v) − v‖² = {1 / share - 1:g} ‖v‖², and replicas "
                "would run away. Leave unbiased out, or take k > d / 2."
            )
        return 2 - 1 / share

    def encode(self, v: Float[Array, " d"], key: Array) -> dict[str, Array]:
        """The message: "values" (k,)."""
        values = v[self._places(key, v.shape[0])]
        return {"values": values * (v.shape[0] / self.k) if self.unbiased else values}

    def decode(self, message: dict[str, Array], key: Array, d: int) -> Float[Array, " d"]:
        """The values in the places that the key says, 0 elsewhere."""
        values = message["values"]
        return jnp.zeros(d, values.dtype).at[self._places(key, d)].set(values)

    def _places(self, key: Array, d: int) -> Array:
        return lax.top_k(jax.random.bits(key, (d,), jnp.uint32), self.k)[1]


def _share(compressor: Any, d: int) -> float:
    if compressor.k > d:
        raise ConfigError(f"{compressor} can't choose {compressor.k} of {d} entries. Give k ≤ {d}.")
    return float(compressor.k / d)
