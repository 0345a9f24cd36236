"""`scikit_learn`: a task from a scikit-learn estimator."""

import warnings
from typing import Any

import numpy as np

from dure.errors import ConfigError, DataError
from dure.oracles.estimators import partial
from dure.oracles.estimators.linear import kinds, linear
from dure.oracles.metrics import Metric
from dure.oracles.task import Task


def scikit_learn(
    estimator: Any,
    data: Any,
    *,
    metrics: tuple[Metric, ...] | None = None,
    input: str = "x",
    target: str = "y",
    name: str | None = None,
) -> Task:
    """A task from a scikit-learn estimator; `simulate(method, estimator, data)` makes it by itself.

    Generalised linear models (LinearRegression, Ridge, LogisticRegression, PoissonRegressor, GammaRegressor) are
    solved exactly on every client, with the linear and proximal terms of the method, in float64. F_k is the mean loss
    of the client's rows plus the estimator's penalty, scaled so that Σ (n_k/n) F_k is the estimator's objective on the
    pooled rows, divided by n where that is a sum over rows. So what converges to the minimum of Σ (n_k/n) F_k (FedDyn,
    ConsensusADMM, FedADMM, Scaffold(option=1), FedSGD) converges to what `fit` makes of the pooled rows, up to the
    float32 of what is sent. Local epochs, batches and optimizers don't apply.

    SGDClassifier, SGDRegressor, Perceptron, MLPClassifier and MLPRegressor do `epochs` epochs of `partial_fit`, for
    methods that take any local work (FedAvg, FedAvgM, FedOpt, FedAdam, …). Their own settings say how (batch size,
    learning rate, penalty); `random_state` follows from the run's seed. The number of steps `t_`, which SGD's learning
    rate depends on, travels as a counter (the largest client's is kept); an MLP's optimizer is new in every round.

    What `fit` would find in the data is taken from the data set's declaration, the same for every client: F from the
    column's shape, and C labels 0 … C − 1 from `data.classes`, also where a client has only some of them. Of a class
    that no client has, LogisticRegression has no minimum: it is refused. The others only learn never to say it, and
    warn of it.

    Args:
        estimator: of one of these classes; its settings count. Linear models start at zero, MLPs at random.
        data: the federated data set.
        metrics: what evaluation reports beside "loss"; None: accuracy (and F1 of two classes) for classifiers.
        input: column of features (n, F).
        target: column of labels or real targets (n,).
        name: for records; by default the estimator with its settings.

    Raises:
        ConfigError: an estimator or a setting that can't be honoured.
        DataError: columns of another form, targets that the model has no value for, or a class without rows.
    """
    if isinstance(estimator, type):
        raise ConfigError(
            f"{estimator.__name__} is a class: give an instance, such as {estimator.__name__}()."
        )
    known = kinds()
    by_epochs = partial.kinds()
    if type(estimator) not in known and type(estimator) not in by_epochs:
        raise ConfigError(
            f"{type(estimator).__name__} can't be trained here, but "
            f"{', '.join(sorted(c.__name__ for c in (*known, *by_epochs)))} can (no classes derived from them). "
            "Lasso, ElasticNet: dure.ConsensusADMM(proximal=dure.L1(…)) with LinearRegression. Trees: dure.boosting. "
            "Pipelines: prepare the columns first, with dure.statistics.moments for their scale."
        )
    x, y = _columns(estimator, data, input, target)
    classes = _classes(estimator, data, target, y)
    if type(estimator) in known:
        made = linear(estimator, x.shape[1], classes, y, data.examples)
    else:
        _warn_of_empty(estimator, classes, y)
        made = partial.partial(estimator, x.shape[1], classes)
    called = name or " ".join(repr(estimator).split())
    chosen = made.metrics if metrics is None else metrics
    return Task(made.model, made.loss, chosen, input, target, called)


def _columns(estimator: Any, data: Any, input: str, target: str) -> tuple[np.ndarray, np.ndarray]:
    for name in (input, target):
        if name not in getattr(data, "columns", {}):
            raise DataError(
                f"{type(estimator).__name__} reads column {name!r}, but the data have "
                f"{', '.join(sorted(getattr(data, 'columns', {})))}."
            )
    x, y = data.complete(input), data.complete(target, target=True)
    if x.ndim != 2:
        raise DataError(
            f"Column {input!r} has rows of shape {x.shape[1:]}, and {type(estimator).__name__} takes one row of "
            "features for each example: make it (n, F), such as x.reshape(len(x), -1)."
        )
    if y.ndim != 1:
        raise DataError(
            f"Column {target!r} has targets of shape {y.shape[1:]}, and {type(estimator).__name__} takes one target "
            "for each example."
        )
    return x, y


def _classes(estimator: Any, data: Any, target: str, y: np.ndarray) -> int | None:
    """Number of labels of a classifier; None for a regression."""
    if not _is_classifier(estimator):
        return None
    if y.dtype.kind != "i":
        raise DataError(
            f"Column {target!r} holds {y.dtype}, and {type(estimator).__name__} takes labels: integers 0 … C − 1."
        )
    classes = data.classes if target == "y" and data.classes is not None else int(y.max()) + 1
    if y.min() < 0:
        raise DataError(f"Column {target!r} has label {y.min()}: labels are integers 0 … C − 1.")
    if classes < 2:
        raise DataError(f"Column {target!r} has one class only: {type(estimator).__name__} needs two.")
    return int(classes)


def _warn_of_empty(estimator: Any, classes: int | None, y: np.ndarray) -> None:
    """`classes` may be declared for more than these clients have; labels that skip a number look the same."""
    empty = [] if classes is None else np.flatnonzero(np.bincount(y, minlength=classes) == 0).tolist()
    if empty:
        more = f" (and of {len(empty) - 1} more)" if empty[1:] else ""
        warnings.warn(
            f"No client has a row of class {empty[0]} of {classes}{more}: {type(estimator).__name__} learns never to "
            "say it. If labels are numbered with gaps, renumber them; else correct `classes`, or go on.",
            stacklevel=3,
        )


def _is_classifier(estimator: Any) -> bool:
    from sklearn.base import is_classifier

    return bool(is_classifier(estimator))
