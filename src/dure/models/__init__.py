"""The models of the field's standard experiments. Each function returns a `dure.oracles.model.Model`."""

from dure.models.dense import linear, logistic, mlp, softmax_regression, two_nn

__all__ = ["linear", "logistic", "mlp", "softmax_regression", "two_nn"]
