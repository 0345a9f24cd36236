"""A PyTorch module as a `Model`: pure functions for JAX that ask PyTorch, and the solver that it has itself."""

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch
from jaxtyping import Array, PyTree
from torch import nn

from dure.errors import ConfigError
from dure.oracles.host.bridge import Handle, ask
from dure.oracles.host.pool import forget_with, pool
from dure.oracles.layout import Layout, Variables
from dure.oracles.metrics import sigmoid_cross_entropy, softmax_cross_entropy, squared_error
from dure.oracles.model import Model, Outside
from dure.oracles.optimizer import Optimizer, is_sgd
from dure.oracles.problem import ClientPlan, Shared
from dure.oracles.pytorch import losses
from dure.oracles.pytorch.chunk import Solve
from dure.oracles.pytorch.functional import Form, Functional, Options, Piece, as_inputs, one_tensor
from dure.oracles.pytorch.host import Pass, TorchHost
from dure.oracles.pytorch.rules import Path, Rule, check_elementwise, is_linear
from dure.oracles.tensors import Entry

_OWN = {f: f.__name__ for f in (softmax_cross_entropy, sigmoid_cross_entropy, squared_error)}
_FLOAT = jnp.float32


def torch_model(module: Any, name: str | None, options: Options) -> Model:
    """See `Model.from_torch`."""
    make = module if not isinstance(module, nn.Module) else None
    if make is not None and not callable(make):
        raise ConfigError(
            f"{type(module).__name__} is neither a torch.nn.Module nor a function that makes one."
        )
    example = _made(make, 0) if make is not None else deepcopy(module)
    if options.features is not None:
        _check_features(example, options.features)
    frozen = {
        n: _to_numpy(p) for n, p in example.named_parameters(remove_duplicate=False) if not p.requires_grad
    }
    variables = _variables(example)
    if not variables.params:
        raise ConfigError(
            f"{type(example).__name__} has no parameter that requires a gradient: nothing to train."
        )
    layout = Layout.of(variables)
    host = TorchHost(partial(Functional, example, form_of(layout), options))
    handle = Handle(host, here=torch.device(options.device).type != "cpu")
    shapes = _Shapes(example, options)

    def init(key: Array) -> Variables:
        if make is None:
            return variables
        words = np.asarray(jax.random.key_data(key), np.uint64)
        return _variables(_made(make, int(words[0] << np.uint64(31) ^ words[1])))

    def apply(
        variables: Variables,
        inputs: Any,
        *,
        train: bool = False,
        key: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Any, PyTree]:
        run = _function(handle, layout, shapes, train, features=False)
        tensors, floats, ints = _vectors(layout, variables)
        bits = None if key is None else jax.random.key_data(key)
        outputs, floats, ints = run(tensors, floats, ints, jnp.asarray(inputs), mask, bits)
        return outputs, layout.unflatten_buffers(floats, ints) if train else variables.buffers

    def represent(
        variables: Variables, inputs: Any, *, train: bool, key: Array | None, mask: Array | None
    ) -> Any:
        run = _function(handle, layout, shapes, train, features=True)
        bits = None if key is None else jax.random.key_data(key)
        return run(*_vectors(layout, variables), jnp.asarray(inputs), mask, bits)[0]

    return Model(
        init,
        apply,
        name or type(example).__name__,
        needs_key=True,  # who knows what forward draws
        features=represent if options.features is not None else None,
        outside=TorchOutside(example, options, handle, frozen),
    )


# ----- what a module holds --------------------------------------------------------------------------------


