"""A fitted scikit-learn estimator from a model's tensors."""

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.oracles.estimators import epochs, partial

#: What a fit records about itself, which here would be of the made-up rows.
_OF_THE_FIT = ("n_iter_", "rank_", "singular_", "loss_", "loss_curve_", "best_loss_", "validation_scores_")


def fitted(estimator: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    """A copy of the estimator that predicts with these tensors.

    It is fitted to a few made-up rows first, so that it has all that its version of scikit-learn wants, and then given
    the tensors, in float64. `classes_` are 0 … C − 1.

    Args:
        estimator: as it was given to `simulate`; it is not changed.
        tensors: as from `run.state_dict()`.

    Raises:
        ConfigError: they are not this estimator's, or it is a class.
    """
    from sklearn.base import clone, is_classifier

    if isinstance(estimator, type):
        raise ConfigError(
            f"{estimator.__name__} is a class: give an instance, such as {estimator.__name__}()."
        )
    if type(estimator) in partial.kinds():
        return _by_epochs(estimator, tensors)
    coef = np.asarray(tensors["coef_"], np.float64) if "coef_" in tensors else None
    if coef is None:
        raise ConfigError(f"The tensors {', '.join(sorted(tensors))} are not those of {estimator}.")
    made = clone(estimator)
    outputs = coef.shape[0] if coef.ndim == 2 else None
    if is_classifier(made) != (outputs is not None) or made.fit_intercept != ("intercept_" in tensors):
        shapes = ", ".join(f"{name}: {value.shape}" for name, value in tensors.items())
        raise ConfigError(f"The tensors ({shapes}) are not those of {estimator}.")
    labels = np.arange(1 if outputs is None else max(outputs, 2))
    rows = np.arange(len(labels))[:, None] * np.ones((1, coef.shape[-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made.fit(rows, labels if outputs is not None else labels + 1.0)
    made.coef_ = coef
    if made.fit_intercept:
        intercept = np.asarray(tensors["intercept_"], np.float64)
        made.intercept_ = intercept if intercept.ndim else float(intercept)
    return _without_traces(made)


def _by_epochs(estimator: Any, tensors: Mapping[str, np.ndarray]) -> Any:
    from sklearn.base import is_classifier

    names = sorted(n for n in tensors if n.startswith("coef"))
    network = epochs.is_network(estimator)
    if not names or network == ("coef_" in tensors):
        raise ConfigError(f"The tensors {', '.join(sorted(tensors))} are not those of {estimator}.")
    first, last = tensors[names[0]], tensors[names[-1]]
    outputs = last.shape[1] if network else (last.shape[0] if last.ndim == 2 else 1)
    made = epochs.shell(
        estimator,
        first.shape[0 if network else -1],
        max(outputs, 2) if is_classifier(estimator) else None,
    )
    shapes = {name: array.shape for name, array in epochs.tensors_of(made).items()}
    found = {name: np.shape(tensors.get(name, ())) for name in shapes}
    if found != shapes:
        raise ConfigError(f"The tensors have shapes {found}, and those of {estimator} would have {shapes}.")
    epochs.put(made, tensors, int(tensors.get("t_", 1)))
    made = _without_traces(made)
    if network:  # partial_fit goes on from these
        made.loss_curve_, made.best_loss_ = [], np.inf
    return made


def _without_traces(made: Any) -> Any:
    for name in _OF_THE_FIT:
        if name in vars(made):
            delattr(made, name)
    return made
