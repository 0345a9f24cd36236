"""Which slice of a flat vector is which tensor, and which group it belongs to.

A model's parameters travel as one float32 vector (d,), whatever their own dtypes are. Float buffers
(running statistics) and integer counters travel beside it as a float32 vector (b,) and an int32 vector
(c,), because they follow other rules: buffers are averaged and never optimised, counters are never
averaged as floats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from dure.errors import ConfigError, did_you_mean

Group = Literal["shared", "private", "buffers", "counters"]

_FLOATS = ("float16", "bfloat16", "float32")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


class Variables(NamedTuple):
    """All that a model carries.

    Attributes:
        params: pytree of float arrays: what is trained.
        buffers: pytree of float arrays (running statistics) and integer or boolean arrays (counters).
    """

    params: PyTree
    buffers: PyTree = {}


@dataclass(frozen=True)
class Entry:
    """One tensor.

    Attributes:
        name: its path in the pytree, such as "dense/kernel".
        shape: its shape; () for a scalar.
        dtype: its own dtype, such as "bfloat16"; in the vectors it is float32 or int32.
        group: "shared" or "private" (parameters), "buffers" (float) or "counters" (integer, boolean).
        start: where it starts in its group's vector (parameters: both groups in one vector).
        stop: where it stops, start + number of elements.
        tied_to: name of the entry whose storage it shares, or None.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: Group
    start: int
    stop: int
    tied_to: str | None = None


