"""Losses per example, and metrics as sums per example.

A metric is two functions: what each example adds up to, and what the total means. Sums travel and
ratios are taken last, so that the F1 of a cohort is the F1 of its pooled examples and not a mean of
clients' F1 (which for two clients of ten rows can be 0.47 where the pooled one is 0.86).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Shaped

from dure.errors import ConfigError

Rows = Float[Array, " B"]
Values = Shaped[Array | np.ndarray, "B ..."]
"""Outputs or targets of B examples; how their shapes must fit is checked with a message that says so."""


@dataclass(frozen=True)
class Metric:
    """One measure of a model.

    Attributes:
        name: the word in records, such as "accuracy" ("test_accuracy" for the test set).
        sums: (outputs, targets) → float32 (B, s): additive statistics of each example.
        value: NumPy (..., s) totals → (...) the measure; NaN where it is undefined (nothing was added).
        higher_is_better: which end of it is good.
    """

    name: str
    sums: Callable[[Any, Any], Array]
    value: Callable[[np.ndarray], np.ndarray]
    higher_is_better: bool = True


def ratio(totals: Any) -> np.ndarray:
    """total[..., 0] / total[..., 1] in float64; NaN where the denominator is 0."""
    totals = np.asarray(totals, np.float64)
    return _divide(totals[..., 0], totals[..., 1])


def _divide(numerator: Any, denominator: Any) -> np.ndarray:
    empty = denominator == 0
    return np.asarray(np.where(empty, np.nan, numerator / np.where(empty, 1.0, denominator)))


# Losses: (outputs, targets) → (B,) float32


def softmax_cross_entropy(outputs: Values, targets: Values) -> Rows:
    """−log softmax(outputs)[target], in float32; (B,).

    Args:
        outputs: logits (B, C), or (B, T, C) for sequences.
        targets: integer labels (B,) in [0, C), or (B, T); in sequences a negative label marks a position
            that is not there, and an example's loss is the mean over its present positions (0 if none).

    Raises:
        ConfigError: shapes that don't fit, or targets that are not integers.
    """
    losses, present = _token_losses(outputs, targets)
    if losses.ndim == 1:
        return losses
    axes = tuple(range(1, losses.ndim))
    means: Array = jnp.sum(losses * present, axes) / jnp.maximum(jnp.sum(present, axes), 1)
    return means


def _token_losses(outputs: Values, targets: Values) -> tuple[Array, Array]:
    """Loss of each position and 1 where there is a target (all ones for plain labels)."""
    _check_labels(outputs, targets)
    logits, targets = jnp.asarray(outputs).astype(jnp.float32), jnp.asarray(targets)
    z = logits - jax.lax.stop_gradient(jnp.max(logits, -1, keepdims=True))
    # The label's logit through a one-hot sum: its gradient is elementwise and fuses, where that of a
    # gather is a scatter, which XLA's CPU code runs several times slower inside a loop.
    hot = (targets[..., None] == jnp.arange(logits.shape[-1], dtype=targets.dtype)).astype(jnp.float32)
    losses = jnp.log(jnp.sum(jnp.exp(z), -1)) - jnp.sum(hot * z, -1)
    return losses, (targets >= 0).astype(jnp.float32)


def sigmoid_cross_entropy(outputs: Values, targets: Values) -> Rows:
    """−y log σ(z) − (1 − y) log(1 − σ(z)) of logits z (B,) or (B, 1) and targets y in [0, 1]; (B,).

    Raises:
        ConfigError: shapes that don't fit.
    """
    z, y = _pair(outputs, targets)
    z, y = z.reshape(z.shape[0], -1), y.reshape(y.shape[0], -1)
    return jnp.mean(jnp.maximum(z, 0) - y * z + jnp.log1p(jnp.exp(-jnp.abs(z))), -1)


def squared_error(outputs: Values, targets: Values) -> Rows:
    """(output − target)², the mean over output dimensions, without a factor ½; (B,).

    So it is what torch's MSELoss and Keras' "mse" report; its gradient for one output is 2(output − target).

    Raises:
        ConfigError: shapes that don't fit: (B, 1) against (B,) is understood, broadcasting is not.
    """
    out, y = _pair(outputs, targets)
    return jnp.mean(jnp.square(out - y).reshape(out.shape[0], -1), -1)


def _pair(outputs: Values, targets: Values) -> tuple[Array, Array]:
    out, y = jnp.asarray(outputs).astype(jnp.float32), jnp.asarray(targets).astype(jnp.float32)
    if out.ndim == y.ndim + 1 and out.shape[-1] == 1:
        out = out[..., 0]
    elif y.ndim == out.ndim + 1 and y.shape[-1] == 1:
        y = y[..., 0]
    if out.shape != y.shape:
        raise ConfigError(
            f"The model's outputs have shape {outputs.shape} and the targets {targets.shape}: they must be "
            "equal (a last dimension of 1 may be missing). Change the last layer or the target column."
        )
    return out, y


def _check_labels(outputs: Values, targets: Values) -> None:
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ConfigError(
            f"Class labels have dtype {targets.dtype}, not an integer one. For real targets use regression."
        )
    if outputs.shape[:-1] != targets.shape:
        raise ConfigError(
            f"Logits have shape {outputs.shape} and labels {targets.shape}: logits must have the labels' "
            "shape and one more dimension for the classes, such as (B, C) for (B,)."
        )


# Metrics


def _correct(outputs: Values, targets: Values) -> Array:
    """1 where the largest logit is the label's. A row with NaN is wrong, whatever argmax makes of it."""
    hit = jnp.argmax(outputs, -1) == targets
    return (hit & ~jnp.any(jnp.isnan(outputs), -1)).astype(jnp.float32)


