"""PyTorch's own solver of the local problem, asked for whole chunks of clients."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array
from torch import nn

from dure.errors import ConfigError
from dure.oracles.host.bridge import FLOAT, Handle, ask, shape
from dure.oracles.host.executors import workers
from dure.oracles.host.pool import forget_with
from dure.oracles.layout import Layout
from dure.oracles.metrics import sigmoid_cross_entropy, softmax_cross_entropy, squared_error
from dure.oracles.model import Outside
from dure.oracles.optimizer import Optimizer, is_sgd
from dure.oracles.problem import ClientPlan, Shared
from dure.oracles.pytorch.chunk import Solve
from dure.oracles.pytorch.functional import Form, Functional, Options, Piece
from dure.oracles.pytorch.host import TorchHost
from dure.oracles.pytorch.rules import Path, Rule, check_elementwise, is_linear
from dure.oracles.pytorch.torch_loss import TorchLoss

OWN_NAMES = {f: f.__name__ for f in (softmax_cross_entropy, sigmoid_cross_entropy, squared_error)}


def form_of(layout: Layout) -> Form:
    """The layout for where JAX is not."""
    stored = tuple(
        Piece(e.name, e.shape, e.group, e.start, e.stop) for e in layout.entries if e.tied_to is None
    )
    return Form(stored, layout.size, layout.buffer_size, layout.counter_size)


@dataclass(frozen=True, eq=False)
class TorchOutside(Outside):
    """PyTorch's own local solver; see `Outside`."""

    module: nn.Module
    options: Options
    handle: Handle
    frozen: Mapping[str, np.ndarray]
    host: Handle | None = None
    vectorises: bool = True
    _bound: dict[Any, Any] = field(default_factory=dict)

    def loss(self, loss: Any) -> Any:
        """See `Outside`."""
        if loss in OWN_NAMES or isinstance(loss, TorchLoss):
            return loss
        return TorchLoss(loss)

    def bind(
        self, task: Any, columns: Mapping[str, np.ndarray], layout: Layout, executor: str
    ) -> "TorchOutside":
        """See `Outside`."""
        if executor != "local" and self.handle.here:
            raise ConfigError(
                f"executor={executor!r} shares out work on CPUs, and this model is on device={self.options.device!r}, "
                "which the program itself asks. Leave out one of them."
            )
        names = (task.input, task.target)
        loss = OWN_NAMES.get(task.loss) or task.loss.given
        key = (tuple(id(columns[n]) for n in names), names, loss, layout, executor)
        if key not in self._bound:
            self._bound.clear()
            kept = {n: np.asarray(columns[n]) for n in names}
            make = partial(Functional, self.module, form_of(layout), self.options)
            host = TorchHost(make, kept, names, loss)
            forget_with(host)
            # Weights with more than two axes are convolutions', each client's another on a CPU.
            convolutions = any(len(e.shape) > 2 for e in layout.entries)
            bound = replace(
                self,
                host=Handle(host, here=self.handle.here, workers=workers(executor)),
                vectorises=self.options.device != "cpu" or not convolutions,
            )
            self._bound[key] = (bound, columns)
        found: TorchOutside = self._bound[key][0]
        return found

    def prepare(self, devices: int) -> None:
        """See `Outside`."""
        if self.host is not None and not self.host.here:
            self.host.workers().prepare(self.host.host, devices)

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
        optimizer = shared.optimizer
        rule = rule_of(optimizer)
        if self.host is None or rule is None:
            return None
        if rule.factory is not None:
            check_elementwise(rule, _plain(_values(rule, optimizer)))
        d, shared_size = shared.layout.size, shared.layout.shared_size
        span = {None: (0, d), "shared": (0, shared_size), "private": (shared_size, d)}[train]
        job = Solve(shared.batch_size, repeats, rule, span, "prox" in arrays, "frozen" in arrays)
        given = dict(arrays) | self._numbers(rule, shared, factor, shared.max_steps * repeats)
        given |= {
            "prox": jnp.asarray(arrays.get("prox", 0.0), FLOAT), "steps": client.steps, "row": client.start,
            "size": client.size, "client": client.client, "key": client.key, "floats": shared.floats,
            "ints": shared.ints,
        }  # fmt: skip
        if shared.batch_size:
            given |= {"first": client.first, "order": shared.order}
        layout = shared.layout
        if layout.frozen_size:
            given.setdefault("frozen", shared.frozen)
        wanted = {"w": shape((d,)), "loss": shape(()), "floats": shape((layout.buffer_size,))}
        found = ask(self.host, job, given, wanted | {"ints": shape((layout.counter_size,), jnp.int32)})
        floats, ints = found.get("floats", shared.floats), found.get("ints", shared.ints)
        return found["w"], found["loss"], floats, ints

    def failed(self, task: Any) -> list[Any]:
        """See `Outside`."""
        handles = (self.handle, self.host, getattr(task.loss, "handle", None))
        return [failure for handle in handles if handle is not None for failure in handle.taken()]

    def gain(self, shared: Shared, prox: Any, factor: Any, steps: Array, longest: int) -> Any:
        """See `Outside`."""
        rule = rule_of(shared.optimizer)
        if rule is None or rule.factory is None:
            return None
        if not is_linear(rule, list(_plain(_values(rule, shared.optimizer)))):
            raise ConfigError(
                "This method divides by the displacement per unit of gradient (`gain`), which the local optimizer "
                f"{rule.factory.__name__} does not have: its steps are not linear in the gradients. Use dure.sgd(…) or "
                "torch.optim.SGD."
            )
        given = self._numbers(rule, shared, factor, longest)
        given |= {"prox": jnp.asarray(prox, FLOAT), "steps": steps}
        return ask(self.handle, Path(rule), given, {"gain": shape(())})["gain"]

    def _numbers(self, rule: Rule, shared: Shared, factor: Any, longest: int) -> dict[str, Any]:
        scale = shared.optimizer.scale(shared.round)
        values = [jnp.asarray(v, FLOAT) for v in _values(rule, shared.optimizer)]
        given = {"factor": jnp.asarray(scale, FLOAT) * jnp.asarray(factor, FLOAT)}
        given["numbers"] = jnp.stack(values) if values else jnp.zeros(1, FLOAT)
        if rule.scheduled:
            schedule = shared.optimizer.arguments[_rate_name(rule)]
            with jax.ensure_compile_time_eval():  # a function of an ordinary number, Python's or optax's
                rates = [float(schedule(s)) for s in range(longest)]
            given["rates"] = jnp.asarray(rates, FLOAT)
        return given


