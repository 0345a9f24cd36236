"""A low-rank adapter: which tensors belong together, and what they add to a weight."""

from collections.abc import Mapping
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dure.errors import ConfigError

if TYPE_CHECKING:
    from dure.oracles.model import Model


class Adapter(NamedTuple):
    """One adapted weight: the model computes with W + (α/r) B A (Hu et al., LoRA, ICLR 2022).

    W is seen as a matrix of `outputs` × `inputs`; B (outputs, r) begins at zero, A (r, inputs) at random.

    Attributes:
        name: the weight's name in the model without adapters.
        weight, a, b: names of W, A and B among the parameters.
        shape: of W.
        inputs: the matrix' inputs.
        outputs: its outputs.
        rank: r.
        scale: α/r.
        inputs_last: W's last dimensions are the inputs (PyTorch, equinox), not the outputs (flax, dure's models).
    """

    name: str
    weight: str
    a: str
    b: str
    shape: tuple[int, ...]
    inputs: int
    outputs: int
    rank: int
    scale: float
    inputs_last: bool

    def added(self, b: Float[Array | np.ndarray, "o r"], a: Float[Array | np.ndarray, "r i"]) -> Array:
        """(α/r) B A in the shape of W."""
        matrix = self.scale * jnp.matmul(b, a, precision="highest")
        return (matrix if self.inputs_last else matrix.T).reshape(self.shape)

    def matrix(self, weight: Array) -> Float[Array, "o i"]:
        """A weight, in any shape, as (outputs, inputs)."""
        sides = (self.outputs, self.inputs)
        return weight.reshape(sides) if self.inputs_last else weight.reshape(sides[::-1]).T

    def fresh(self, key: Array) -> Float[Array, "r i"]:
        """A new A: normal with variance 1/inputs, so that A x is of the size of x."""
        return jax.random.normal(key, (self.rank, self.inputs)) / sqrt(self.inputs)


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a tensor as a matrix: of its foldings the one with the smallest adapters.

    It is the one that is meant for dense layers of several heads, (features, heads, size) and (heads, size,
    features), and for convolutions, (height, width, inputs, outputs) and (outputs, inputs, height, width).
    """
    foldings = [(prod(shape[:k]), prod(shape[k:])) for k in range(1, len(shape))]
    return min(foldings, key=sum)


def merge_lora(model: "Model", state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The state dict of the model without adapters: W + (α/r) B A in the place of each adapted weight.

    Args:
        model: what `dure.lora` returned.
        state: a run's `state_dict()`.

    Returns:
        name → array, with the names and dtypes of the model that was adapted.

    Raises:
        ConfigError: the model has no adapters, or the state dict is another model's (of another rank, say; α leaves
            no trace in it).
    """
    if not getattr(model, "adapters", ()):
        name = getattr(model, "name", type(model).__name__)
        raise ConfigError(f"{name!r} has no adapters to merge: give the model that dure.lora returned.")
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"merge_lora takes a state dict, name → array, and got a {type(state).__name__}: give run.state_dict()."
        )
    left = dict(state)
    merged = {}
    for adapter in model.adapters:
        # A layer that was wrapped has the weight's neighbours in a folder of its own.
        inner, outer = (n.removesuffix("weight") for n in (adapter.weight, adapter.name))
        names = (adapter.weight, adapter.b, adapter.a)
        missing = [n for n in names if n not in left]
        if missing:
            raise ConfigError(f"The state dict has no {missing[0]!r}: it is not of model {model.name!r}.")
        weight, b, a = (np.asarray(left.pop(n)) for n in names)
        shapes = (adapter.shape, (adapter.outputs, adapter.rank), (adapter.rank, adapter.inputs))
        for n, array, shape in zip(names, (weight, b, a), shapes, strict=True):
            if array.shape != shape:
                raise ConfigError(
                    f"{n!r} in the state dict has shape {array.shape}, and model {model.name!r} has {shape}: it is "
                    "of another model."
                )
        whole = weight.astype(np.float32) + np.asarray(adapter.added(b, a))
        merged[adapter.name] = whole.astype(weight.dtype)
        if inner != outer:
            left = {outer + n.removeprefix(inner) if n.startswith(inner) else n: x for n, x in left.items()}
    return {**{n: np.asarray(x) for n, x in left.items()}, **merged}
