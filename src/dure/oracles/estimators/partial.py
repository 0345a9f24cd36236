"""scikit-learn estimators that learn by `partial_fit`, as models."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dure.errors import ConfigError
from dure.oracles import metrics as m
from dure.oracles.estimators.epochs import Epochs, Train, decision_losses, is_network, shell, tensors_of
from dure.oracles.estimators.host import EstimatorHost, check_columns
from dure.oracles.estimators.linear import Made
from dure.oracles.host.bridge import Handle, ask, shape
from dure.oracles.host.function import Shape
from dure.oracles.host.hosted import Hosted, asked
from dure.oracles.layout import Layout, Variables
from dure.oracles.model import Model
from dure.oracles.problem import ClientPlan, Shared

INSTEAD = "FedAvg, FedAvgM, FedOpt, FedAdam, FedYogi, FedAdagrad or FedExP"


def kinds() -> tuple[type, ...]:
    """The estimators that are trained so."""
    from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
    from sklearn.neural_network import MLPClassifier, MLPRegressor

    return MLPClassifier, MLPRegressor, Perceptron, SGDClassifier, SGDRegressor


def _check(estimator: Any) -> None:
    """What would need a state that doesn't travel is refused."""
    name = type(estimator).__name__
    for setting, allowed, why in (
        ("average", (False, 0), "the averaged weights don't travel, and the server averages"),
        ("early_stopping", (False,), "a round is a fixed number of epochs"),
        ("warm_start", (False,), "training starts at the run's own start: initial="),
    ):
        value = getattr(estimator, setting, allowed[0])
        if value not in allowed:
            raise ConfigError(f"{name}: {setting}={value!r} can't be honoured: {why}. Leave it out.")
    if is_network(estimator) and estimator.solver == "lbfgs":
        raise ConfigError(f"{name}: solver='lbfgs' has no partial_fit. Use 'adam' or 'sgd'.")
    rate = estimator.learning_rate if is_network(estimator) else "constant"
    if rate != "constant" and estimator.solver == "sgd":
        raise ConfigError(
            f"{name}: learning_rate={rate!r} needs a state of the optimizer, which is new in every round. Use "
            "'constant'."
        )
    loss = getattr(estimator, "loss", "squared_error")
    if name == "MLPRegressor" and loss != "squared_error":
        raise ConfigError(f"{name}: loss={loss!r} is not supported; only 'squared_error' is.")


def partial(estimator: Any, features: int, classes: int | None) -> Made:
    """An estimator with `partial_fit`, for F features and C classes (None: a regression).

    Raises:
        ConfigError: a setting that can't be honoured, or that scikit-learn refuses.
    """
    _check(estimator)
    network = is_network(estimator)
    example = tensors_of(shell(estimator, features, classes, seed=0))
    names = tuple(sorted(example))
    form = Shape(
        "dict",
        names,
        tuple(example[n].shape for n in names),
        (np.dtype(np.float64).str,) * len(names),
    )
    counter = {} if network else {"t_": np.array(1, np.int32)}

    def init(key: Array) -> Variables:
        words = np.asarray(jax.random.key_data(key), np.uint64)
        seed = int((words[0] << np.uint64(31) ^ words[1]) % np.uint64(2**31))
        made = tensors_of(shell(estimator, features, classes, seed))
        return Variables({n: np.asarray(made[n], np.float32) for n in names}, dict(counter))

    def apply(
        variables: Variables, inputs: Any, *, train: bool = False, key: Any = None, mask: Any = None
    ) -> Any:
        if train:
            raise ConfigError(
                f"This method asks for gradients, and {type(estimator).__name__} is trained by partial_fit, which "
                f"gives none. Use a method that takes any local work: {INSTEAD}."
            )
        params = {name: jnp.asarray(value, jnp.float32) for name, value in variables.params.items()}
        forward = _network if network else _linear
        out = forward(estimator, params, jnp.asarray(inputs, jnp.float32))
        one = classes is None or classes == 2
        return out[:, 0] if one else out, variables.buffers

    loss, measured = _measures(estimator, network, classes)
    outside = PartialOutside(estimator, Epochs(estimator, features, classes, form))
    return Made(Model(init, apply, type(estimator).__name__, outside=outside), loss, measured)


