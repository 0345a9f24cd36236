"""A PyTorch module as a `Model`: pure functions for JAX that ask PyTorch."""

from collections.abc import Callable
from copy import deepcopy
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
from dure.oracles.host.bridge import FLOAT, Handle, ask, shape
from dure.oracles.layout import Layout, Variables
from dure.oracles.model import Model
from dure.oracles.pytorch.functional import Functional, Options, as_inputs, one_tensor, represented
from dure.oracles.pytorch.host import Pass, TorchHost
from dure.oracles.pytorch.lora import adapters_of, held
from dure.oracles.pytorch.outside import TorchOutside, form_of
from dure.oracles.tensors import Entry


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
    lazy = [n for n, p in example.named_parameters() if isinstance(p, nn.UninitializedParameter)]
    if lazy:
        raise ConfigError(
            f"{lazy[0]!r} of {type(example).__name__} has no shape yet (a lazy layer): run the module once on an "
            "example before."
        )
    adapters = adapters_of(example)
    adapted = frozenset(a.weight for a in adapters)
    frozen = {
        n: _to_numpy(p)
        for n, p in example.named_parameters(remove_duplicate=False)
        if not p.requires_grad and n not in adapted
    }
    variables = _variables(example, adapted)
    if not set(variables.params) - adapted:
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
        return _variables(_made(make, int(words[0] << np.uint64(31) ^ words[1])), adapted)

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
        frozen=held(adapters),
        adapters=adapters,
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


def _variables(module: nn.Module, adapted: frozenset[str]) -> Variables:
    """Trained and adapted parameters and buffers by name; a tensor with two names is one array under both."""
    arrays: dict[int, np.ndarray] = {}

    def array(tensor: torch.Tensor) -> np.ndarray:
        return arrays.setdefault(id(tensor), _to_numpy(tensor))

    named = module.named_parameters(remove_duplicate=False)
    params = {n: array(p) for n, p in named if p.requires_grad or n in adapted}
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


def _stored(layout: Layout) -> list[Entry]:
    return [e for e in layout.params if e.tied_to is None]


def _vectors(layout: Layout, variables: Variables) -> tuple[tuple[Array, ...], Array, Array]:
    """(stored tensors in float32, float buffers, counters)."""
    leaves = dict(zip((e.name for e in layout.params), jax.tree.leaves(variables.params), strict=True))
    floats, ints = layout.flatten_buffers(variables.buffers)
    return tuple(jnp.asarray(leaves[e.name], FLOAT) for e in _stored(layout)), floats, ints


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

            def run() -> Any:
                return self._module(as_inputs(self._module, example))

            try:
                with torch.no_grad():
                    found = represented(self._module, self._options, run) if features else run()
            except Exception as error:
                hint = ". Whole numbers reach it as int64: make the column float32 if they are no indices."
                shape = ", ".join(["B", *map(str, inputs.shape[1:])])
                raise ConfigError(
                    f"{type(self._module).__name__} fails on inputs of shape ({shape}) and dtype {inputs.dtype}: "
                    f"{type(error).__name__}: {error}" + (hint if whole else "")
                ) from error
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
            "outputs": shape(outputs),
            "floats": shape(floats.shape),
            "ints": shape(ints.shape, jnp.int32),
        }
        found = ask(
            handle, Pass(False, train, features), given(tensors, floats, ints, inputs, mask, key), wanted
        )
        return found["outputs"], found.get("floats", floats), found.get("ints", ints)

    def forward(*arguments: Any) -> Any:
        return run(*arguments), arguments

    def backward(arguments: Any, cotangents: Any) -> Any:
        wanted = {"g:" + e.name: shape(e.shape) for e in entries}
        values = given(*arguments) | {"cotangent": cotangents[0]}
        found = ask(handle, Pass(True, train, features), values, wanted)
        gradients = tuple(found.get("g:" + e.name, jnp.zeros(e.shape)) for e in entries)
        return gradients, *(None,) * 5

    run.defvjp(forward, backward)
    return run
