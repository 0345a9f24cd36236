"""Local optimizers: any optax transformation, with numbers that a sweep can change without recompiling."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Array

from dure.errors import ConfigError


@dataclass(frozen=True)
class Optimizer:
    """A local optimizer: an optax factory and its arguments.

    Floats among the arguments are traced values: another learning rate doesn't compile again. The state is
    new at the start of every client's local work. `round_decay` multiplies the displacement of every step
    by round_decay**(round − 1), or by `round_decay(round)` when it is a function (round counts from 1).

    For PyTorch models the factory may be a `torch.optim` class; "lr" may then be a function of the local step.

    Examples: `Optimizer(optax.adam, {"learning_rate": 1e-3})`, `sgd(0.1, momentum=0.9)`,
    `Optimizer(torch.optim.Adam, {"lr": 1e-3})`.
    """

    factory: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    round_decay: float | Callable[[Array], Array] | None = None

    def transformation(self) -> optax.GradientTransformation:
        """The optax transformation for the present values of the arguments.

        Raises:
            ConfigError: it is a `torch.optim` class, which only PyTorch models' own local steps can use.
        """
        if is_torch(self.factory):
            raise ConfigError(
                f"torch.optim.{self.factory.__name__} can't be used here: the model is no torch.nn.Module, or the "
                "method's local steps are not an optimizer on one vector. Use dure.sgd(…) or an optax optimizer."
            )
        return self.factory(**self.arguments)

    def scale(self, round: Array) -> Array | float:
        """The factor on this round's steps; `round` counts from 1."""
        if self.round_decay is None:
            return 1.0
        if callable(self.round_decay):
            return self.round_decay(round)
        return self.round_decay ** (round - 1)


def _sgd(
    learning_rate: Any, momentum: Any, nesterov: bool, weight_decay: Any, clip_norm: Any
) -> optax.GradientTransformation:
    parts = []
    if clip_norm is not None:
        parts.append(optax.clip_by_global_norm(clip_norm))
    if weight_decay is not None:
        parts.append(optax.add_decayed_weights(weight_decay))
    return optax.chain(*parts, optax.sgd(learning_rate, momentum=momentum, nesterov=nesterov))


def sgd(
    learning_rate: float | optax.Schedule,
    *,
    momentum: float | None = None,
    nesterov: bool = False,
    weight_decay: float | None = None,
    clip_norm: float | None = None,
    round_decay: float | Callable[[Array], Array] | None = None,
) -> Optimizer:
    """Stochastic gradient descent on the local problem.

    Args:
        learning_rate: step η > 0, or an optax schedule of the local step's number (from 0 each round).
        momentum: heavy-ball factor in [0, 1); buffer ← momentum · buffer + gradient.
        nesterov: Nesterov's form of the momentum.
        weight_decay: adds weight_decay · y to the gradient (pulls to 0; a proximal term pulls to the anchor).
        clip_norm: the gradient of the local problem is scaled down to this 2-norm over all parameters.
        round_decay: see `Optimizer`.

    Raises:
        ConfigError: a value out of its range.
    """
    if not callable(learning_rate):
        _check("learning_rate", learning_rate, 0.0, np.inf, "positive and finite", open_low=True)
        learning_rate = float(learning_rate)
    if momentum is not None:
        _check("momentum", momentum, 0.0, 1.0, "in [0, 1)")
        momentum = float(momentum)
    if nesterov and momentum is None:
        raise ConfigError("nesterov=True needs a momentum; give momentum=0.9 or leave nesterov out.")
    if weight_decay is not None:
        _check("weight_decay", weight_decay, 0.0, np.inf, "nonnegative and finite")
        weight_decay = float(weight_decay)
    if clip_norm is not None:
        _check("clip_norm", clip_norm, 0.0, np.inf, "positive and finite", open_low=True)
        clip_norm = float(clip_norm)
    if round_decay is not None and not callable(round_decay):
        _check("round_decay", round_decay, 0.0, np.inf, "positive and finite", open_low=True)
        round_decay = float(round_decay)
    arguments = {
        "learning_rate": learning_rate,
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "clip_norm": clip_norm,
    }
    return Optimizer(_sgd, arguments, round_decay)


