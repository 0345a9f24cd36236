"""The exact local solver, asked for whole chunks of clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dure.errors import ConfigError
from dure.oracles.estimators.exact import Linear
from dure.oracles.estimators.families import Family
from dure.oracles.estimators.host import EstimatorHost, Solve, Value, check_columns
from dure.oracles.host.bridge import FLOAT, Handle, ask, shape
from dure.oracles.host.hosted import Hosted, asked
from dure.oracles.layout import Layout
from dure.oracles.problem import ClientPlan, Shared

INSTEAD = "FedProx, FedDyn, ConsensusADMM, FedADMM, Scaffold(option=1), FedSGD or FedAvg"


@dataclass(frozen=True, eq=False)
class ExactOutside(Hosted):
    """Exact local solutions of a generalised linear model; see `Outside`.

    Attributes:
        estimator: as the user gave it.
        family: its loss.
        penalty: λ, so that the pooled objective of scikit-learn, divided by n where that is a sum, is Σ p_k F_k.
        features: F that its task was made for.
        classes: C that its task was made for; None for a regression.
    """

    estimator: Any = field()  # the base has a default
    family: Family
    penalty: float
    features: int
    classes: int | None
    handle: Handle | None = None
    local_work: str = "exact"
    measured: bool = False
    frozen: Mapping[str, Any] = field(default_factory=dict)

    def bind(self, task: Any, columns: Mapping[str, Any], layout: Layout, executor: str) -> "ExactOutside":
        """See `Outside`."""
        check_columns(self.estimator, self.features, self.classes, task, columns)
        parts = [np.arange(e.start, e.stop).reshape(_rows(e.name, e.shape)) for e in layout.params]
        linear = Linear(self.family, np.concatenate(parts, 1), len(parts) == 2, self.penalty)
        names = (task.input, task.target)
        host = EstimatorHost(linear, names, {name: np.asarray(columns[name]) for name in names})
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
        if "x" in arrays or not (isinstance(factor, float) and factor == 1.0):
            what = "variance-reduced steps" if "x" in arrays else "steps of its own length"
            raise ConfigError(f"This method takes {what}, and {_name(self)} {_WHY}. Use {INSTEAD}.")
        assert self.handle is not None
        d, first = shared.layout.size, shared.layout.shared_size
        span = {None: (0, d), "shared": (0, first), "private": (first, d)}[train]
        given = {**arrays, "row": client.start, "size": client.size, "client": client.client}
        if "prox" in arrays:
            given["prox"] = jnp.asarray(arrays["prox"], FLOAT)
        found = ask(self.handle, Solve(span), given, {"w": shape((d,)), "loss": shape(())})
        return found["w"], found["loss"], shared.floats, shared.ints

    def value(self, shared: Shared, client: ClientPlan, w: Array) -> tuple[Array, Array]:
        """See `Outside`."""
        assert self.handle is not None
        given = {"w": w, "row": client.start, "size": client.size, "client": client.client}
        wanted = {"loss": shape(()), "gradient": shape((shared.layout.size,))}
        found = ask(self.handle, Value(), given, wanted)
        return found["loss"], found["gradient"]

    def gain(self, shared: Any, prox: Any, factor: Any, steps: Array, longest: int) -> Any:
        """See `Outside`."""
        raise ConfigError(
            "This method divides by the displacement per unit of gradient (`gain`) of the local steps, and "
            f"{_name(self)} {_WHY}: such a number does not exist. Use {INSTEAD}."
        )


_WHY = "is solved exactly, without steps"


def no_steps(estimator: Any) -> ConfigError:
    """What is said to a method that asks for minibatches' gradients."""
    return ConfigError(
        "This method asks for gradients of minibatches or of a loss of its own, and "
        f"{type(estimator).__name__} {_WHY}. Use {INSTEAD}."
    )


def _name(outside: ExactOutside) -> str:
    return type(outside.estimator).__name__


def _rows(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """(outputs, inputs) of a tensor; an intercept is one more input."""
    if name == "coef_":
        return (1, shape[0]) if len(shape) == 1 else (shape[0], shape[1])
    return (shape[0] if shape else 1), 1
