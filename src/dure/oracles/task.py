"""A task: a model, what counts as a mistake, and what is measured."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from dure.errors import ConfigError, did_you_mean
from dure.oracles import metrics as m
from dure.oracles.layout import Variables
from dure.oracles.metrics import Metric
from dure.oracles.model import Model, as_model, comes_from


@dataclass(frozen=True)
class Task:
    """What is learnt, from which columns.

    Attributes:
        model: the model.
        loss: (outputs, targets) → (B,), the loss of each example; everything is built from it. With a PyTorch
            model, dure's own losses or anything of PyTorch's: a module such as `nn.CrossEntropyLoss()`, or a
            function that returns the examples' losses or their mean.
        metrics: what evaluation reports beside "loss"; names must differ.
        input: name of the column that the model reads.
        target: name of the column that the loss compares with.
        name: for records.
    """

    model: Model
    loss: Callable[[Any, Any], Array]
    metrics: tuple[Metric, ...] = ()
    input: str = "x"
    target: str = "y"
    name: str = "task"

    def __post_init__(self) -> None:
        if not isinstance(self.model, Model):
            raise ConfigError(
                f"Task.model is a {type(self.model).__name__}, not a Model. Wrap it with as_model(…)."
            )
        if self.model.outside is not None:
            object.__setattr__(self, "loss", self.model.outside.loss(self.loss))
        names = ["loss", *(metric.name for metric in self.metrics)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"Two metrics are named {name!r} ('loss' is always there). Rename one.")

    def batch_loss(
        self,
        variables: Variables,
        batch: Mapping[str, Array],
        mask: Float[Array, " B"],
        *,
        train: bool = True,
        key: Array | None = None,
        loss: Callable[[Any, Any], Array] | None = None,
        extra: Array | None = None,
    ) -> tuple[Float[Array, ""], PyTree]:
        """Mean loss over the rows that are there, Σ maskᵢ lossᵢ / max(Σ maskᵢ, 1), and the new buffers.

        Padded rows (mask 0) reach neither the loss, nor its gradient, nor batch statistics; they must hold
        finite numbers, since 0 · ∞ has no value in a gradient. An empty batch has loss 0.

        Args:
            variables: parameters and buffers.
            batch: column name → (B, ...).
            mask: (B,) float32, 1 for a row that is there and 0 for padding.
            train: training mode (dropout, batch statistics).
            key: for models with needs_key.
            loss: (outputs, targets) → (B,) in the place of the task's.
            extra: (B,) added to the examples' losses.

        Returns:
            float32 scalar; the buffers after this batch.

        Raises:
            ConfigError: the batch lacks the task's columns, or outputs and targets don't fit.
        """
        inputs, targets = self._columns(batch)
        outputs, buffers = self.model.apply(variables, inputs, train=train, key=key, mask=mask)
        losses = self._losses(loss or self.loss, outputs, targets, mask.shape[0])
        if extra is not None:
            losses = losses + extra
        total = jnp.sum(jnp.where(mask > 0, mask * losses, 0.0))
        return total / jnp.maximum(jnp.sum(mask), 1.0), buffers

    def row_sums(self, variables: Variables, batch: Mapping[str, Array]) -> dict[str, Float[Array, "B _"]]:
        """Additive statistics of each example in evaluation mode: sum them over rows, then call `values`.

        Returns:
            "loss" → (B, 2): loss and 1; metric name → (B, s).
        """
        inputs, targets = self._columns(batch)
        outputs, _ = self.model.apply(variables, inputs, train=False, key=None, mask=None)
        losses = self._losses(self.loss, outputs, targets, inputs_rows(inputs))
        rows = {"loss": jnp.stack([losses, jnp.ones_like(losses)], -1)}
        for metric in self.metrics:
            rows[metric.name] = metric.sums(outputs, targets).astype(jnp.float32)
        return rows

    def values(self, totals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Summed statistics → measures.

        Args:
            totals: name → (..., s), sums of `row_sums` over any set of examples (use float64 for long sums).

        Returns:
            name → (...) float64; NaN where nothing was summed.
        """
        known = {"loss": m.ratio, **{metric.name: metric.value for metric in self.metrics}}
        return {name: np.asarray(known[name](np.asarray(total))) for name, total in totals.items()}

    def _columns(self, batch: Mapping[str, Array]) -> tuple[Array, Array]:
        for role, column in (("input", self.input), ("target", self.target)):
            if column not in batch:
                raise ConfigError(
                    f"Task {self.name!r} reads {role}={column!r}, which the data lack. "
                    f"{did_you_mean(column, batch)} Set {role}= in the task."
                )
        return batch[self.input], batch[self.target]

    def _losses(self, loss: Callable[[Any, Any], Array], outputs: Any, targets: Any, rows: int) -> Array:
        losses = jnp.asarray(loss(outputs, targets))
        if losses.shape != (rows,):
            raise ConfigError(
                f"The loss of task {self.name!r} returned shape {losses.shape} for {rows} examples; it must "
                f"return one number per example, ({rows},), not their mean."
            )
        return losses.astype(jnp.float32)


def inputs_rows(inputs: Any) -> int:
    """Number of rows B of an input column."""
    return int(np.shape(inputs)[0])


def as_task(thing: Any, data: Any) -> Any:
    """A `Task` from a task or, for these data, from a scikit-learn estimator; anything else as it is.

    Raises:
        ConfigError, DataError: as for `scikit_learn`.
    """
    if isinstance(thing, type) or not comes_from(thing, "sklearn"):
        return thing
    from dure.oracles.estimators.task import scikit_learn

    return scikit_learn(thing, data)


def classification(
    model: Any,
    *,
    example_input: Any = None,
    metrics: tuple[Metric, ...] = (m.accuracy,),
    input: str = "x",
    target: str = "y",
    name: str = "classification",
) -> Task:
    """Labels from logits: softmax cross-entropy and accuracy.

    Args:
        model: anything that `as_model` takes; its outputs are logits (B, C), or (B, T, C) for sequences.
        example_input: an input batch, for flax modules.
        metrics: see `dure.oracles.metrics`.
        input: column of inputs.
        target: column of integer labels (B,), or (B, T) where negative labels are not there.
        name: for records.
    """
    return Task(as_model(model, example_input), m.softmax_cross_entropy, metrics, input, target, name)


def regression(
    model: Any,
    *,
    example_input: Any = None,
    metrics: tuple[Metric, ...] = (),
    input: str = "x",
    target: str = "y",
    name: str = "regression",
) -> Task:
    """Real targets: squared error without a factor ½ (mean over output dimensions).

    Args:
        model: anything that `as_model` takes; outputs have the targets' shape, or (B, 1) for targets (B,).
        example_input: an input batch, for flax modules.
        metrics: none by default: "loss" is the mean squared error.
        input: column of inputs.
        target: column of targets.
        name: for records.
    """
    return Task(as_model(model, example_input), m.squared_error, metrics, input, target, name)


def binary(
    model: Any,
    *,
    example_input: Any = None,
    metrics: tuple[Metric, ...] = (m.binary_accuracy, m.f1),
    input: str = "x",
    target: str = "y",
    name: str = "binary",
) -> Task:
    """Yes or no from one logit: logistic loss, accuracy and F1.

    Args:
        model: anything that `as_model` takes; its outputs are logits (B,) or (B, 1).
        example_input: an input batch, for flax modules.
        metrics: see `dure.oracles.metrics`.
        input: column of inputs.
        target: column of zeros and ones.
        name: for records.
    """
    return Task(as_model(model, example_input), m.sigmoid_cross_entropy, metrics, input, target, name)