@dataclass(frozen=True)
class Layout:
    """The map between a model's named tensors and flat vectors. Make one with `Layout.of`.

    Hashable and immutable, so that it can be a static argument of a compiled function. `entries` has
    the parameters in tree order, then the buffers in tree order. In the parameter vector the shared
    tensors come first.
    """

    entries: tuple[Entry, ...]
    size: int
    shared_size: int
    buffer_size: int
    counter_size: int
    params_tree: jax.tree_util.PyTreeDef
    buffers_tree: jax.tree_util.PyTreeDef

    @classmethod
    def of(cls, variables: Variables, *, private: str | Sequence[str] = (), tie: bool = True) -> "Layout":
        """The layout of a model's variables.

        Args:
            variables: concrete arrays, as `Model.init` returns them. dtypes follow JAX's own rule: with
                64-bit mode off, NumPy's float64 and Python floats are float32.
            private: name patterns (as in a shell: `*`, `?`, `[abc]`; `*` also crosses "/") of parameters
                that never leave the client. The name of a folder stands for all that is in it.
            tie: store an array that is found at several places once (tied weights). False treats every
                place as a tensor of its own.

        Raises:
            ConfigError: a leaf that is not a float array in the parameters (integer, boolean, complex,
                random key, float64 in 64-bit mode, not an array); an unusable buffer; two tensors with
                one name; a pattern that matches no parameter; a tie between shared and private.
        """
        params, params_tree = jax.tree_util.tree_flatten_with_path(variables.params)
        buffers, buffers_tree = jax.tree_util.tree_flatten_with_path(variables.buffers)
        param_names = [_name(path, "params") for path, _ in params]
        buffer_names = [_name(path, "buffers") for path, _ in buffers]
        _unique(param_names + buffer_names)
        is_private = _match(param_names, [private] if isinstance(private, str) else private)
        ties = _ties(param_names, [leaf for _, leaf in params]) if tie else {}
        buffer_ties = _ties(buffer_names, [leaf for _, leaf in buffers]) if tie else {}
        for name, owner in ties.items():
            if is_private[name] != is_private[owner]:
                inside, outside = (name, owner) if is_private[name] else (owner, name)
                raise ConfigError(
                    f"private={private!r} matches {inside!r}, which is tied to {outside!r}, which it does "
                    "not match: one tensor can't be both private and shared. Match both or neither."
                )

        groups: list[Group] = ["private" if is_private[n] else "shared" for n in param_names]
        kinds = [_param_dtype(n, leaf) for n, (_, leaf) in zip(param_names, params, strict=True)]
        groups += ["buffers" if _buffer_dtype(n, leaf) in _FLOATS else "counters"
                   for n, (_, leaf) in zip(buffer_names, buffers, strict=True)]  # fmt: skip
        kinds += [_buffer_dtype(n, leaf) for n, (_, leaf) in zip(buffer_names, buffers, strict=True)]
        shapes = [tuple(int(s) for s in np.shape(leaf)) for _, leaf in params + buffers]
        entries, sizes = _place(param_names + buffer_names, shapes, kinds, groups, {**ties, **buffer_ties})
        return cls(
            entries, sizes["private"], sizes["shared"], sizes["buffers"], sizes["counters"],
            params_tree, buffers_tree,
        )  # fmt: skip

    @property
    def params(self) -> tuple[Entry, ...]:
        """The entries of the parameters, in tree order."""
        return self.entries[: self.params_tree.num_leaves]

    @property
    def buffers(self) -> tuple[Entry, ...]:
        """The entries of float buffers and counters, in tree order."""
        return self.entries[self.params_tree.num_leaves :]

    def slice(self, group: str) -> slice:
        """Where a group lies in its vector.

        Args:
            group: "shared" or "private" (in the parameter vector), "buffers" or "counters" (in theirs).

        Raises:
            ConfigError: no such group.
        """
        places = {
            "shared": slice(0, self.shared_size),
            "private": slice(self.shared_size, self.size),
            "buffers": slice(0, self.buffer_size),
            "counters": slice(0, self.counter_size),
        }
        if group not in places:
            raise ConfigError(f"Unknown group {group!r}. {did_you_mean(group, get_args(Group))}")
        return places[group]

    def flatten_params(self, params: PyTree) -> Float[Array, " d"]:
        """The float32 vector (d,) of a parameter pytree. Traceable.

        Raises:
            ConfigError: another structure, shape or kind than the layout's, named; tied places that
                hold different values.
        """
        leaves = _check(params, self.params, "params", concrete_ties=True)
        # `params` is in tree order and the vector has the shared tensors first.
        order = sorted(
            (e.start, i) for i, e in enumerate(self.params) if e.tied_to is None and e.start < e.stop
        )
        return _join([leaves[i] for _, i in order], jnp.float32)

    def unflatten_params(self, vector: Float[Array | np.ndarray, " d"], dtype: Any = None) -> PyTree:
        """The parameter pytree of a vector (d,). Traceable: slices, reshapes and casts only.

        Args:
            vector: as from `flatten_params`.
            dtype: dtype of all leaves, such as `jnp.float32`; None gives each leaf its own.

        Raises:
            ConfigError: the vector has another shape than (d,).
        """
        vector = _vector(vector, self.size, "parameter")
        return self.params_tree.unflatten([_cut(vector, e, dtype or e.dtype) for e in self.params])

    def flatten_buffers(self, buffers: PyTree) -> tuple[Float[Array, " b"], Int[Array, " c"]]:
        """The float32 vector (b,) of the float buffers and the int32 vector (c,) of the counters. Traceable.

        Raises:
            ConfigError: another structure, shape or kind than the layout's; a counter outside int32.
        """
        leaves = _check(buffers, self.buffers, "buffers", concrete_ties=True)
        owners = [(e, leaf) for e, leaf in zip(self.buffers, leaves, strict=True) if e.tied_to is None]
        for e, leaf in owners:
            if e.group == "counters" and not isinstance(leaf, jax.core.Tracer):
                _check_int32(e.name, np.asarray(leaf))
        floats = [leaf for e, leaf in owners if e.group == "buffers"]
        return _join(floats, jnp.float32), _join([x for e, x in owners if e.group == "counters"], jnp.int32)

    def unflatten_buffers(
        self, floats: Float[Array | np.ndarray, " b"], ints: Int[Array | np.ndarray, " c"]
    ) -> PyTree:
        """The buffer pytree, each leaf in its own dtype (as JAX has it: int64 is int32 unless in 64-bit mode).

        Raises:
            ConfigError: a vector has another shape than (b,) or (c,).
        """
        floats = _vector(floats, self.buffer_size, "buffer")
        ints = _vector(ints, self.counter_size, "counter")
        leaves = [
            _cut(floats, e, e.dtype)
            if e.group == "buffers"
            else _cut(ints, e, jax.dtypes.canonicalize_dtype(e.dtype))
            for e in self.buffers
        ]
        return self.buffers_tree.unflatten(leaves)

    def to_state_dict(
        self,
        vector: Float[Array | np.ndarray, " d"],
        floats: Float[Array | np.ndarray, " b"] | None = None,
        ints: Int[Array | np.ndarray, " c"] | None = None,
    ) -> dict[str, np.ndarray]:
        """Name → NumPy array in its original dtype; a tied tensor appears under each of its names.

        Args:
            vector: the parameters.
            floats: the float buffers; may be left out when there are none.
            ints: the counters; may be left out when there are none.

        Raises:
            ConfigError: a vector has a wrong shape.
        """
        parts = {
            "parameter": np.asarray(vector),
            "buffer": np.zeros(0, np.float32) if floats is None else np.asarray(floats),
            "counter": np.zeros(0, np.int32) if ints is None else np.asarray(ints),
        }
        for kind, size in _SIZES.items():
            if parts[kind].shape != (getattr(self, size),):
                raise ConfigError(
                    f"The {kind} vector has shape {parts[kind].shape}; this layout needs ({getattr(self, size)},)."
                )
        kinds = {"shared": "parameter", "private": "parameter", "buffers": "buffer", "counters": "counter"}
        return {
            e.name: parts[kinds[e.group]][e.start : e.stop].reshape(e.shape).astype(np_dtype(e.dtype))
            for e in self.entries
        }

    def from_state_dict(
        self, state: Mapping[str, Any]
    ) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " b"], Int[np.ndarray, " c"]]:
        """The three vectors of a state dict. Strict: names, shapes and dtypes must be the layout's.

        Only the second name of a tied tensor may be missing; when it is there it must hold the same values.

        Returns:
            float32 (d,), float32 (b,), int32 (c,).

        Raises:
            ConfigError: with every missing, unexpected, misshapen or wrongly typed tensor by name.
        """
        arrays = {name: np.asarray(value) for name, value in state.items()}
        problems = self._differences(arrays)
        if problems:
            shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
            raise ConfigError(f"The state dict does not fit this model: {shown}.")
        vector = np.zeros(self.size, np.float32)
        floats = np.zeros(self.buffer_size, np.float32)
        ints = np.zeros(self.counter_size, np.int32)
        into = {"shared": vector, "private": vector, "buffers": floats, "counters": ints}
        for e in self.entries:
            if e.tied_to is None:
                if e.group == "counters":
                    _check_int32(e.name, arrays[e.name])
                into[e.group][e.start : e.stop] = arrays[e.name].reshape(-1).astype(into[e.group].dtype)
        return vector, floats, ints

    def _differences(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        names = {e.name for e in self.entries}
        problems = [
            f"{e.name!r} is missing" for e in self.entries if e.name not in arrays and e.tied_to is None
        ]
        problems += [f"{n!r} is unexpected. {did_you_mean(n, names)}" for n in arrays if n not in names]
        for e in self.entries:
            if e.name not in arrays:
                continue
            found = arrays[e.name]
            if found.shape != e.shape:
                problems.append(f"{e.name!r} has shape {found.shape}, not {e.shape}")
            elif found.dtype != np_dtype(e.dtype):
                problems.append(f"{e.name!r} has dtype {found.dtype}, not {e.dtype}")
            elif e.tied_to in arrays and not _same(found, arrays[e.tied_to]):
                problems.append(f"{e.name!r} is tied to {e.tied_to!r} and has other values")
        return problems


_SIZES = {"parameter": "size", "buffer": "buffer_size", "counter": "counter_size"}


def np_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name; "bfloat16" is ml_dtypes' extension type."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def _name(path: tuple[Any, ...], bare: str) -> str:
    """ "dense/kernel" for a path of keys; a tree that is one array has no path and takes the name `bare`."""
    words = []
    for key in path:
        for attribute in ("key", "idx", "name"):
            if hasattr(key, attribute):
                words.append(str(getattr(key, attribute)))
                break
        else:
            words.append(str(key))
    return "/".join(words) if words else bare


def _unique(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(
                f"Two tensors of the model are named {name!r}. Rename one: names must differ, also between "
                "parameters and buffers and where keys contain '/'."
            )
        seen.add(name)


def _match(names: Sequence[str], patterns: Sequence[str]) -> dict[str, bool]:
    private = dict.fromkeys(names, False)
    folders = {name.rsplit("/", i)[0] for name in names for i in range(1, name.count("/") + 1)}
    for pattern in patterns:
        hits = [n for n in names if fnmatchcase(n, pattern) or n.startswith(pattern.rstrip("/") + "/")]
        if not hits:
            raise ConfigError(
                f"private pattern {pattern!r} matches no parameter. "
                f"{did_you_mean(pattern, [*names, *folders])} Parameters: {', '.join(names[:20])}"
                f"{', …' if len(names) > 20 else ''}."
            )
        private.update(dict.fromkeys(hits, True))
    return private


def _ties(names: Sequence[str], leaves: Sequence[Any]) -> dict[str, str]:
    """Name → name of the first place that holds the same array object."""
    first: dict[int, str] = {}
    ties = {}
    for name, leaf in zip(names, leaves, strict=True):
        if not isinstance(leaf, jax.Array | np.ndarray):
            continue  # Python shares small numbers between places that have nothing to do with each other
        owner = first.setdefault(id(leaf), name)
        if owner != name:
            ties[name] = owner
    return ties


def _dtype(name: str, leaf: Any, where: str) -> str:
    if isinstance(leaf, bool | int | float | complex):
        leaf = np.asarray(leaf)
    if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
        raise ConfigError(
            f"{name!r} in the {where} is a {type(leaf).__name__}, not an array. Keep what is not a tensor "
            "out of the tree, for example in the closure of apply."
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise ConfigError(
            f"{name!r} in the {where} is a random key. Keys are not part of a model: dure hands apply a "
            "fresh key at each step (keyword key=)."
        )
    return str(leaf.dtype)


def _param_dtype(name: str, leaf: Any) -> str:
    dtype = _dtype(name, leaf, "parameters")
    if dtype in _INTEGERS:
        raise ConfigError(
            f"Parameter {name!r} has dtype {dtype}, which has no gradient. Put integers and booleans into "
            "Variables.buffers, or make it a float."
        )
    return _float_dtype(name, dtype, "Parameter")


def _buffer_dtype(name: str, leaf: Any) -> str:
    dtype = _dtype(name, leaf, "buffers")
    return dtype if dtype in _INTEGERS else _float_dtype(name, dtype, "Buffer")


def _float_dtype(name: str, dtype: str, kind: str) -> str:
    if dtype == "float64":
        dtype = str(jax.dtypes.canonicalize_dtype(np.float64))  # float32 unless JAX is in 64-bit mode
    if dtype not in _FLOATS:
        raise ConfigError(
            f"{kind} {name!r} has dtype {dtype}. The vectors are float32: use one of {', '.join(_FLOATS)}."
        )
    return dtype


def _place(
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    groups: Sequence[Group],
    ties: Mapping[str, str],
) -> tuple[tuple[Entry, ...], dict[Group, int]]:
    """Give each tensor its slice. Private parameters start where the shared ones end."""
    starts: dict[str, int] = {}
    ends: dict[Group, int] = {}
    for group in get_args(Group):
        at = ends["shared"] if group == "private" else 0
        for name, shape, own in zip(names, shapes, groups, strict=True):
            if own == group and name not in ties:
                starts[name] = at
                at += prod(shape)
        ends[group] = at
    for name, owner in ties.items():
        starts[name] = starts[owner]
    entries = tuple(
        Entry(name, shape, dtype, group, starts[name], starts[name] + prod(shape), ties.get(name))
        for name, shape, dtype, group in zip(names, shapes, dtypes, groups, strict=True)
    )
    return entries, ends


def _check(tree: PyTree, entries: Sequence[Entry], where: str, concrete_ties: bool) -> list[Any]:
    """The leaves of a tree whose names and shapes are those of the entries."""
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    names = [_name(path, where) for path, _ in found]
    expected = [e.name for e in entries]
    if names != expected:
        missing = [n for n in expected if n not in names]
        extra = [n for n in names if n not in expected]
        raise ConfigError(
            f"The {where} have another structure than the layout's: missing {missing or 'none'}, "
            f"unexpected {extra or 'none'}" + ("." if missing or extra else f"; order {names}, not {expected}.")
        )
    leaves = [leaf for _, leaf in found]
    by_name = dict(zip(names, leaves, strict=True))
    for e, leaf in zip(entries, leaves, strict=True):
        if np.shape(leaf) != e.shape:
            raise ConfigError(f"{e.name!r} in the {where} has shape {np.shape(leaf)}; the layout has {e.shape}.")
        floating = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if floating != (e.group != "counters"):
            raise ConfigError(
                f"{e.name!r} in the {where} has dtype {jnp.result_type(leaf)}; the layout has {e.dtype}."
            )
        if e.tied_to is not None and concrete_ties and not _tied(leaf, by_name[e.tied_to]):
            raise ConfigError(f"{e.name!r} is tied to {e.tied_to!r} and holds other values.")
    return leaves


def _tied(one: Any, two: Any) -> bool:
    if one is two or isinstance(one, jax.core.Tracer) or isinstance(two, jax.core.Tracer):
        return True  # values are not known while tracing
    return _same(np.asarray(one), np.asarray(two))


def _same(one: np.ndarray, two: np.ndarray) -> bool:
    return one.shape == two.shape and bool(np.all((one == two) | ((one != one) & (two != two))))


def _check_int32(name: str, values: np.ndarray) -> None:
    if values.size and not (-(2**31) <= int(values.min()) and int(values.max()) < 2**31):
        raise ConfigError(
            f"Counter {name!r} holds {int(values.max() if values.max() >= 2**31 else values.min())}, outside "
            "int32, in which counters travel. Reset it or leave it out of the model."
        )


def _join(leaves: Sequence[Any], dtype: Any) -> Array:
    flat = [jnp.ravel(jnp.asarray(leaf)).astype(dtype) for leaf in leaves]
    flat = [leaf for leaf in flat if leaf.size]
    if not flat:
        return jnp.zeros(0, dtype)
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat)


def _vector(vector: Any, size: int, kind: str) -> Array:
    if np.shape(vector) != (size,):
        raise ConfigError(f"The {kind} vector has shape {np.shape(vector)}; this layout needs ({size},).")
    return jnp.asarray(vector)


def _cut(vector: Array, entry: Entry, dtype: Any) -> Array:
    piece = jax.lax.slice_in_dim(vector, entry.start, entry.stop)
    return piece.reshape(entry.shape).astype(dtype)
