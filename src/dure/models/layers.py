"""The few layers that the field's standard models are made of, as plain functions of arrays."""

from math import prod, sqrt

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from dure.errors import ConfigError

Params = dict[str, Array]


def glorot(key: Array, shape: tuple[int, ...]) -> Array:
    """Uniform in ±√(6 / (fan in + fan out)) (Glorot & Bengio, 2010), float32.

    The last two dimensions are inputs and outputs, the ones before them a convolution's window.
    """
    window = prod(shape[:-2])
    limit = sqrt(6.0 / (window * (shape[-2] + shape[-1])))
    return jax.random.uniform(key, shape, jnp.float32, -limit, limit)


def dense_init(key: Array, inputs: int, outputs: int) -> Params:
    """Weights (inputs, outputs), Glorot uniform, and biases (outputs,), zero."""
    return {"weight": glorot(key, (inputs, outputs)), "bias": jnp.zeros(outputs, jnp.float32)}


def dense(params: Params, x: Float[Array, "*b i"]) -> Float[Array, "*b o"]:
    """x W + b."""
    return x @ params["weight"] + params["bias"]


def conv_init(key: Array, window: int, inputs: int, outputs: int) -> Params:
    """Weights (window, window, inputs, outputs), Glorot uniform, and biases (outputs,), zero."""
    return {
        "weight": glorot(key, (window, window, inputs, outputs)),
        "bias": jnp.zeros(outputs, jnp.float32),
    }


def conv(params: Params, x: Float[Array, "B h w i"], padding: str) -> Float[Array, "B h2 w2 o"]:
    """2-D convolution of stride 1 over (B, H, W, C) images; padding "SAME" or "VALID"."""
    y = jax.lax.conv_general_dilated(
        x, params["weight"], (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + params["bias"]


def max_pool(x: Float[Array, "B h w c"]) -> Float[Array, "B h2 w2 c"]:
    """2×2 windows of stride 2; H and W must be even.

    A reshape and a max: the gradient of XLA's windowed reduction is a select-and-scatter, which is slow on CPU.
    Where several values of a window are the largest they share the gradient.
    """
    b, h, w, c = x.shape
    return jnp.max(x.reshape(b, h // 2, 2, w // 2, 2, c), (2, 4))


def flat(x: Shaped[Array, "B *s"], size: int) -> Float[Array, "B d"]:
    """Rows as float vectors (B, size).

    Raises:
        ConfigError: a row has another number of elements.
    """
    if prod(x.shape[1:]) != size:
        raise ConfigError(
            f"The model takes {size} inputs an example and got {x.shape[1:]} ({prod(x.shape[1:])}). "
            "Give the model the data's size."
        )
    return as_float(x).reshape(x.shape[0], size)


def images(x: Shaped[Array, "B *s"], shape: tuple[int, int, int]) -> Float[Array, "B h w c"]:
    """Rows as images (B, H, W, C); a missing channel dimension or flattened pixels are understood.

    Raises:
        ConfigError: a row has another number of elements, or is an image of another shape.
    """
    row = x.shape[1:]
    if row not in (shape, (prod(shape),)) and not (shape[2] == 1 and row == shape[:2]):
        raise ConfigError(f"The model takes images {shape} (height, width, channels) and got {row}.")
    return as_float(x).reshape(x.shape[0], *shape)


def as_float(x: Array) -> Array:
    """Integer pixels become float32; floats stay as they are."""
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
