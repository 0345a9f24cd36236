"""The models of the field's standard experiments. Each function returns a `dure.oracles.model.Model`."""

from dure.models.convolutional import mcmahan_cnn, small_cnn
from dure.models.dense import linear, logistic, mlp, softmax_regression, two_nn
from dure.models.recurrent import char_lstm

__all__ = [
    "char_lstm",
    "linear",
    "logistic",
    "mcmahan_cnn",
    "mlp",
    "small_cnn",
    "softmax_regression",
    "two_nn",
]
