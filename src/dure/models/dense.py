"""Models without convolutions: linear, logistic, multilayer perceptrons."""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Shaped

from dure.errors import ConfigError
from dure.models.layers import dense, dense_init, flat
from dure.oracles.layout import Variables
from dure.oracles.model import Model


def softmax_regression(inputs: int, classes: int) -> Model:
    """Multinomial logistic regression: logits x W + b, started at zero (the loss is convex).

    Args:
        inputs: elements of one example; images are flattened.
        classes: number of labels.

    Raises:
        ConfigError: a size below 1.
    """
    _positive(inputs=inputs, classes=classes)

    def init(key: Array) -> Variables:
        weight = jnp.zeros((inputs, classes), jnp.float32)
        return Variables({"weight": weight, "bias": jnp.zeros(classes, jnp.float32)})

    def apply(params: PyTree, x: Shaped[Array | np.ndarray, "B *s"]) -> Float[Array, "B c"]:
        return dense(params, flat(x, inputs))

    return Model.from_functions(init, apply, name=f"softmax_regression({inputs}, {classes})")


def logistic(inputs: int) -> Model:
    """Logistic regression with one logit (B,), started at zero; for `binary` tasks.

    Args:
        inputs: elements of one example.

    Raises:
        ConfigError: inputs below 1.
    """
    _positive(inputs=inputs)

    def init(key: Array) -> Variables:
        return Variables({"weight": jnp.zeros(inputs, jnp.float32), "bias": jnp.zeros((), jnp.float32)})

    def apply(params: PyTree, x: Shaped[Array | np.ndarray, "B *s"]) -> Float[Array, " B"]:
        logits: Array = flat(x, inputs) @ params["weight"] + params["bias"]
        return logits

    return Model.from_functions(init, apply, name=f"logistic({inputs})")


def linear(inputs: int, outputs: int = 1) -> Model:
    """Linear regression, outputs (B, outputs), started at zero; for `regression` tasks.

    Args:
        inputs: elements of one example.
        outputs: number of targets.

    Raises:
        ConfigError: a size below 1.
    """
    _positive(inputs=inputs, outputs=outputs)

    def init(key: Array) -> Variables:
        weight = jnp.zeros((inputs, outputs), jnp.float32)
        return Variables({"weight": weight, "bias": jnp.zeros(outputs, jnp.float32)})

    def apply(params: PyTree, x: Shaped[Array | np.ndarray, "B *s"]) -> Float[Array, "B o"]:
        return dense(params, flat(x, inputs))

    return Model.from_functions(init, apply, name=f"linear({inputs}, {outputs})")


def mlp(inputs: int, hidden: tuple[int, ...], outputs: int) -> Model:
    """Dense layers with ReLU between them; Glorot uniform weights, zero biases.

    Args:
        inputs: elements of one example; images are flattened.
        hidden: widths of the hidden layers.
        outputs: number of labels or targets.

    Raises:
        ConfigError: a width below 1.
    """
    widths = (inputs, *hidden, outputs)
    _positive(inputs=inputs, **{f"hidden[{i}]": width for i, width in enumerate(hidden)}, outputs=outputs)
    pairs = list(pairwise(widths))

    def init(key: Array) -> Variables:
        keys = jax.random.split(key, len(pairs))
        return Variables({f"dense{i + 1}": dense_init(k, *pairs[i]) for i, k in enumerate(keys)})

    def hidden_layers(params: PyTree, x: Shaped[Array | np.ndarray, "B *s"]) -> Float[Array, "B p"]:
        x = flat(x, inputs)
        for i in range(1, len(pairs)):
            x = jax.nn.relu(dense(params[f"dense{i}"], x))
        return x

    def apply(params: PyTree, x: Shaped[Array | np.ndarray, "B *s"]) -> Float[Array, "B o"]:
        return dense(params[f"dense{len(pairs)}"], hidden_layers(params, x))

    name = f"mlp({'-'.join(map(str, widths))})"
    return Model.from_functions(init, apply, name=name, features=hidden_layers)


def two_nn(inputs: int = 784, classes: int = 10) -> Model:
    """The "2NN" of McMahan et al. (AISTATS 2017): two hidden layers of 200 with ReLU; 199,210 parameters."""
    return mlp(inputs, (200, 200), classes)


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{name}={size}: a model's sizes are at least 1.")