def _per_row(values: Array) -> Array:
    return jnp.sum(values.reshape(values.shape[0], -1), -1)


def _accuracy_sums(outputs: Values, targets: Values) -> Array:
    _check_labels(outputs, targets)
    targets = jnp.asarray(targets)
    present = jnp.ones_like(targets) if targets.ndim == 1 else targets >= 0
    present = present.astype(jnp.float32)
    return jnp.stack([_per_row(_correct(outputs, targets) * present), _per_row(present)], -1)


def _cross_entropy_sums(outputs: Values, targets: Values) -> Array:
    losses, present = _token_losses(outputs, targets)
    if targets.ndim == 1:
        present = jnp.ones_like(losses)
    return jnp.stack([_per_row(losses * present), _per_row(present)], -1)


accuracy = Metric("accuracy", _accuracy_sums, ratio)
"""Share of labels that have the largest logit; in sequences, of positions with a label ≥ 0."""

cross_entropy = Metric("cross_entropy", _cross_entropy_sums, ratio, higher_is_better=False)
"""Mean −log probability of the label; in sequences over positions (so exp of it is the perplexity)."""


def _decision(outputs: Values) -> Array:
    """True where the positive class is predicted: logit > 0, or the second of two logits the larger."""
    outputs = jnp.asarray(outputs)
    if outputs.ndim == 2 and outputs.shape[-1] == 2:
        return outputs[:, 1] > outputs[:, 0]
    if outputs.ndim == 2 and outputs.shape[-1] == 1:
        outputs = outputs[:, 0]
    if outputs.ndim != 1:
        raise ConfigError(
            f"A binary metric needs logits of shape (B,), (B, 1) or (B, 2), not {outputs.shape}. For more "
            "classes use accuracy or balanced_accuracy."
        )
    return outputs > 0


def _truth(targets: Values) -> Array:
    targets = jnp.asarray(targets)
    return (targets[:, 0] if targets.ndim == 2 else targets) > 0.5


def _binary_accuracy_sums(outputs: Values, targets: Values) -> Array:
    outputs = jnp.asarray(outputs)
    known = ~jnp.any(jnp.isnan(outputs.reshape(outputs.shape[0], -1)), -1)
    hit = (_decision(outputs) == _truth(targets)) & known
    return jnp.stack([hit.astype(jnp.float32), jnp.ones(hit.shape, jnp.float32)], -1)


def _f1_sums(outputs: Values, targets: Values) -> Array:
    yes, true = _decision(outputs), _truth(targets)
    return jnp.stack([yes & true, yes & ~true, ~yes & true], -1).astype(jnp.float32)


def _f1_value(totals: Any) -> np.ndarray:
    tp, fp, fn = np.moveaxis(np.asarray(totals, np.float64), -1, 0)
    return _divide(2 * tp, 2 * tp + fp + fn)


binary_accuracy = Metric("accuracy", _binary_accuracy_sums, ratio)
"""Share of right decisions of logits (B,) or (B, 1) against targets 0 and 1."""

f1 = Metric("f1", _f1_sums, _f1_value)
"""2tp / (2tp + fp + fn) of the positive class, pooled; NaN when there is no positive, true or predicted."""

mean_squared_error = Metric(
    "mean_squared_error",
    lambda outputs, targets: jnp.stack(
        [squared_error(outputs, targets), jnp.ones(outputs.shape[0], jnp.float32)], -1
    ),
    ratio,
    higher_is_better=False,
)
"""Mean over examples and output dimensions of (output − target)²."""


def balanced_accuracy(classes: int) -> Metric:
    """Mean over the classes that occur of the share of their examples that are recognised.

    Args:
        classes: number of classes C, at least 2; outputs are logits (B, C), targets labels (B,).

    Raises:
        ConfigError: fewer than 2 classes.
    """
    if classes < 2:
        raise ConfigError(f"balanced_accuracy(classes={classes}): give the number of classes, at least 2.")

    def sums(outputs: Values, targets: Values) -> Array:
        _check_labels(outputs, targets)
        hot = jax.nn.one_hot(targets, classes, dtype=jnp.float32)
        return jnp.concatenate([hot * _correct(outputs, targets)[:, None], hot], -1)

    def value(totals: Any) -> np.ndarray:
        totals = np.asarray(totals, np.float64)
        recall = _divide(totals[..., :classes], totals[..., classes:])
        seen = ~np.isnan(recall)
        return _divide(np.where(seen, recall, 0.0).sum(-1), seen.sum(-1).astype(np.float64))

    return Metric("balanced_accuracy", sums, value)
