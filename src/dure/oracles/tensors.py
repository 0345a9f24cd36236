"""What `Layout` needs to know about single tensors: names, kinds, ties, places, checks, cuts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jaxtyping import Array, PyTree

from dure.errors import ConfigError, did_you_mean

Group = Literal["shared", "private", "frozen", "buffers", "counters"]

FLOATS = ("float16", "bfloat16", "float32")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


@dataclass(frozen=True)
class Entry:
    """One tensor.

    Attributes:
        name: its path in the pytree, such as "dense/kernel".
        shape: its shape; () for a scalar.
        dtype: its own dtype, such as "bfloat16"; in the vectors it is float32 or int32.
        group: "shared", "private" or "frozen" (parameters), "buffers" (float) or "counters" (integer, boolean).
        start: where it starts in its group's vector (parameters: all three groups in one vector).
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


def np_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype of a name; "bfloat16" is ml_dtypes' extension type."""
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def named_leaves(tree: PyTree, bare: str) -> tuple[list[str], list[Any]]:
    """Names ("dense/kernel") and leaves in tree order; a tree that is one array takes the name `bare`."""
    pairs = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [_name(path) or bare for path, _ in pairs], [leaf for _, leaf in pairs]


def _name(path: tuple[Any, ...]) -> str:
    words = []
    for key in path:
        for attribute in ("key", "idx", "name"):
            if hasattr(key, attribute):
                words.append(str(getattr(key, attribute)))
                break
        else:
            words.append(str(key))
    return "/".join(words)


def check_unique(names: Iterable[str]) -> None:
    """ConfigError if two tensors have one name."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(
                f"Two tensors of the model are named {name!r}. Rename one: names must differ, also between "
                "parameters and buffers and where keys contain '/'."
            )
        seen.add(name)


def match(kind: str, names: Sequence[str], patterns: Sequence[str]) -> dict[str, bool]:
    """Name → whether a pattern matches it; ConfigError for a pattern without a match. `kind`: what it is for."""
    matched = dict.fromkeys(names, False)
    folders = {name.rsplit("/", i)[0] for name in names for i in range(1, name.count("/") + 1)}
    for pattern in patterns:
        hits = [n for n in names if fnmatchcase(n, pattern) or n.startswith(pattern.rstrip("/") + "/")]
        if not hits:
            shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
            raise ConfigError(
                f"{kind} pattern {pattern!r} matches no parameter. "
                f"{did_you_mean(pattern, [*names, *folders])} Parameters: {shown}."
            )
        matched.update(dict.fromkeys(hits, True))
    return matched


def find_ties(names: Sequence[str], leaves: Sequence[Any]) -> dict[str, str]:
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


def check_ties(ties: Mapping[str, str], groups: Mapping[str, Group]) -> None:
    """ConfigError if one stored tensor would be in two groups."""
    for name, owner in ties.items():
        if groups[name] != groups[owner]:
            inside, outside = (name, owner) if groups[owner] == "shared" else (owner, name)
            raise ConfigError(
                f"A {groups[inside]} pattern matches {inside!r}, which is tied to {outside!r}, which none matches: "
                f"one tensor can't be both {groups[inside]} and {groups[outside]}. Match both or neither."
            )


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


def param_dtype(name: str, leaf: Any) -> str:
    """The dtype of a parameter; ConfigError if it can't be trained."""
    dtype = _dtype(name, leaf, "parameters")
    if dtype in INTEGERS:
        raise ConfigError(
            f"Parameter {name!r} has dtype {dtype}, which has no gradient. Put integers and booleans into "
            "Variables.buffers, or make it a float."
        )
    return _float_dtype(name, dtype, "Parameter")


def buffer_dtype(name: str, leaf: Any) -> str:
    """The dtype of a buffer or counter; ConfigError if it can't travel."""
    dtype = _dtype(name, leaf, "buffers")
    return dtype if dtype in INTEGERS else _float_dtype(name, dtype, "Buffer")


