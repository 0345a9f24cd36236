"""A model: how variables begin, and what they make of a batch.

Whatever framework it comes from, a model is two pure functions. Everything else in dure (oracles, the
engine, evaluation) speaks to these two only.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from dure.errors import ConfigError
from dure.oracles.adapter import Adapter
from dure.oracles.layout import Variables

_KEYWORDS = ("train", "key", "mask", "buffers")


class Outside:
    """What a framework that XLA can't compile does by itself, where going through `Model.apply` would be slow.

    Attributes:
        frozen: tensors by name that are neither trained nor sent; they belong to the model's state dict.
        predicts: whether `Model.apply` can be asked for outputs.
        measured: whether schedules may be tried out on the first round's work.
        vectorises: whether many clients can gain by running together.
        local_work: what a client's work is made of: "steps" (the run's epochs, batches and optimizer hold), "epochs"
            (only the number of epochs does), "exact" or "own" (none of them does).
        clients: the number of clients that it is made for, or None for any.
        estimator: the scikit-learn estimator that this is, or None.
    """

    frozen: Mapping[str, Any]
    predicts: bool = True
    measured: bool = True
    vectorises: bool = True
    local_work: str = "steps"
    clients: int | None = None
    estimator: Any = None

    def loss(self, loss: Any) -> Any:
        """A task's loss, (outputs, targets) → (B,), as JAX can call it."""
        raise NotImplementedError

    def bind(self, task: Any, columns: Mapping[str, Any], layout: Any, executor: str) -> "Outside":
        """For a task on these training rows (n, …) and this layout of the parameters, asked where `executor` says."""
        raise NotImplementedError

    def prepare(self, devices: int) -> None:
        """Start what so many devices will ask, without waiting for it."""

    def solve(
        self,
        shared: Any,
        client: Any,
        arrays: Mapping[str, Array],
        factor: Any,
        repeats: int,
        train: str | None,
    ) -> Any:
        """The local problem: (w (d,), mean loss, float buffers (b,), counters (c,)), or None if it can't.

        Args:
            shared: what all clients of the round share, with the optimizer.
            client: the client's plan.
            arrays: start (d,), and where they are wanted linear, prox, anchor, x and gx, the variance
                reduction's point and gradient, and frozen (f,), the frozen parameters in the place of its own.
            factor: on every displacement.
            repeats: how many times the plan is gone through.
            train: "shared", "private" or None for all parameters.
        """
        raise NotImplementedError

    def value(self, shared: Any, client: Any, w: Array) -> Any:
        """(F_k(w), ∇F_k(w) (d,)) over all of the client's rows, or None if they follow from the task's loss."""
        return None

    def gain(self, shared: Any, prox: Any, factor: Any, steps: Array, longest: int) -> Any:
        """The optimizer's displacement per unit of constant gradient, or None if JAX knows the optimizer."""
        raise NotImplementedError

    def failed(self, task: Any) -> list[Any]:
        """Failures in the task's model and loss (client or None, stage, message, trace) since this was last asked."""
        raise NotImplementedError


