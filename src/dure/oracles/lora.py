"""`lora`: a model with low-rank adapters, of which only these are trained."""

import glob
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dure.errors import ConfigError
from dure.oracles import tensors as t
from dure.oracles.adapter import Adapter, matrix
from dure.oracles.layout import Layout, Variables
from dure.oracles.model import Model, as_model, comes_from


def lora(
    base: Any,
    *,
    targets: str | Sequence[str],
    rank: int = 8,
    alpha: float = 16.0,
    train: str | Sequence[str] = (),
    weights: Any = None,
    inputs_last: bool | None = None,
    example_input: Any = None,
) -> Model:
    """The model with a low-rank adapter on each weight that is a target: it computes with W + (α/r) B A.

    The base's parameters are frozen: they are neither trained nor sent, and clients are taken to have them. B begins
    at zero and A at random (variance 1/inputs, from the run's seed), so training starts at the base model. Every
    method works on the adapters as on any parameters; FedIT, FFALoRA, FlexLoRA, FedExLoRA and FLoRA know what they
    mean. `dure.merge_lora` makes the model without adapters of a trained one.

    Args:
        base: anything that `as_model` takes: a `Model`, functions, a flax, equinox or PyTorch module. A PyTorch
            module is copied; its `nn.Linear` layers get the adapters.
        targets: name patterns of the weights, such as "*attention*" (as in a shell; a folder stands for all in it).
            Vectors and biases that they match too stay as they are. A tensor with more than two dimensions is folded to
            the matrix with the smallest adapters. For PyTorch, names of layers or of their weights.
        rank: r ≥ 1, at most the smaller side of each weight.
        alpha: α > 0.
        train: patterns of the base's parameters that are trained and sent as well, such as a head.
        weights: the base's parameters: its own pytree (a run's `model`), a state dict, or `Variables`; None: those
            of its `init`. A PyTorch module holds its own.
        inputs_last: whether a weight is (outputs, inputs), as in PyTorch and equinox, or (inputs, outputs); it says
            which side A is on. None: True for PyTorch and equinox modules, else False.
        example_input: an input batch, for flax modules.

    Raises:
        ConfigError: a target that matches no matrix, a rank above a weight's smaller side, a tied weight, a pattern
            without a match, weights of another structure, a model that has adapters, a value of another kind.
    """
    _check_numbers(rank, alpha)
    rank, alpha = int(rank), float(alpha)
    if inputs_last not in (None, True, False):
        raise ConfigError(f"inputs_last={inputs_last!r} is not allowed: it must be True, False or None.")
    targets, train = _patterns("targets", targets), _patterns("train", train)
    if not targets:
        raise ConfigError("targets is empty: name at least one weight, such as targets=['*attention*'].")
    last = comes_from(base, "equinox") or (isinstance(base, tuple) and comes_from(base[0], "equinox"))
    model = as_model(base, example_input)
    if model.adapters or model.frozen:
        raise ConfigError(f"Model {model.name!r} has adapters already.")
    if model.outside is not None:
        if not hasattr(model.outside, "module"):
            raise ConfigError(f"{model.name!r} is a function, and has no weights to adapt.")
        if weights is not None:
            raise ConfigError("weights= is for JAX models: load them into the PyTorch module before.")
        from dure.oracles.pytorch.lora import torch_lora

        return torch_lora(model, targets, rank, alpha, train)
    start = None if weights is None else _given(model, weights)
    variables = start or model.init(jax.random.key(0))
    names, leaves = t.named_leaves(variables.params, "params")
    shapes = {n: tuple(int(s) for s in np.shape(x)) for n, x in zip(names, leaves, strict=True)}
    chosen = choose(names, shapes, targets, train)
    _check_ties(t.find_ties(names, leaves), chosen)
    last = last if inputs_last is None else inputs_last
    adapters = tuple(_adapter(n, shapes[n], rank, alpha, last) for n in chosen)
    taken = [n for x in adapters for n in (x.a, x.b) if n in shapes]
    if taken:
        raise ConfigError(f"The base has a parameter {taken[0]!r}, which is the adapter's name: rename it.")
    trained = t.match("train", names, train)
    frozen = tuple(glob.escape(n) for n in names if not trained[n])
    return _adapted(model, adapters, start, names, jax.tree.structure(variables.params), frozen)