def _linear(estimator: Any, params: dict[str, Array], x: Array) -> Array:
    coef = params["coef_"].reshape(-1, x.shape[1])
    return jnp.matmul(x, coef.T, precision="highest") + params["intercept_"]


def _network(estimator: Any, params: dict[str, Array], x: Array) -> Array:
    bend = {"identity": lambda z: z, "logistic": jax.nn.sigmoid, "tanh": jnp.tanh, "relu": jax.nn.relu}
    weights = [params[n] for n in sorted(params) if n.startswith("coefs_")]
    shifts = [params[n] for n in sorted(params) if n.startswith("intercepts_")]
    for i, (w, b) in enumerate(zip(weights, shifts, strict=True)):
        x = jnp.matmul(x, w, precision="highest") + b
        if i < len(weights) - 1:
            x = bend[estimator.activation](x)
    return x


def _measures(estimator: Any, network: bool, classes: int | None) -> tuple[Any, tuple[m.Metric, ...]]:
    """What evaluation reports: the loss, and measures."""
    if classes is None:
        return m.squared_error, ()
    measured = (m.binary_accuracy, m.f1) if classes == 2 else (m.accuracy,)
    if network:
        return (m.sigmoid_cross_entropy if classes == 2 else m.softmax_cross_entropy), measured
    logistic = getattr(estimator, "loss", "perceptron") == "log_loss"

    def loss(outputs: Any, targets: Any) -> Array:
        return jnp.asarray(decision_losses(jnp, logistic, outputs, targets))

    return loss, measured


@dataclass(frozen=True, eq=False)
class PartialOutside(Hosted):
    """Epochs of `partial_fit`; see `Outside`."""

    estimator: Any = field()  # the base has a default
    epochs: Epochs
    handle: Handle | None = None
    local_work: str = "epochs"
    measured: bool = False
    frozen: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, task: Any, columns: Mapping[str, Any], layout: Layout, executor: str) -> "PartialOutside":
        """See `Outside`."""
        if layout.shared_size != layout.size:
            raise ConfigError(
                f"{type(self.estimator).__name__} trains all parameters together: it can't have private ones."
            )
        check_columns(self.estimator, self.epochs.features, self.epochs.classes, task, columns)
        names = (task.input, task.target)
        host = EstimatorHost(self.epochs, names, {name: np.asarray(columns[name]) for name in names})
        return replace(self, handle=asked(host, executor))

    def solve(
        self,
        shared: Shared,
        client: ClientPlan,
        arrays: Mapping[str, Array],
        factor: Any,
        repeats: int,
        train: str | None,
    ) -> Any:
        """See `Outside`."""
        plain = isinstance(factor, float) and factor == 1.0 and repeats == 1 and train is None
        if set(arrays) != {"start"} or not plain:
            extra = ", ".join(sorted(set(arrays) - {"start"})) or "steps of its own"
            raise ConfigError(
                f"This method adds to the local problem ({extra}), and {type(self.estimator).__name__} is trained by "
                f"partial_fit, which can't be told. Use a method that takes any local work: {INSTEAD}; or a model with "
                "an exact solution, such as LogisticRegression."
            )
        assert self.handle is not None
        given = {
            "start": arrays["start"], "row": client.start, "size": client.size, "key": client.key,
            "client": client.client, "steps": client.steps, "ints": shared.ints,
        }  # fmt: skip
        wanted = {"w": shape((shared.layout.size,)), "loss": shape(())}
        wanted["ints"] = shape((shared.layout.counter_size,), jnp.int32)
        found = ask(self.handle, Train(), given, wanted)
        return found["w"], found["loss"], shared.floats, found.get("ints", shared.ints)

    def gain(self, shared: Any, prox: Any, factor: Any, steps: Array, longest: int) -> Any:
        """See `Outside`."""
        raise ConfigError(
            "This method divides by the displacement per unit of gradient (`gain`) of the local steps, which "
            f"partial_fit of {type(self.estimator).__name__} doesn't tell. Use one that takes any local work: "
            f"{INSTEAD}."
        )
