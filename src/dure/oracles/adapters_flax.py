"""`Model` from a flax.linen module. Imported only when one is used."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dure.errors import ConfigError
from dure.oracles.layout import Variables
from dure.oracles.model import Model, keep_if_empty

_ON = ("train", "training", "is_training")
_OFF = ("deterministic", "use_running_average", "inference")


def linen_model(module: Any, example_input: Any, name: str | None, rngs: tuple[str, ...]) -> Model:
    """See `Model.from_flax`."""
    try:
        nn: Any = import_module("flax.linen")
    except ImportError:
        raise ConfigError("flax is not installed. Install it: pip install 'dure[flax]'.") from None
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{type(module).__name__} is not a flax.linen module.")
    name = name or type(module).__name__
    switch = _switch(module)
    example = jax.tree.map(lambda a: jnp.zeros((1, *jnp.shape(a)[1:]), jnp.result_type(a)), example_input)

    def run(variables: Any, inputs: Any, train: bool, keys: Any, mask: Any, mutable: Any) -> Any:
        with nn.intercept_methods(_interceptor(nn, train, mask)):
            return module.apply(variables, inputs, rngs=keys, mutable=mutable, **switch(train))

    def init(key: Array) -> Variables:
        keys = _keys(key, ("params", *rngs))
        with nn.intercept_methods(_interceptor(nn, False, None)):
            made = dict(nn.unbox(module.init(keys, example, **switch(False))))
        return Variables(made.pop("params", {}), made)

    def apply(
        variables: Variables,
        inputs: Any,
        *,
        train: bool = False,
        key: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Any, PyTree]:
        buffers = variables.buffers
        if train and key is None and needs_key:
            raise ConfigError(f"{name} draws random numbers in training: give key= when train=True.")
        keys = _keys(key, rngs) if train and key is not None else None
        given = {"params": variables.params, **buffers}
        if not (train and buffers):
            return run(given, inputs, train, keys, mask, False), buffers
        outputs, changed = run(given, inputs, train, keys, mask, list(buffers))
        return outputs, keep_if_empty(mask, {**buffers, **changed}, buffers)

    variables = _try(lambda: jax.eval_shape(init, jax.random.key(0)), name, example)
    needs_key = _draws(run, variables, example, name, rngs)
    masked = _unknown_statistics(nn, module, variables, example, switch) == set()
    return Model(init, apply, name, needs_key, masked)


def _keys(key: Array, names: tuple[str, ...]) -> dict[str, Array]:
    return dict(zip(names, jax.random.split(key, len(names)), strict=True)) if names else {}


def _switch(module: Any) -> Callable[[bool], Mapping[str, bool]]:
    """The mode (train or not) → the keyword argument with which this module's call is told it."""
    parameters = inspect.signature(type(module).__call__).parameters
    for word in (*_ON, *_OFF):
        if word in parameters:
            return lambda train: {word: train if word in _ON else not train}
    return lambda train: {}


def _interceptor(nn: Any, train: bool, mask: Array | None) -> Callable[..., Any]:
    """Tells BatchNorm and Dropout what the module leaves open: the mode, and which rows are padding."""

    def intercept(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        module = context.module
        if context.method_name != "__call__":
            return call(*args, **kwargs)
        if isinstance(module, nn.BatchNorm):
            if module.use_running_average is None and len(args) < 2:
                kwargs.setdefault("use_running_average", not train)
            if mask is not None and kwargs.get("mask") is None:
                kwargs["mask"] = _rows(mask, args[0] if args else kwargs["x"], module)
        if isinstance(module, nn.Dropout) and module.deterministic is None and len(args) < 2:
            kwargs.setdefault("deterministic", not train)
        return call(*args, **kwargs)

    return intercept


def _rows(mask: Array, x: Any, module: Any) -> Array:
    """The mask in a shape that broadcasts against x; all rows where there is none, so that no mean is 0/0."""
    if x.shape[0] != mask.shape[0]:
        raise ConfigError(
            f"BatchNorm {'/'.join(module.path)} sees {x.shape[0]} rows of a batch of {mask.shape[0]}, so "
            "padded rows can't be kept out of its statistics. Keep the batch in the first dimension there."
        )
    present = mask > 0
    present = present | ~jnp.any(present)
    return present.reshape((-1,) + (1,) * (x.ndim - 1))


def _try(function: Callable[[], Any], name: str, example: Any) -> Any:
    try:
        return function()
    except ConfigError:
        raise
    except Exception as error:  # whatever the user's module raises
        shapes = jax.tree.map(lambda a: (a.shape, str(a.dtype)), example)
        raise ConfigError(f"{name} can't be called on the example input {shapes}: {error}") from error


def _draws(run: Any, variables: Variables, example: Any, name: str, rngs: tuple[str, ...]) -> bool:
    """Whether training asks for a random stream: run it without one (abstractly) and see."""
    from flax.errors import InvalidRngError

    given = {"params": variables.params, **variables.buffers}
    mutable = list(variables.buffers) or False

    def attempt(keys: Any) -> Any:
        return jax.eval_shape(lambda v, x: run(v, x, True, keys, None, mutable), given, example)

    try:
        attempt(None)
    except InvalidRngError:
        _try(lambda: attempt(_keys(jax.random.key(0), rngs)), name, example)
        return True
    except Exception:
        _try(lambda: attempt(None), name, example)
    return False


def _unknown_statistics(nn: Any, module: Any, variables: Variables, example: Any, switch: Any) -> set[str]:
    """Scopes in "batch_stats" that no flax layer owns: home-made batch statistics, which see the padding."""
    known = set()

    def note(call: Any, args: Any, kwargs: Any, context: Any) -> Any:
        if isinstance(context.module, nn.BatchNorm | nn.SpectralNorm):
            known.add("/".join(context.module.path))
        return call(*args, **kwargs)

    given = {"params": variables.params, **variables.buffers}
    with nn.intercept_methods(note), nn.intercept_methods(_interceptor(nn, False, None)):
        jax.eval_shape(lambda v, x: module.apply(v, x, **switch(False)), given, example)
    paths = jax.tree_util.tree_flatten_with_path(variables.buffers.get("batch_stats", {}))[0]
    owners = {"/".join(str(key.key) for key in path[:-1]) for path, _ in paths}
    return {owner for owner in owners if not any((owner + "/").startswith(k + "/") or not k for k in known)}