def _float_dtype(name: str, dtype: str, kind: str) -> str:
    if dtype == "float64":
        dtype = str(jax.dtypes.canonicalize_dtype(np.float64))  # float32 unless JAX is in 64-bit mode
    if dtype not in FLOATS:
        raise ConfigError(
            f"{kind} {name!r} has dtype {dtype}. The vectors are float32: use one of {', '.join(FLOATS)}."
        )
    return dtype


def place(
    names: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    groups: Sequence[Group],
    ties: Mapping[str, str],
) -> tuple[tuple[Entry, ...], dict[Group, int]]:
    """Give each tensor its slice; private parameters start where the shared ones end, and frozen ones behind them.

    Returns:
        the entries in the order of `names`; group → where its last slice ends.
    """
    starts: dict[str, int] = {}
    ends: dict[Group, int] = {}
    for group in get_args(Group):
        at = {"private": ends.get("shared", 0), "frozen": ends.get("private", 0)}.get(group, 0)
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


def checked_leaves(tree: PyTree, entries: Sequence[Entry], where: str) -> list[Any]:
    """The leaves of a tree whose names, shapes and kinds are those of the entries; else ConfigError."""
    names, leaves = named_leaves(tree, where)
    expected = [e.name for e in entries]
    if names != expected:
        missing = [n for n in expected if n not in names]
        extra = [n for n in names if n not in expected]
        raise ConfigError(
            f"The {where} have another structure than the layout's: missing {missing or 'none'}, "
            f"unexpected {extra or 'none'}; the order must be the layout's."
        )
    by_name = dict(zip(names, leaves, strict=True))
    for e, leaf in zip(entries, leaves, strict=True):
        if np.shape(leaf) != e.shape:
            raise ConfigError(
                f"{e.name!r} in the {where} has shape {np.shape(leaf)}; the layout has {e.shape}."
            )
        found = _dtype(e.name, leaf, where)
        if found not in (INTEGERS if e.group == "counters" else (*FLOATS, "float64")):
            raise ConfigError(f"{e.name!r} in the {where} has dtype {found}; the layout has {e.dtype}.")
        if e.tied_to is not None and not _tied(leaf, by_name[e.tied_to]):
            raise ConfigError(f"{e.name!r} is tied to {e.tied_to!r} and holds other values.")
    return leaves


def _tied(one: Any, two: Any) -> bool:
    if one is two or isinstance(one, jax.core.Tracer) or isinstance(two, jax.core.Tracer):
        return True  # values are not known while tracing
    return same(np.asarray(one), np.asarray(two))


def same(one: np.ndarray, two: np.ndarray) -> bool:
    """Equal shapes and values, where NaN equals NaN."""
    return one.shape == two.shape and bool(np.all((one == two) | ((one != one) & (two != two))))


def check_int32(name: str, values: Any) -> None:
    """ConfigError if a counter, where its values are known, doesn't fit int32."""
    if isinstance(values, jax.core.Tracer) or not np.size(values):
        return
    low, high = int(np.min(values)), int(np.max(values))
    if low < -(2**31) or high >= 2**31:
        raise ConfigError(
            f"Counter {name!r} holds {high if high >= 2**31 else low}, outside int32, in which counters "
            "travel. Reset it or leave it out of the model."
        )


def join(leaves: Iterable[Any], dtype: Any) -> Array:
    """One vector of all elements in order."""
    flat = [jnp.ravel(jnp.asarray(leaf)).astype(dtype) for leaf in leaves if np.size(leaf)]
    if not flat:
        return jnp.zeros(0, dtype)
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat)


def cut(vector: Array, entry: Entry, dtype: Any) -> Array:
    """An entry's tensor out of its group's vector."""
    return jax.lax.slice_in_dim(vector, entry.start, entry.stop).reshape(entry.shape).astype(dtype)


def check_vector(vector: Any, size: int, kind: str) -> None:
    """ConfigError if a vector isn't (size,)."""
    if np.shape(vector) != (size,):
        raise ConfigError(f"The {kind} vector has shape {np.shape(vector)}; this layout needs ({size},).")