def _made(make: Callable[[], Any], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = make()
    if not isinstance(module, nn.Module):
        raise ConfigError(
            f"The function that should make a torch.nn.Module returned a {type(module).__name__}."
        )
    return module


def _variables(module: nn.Module) -> Variables:
    """Trained parameters and buffers by name; a tensor with two names is one array under both."""
    arrays: dict[int, np.ndarray] = {}

    def array(tensor: torch.Tensor) -> np.ndarray:
        return arrays.setdefault(id(tensor), _to_numpy(tensor))

    params = {n: array(p) for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}
    kept = module.state_dict(keep_vars=True)
    buffers = {n: array(b) for n, b in module.named_buffers(remove_duplicate=False) if n in kept}
    return Variables(params, buffers)


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        return np.array(tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.array(tensor.numpy())


def _check_features(module: nn.Module, name: str) -> None:
    names = [n for n, _ in module.named_modules() if n]
    if name not in names:
        raise ConfigError(
            f"features={name!r} is no part of {type(module).__name__}; its parts: {', '.join(names)}."
        )


def form_of(layout: Layout) -> Form:
    """The layout for where JAX is not."""
    stored = tuple(
        Piece(e.name, e.shape, e.group, e.start, e.stop) for e in layout.entries if e.tied_to is None
    )
    return Form(stored, layout.size, layout.buffer_size, layout.counter_size)


def _stored(layout: Layout) -> list[Entry]:
    return [e for e in layout.params if e.tied_to is None]


def _vectors(layout: Layout, variables: Variables) -> tuple[tuple[Array, ...], Array, Array]:
    """(stored tensors in float32, float buffers, counters)."""
    leaves = dict(zip((e.name for e in layout.params), jax.tree.leaves(variables.params), strict=True))
    floats, ints = layout.flatten_buffers(variables.buffers)
    return tuple(jnp.asarray(leaves[e.name], _FLOAT) for e in _stored(layout)), floats, ints


class _Shapes:
    """Shapes of outputs, found by running the module once for each shape of inputs."""

    def __init__(self, module: nn.Module, options: Options):
        self._module, self._options = deepcopy(module).to("cpu"), options
        self._known: dict[Any, tuple[int, ...]] = {}

    def of(self, inputs: Any, features: bool) -> tuple[int, ...]:
        """The shape of what comes out, without the rows.

        Raises:
            ConfigError: the module fails on these inputs, with its own error as the cause.
        """
        key = (inputs.shape[1:], str(inputs.dtype), features)
        if key not in self._known:
            whole = not jnp.issubdtype(inputs.dtype, jnp.floating)
            example = torch.zeros((2, *inputs.shape[1:]), dtype=torch.long if whole else torch.float32)
            self._module.eval()
            seen: list[Any] = []
            if features:
                assert self._options.features is not None
                part = self._module.get_submodule(self._options.features)
                hook = part.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(1)))
            try:
                with torch.no_grad():
                    found = self._module(as_inputs(self._module, example))
            except Exception as error:
                hint = ". Whole numbers reach it as int64: make the column float32 if they are no indices."
                shape = ", ".join(["B", *map(str, inputs.shape[1:])])
                raise ConfigError(
                    f"{type(self._module).__name__} fails on inputs of shape ({shape}) and dtype {inputs.dtype}: "
                    f"{type(error).__name__}: {error}" + (hint if whole else "")
                ) from error
            if features:
                hook.remove()
                found = seen[0]
            found = one_tensor(self._module, found)
            if found.shape[:1] != (2,):
                raise ConfigError(
                    f"{type(self._module).__name__} makes outputs of shape {tuple(found.shape)} of two inputs: the "
                    "first dimension must be the inputs'."
                )
            self._known[key] = tuple(found.shape[1:])
        return self._known[key]


# ----- the module as a function that JAX can differentiate ------------------------------------------------


def _function(handle: Handle, layout: Layout, shapes: _Shapes, train: bool, features: bool) -> Any:
    """(tensors, floats, ints, inputs, mask, key) → (outputs, floats, ints), with a gradient for the tensors."""
    entries = _stored(layout)

    def given(tensors: Any, floats: Array, ints: Array, inputs: Array, mask: Any, key: Any) -> dict[str, Any]:
        values = {"p:" + e.name: t for e, t in zip(entries, tensors, strict=True)}
        values |= {"floats": floats, "ints": ints, "inputs": inputs}
        return values | ({} if mask is None else {"mask": mask}) | ({} if key is None else {"key": key})

    @jax.custom_vjp
    def run(tensors: Any, floats: Array, ints: Array, inputs: Array, mask: Any, key: Any) -> Any:
        outputs = (inputs.shape[0], *shapes.of(inputs, features))
        wanted = {
            "outputs": _shape(outputs),
            "floats": _shape(floats.shape),
            "ints": _shape(ints.shape, jnp.int32),
        }
        found = ask(
            handle, Pass(False, train, features), given(tensors, floats, ints, inputs, mask, key), wanted
        )
        return found["outputs"], found.get("floats", floats), found.get("ints", ints)

    def forward(*arguments: Any) -> Any:
        return run(*arguments), arguments

    def backward(arguments: Any, cotangents: Any) -> Any:
        wanted = {"g:" + e.name: _shape(e.shape) for e in entries}
        values = given(*arguments) | {"cotangent": cotangents[0]}
        found = ask(handle, Pass(True, train, features), values, wanted)
        gradients = tuple(found.get("g:" + e.name, jnp.zeros(e.shape)) for e in entries)
        return gradients, *(None,) * 5

    run.defvjp(forward, backward)
    return run


def _shape(shape: tuple[int, ...], dtype: Any = _FLOAT) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


