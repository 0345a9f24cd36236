"""The character LSTM of the field's Shakespeare experiment."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from dure.errors import ConfigError
from dure.models.layers import Params, dense, dense_init, glorot
from dure.oracles.layout import Variables
from dure.oracles.model import Model

Carry = tuple[Array, Array]


def char_lstm(
    vocabulary: int = 258, embedding: int = 8, hidden: int = 256, layers: int = 2, peepholes: bool = True
) -> Model:
    """The stacked character LSTM of McMahan et al. (AISTATS 2017): 866,578 parameters.

    Characters are embedded in 8 dimensions, read by two LSTM layers of 256, and each position's output
    gives logits for the next character. The paper states widths and the total only; the total is
    reproduced by 258 symbols (the 256 bytes and two more, such as begin and end), one bias a gate, and
    peepholes (each gate also sees its own cell; Gers, Schraudolph & Schmidhuber, JMLR 2002), so that is
    our reading: 258·8 + 4·256·(8 + 256 + 1) + 4·256·(256 + 256 + 1) + 2·3·256 + 258·257.

    Weights are Glorot uniform, biases and peepholes zero, the forget gate's bias one.

    Args:
        vocabulary: number of symbols V; inputs (B, T) are integers in [0, V), outputs logits (B, T, V).
        embedding: dimension of the embedding.
        hidden: width of each LSTM layer.
        layers: number of LSTM layers.
        peepholes: whether gates see their cell.

    Raises:
        ConfigError: a size below 1.
    """
    if min(vocabulary, embedding, hidden, layers) < 1:
        raise ConfigError(
            f"char_lstm(vocabulary={vocabulary}, embedding={embedding}, hidden={hidden}, layers={layers}): "
            "all are at least 1."
        )

    def init(key: Array) -> Variables:
        keys = jax.random.split(key, layers + 2)
        params: dict[str, PyTree] = {"embedding": glorot(keys[0], (vocabulary, embedding))}
        for i in range(layers):
            inputs = hidden if i else embedding
            params[f"lstm{i + 1}"] = _lstm_init(keys[i + 1], inputs, hidden, peepholes)
        params["output"] = dense_init(keys[-1], hidden, vocabulary)
        return Variables(params)

    def apply(params: PyTree, x: Int[Array | np.ndarray, "B t"]) -> Float[Array, "B t v"]:
        table = params["embedding"]
        # Time first: the scan runs over the first dimension. A symbol outside the vocabulary gives NaN.
        h = jnp.take(table, x.T, axis=0, mode="fill", fill_value=jnp.nan)
        for i in range(layers):
            h = lstm(params[f"lstm{i + 1}"], h)
        return jnp.swapaxes(dense(params["output"], h), 0, 1)

    return Model.from_functions(init, apply, name="char_lstm")


def _lstm_init(key: Array, inputs: int, hidden: int, peepholes: bool) -> Params:
    one, two = jax.random.split(key)
    params = {
        "input": glorot(one, (inputs, 4 * hidden)),
        "recurrent": glorot(two, (hidden, 4 * hidden)),
        "bias": jnp.zeros(4 * hidden, jnp.float32).at[hidden : 2 * hidden].set(1.0),
    }
    if peepholes:
        params["peephole"] = jnp.zeros((3, hidden), jnp.float32)
    return params


def lstm(params: Params, x: Float[Array, "t B i"]) -> Float[Array, "t B h"]:
    """One LSTM layer over a sequence from a zero state; gates in the order input, forget, cell, output.

    i = σ(W_i x + U_i h + b_i + p_i c),  f = σ(… + p_f c),  c' = f c + i tanh(…),  o = σ(… + p_o c'),
    h' = o tanh(c').  The inputs' share of all steps and gates is one matrix product before the scan.
    """
    gates = x @ params["input"] + params["bias"]
    recurrent, peephole = params["recurrent"], params.get("peephole")
    zeros = jnp.zeros((x.shape[1], recurrent.shape[0]), gates.dtype)
    outputs: Array = jax.lax.scan(partial(_step, recurrent, peephole), (zeros, zeros), gates)[1]
    return outputs


def _step(recurrent: Array, peephole: Array | None, carry: Carry, gates: Array) -> tuple[Carry, Array]:
    h, c = carry
    i, f, g, o = jnp.split(gates + h @ recurrent, 4, axis=-1)
    if peephole is not None:
        i, f = i + peephole[0] * c, f + peephole[1] * c
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    if peephole is not None:
        o = o + peephole[2] * c
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h