@dataclass(frozen=True)
class Model:
    """Two pure functions and what one must know about them.

    Attributes:
        init: key → `Variables`.
        apply: `apply(variables, inputs, *, train, key, mask)` → (outputs, new buffers). `train` is a
            Python bool; `key` a typed JAX key or None; `mask` (B,) float32, 1 for rows that are there and
            0 for padding, or None when all are. With train=False the buffers come back unchanged.
        name: for records.
        needs_key: True if training draws random numbers (dropout); apply then wants `key`.
        masked: True if padded rows (mask 0) reach nothing but their own outputs: rows are independent,
            or the batch statistics leave them out. When False, batches must not be padded.
        features: like `apply`, but returns the representation (B, p) before the last layer; None: unknown.
        outside: for models of a framework that XLA can't compile.
        frozen: names of parameters that are neither trained nor sent.
        adapters: the low-rank adapters among the parameters (`dure.lora`).
    """

    init: Callable[[Array], Variables]
    apply: Callable[..., tuple[Any, PyTree]]
    name: str = "model"
    needs_key: bool = False
    masked: bool = True
    features: Callable[..., Any] | None = None
    outside: Outside | None = None
    frozen: tuple[str, ...] = ()
    adapters: tuple[Adapter, ...] = ()

    @staticmethod
    def from_functions(
        init: Callable[..., Any],
        apply: Callable[..., Any],
        *,
        name: str | None = None,
        features: Callable[..., Any] | None = None,
    ) -> "Model":
        """A model from pure functions.

        Args:
            init: key → parameters (any pytree of float arrays), or key → `Variables(params, buffers)`.
            apply: `apply(params, x)` → outputs. It may also have parameters named `train` (bool), `key`
                (None when train is False), `mask` ((B,) float32, 0 for padded rows) and `buffers`; each is
                passed by name when the signature has it. With `buffers` it returns (outputs, new buffers).
                Without `mask` and `buffers` the rows of a batch are taken to be independent.
            name: for records; by default the name of `apply`.
            features: with the parameters of `apply`; returns the representation (B, p) before the last
                layer, for methods that compare representations (MOON).

        Raises:
            ConfigError: a signature that can't be called like this, with what is in the way.
        """
        wanted = _keywords(apply)
        _check_init(init)
        stateful = "buffers" in wanted

        def initial(key: Array) -> Variables:
            made = init(key)
            variables = made if isinstance(made, Variables) else Variables(made, {})
            if jax.tree.leaves(variables.buffers) and not stateful:
                raise ConfigError(
                    f"init returns buffers, but {_called(apply)} has no parameter `buffers`. Add one and "
                    "return (outputs, new_buffers)."
                )
            return variables

        def forward(
            variables: Variables,
            inputs: Any,
            *,
            train: bool = False,
            key: Array | None = None,
            mask: Array | None = None,
        ) -> tuple[Any, PyTree]:
            if train and key is None and "key" in wanted:
                raise ConfigError(f"{_called(apply)} takes a key: give key= when train=True.")
            given = {
                "train": train,
                "key": key if train else None,
                "mask": mask,
                "buffers": variables.buffers,
            }
            result = apply(variables.params, inputs, **{k: v for k, v in given.items() if k in wanted})
            if not stateful:
                return result, variables.buffers
            if not (isinstance(result, tuple) and len(result) == 2):
                raise ConfigError(
                    f"{_called(apply)} takes `buffers` and must return (outputs, new_buffers); it returned "
                    f"{type(result).__name__}."
                )
            outputs, buffers = result
            return outputs, keep_if_empty(mask, buffers, variables.buffers) if train else variables.buffers

        def represent(
            variables: Variables, inputs: Any, *, train: bool, key: Array | None, mask: Array | None
        ) -> Any:
            given = {"train": train, "key": key, "mask": mask, "buffers": variables.buffers}
            assert features is not None
            found = features(variables.params, inputs, **{k: given[k] for k in _keywords(features)})
            return found[0] if isinstance(found, tuple) else found

        return Model(
            initial,
            forward,
            name or str(getattr(apply, "__name__", "model")),
            needs_key="key" in wanted,
            masked="mask" in wanted or not stateful,
            features=None if features is None else represent,
        )

    @staticmethod
    def from_flax(
        module: Any, example_input: Any, *, name: str | None = None, rngs: tuple[str, ...] = ("dropout",)
    ) -> "Model":
        """A model from a `flax.linen` module.

        All collections but "params" are buffers. The train/eval switch is found by the usual names (`train`,
        `training`, `is_training`, `deterministic`, `use_running_average`); a BatchNorm or Dropout that the
        module doesn't switch follows dure's `train`. Padded rows are kept out of BatchNorm's statistics.

        flax's conventions hold: its momentum 0.99 keeps 99 % of the old statistic (torch writes that 0.01),
        and its running variance is the biased one (divided by n, where torch divides by n − 1).

        Args:
            module: the module, not yet bound.
            example_input: one input batch (or anything with shape and dtype), for shapes.
            name: for records; by default the class' name.
            rngs: names of the random streams that the module draws from in training.

        Raises:
            ConfigError: flax is not installed, the module isn't a linen module, or its call doesn't work on
                the example.
        """
        from dure.oracles.adapters_flax import linen_model

        return linen_model(module, example_input, name, rngs)

    @staticmethod
    def from_equinox(
        module: Any, *, batched: bool = False, name: str | None = None, needs_key: bool | None = None
    ) -> "Model":
        """A model from an `equinox` module.

        Inexact arrays are parameters; all else (functions, integer arrays, flags) is closed over. The module
        is put in inference mode when train is False. Padded rows are kept out of `eqx.nn.BatchNorm`.

        Args:
            module: a module, a pair (module, state) as from `eqx.nn.make_with_state`, or a function
                key → module (or pair). Only the function makes the start depend on the seed: a module starts
                from the arrays that it holds.
            batched: True if the module takes a whole batch; False (equinox' habit) if it takes one example.
            name: for records; by default the class' name.
            needs_key: whether training draws random numbers; None: if there is a Dropout inside.

        Raises:
            ConfigError: equinox is not installed, or this is no equinox module.
        """
        from dure.oracles.adapters_equinox import equinox_model

        return equinox_model(module, batched, name, needs_key)

    @staticmethod
    def from_torch(
        module: Any,
        *,
        name: str | None = None,
        device: str = "cpu",
        autocast: str | None = None,
        microbatch: int | None = None,
        features: str | None = None,
    ) -> "Model":
        """A model from a `torch.nn.Module`, trained by PyTorch in worker processes (on a GPU, in this one).

        Parameters that require a gradient are trained; the others stay as they are, are not sent, and are in
        the state dict. Buffers of the state dict are averaged (counters: the largest is kept). A parameter with
        two names is one tensor.

        Args:
            module: the module, or a function without arguments that makes one. Only the function makes the
                start depend on the seed: a module starts from the values that it holds. It is copied.
            name: for records; by default the class' name.
            device: where it is trained: "cpu", "cuda", "cuda:1", "mps".
            autocast: "bfloat16" or "float16": mixed precision in the forward pass.
            microbatch: most rows of one pass; the gradient of a larger batch is accumulated.
            features: name of the submodule whose input is the representation, such as the last layer's; for
                methods that compare representations (MOON).

        Raises:
            ConfigError: not a module, nothing to train, an unknown submodule.
        """
        from dure.oracles.pytorch.functional import Options
        from dure.oracles.pytorch.model import torch_model

        return torch_model(module, name, Options(device, autocast, microbatch, features))