def rule_of(optimizer: Optimizer) -> Rule | None:
    """How PyTorch makes this optimizer's steps; None for an optax transformation that it doesn't know."""
    factory: Any = optimizer.factory
    if is_sgd(optimizer):
        factory = None
    elif not (inspect.isclass(factory) and issubclass(factory, torch.optim.Optimizer)):
        return None
    arguments = dict(optimizer.arguments)
    rate = "learning_rate" if factory is None else "lr"
    scheduled = callable(arguments.get(rate))
    if scheduled:
        del arguments[rate]
    numbers = tuple(n for n, v in arguments.items() if isinstance(v, float | np.floating | jax.Array))
    fixed = tuple(
        (n, tuple(v) if isinstance(v, list) else v) for n, v in arguments.items() if n not in numbers
    )
    return Rule(factory, numbers, fixed, scheduled)


def _plain(values: list[Any]) -> tuple[float, ...]:
    """Values with ordinary numbers where they are traced: what kind of optimizer it is doesn't depend on them."""
    return tuple(0.1 if isinstance(v, jax.core.Tracer) else float(v) for v in values)


def _rate_name(rule: Rule) -> str:
    return "learning_rate" if rule.factory is None else "lr"


def _values(rule: Rule, optimizer: Optimizer) -> list[Any]:
    return [optimizer.arguments[name] for name in rule.numbers]