def _adapted(
    base: Model,
    adapters: tuple[Adapter, ...],
    start: Variables | None,
    names: list[str],
    structure: Any,
    frozen: tuple[str, ...],
) -> Model:
    """The base with its parameters by name and the adapters beside them."""

    def init(key: Array) -> Variables:
        variables = base.init(key) if start is None else start
        params = dict(zip(names, jax.tree.leaves(variables.params), strict=True))
        for i, adapter in enumerate(adapters):
            own = jax.random.fold_in(jax.random.fold_in(key, 0x10AA), i)
            params[adapter.a] = adapter.fresh(own)
            params[adapter.b] = jnp.zeros((adapter.outputs, adapter.rank), jnp.float32)
        return Variables(params, variables.buffers)

    def merged(variables: Variables) -> Variables:
        params = dict(variables.params)
        for x in adapters:
            weight = jnp.asarray(params[x.weight])
            whole = weight.astype(jnp.float32) + x.added(params[x.b], params[x.a])
            params[x.weight] = whole.astype(weight.dtype)
        return Variables(structure.unflatten([params[n] for n in names]), variables.buffers)

    def apply(variables: Variables, inputs: Any, **how: Any) -> tuple[Any, PyTree]:
        return base.apply(merged(variables), inputs, **how)

    def represent(variables: Variables, inputs: Any, **how: Any) -> Any:
        assert base.features is not None
        return base.features(merged(variables), inputs, **how)

    name = f"lora({base.name}, rank={adapters[0].rank})"
    return Model(
        init,
        apply,
        name,
        base.needs_key,
        base.masked,
        None if base.features is None else represent,
        frozen=frozen,
        adapters=adapters,
    )


# ----- what is adapted ------------------------------------------------------------------------------------


def choose(
    names: Sequence[str],
    shapes: dict[str, tuple[int, ...]],
    targets: Sequence[str],
    train: Sequence[str],
) -> list[str]:
    """The names of the matrices that are targets.

    Raises:
        ConfigError: a pattern matches no matrix; a matrix is a target and trained.
    """
    for pattern in targets:
        hits = [n for n, hit in t.match("targets", names, [pattern]).items() if hit]
        if not any(_is_matrix(n, shapes[n]) for n in hits):
            shown = ", ".join(f"{n} {shapes[n]}" for n in hits[:5])
            raise ConfigError(
                f"targets pattern {pattern!r} matches only vectors and biases ({shown}), and a low-rank adapter is "
                "for a matrix. Name a weight, or train them with train=."
            )
    matched, trained = t.match("targets", names, targets), t.match("train", names, train)
    chosen = [n for n in names if matched[n] and _is_matrix(n, shapes[n])]
    both = [n for n in chosen if trained[n]]
    if both:
        raise ConfigError(
            f"{both[0]!r} is a target and matched by train= too: adapt it or train it, not both."
        )
    return chosen


def _is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Whether a low-rank adapter is for it: biases of several heads have two dimensions too."""
    return len(shape) >= 2 and not name.endswith("bias")


def check_rank(name: str, shape: tuple[int, ...], rank: int) -> None:
    """A matrix has no more than its smaller side of ranks.

    Raises:
        ConfigError: the rank is larger.
    """
    rows, columns = matrix(shape)
    if rank > min(rows, columns):
        raise ConfigError(
            f"rank={rank} is more than {name!r} of shape {shape} has, {min(rows, columns)}. Take a smaller rank, or "
            "train it whole with train=."
        )


def _adapter(name: str, shape: tuple[int, ...], rank: int, alpha: float, inputs_last: bool) -> Adapter:
    check_rank(name, shape, rank)
    rows, columns = matrix(shape)
    inputs, outputs = (columns, rows) if inputs_last else (rows, columns)
    a, b = f"{name}.lora_A", f"{name}.lora_B"
    return Adapter(name, name, a, b, shape, inputs, outputs, rank, alpha / rank, inputs_last)


def _check_numbers(rank: Any, alpha: Any) -> None:
    if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 1:
        raise ConfigError(f"rank={rank!r} is not allowed: it must be an integer of at least 1.")
    number = isinstance(alpha, int | float | np.integer | np.floating) and not isinstance(alpha, bool)
    if not number or not 0 < alpha < float("inf"):
        raise ConfigError(f"alpha={alpha!r} is not allowed: it must be a positive number.")


def _patterns(keyword: str, given: Any) -> tuple[str, ...]:
    """One pattern or several.

    Raises:
        ConfigError: something else.
    """
    found = (given,) if isinstance(given, str) else given
    if not isinstance(found, Sequence | set | frozenset) or not all(isinstance(p, str) for p in found):
        raise ConfigError(f"{keyword}={given!r} is not allowed: give a name pattern, or a list of them.")
    return tuple(found)


def _check_ties(ties: dict[str, str], chosen: Sequence[str]) -> None:
    for name, owner in ties.items():
        if name in chosen or owner in chosen:
            raise ConfigError(
                f"{name!r} and {owner!r} are one tensor (tied), and a target: what an adapter adds to one place can't "
                "be merged into both. Leave it out of targets."
            )


def _given(model: Model, weights: Any) -> Variables:
    """The base's variables, checked against its own."""
    own = model.init(jax.random.key(0))
    layout = Layout.of(own)
    try:
        if isinstance(weights, Mapping) and set(weights) == {e.name for e in layout.entries}:
            w, floats, ints = layout.from_state_dict(weights)
            return Variables(layout.unflatten_params(w), layout.unflatten_buffers(floats, ints))
        given = weights if isinstance(weights, Variables) else Variables(weights, own.buffers)
        layout.flatten_params(given.params)
        layout.flatten_buffers(given.buffers)
    except ConfigError as error:
        raise ConfigError(f"weights= don't fit model {model.name!r}: {error}") from error
    return given
