"""Local optimizers in PyTorch on flat vectors: dure's own SGD in a few operations, or any `torch.optim` class."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dure.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """Which optimizer; its numbers come separately, so that they can change without anything being made anew.

    Attributes:
        factory: a `torch.optim` class, or None for dure's SGD.
        numbers: names of the arguments whose values come as numbers.
        fixed: the other arguments, (name, value).
        scheduled: the learning rate is given for every step.
    """

    factory: Any
    numbers: tuple[str, ...]
    fixed: tuple[tuple[str, Any], ...]
    scheduled: bool

    @property
    def plain(self) -> bool:
        """Whether a step is the gradient times the learning rate and nothing else."""
        return self.factory is None and not self.scheduled and self.numbers == ("learning_rate",)

    def start(self, y: Tensor, values: list[float]) -> "Step":
        """`step(y, g, learning rate, factor)` moves y by the optimizer's displacement times a factor.

        The optimizer's state is new. y may be one vector (d,) or one row for each client (m, d): then rows are
        moved independently, the factor may be (m, 1), and there may be fewer rows from one step to the next. The
        learning rate is given where it is scheduled, else it is None.
        """
        given = {**dict(self.fixed), **dict(zip(self.numbers, values, strict=True))}
        return _sgd(**given) if self.factory is None else _torch(self.factory, given, y)


Step = Callable[[Tensor, Tensor, float | None, Any], None]


def _sgd(
    learning_rate: float = 0.0,
    momentum: float | None = None,
    nesterov: bool = False,
    weight_decay: float | None = None,
    clip_norm: float | None = None,
) -> Step:
    buffer: Tensor | None = None

    def step(y: Tensor, g: Tensor, rate: float | None, factor: Any) -> None:
        nonlocal buffer
        if clip_norm is not None:
            norm = torch.linalg.vector_norm(g, dim=-1, keepdim=True)
            g = g * torch.where(norm < clip_norm, 1.0, clip_norm / norm)
        if weight_decay is not None:
            g = g.add(y, alpha=weight_decay)
        if momentum is not None:
            if buffer is None:
                buffer = g.clone()
            else:
                buffer = buffer[: len(g)]
                buffer.mul_(momentum).add_(g)
            g = g.add(buffer, alpha=momentum) if nesterov else buffer
        _along(y, g, factor * -(learning_rate if rate is None else rate))

    return step


def _along(y: Tensor, direction: Tensor, factor: Any) -> None:
    if isinstance(factor, Tensor):
        y += factor * direction
    else:
        y.add_(direction, alpha=factor)


def _torch(factory: Any, given: dict[str, Any], y: Tensor) -> Step:
    parameter = torch.nn.Parameter(y.clone())
    parameter.grad = torch.zeros_like(parameter)
    optimizer = factory([parameter], **given)

    def step(y: Tensor, g: Tensor, rate: float | None, factor: Any) -> None:
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate
        parameter.data[: len(y)] = y
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad[: len(y)] = g
        with torch.enable_grad():
            optimizer.step()
        _along(y, parameter.data[: len(y)] - y, factor)

    return step


@lru_cache(maxsize=64)
def check_elementwise(rule: Rule, values: tuple[float, ...]) -> None:
    """A `torch.optim` optimizer must treat every element as it would treat it alone.

    All parameters are one vector here, with a row for each client where clients run together: an optimizer that looks
    at whole tensors (Adafactor, Muon, clipping inside `step`) would see other tensors than the module's.

    Raises:
        ConfigError: it doesn't, or can't make a step.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(2, 3, generator=generator)
    gradients = torch.randn(3, 2, 3, generator=generator)
    name = rule.factory.__name__
    try:
        for size in (1e-6, 1.0, 1e6):
            whole, parts = start.clone(), [row[i : i + 1].clone() for row in start for i in range(3)]
            together, alone = (
                rule.start(whole, list(values)),
                [rule.start(part, list(values)) for part in parts],
            )
            for g in size * gradients:
                together(whole, g.clone(), None, 1.0)
                for part, step, gi in zip(parts, alone, g.reshape(-1).split(1), strict=True):
                    step(part, gi.clone(), None, 1.0)
            if not torch.allclose(whole.reshape(-1), torch.cat(parts), rtol=1e-4, atol=1e-6):
                raise ConfigError(
                    f"{name} does not treat every element by itself, and dure hands it all parameters as one vector: "
                    "it would be another optimizer. Use one that does, such as SGD, Adam, AdamW, RMSprop or Adagrad; "
                    "dure.sgd(…, clip_norm=…) clips by the norm of all parameters."
                )
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"The optimizer {name} can't make a step: {type(error).__name__}: {error}"
        ) from error


@dataclass(frozen=True)
class Path:
    """A question: where the optimizer goes under a constant gradient of one (plus the proximal term's)."""

    rule: Rule


def follow(job: Path, given: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """Answer it for each row: displacement per unit of gradient after `steps` steps."""
    for k in range(len(wanted["gain"])):
        mine = {name: array[k % len(array)] for name, array in given.items()}
        values = mine["numbers"].tolist()[: len(job.rule.numbers)]
        rates = mine["rates"].tolist() if "rates" in mine else None
        z = torch.zeros(1)
        step = job.rule.start(z, values)
        for s in range(int(mine["steps"])):
            g = 1.0 + float(mine["prox"]) * z
            step(z, g, None if rates is None else rates[s], float(mine["factor"]))
        wanted["gain"][k] = -float(z)


def is_linear(rule: Rule, values: list[float]) -> bool:
    """Whether displacements add up when gradients add up; see `dure.oracles.optimizer.is_linear`."""
    first = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]])
    second = torch.tensor([[0.3, 0.7], [2.0, -1.0], [0.1, 0.9]])

    def displacement(gradients: Tensor) -> Tensor:
        path = torch.zeros(2)
        step = rule.start(path, values)
        for g in gradients.clone():  # always at the same point
            y = torch.zeros(2)
            step(y, g, None, 1.0)
            path += y
        return path

    for size in (1e-6, 1.0, 1e6):
        whole = displacement(size * (first + second))
        parts = displacement(size * first) + displacement(size * second)
        least = 1e-6 * size * float(parts.abs().max()) / max(size, 1.0)
        if not torch.allclose(whole, parts, rtol=1e-4, atol=least):
            return False
    return True


def response(optimizer: Any) -> list[float]:
    """See `dure.oracles.optimizer.response`; a schedule counts with its value at the first step."""
    given = {n: float(v(0)) if n == "lr" and callable(v) else v for n, v in optimizer.arguments.items()}
    y = torch.ones(2)
    step = _torch(optimizer.factory, given, y)
    for g in ([1.0, -2.0], [0.5, 3.0], [-1.25, 0.25]):
        step(y, torch.tensor(g), None, 1.0)
    return [float(f"{x:.4g}") for x in y]
