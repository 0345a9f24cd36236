"""The few layers that the field's standard models are made of, as plain functions of arrays."""

from math import prod, sqrt

import jax
import jax.numpy as jnp
import numpy as np
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
    """The affine map x W + b."""
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

    A reshape and two pairwise maxima: the gradient of XLA's windowed reduction is a select-and-scatter, on
    CPU an order of magnitude slower, and that of a max over two axes twice as slow. Where several values of
    a window are the largest they share the gradient.
    """
    b, h, w, c = x.shape
    x = x.reshape(b, h // 2, 2, w // 2, 2, c)
    x = jnp.maximum(x[:, :, 0], x[:, :, 1])
    return jnp.maximum(x[:, :, :, 0], x[:, :, :, 1])


def batch_norm_init(channels: int) -> tuple[Params, Params]:
    """Parameters (scale 1, shift 0) and buffers (mean 0, var 1, count 0) of a batch normalisation."""
    params = {"scale": jnp.ones(channels, jnp.float32), "shift": jnp.zeros(channels, jnp.float32)}
    buffers = {
        "mean": jnp.zeros(channels, jnp.float32),
        "var": jnp.ones(channels, jnp.float32),
        "count": jnp.zeros((), jnp.int32),
    }
    return params, buffers


def batch_norm(
    params: Params,
    buffers: Params,
    x: Float[Array, "B *s c"],
    *,
    train: bool,
    mask: Float[Array, " B"] | None = None,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Float[Array, "B *s c"], Params]:
    """Batch normalisation (Ioffe & Szegedy, 2015) over all dimensions but the last, with torch's statistics.

    Training normalises by the batch's mean and biased variance and moves the running statistics by
    `momentum` towards the mean and the *unbiased* variance, as torch does. (flax writes torch's 0.1 as 0.9
    and keeps the biased variance.) Rows with mask 0 take no part.

    Args:
        params: scale and shift, (C,) each.
        buffers: mean and var (C,), and count, the number of updates.
        x: batch (B, ..., C).
        train: False normalises by the running statistics and leaves the buffers alone.
        mask: 1 for rows that are there; None: all.
        momentum: weight of the new statistic.
        eps: added to the variance.

    Returns:
        the normalised batch; the new buffers.
    """
    if not train:
        mean, var = buffers["mean"], buffers["var"]
    else:
        weight = jnp.ones(x.shape[0], x.dtype) if mask is None else mask.astype(x.dtype)
        weight = weight.reshape((-1,) + (1,) * (x.ndim - 1))
        axes = tuple(range(x.ndim - 1))
        values = jnp.sum(weight) * prod(x.shape[1:-1])
        total = jnp.maximum(values, 1)
        mean = jnp.sum(weight * x, axes) / total
        var = jnp.sum(weight * jnp.square(x - mean), axes) / total
        unbiased = var * total / jnp.maximum(values - 1, 1)
        buffers = {
            "mean": buffers["mean"] + momentum * (jax.lax.stop_gradient(mean) - buffers["mean"]),
            "var": buffers["var"] + momentum * (jax.lax.stop_gradient(unbiased) - buffers["var"]),
            "count": buffers["count"] + 1,
        }
    return (x - mean) * jax.lax.rsqrt(var + eps) * params["scale"] + params["shift"], buffers


def flat(x: Shaped[Array | np.ndarray, "B *s"], size: int) -> Float[Array, "B d"]:
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


def images(x: Shaped[Array | np.ndarray, "B *s"], shape: tuple[int, int, int]) -> Float[Array, "B h w c"]:
    """Rows as images (B, H, W, C); a missing channel dimension or flattened pixels are understood.

    Raises:
        ConfigError: a row has another number of elements, or is an image of another shape.
    """
    row = x.shape[1:]
    if row not in (shape, (prod(shape),)) and not (shape[2] == 1 and row == shape[:2]):
        raise ConfigError(f"The model takes images {shape} (height, width, channels) and got {row}.")
    return as_float(x).reshape(x.shape[0], *shape)


def as_float(x: Array | np.ndarray) -> Array:
    """Integer pixels become float32; floats stay as they are."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)
