"""`Model` from an equinox module. Imported only when one is used."""

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dure.errors import ConfigError
from dure.oracles.layout import Variables
from dure.oracles.model import Model, keep_if_empty


def equinox_model(thing: Any, batched: bool, name: str | None, needs_key: bool | None) -> Model:
    """See `Model.from_equinox`."""
    try:
        eqx: Any = import_module("equinox")
    except ImportError:
        raise ConfigError("equinox is not installed. Install it: pip install 'dure[equinox]'.") from None
    make = _maker(eqx, thing)
    module, state = make(jax.random.key(0))
    name = name or type(module).__name__
    static = eqx.partition(module, eqx.is_inexact_array)[1]
    markers = None if state is None else state.tree_flatten()[1]
    names = [] if markers is None else _state_names(markers)
    takes_key = "key" in inspect.signature(type(module).__call__).parameters
    needs_key = bool(_dropouts(eqx, module)) if needs_key is None else needs_key
    axis = _batch_axis(eqx, module)

    def init(key: Array) -> Variables:
        made, start = make(key)
        params = eqx.partition(made, eqx.is_inexact_array)[0]
        buffers = {} if start is None else dict(zip(names, start.tree_flatten()[0], strict=True))
        return Variables(params, {"state": buffers} if buffers else {})

    def apply(
        variables: Variables,
        inputs: Any,
        *,
        train: bool = False,
        key: Array | None = None,
        mask: Array | None = None,
    ) -> tuple[Any, PyTree]:
        if train and needs_key and key is None:
            raise ConfigError(f"{name} draws random numbers in training: give key= when train=True.")
        whole = eqx.nn.inference_mode(eqx.combine(variables.params, static), value=not train)
        key = key if train else None
        old = None
        if markers:
            # A State may be used once, so each call builds its own.
            old = eqx.nn.State.tree_unflatten(markers, [variables.buffers["state"][n] for n in names])
        if batched:
            outputs, new = _call(whole, inputs, old, key, takes_key)
        else:
            outputs, new = _over_rows(eqx, whole, inputs, old, key, mask, takes_key, axis)
        if not (train and markers):
            return outputs, variables.buffers
        changed = {"state": dict(zip(names, new.tree_flatten()[0], strict=True))}
        return outputs, keep_if_empty(mask, changed, variables.buffers)

    return Model(init, apply, name, needs_key, masked=not (batched and state is not None))


def _maker(eqx: Any, thing: Any) -> Callable[[Array], tuple[Any, Any]]:
    """Key → (module, state or None)."""

    def pair(made: Any) -> tuple[Any, Any]:
        module, state = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not isinstance(module, eqx.Module) or not callable(module):
            raise ConfigError(f"{type(module).__name__} is not an equinox module that can be called.")
        if state is None and _find(module, lambda x: isinstance(x, eqx.nn.StateIndex)):
            raise ConfigError(
                f"{type(module).__name__} has state (such as BatchNorm's) and came without one. Make it with "
                "eqx.nn.make_with_state and give the pair (module, state)."
            )
        if state is not None and not isinstance(state, eqx.nn.State):
            raise ConfigError(f"The second of the pair is a {type(state).__name__}, not an eqx.nn.State.")
        return module, state

    if callable(thing) and not isinstance(thing, eqx.Module):
        return lambda key: pair(thing(key))
    module, state = pair(thing)
    if state is None:
        return lambda key: (module, None)
    values, markers = state.tree_flatten()
    return lambda key: (module, eqx.nn.State.tree_unflatten(markers, values))


def _over_rows(
    eqx: Any, module: Any, inputs: Any, state: Any, key: Any, mask: Any, takes_key: bool, axis: Any
) -> tuple[Any, Any]:
    """Call a module that takes one example on every row of a batch."""
    rows = jax.tree.leaves(inputs)[0].shape[0]
    # Key i depends on i only, so that padding a batch doesn't change what its rows draw.
    keys = None if key is None else jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(rows))
    mask = jnp.ones(rows, jnp.float32) if mask is None else mask

    def one(x: Any, present: Array, key: Any) -> tuple[Any, Any]:
        told = module if axis is None else _tell_batch_norm(eqx, module, present)
        return _call(told, x, state, key, takes_key)

    over = None if keys is None else 0
    return jax.vmap(one, (0, 0, over), (0, None), axis_name=axis)(inputs, mask, keys)


