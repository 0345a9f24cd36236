"""Local work by `partial_fit`: what travels of an estimator, and a client's epochs."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.oracles.host.function import Shape

#: Added to weights of any size they change nothing: so `partial_fit` leaves an estimator at its first weights.
_NO_STEP = 1e-200


def is_network(estimator: Any) -> bool:
    """Whether it has layers, as the MLPs do; else it is linear."""
    return hasattr(estimator, "hidden_layer_sizes")


def shell(estimator: Any, features: int, classes: int | None, seed: int | None = None) -> Any:
    """A copy that knows its features and classes, at its first weights.

    It has seen one `partial_fit` on made-up rows, so that it has all that its version of scikit-learn wants.

    Raises:
        ConfigError: scikit-learn refuses its settings.
    """
    from sklearn.base import clone

    made = clone(estimator)
    change: dict[str, Any] = {"random_state": seed}
    rate = made.get_params().get("learning_rate_init")
    if rate is not None:
        change["learning_rate_init"] = _NO_STEP
    labels = np.arange(classes or 2)
    rows = np.zeros((len(labels), features))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made.set_params(**change)
            made.partial_fit(rows, labels, **({} if classes is None else {"classes": labels}))
    except ValueError as error:
        raise ConfigError(f"{estimator} can't be trained by epochs of partial_fit: {error}") from error
    made.set_params(**{name: getattr(estimator, name) for name in change})
    if not is_network(made):
        made.coef_[...], made.intercept_[...] = 0, 0
        made.t_ = 1.0
    return made


def tensors_of(made: Any) -> dict[str, np.ndarray]:
    """What travels: weights and intercepts by name, in the order of their names."""
    if not is_network(made):
        return {"coef_": made.coef_, "intercept_": made.intercept_}
    width = len(str(len(made.coefs_)))
    layers = {f"coefs_{i:0{width}}": array for i, array in enumerate(made.coefs_)}
    return layers | {f"intercepts_{i:0{width}}": array for i, array in enumerate(made.intercepts_)}


def put(made: Any, tensors: Mapping[str, np.ndarray], counter: int = 1) -> None:
    """Give an estimator these weights, a new optimizer, and (a linear one) the number of its next step."""
    arrays = {name: np.array(tensors[name], np.float64) for name in tensors_of(made)}
    if is_network(made):
        made.coefs_ = [a for name, a in arrays.items() if name.startswith("coefs_")]
        made.intercepts_ = [a for name, a in arrays.items() if name.startswith("intercepts_")]
        vars(made).pop("_optimizer", None)  # which holds the old weights, and moments of other rows
        return
    made.coef_, made.intercept_, made.t_ = arrays["coef_"], arrays["intercept_"], float(counter)


def decision_losses(xp: Any, logistic: bool, outputs: Any, y: Any) -> Any:
    """(B,) log-loss or hinge loss of decisions (B,) of two classes, or summed over one-against-all (B, C)."""
    if outputs.ndim == 1:
        margin = xp.where(y > 0, outputs, -outputs)[:, None]
    else:
        margin = xp.where(y[:, None] == xp.arange(outputs.shape[1]), outputs, -outputs)
    return (xp.logaddexp(0.0, -margin) if logistic else xp.maximum(0.0, 1.0 - margin)).sum(1)


@dataclass(frozen=True)
class Epochs:
    """An estimator's local work.

    Attributes:
        estimator: unfitted.
        features: F.
        classes: C of a classifier, or None.
        shape: how the vector becomes its tensors.
    """

    estimator: Any
    features: int
    classes: int | None
    shape: Shape

    def fit(
        self, x: np.ndarray, y: np.ndarray, start: np.ndarray, counter: int, seeds: np.ndarray
    ) -> tuple[np.ndarray, float, int]:
        """(weights (d,), loss, next counter) after an epoch of partial_fit for each seed."""
        made = shell(self.estimator, self.features, self.classes)
        put(made, self.shape.unpack(start), counter)
        rows, targets = np.asarray(x, np.float64), np.array(y)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Got `batch_size` less than 1 or larger")
            for seed in seeds:
                made.set_params(random_state=int(seed))
                made.partial_fit(rows, targets)
        found = self.shape.pack(tensors_of(made), type(made).__name__)
        if is_network(made):
            return found, float(made.loss_), counter
        return found, self._loss(made, rows, targets), int(made.t_)

    def _loss(self, made: Any, x: np.ndarray, y: np.ndarray) -> float:
        if self.classes is None:
            return float(np.square(made.predict(x) - y).mean())
        logistic = made.loss == "log_loss"
        return float(decision_losses(np, logistic, made.decision_function(x), y).mean())


@dataclass(frozen=True)
class Train:
    """A question: a client's epochs."""

    def answer(
        self, model: Epochs, x: np.ndarray, y: np.ndarray, given: Mapping[str, np.ndarray]
    ) -> dict[str, Any]:
        """Weights, loss and counter; a client without rows stays where it is."""
        counter = int(given["ints"][0]) if "ints" in given else 0
        if not len(x):
            return {"w": given["start"], "loss": 0.0} | ({"ints": counter} if "ints" in given else {})
        words = [int(word) for word in given["key"]]
        seeds = np.random.default_rng(words).integers(2**31 - 1, size=int(given["steps"]))
        w, loss, counter = model.fit(x, y, given["start"], counter, seeds)
        return {"w": w, "loss": loss} | ({"ints": counter} if "ints" in given else {})