def is_sgd(optimizer: Optimizer) -> bool:
    """Whether it is dure's own SGD."""
    return optimizer.factory is _sgd


def is_torch(factory: Any) -> bool:
    """Whether it is a `torch.optim` class, without importing PyTorch."""
    return any(
        f"{c.__module__}.{c.__name__}" == "torch.optim.optimizer.Optimizer"
        for c in getattr(factory, "__mro__", ())
    )


def _check(name: str, value: Any, low: float, high: float, allowed: str, *, open_low: bool = False) -> None:
    if isinstance(value, jax.Array):  # a traced value was checked when it was a number
        return
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or not (low < value if open_low else low <= value) or not value < high:
        raise ConfigError(f"{name}={value!r} is not allowed: it must be {allowed}.")


def as_optimizer(thing: Any) -> Optimizer:
    """An `Optimizer` from a learning rate (plain SGD), an `Optimizer`, an optax transformation, or
    `functools.partial(torch.optim.Adam, lr=1e-3)`.
    """
    if isinstance(thing, Optimizer):
        return thing
    if isinstance(thing, partial) and is_torch(thing.func) and not thing.args:
        return Optimizer(thing.func, dict(thing.keywords))
    if is_torch(thing):
        return Optimizer(thing)
    if isinstance(thing, optax.GradientTransformation):
        return Optimizer(_Given(thing))
    if isinstance(thing, int | float | np.number) and not isinstance(thing, bool):
        return sgd(float(thing))
    raise ConfigError(
        f"optimizer={thing!r} is not an optimizer: give a learning rate (plain SGD), dure.sgd(…), "
        "dure.Optimizer(factory, arguments) or an optax transformation such as optax.adam(1e-3)."
    )


@dataclass(frozen=True)
class _Given:
    """A transformation that the user made, as a factory. Equal for one transformation: no new compilation."""

    transformation: optax.GradientTransformation

    def __call__(self) -> optax.GradientTransformation:
        return self.transformation

    def __str__(self) -> str:
        return "the given optax transformation"


def is_linear(optimizer: Optimizer) -> bool:
    """True if displacements add up when gradients add up, as for SGD, momentum and schedules, not for Adam.

    Only then a displacement per unit of gradient exists. Tried with gradients of sizes 1e-6, 1 and 1e6 in a
    two-dimensional problem, so that clipping by norm shows.
    """
    with jax.ensure_compile_time_eval():
        transformation = optimizer.transformation()
        first = np.array([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]], np.float32)
        second = np.array([[0.3, 0.7], [2.0, -1.0], [0.1, 0.9]], np.float32)
        for size in (1e-6, 1.0, 1e6):
            whole = _displacement(transformation, size * (first + second), 0.0)
            parts = _displacement(transformation, size * first, 0.0)
            parts = parts + _displacement(transformation, size * second, 0.0)
            if not np.allclose(
                whole, parts, rtol=1e-4, atol=1e-6 * size * np.abs(parts).max() / max(size, 1.0)
            ):
                return False
    return True


def response(optimizer: Optimizer) -> list[float]:
    """Where three fixed gradients lead, to four digits: tells optimizers apart whose functions have one name."""
    if is_torch(optimizer.factory):
        from dure.oracles.pytorch.rules import response as of_torch

        return of_torch(optimizer)
    with jax.ensure_compile_time_eval():
        gradients = np.array([[1.0, -2.0], [0.5, 3.0], [-1.25, 0.25]], np.float32)
        path = _displacement(optimizer.transformation(), gradients, 1.0)
        return [float(f"{x:.4g}") for x in path]


def _displacement(
    transformation: optax.GradientTransformation, gradients: np.ndarray, parameter: float
) -> np.ndarray:
    """The sum of the steps for these gradients, when both parameters are `parameter`."""
    parameters = jax.numpy.full(2, parameter, np.float32)
    state = transformation.init(parameters)
    path = np.zeros(2, np.float64)
    for gradient in gradients:
        step, state = transformation.update(jax.numpy.asarray(gradient), state, parameters)
        path += np.asarray(step, np.float64)
    return path