# ----- the solver -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TorchOutside(Outside):
    """PyTorch's own local solver; see `Outside`."""

    module: nn.Module
    options: Options
    handle: Handle
    frozen: Mapping[str, np.ndarray]
    host: Handle | None = None
    _bound: dict[Any, Any] = field(default_factory=dict)

    def loss(self, loss: Any) -> Any:
        """See `Outside`."""
        if loss in _OWN or isinstance(loss, TorchLoss):
            return loss
        return TorchLoss(loss)

    def bind(self, task: Any, columns: Mapping[str, np.ndarray], layout: Layout) -> "TorchOutside":
        """See `Outside`."""
        names = (task.input, task.target)
        loss = _OWN.get(task.loss) or task.loss.given
        key = (tuple(id(columns[n]) for n in names), names, loss, layout)
        if key not in self._bound:
            self._bound.clear()
            kept = {n: np.asarray(columns[n]) for n in names}
            make = partial(Functional, self.module, form_of(layout), self.options)
            host = TorchHost(make, kept, names, loss)
            forget_with(host)
            bound = replace(self, host=Handle(host, here=self.handle.here))
            self._bound[key] = (bound, columns)
        found: TorchOutside = self._bound[key][0]
        return found

    def prepare(self) -> None:
        """See `Outside`."""
        if self.host is not None and not self.host.here:
            pool().prepare(self.host.host)

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
        job = Solve(shared.batch_size, repeats, rule, span, "prox" in arrays)
        given = dict(arrays) | self._numbers(rule, shared, factor, shared.max_steps * repeats)
        given |= {
            "prox": jnp.asarray(arrays.get("prox", 0.0), _FLOAT), "steps": client.steps, "row": client.start,
            "size": client.size, "client": client.client, "key": client.key, "floats": shared.floats,
            "ints": shared.ints,
        }  # fmt: skip
        if shared.batch_size:
            given |= {"first": client.first, "order": shared.order}
        layout = shared.layout
        wanted = {"w": _shape((d,)), "loss": _shape(()), "floats": _shape((layout.buffer_size,))}
        found = ask(self.host, job, given, wanted | {"ints": _shape((layout.counter_size,), jnp.int32)})
        floats, ints = found.get("floats", shared.floats), found.get("ints", shared.ints)
        return found["w"], found["loss"], floats, ints

    def failed(self) -> list[Any]:
        """See `Outside`."""
        handles = [self.handle] if self.host is None else [self.handle, self.host]
        return [failure for handle in handles for failure in handle.taken()]

    def gain(self, shared: Shared, prox: Any, factor: Any, steps: Array, longest: int) -> Any:
        """See `Outside`."""
        rule = rule_of(shared.optimizer)
        if rule is None or rule.factory is None:
            return None
        values = [
            0.1 if isinstance(v, jax.core.Tracer) else float(v) for v in _values(rule, shared.optimizer)
        ]
        if not is_linear(rule, values):
            raise ConfigError(
                "This method divides by the displacement per unit of gradient (`gain`), which the local optimizer "
                f"{rule.factory.__name__} does not have: its steps are not linear in the gradients. Use dure.sgd(…) or "
                "torch.optim.SGD."
            )
        given = self._numbers(rule, shared, factor, longest)
        given |= {"prox": jnp.asarray(prox, _FLOAT), "steps": steps}
        return ask(self.handle, Path(rule), given, {"gain": _shape(())})["gain"]

    def _numbers(self, rule: Rule, shared: Shared, factor: Any, longest: int) -> dict[str, Any]:
        scale = shared.optimizer.scale(shared.round)
        values = [jnp.asarray(v, _FLOAT) for v in _values(rule, shared.optimizer)]
        given = {"factor": jnp.asarray(scale, _FLOAT) * jnp.asarray(factor, _FLOAT)}
        given["numbers"] = jnp.stack(values) if values else jnp.zeros(1, _FLOAT)
        if rule.scheduled:
            schedule = shared.optimizer.arguments[_rate_name(rule)]
            with jax.ensure_compile_time_eval():  # a function of an ordinary number, Python's or optax's
                rates = [float(schedule(s)) for s in range(longest)]
            given["rates"] = jnp.asarray(rates, _FLOAT)
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


# ----- the user's loss ------------------------------------------------------------------------------------


class TorchLoss:
    """A PyTorch loss for a `Task`: JAX asks PyTorch for each example's loss and its gradient."""

    def __init__(self, loss: Any):
        self.given = losses.Given(loss)
        self.__name__ = self.given.name
        self._run = _loss_function(Handle(LossHost(self.given), here=True))

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """The loss of each example, (B,)."""
        found: Array = self._run(outputs, targets)
        return found


def _loss_function(handle: Handle) -> Any:
    @jax.custom_vjp
    def run(outputs: Array, targets: Array) -> Array:
        given = {"outputs": outputs, "targets": targets}
        return ask(handle, "value", given, {"losses": _shape(outputs.shape[:1])})["losses"]

    def forward(outputs: Array, targets: Array) -> Any:
        return run(outputs, targets), (outputs, targets)

    def backward(kept: Any, cotangent: Array) -> Any:
        given = {"outputs": kept[0], "targets": kept[1], "cotangent": cotangent}
        return ask(handle, "gradient", given, {"g": _shape(kept[0].shape)})["g"], None

    run.defvjp(forward, backward)
    return run


class LossHost:
    """Answers about a loss alone."""

    def __init__(self, given: losses.Given):
        self._given = given

    def answer(self, job: str, given: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> list[Any]:
        """Losses of each example, or their gradient in the outputs."""
        into = next(iter(wanted.values()))
        for k in range(len(into)):
            mine = {n: torch.from_numpy(np.array(a[k % len(a)])) for n, a in given.items()}
            outputs = mine["outputs"].requires_grad_(job == "gradient")
            found = losses.rows(self._given, outputs, mine["targets"])
            if job == "gradient":
                (found,) = torch.autograd.grad(found, outputs, mine["cotangent"])
            into[k] = found.detach().numpy()
        return []