def as_model(thing: Any, example_input: Any = None) -> Model:
    """A `Model` from what a user has.

    Args:
        thing: a `Model`, a pair of functions (init, apply), a `torch.nn.Module`, a `flax.linen` module, an
            equinox module, or a pair (equinox module, state).
        example_input: an input batch; needed for flax modules.

    Raises:
        ConfigError: none of these, or a flax module without an example.
    """
    if isinstance(thing, Model):
        return thing
    if comes_from(thing, "flax.linen"):
        if example_input is None:
            raise ConfigError(
                f"{type(thing).__name__} is a flax module and needs an example to find its shapes: "
                "as_model(module, example_input) or Model.from_flax(module, example_input)."
            )
        return Model.from_flax(thing, example_input)
    if comes_from(thing, "torch.nn"):
        return Model.from_torch(thing)
    if comes_from(thing, "equinox") or (
        isinstance(thing, tuple) and len(thing) == 2 and comes_from(thing[0], "equinox")
    ):
        return Model.from_equinox(thing)
    if isinstance(thing, tuple) and len(thing) == 2 and callable(thing[0]) and callable(thing[1]):
        return Model.from_functions(*thing)
    if comes_from(thing, "sklearn"):
        raise ConfigError(
            f"{type(thing).__name__} is a scikit-learn estimator, which brings its own loss: give it to simulate in "
            "the place of the task, or dure.scikit_learn(estimator, data)."
        )
    if comes_from(thing, "flax.nnx"):
        raise ConfigError(
            f"{type(thing).__name__} is a flax.nnx module. Give its pure functions: with graph, state = "
            "nnx.split(module), the pair (lambda key: state, lambda state, x: nnx.merge(graph, state)(x))."
        )
    raise ConfigError(
        f"{type(thing).__name__} is not a model. Give a dure.Model, a pair (init, apply) of functions, a "
        "torch.nn.Module, a flax.linen module or an equinox module."
    )


def keep_if_empty(mask: Array | None, new: PyTree, old: PyTree) -> PyTree:
    """The new buffers, or the old ones when no row of the batch was there (statistics of nothing)."""
    if mask is None:
        return new
    found: Any = jax.tree.structure(new)
    given: Any = jax.tree.structure(old)
    if found != given:
        raise ConfigError(
            f"The model returned buffers of another structure, {found}, than it was given, {given}. Return "
            "every buffer, changed or not."
        )
    present = jnp.any(mask > 0)
    return jax.tree.map(lambda a, b: jnp.where(present, a, b), new, old)


def comes_from(thing: Any, package: str) -> bool:
    """Whether a class of the package is among the ancestors, without importing the package."""
    return comes_from_class(type(thing), package)


def comes_from_class(kind: type, package: str) -> bool:
    """Whether the class or one of its ancestors is of the package, without importing the package."""
    return any(c.__module__ == package or c.__module__.startswith(package + ".") for c in kind.__mro__)


def _called(function: Callable[..., Any]) -> str:
    return f"apply ({getattr(function, '__name__', type(function).__name__)})"


def _keywords(apply: Callable[..., Any]) -> frozenset[str]:
    """Which of train, key, mask and buffers the function takes by name."""
    parameters = list(inspect.signature(apply).parameters.values())
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    spread = any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if len(positional) < 2 and not spread:
        raise ConfigError(f"{_called(apply)} must take (params, inputs); its signature is {_shown(apply)}.")
    extra = [p for p in parameters if p not in positional[:2]]
    for p in extra:
        required = p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        if required and (p.name not in _KEYWORDS or p.kind == p.POSITIONAL_ONLY):
            raise ConfigError(
                f"{_called(apply)} has a required parameter {p.name!r} that dure can't fill; it passes "
                f"(params, inputs) and by name {', '.join(_KEYWORDS)}. Wrap it: lambda params, x: ….  "
                f"Its signature is {_shown(apply)}."
            )
    return frozenset(p.name for p in extra if p.name in _KEYWORDS and p.kind != p.POSITIONAL_ONLY)


def _check_init(init: Callable[..., Any]) -> None:
    try:
        inspect.signature(init).bind(None)
    except TypeError:
        raise ConfigError(f"init must take one argument, a key; its signature is {_shown(init)}.") from None


def _shown(function: Callable[..., Any]) -> str:
    return str(inspect.signature(function))