def _call(module: Any, x: Any, state: Any, key: Any, takes_key: bool) -> tuple[Any, Any]:
    given = {"key": key} if takes_key else {}
    if state is None:
        return module(x, **given), None
    outputs, state = module(x, state, **given)
    return outputs, state


def _find(module: Any, is_it: Callable[[Any], bool]) -> list[Any]:
    return [x for x in jax.tree.leaves(module, is_leaf=is_it) if is_it(x)]


def _dropouts(eqx: Any, module: Any) -> list[Any]:
    """The Dropout layers that do something."""
    found = _find(module, lambda x: isinstance(x, eqx.nn.Dropout))
    return [x for x in found if isinstance(x.p, jax.Array) or x.p > 0]


def _batch_axis(eqx: Any, module: Any) -> Any:
    """The axis name of the BatchNorm layers, or None without any."""
    norms = _find(module, lambda x: isinstance(x, eqx.nn.BatchNorm))
    axes = {norm.axis_name for norm in norms}
    if len(axes) > 1 or any(not isinstance(a, str) for a in axes):
        raise ConfigError(
            f"The BatchNorm layers use the axes {sorted(map(str, axes))}; dure maps over one batch axis. "
            'Give all of them one axis_name, such as "batch".'
        )
    return axes.pop() if axes else None


def _state_names(markers: Any) -> list[str]:
    """Names such as "norm/batch_state_index" for markers such as ".norm.batch_state_index"."""
    return ["/".join(re.findall(r"\w+", m)) if isinstance(m, str) else str(i) for i, m in enumerate(markers)]


def _tell_batch_norm(eqx: Any, module: Any, present: Array) -> Any:
    """The module with each BatchNorm knowing whether the row at hand is there."""

    class MaskedBatchNorm(eqx.Module):  # type: ignore[misc]
        """eqx.nn.BatchNorm whose means over the batch axis leave out padded rows."""

        inner: Any
        present: Array

        def __call__(self, x: Array, state: Any, *, key: Any = None, inference: Any = None) -> Any:
            bn = self.inner
            off = bn.inference if inference is None else inference
            if off:
                return bn(x, state, key=key, inference=True)
            mean, var = _masked_statistics(x, self.present, bn.axis_name)
            mean, var, state = _update(bn, state, mean, var)
            shape = (-1,) + (1,) * (x.ndim - 1)
            y = (x - mean.reshape(shape)) / jnp.sqrt(var.reshape(shape) + bn.eps)
            if bn.channelwise_affine:
                y = y * bn.weight.reshape(shape) + bn.bias.reshape(shape)
            return y, state

    def is_norm(x: Any) -> bool:
        return isinstance(x, eqx.nn.BatchNorm)

    def told(x: Any) -> Any:
        return MaskedBatchNorm(x, present) if is_norm(x) else x

    return jax.tree.map(told, module, is_leaf=is_norm)


def _masked_statistics(x: Array, present: Array, axis: str) -> tuple[Array, Array]:
    """Mean and biased variance per channel over the batch axis' present rows and x's other dimensions."""
    inner = tuple(range(1, x.ndim))
    weight = (present > 0).astype(x.dtype)
    psum: Any = jax.lax.psum
    total = jnp.maximum(psum(weight, axis), 1)

    def mean(y: Array) -> Array:
        summed: Array = psum(weight * jnp.mean(y, inner), axis)
        return summed / total

    centre = mean(x)
    return centre, mean(jnp.square(x - centre.reshape((-1,) + (1,) * (x.ndim - 1))))


def _update(bn: Any, state: Any, mean: Array, var: Array) -> tuple[Array, Array, Any]:
    """The statistics to normalise with, and the new state: the two modes of eqx.nn.BatchNorm."""
    keep = bn.momentum
    if bn.mode == "ema":
        first = state.get(bn.ema_first_time_index)
        old_mean, old_var = state.get(bn.ema_state_index)
        mean = jnp.where(first, mean, (1 - keep) * mean + keep * old_mean)
        var = jnp.where(first, var, (1 - keep) * var + keep * old_var)
        state = state.set(bn.ema_first_time_index, jnp.array(False))
        return mean, var, state.set(bn.ema_state_index, (mean, var))
    old_mean, old_var = state.get(bn.batch_state_index)
    state = state.set(bn.batch_counter, state.get(bn.batch_counter) + 1)
    new = (old_mean * keep + mean * (1 - keep), old_var * keep + var * (1 - keep))
    return mean, var, state.set(bn.batch_state_index, new)
