"""scikit-learn's generalised linear models: which of their settings the exact solver honours, and how they scale."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dure.errors import ConfigError, DataError
from dure.oracles import metrics as m
from dure.oracles.estimators import families as f
from dure.oracles.estimators.outside import ExactOutside, no_steps
from dure.oracles.layout import Variables
from dure.oracles.metrics import Metric
from dure.oracles.model import Model

#: How scikit-learn gets to the optimum, which says nothing about where it is.
IMMATERIAL = {
    "copy_X", "n_jobs", "tol", "max_iter", "solver", "verbose", "random_state", "intercept_scaling", "dual",
}  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """How an estimator is solved.

    Attributes:
        honours: settings that count.
        penalty: (estimator, n) → λ of F_k = mean loss + ½ λ ‖weights‖².
        loss: (outputs, targets) → (B,), for evaluation.
        mean: what `predict` makes of η in a regression.
        least: targets must be above (or at, where `at_least`) this number.
    """

    honours: tuple[str, ...]
    penalty: Callable[[Any, int], float]
    loss: Callable[[Any, Any], Array]
    mean: Callable[[Array], Array] = lambda eta: eta
    least: float = -np.inf
    at_least: bool = True


def _poisson_deviance(outputs: Any, targets: Any) -> Array:
    y = jnp.asarray(targets, jnp.float32)
    return jnp.asarray(outputs - y + y * (jnp.log(jnp.where(y > 0, y, 1)) - jnp.log(outputs)))


def _gamma_deviance(outputs: Any, targets: Any) -> Array:
    ratio = jnp.asarray(targets, jnp.float32) / outputs
    return jnp.asarray(ratio - jnp.log(ratio) - 1)


def kinds() -> dict[type, tuple[Kind, f.Family]]:
    """Estimator class → how it is solved, and the loss of one output."""
    from sklearn import linear_model as sk

    intercept = ("fit_intercept",)
    glm = ("alpha", "fit_intercept")
    return {
        sk.LinearRegression: (Kind(intercept, lambda e, n: 0.0, m.squared_error), f.SquaredError()),
        sk.Ridge: (Kind(glm, lambda e, n: 2 * _number(e, "alpha") / n, m.squared_error), f.SquaredError()),
        sk.LogisticRegression: (
            Kind(("C", "fit_intercept", "penalty", "l1_ratio"), _logistic_penalty, m.sigmoid_cross_entropy),
            f.Logistic(),
        ),
        sk.PoissonRegressor: (
            Kind(glm, lambda e, n: _number(e, "alpha"), _poisson_deviance, jnp.exp, 0.0),
            f.Poisson(),
        ),
        sk.GammaRegressor: (
            Kind(glm, lambda e, n: _number(e, "alpha"), _gamma_deviance, jnp.exp, 0.0, at_least=False),
            f.Gamma(),
        ),
    }


def _number(estimator: Any, name: str) -> float:
    value = getattr(estimator, name)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not value >= 0:
        raise ConfigError(f"{estimator}: {name}={value!r} must be one number of at least 0.")
    return float(value)


def _logistic_penalty(estimator: Any, n: int) -> float:
    """1/(C n): scikit-learn minimises C Σ loss + ½‖w‖²."""
    penalty, ratio = estimator.penalty, estimator.l1_ratio
    if estimator.solver == "liblinear":
        raise ConfigError(
            f"{estimator}: the solver 'liblinear' penalises the intercept too, which is another model. Leave solver "
            "out: the exact solver takes its place."
        )
    if penalty in ("l1", "elasticnet") or (penalty == "deprecated" and ratio not in (None, 0)):
        raise ConfigError(
            f"{estimator}: an l1 penalty has no exact smooth solution on the clients. Let the server take it: "
            "dure.ConsensusADMM(proximal=dure.L1(strength)) with LogisticRegression(C=numpy.inf); it is on the "
            "intercept too then."
        )
    inverse = _number(estimator, "C")
    if inverse == 0:
        raise ConfigError(f"{estimator}: C=0 would be an infinite penalty; it must be positive.")
    return 0.0 if penalty is None else 1 / (inverse * n)


def check_settings(estimator: Any, honours: tuple[str, ...]) -> None:
    """What can't be honoured must be left alone.

    Raises:
        ConfigError: naming the setting, its value and the default.
    """
    for name, parameter in inspect.signature(type(estimator).__init__).parameters.items():
        if name == "self" or name in honours or name in IMMATERIAL:
            continue
        value = getattr(estimator, name)
        if value is not parameter.default and value != parameter.default:
            raise ConfigError(
                f"{estimator}: {name}={value!r} can't be honoured in a federated fit (its default is "
                f"{parameter.default!r}). Leave it out."
            )


@dataclass(frozen=True)
class Made:
    """An estimator as a model, its loss and what is measured of it."""

    model: Model
    loss: Callable[[Any, Any], Array]
    metrics: tuple[Metric, ...]


def linear(estimator: Any, features: int, classes: int | None, y: np.ndarray, examples: int) -> Made:
    """A generalised linear model.

    Args:
        estimator: of a class in `kinds()`.
        features: F.
        classes: number of labels, for classifiers.
        y: (n,) all clients' targets, whose range is checked.
        examples: n, which the penalty is divided by where scikit-learn's objective is a sum over examples.

    Raises:
        ConfigError: a setting that can't be honoured.
        DataError: targets that the loss has no value for, or a class without rows.
    """
    kind, family = kinds()[type(estimator)]
    check_settings(estimator, kind.honours)
    if classes is not None:
        found = np.bincount(y, minlength=classes)
        if not found.all():
            raise DataError(
                f"No client has a row of class {int(found.argmin())} of {classes}, so that "
                f"{type(estimator).__name__} has no minimum: renumber the labels, or correct `classes`."
            )
    below = y < kind.least if kind.at_least else y <= kind.least
    if below.any():
        row = int(np.flatnonzero(below)[0])
        raise DataError(
            f"{type(estimator).__name__} needs targets {'of at least' if kind.at_least else 'above'} {kind.least:g}, "
            f"and row {row} of the training rows has {y[row]}."
        )
    loss = kind.loss
    measured: tuple[Metric, ...] = ()
    if classes is None:
        shapes: tuple[tuple[int, ...], ...] = ((features,), ())
    elif classes == 2:
        shapes, measured = ((1, features), (1,)), (m.binary_accuracy, m.f1)
    else:
        shapes, measured = ((classes, features), (classes,)), (m.accuracy,)
        loss, family = m.softmax_cross_entropy, f.Softmax()
    names = ("coef_", "intercept_") if estimator.fit_intercept else ("coef_",)
    start = Variables({name: np.zeros(s, np.float32) for name, s in zip(names, shapes, strict=False)})
    one = len(shapes[0]) == 1 or shapes[0][0] == 1

    def apply(
        variables: Variables, inputs: Any, *, train: bool = False, key: Any = None, mask: Any = None
    ) -> Any:
        if train:
            raise no_steps(estimator)
        coef = jnp.asarray(variables.params["coef_"])
        eta = jnp.matmul(jnp.asarray(inputs, jnp.float32), coef.reshape(-1, features).T, precision="highest")
        eta = eta + (variables.params["intercept_"] if estimator.fit_intercept else 0)
        return kind.mean(eta[:, 0] if one else eta), variables.buffers

    outside = ExactOutside(estimator, family, kind.penalty(estimator, examples), features, classes)
    model = Model(lambda key: start, apply, type(estimator).__name__, outside=outside)
    return Made(model, loss, measured)
