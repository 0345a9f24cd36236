"""Convolutional models of the field's image experiments. Images are (B, H, W, C)."""

import jax
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from dure.errors import ConfigError
from dure.models.layers import conv, conv_init, dense, dense_init, images, max_pool
from dure.oracles.layout import Variables
from dure.oracles.model import Model


def mcmahan_cnn(shape: tuple[int, int, int] = (28, 28, 1), classes: int = 10, hidden: int = 512) -> Model:
    """The CNN of McMahan et al. (AISTATS 2017): 1,663,370 parameters for 28×28×1 and 10 classes.

    5×5 convolution to 32 channels, ReLU, 2×2 max-pool, 5×5 to 64, ReLU, 2×2 max-pool, dense 512, ReLU,
    logits. The paper doesn't say how borders are treated; "SAME" padding is what gives its count.

    Args:
        shape: height, width (multiples of 4) and channels of the images.
        classes: number of labels.
        hidden: width of the dense layer.

    Raises:
        ConfigError: height or width is not a positive multiple of 4.
    """
    height, width, channels = shape
    if height % 4 or width % 4 or min(shape) < 1:
        raise ConfigError(f"mcmahan_cnn(shape={shape}): height and width must be multiples of 4 (two pools).")
    flat = height // 4 * (width // 4) * 64

    def init(key: Array) -> Variables:
        keys = jax.random.split(key, 4)
        return Variables(
            {
                "conv1": conv_init(keys[0], 5, channels, 32),
                "conv2": conv_init(keys[1], 5, 32, 64),
                "dense1": dense_init(keys[2], flat, hidden),
                "dense2": dense_init(keys[3], hidden, classes),
            }
        )

    def apply(params: PyTree, x: Shaped[Array | np.ndarray, "B *s"]) -> Float[Array, "B c"]:
        x = images(x, shape)
        x = max_pool(jax.nn.relu(conv(params["conv1"], x, "SAME")))
        x = max_pool(jax.nn.relu(conv(params["conv2"], x, "SAME")))
        x = jax.nn.relu(dense(params["dense1"], x.reshape(x.shape[0], flat)))
        return dense(params["dense2"], x)

    return Model.from_functions(init, apply, name="mcmahan_cnn")


def small_cnn(shape: tuple[int, int, int] = (32, 32, 3), classes: int = 10) -> Model:
    """A CIFAR-sized network: 1,626,442 parameters for 32×32×3 and 10 classes.

    3×3 convolution to 32 channels, ReLU, 3×3 to 64, ReLU, 2×2 max-pool, dense 128, ReLU, logits; no padding.

    Args:
        shape: height, width (even, at least 6) and channels of the images.
        classes: number of labels.

    Raises:
        ConfigError: height or width is odd or too small.
    """
    height, width, channels = shape
    if height % 2 or width % 2 or min(height, width) < 6 or channels < 1:
        raise ConfigError(f"small_cnn(shape={shape}): height and width must be even and at least 6.")
    flat = (height - 4) // 2 * ((width - 4) // 2) * 64

    def init(key: Array) -> Variables:
        keys = jax.random.split(key, 4)
        return Variables(
            {
                "conv1": conv_init(keys[0], 3, channels, 32),
                "conv2": conv_init(keys[1], 3, 32, 64),
                "dense1": dense_init(keys[2], flat, 128),
                "dense2": dense_init(keys[3], 128, classes),
            }
        )

    def apply(params: PyTree, x: Shaped[Array | np.ndarray, "B *s"]) -> Float[Array, "B c"]:
        x = jax.nn.relu(conv(params["conv1"], images(x, shape), "VALID"))
        x = max_pool(jax.nn.relu(conv(params["conv2"], x, "VALID")))
        x = jax.nn.relu(dense(params["dense1"], x.reshape(x.shape[0], flat)))
        return dense(params["dense2"], x)

    return Model.from_functions(init, apply, name="small_cnn")
