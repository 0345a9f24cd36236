"""Which slice of a flat vector is which tensor, and which group it belongs to.

A model's parameters travel as one float32 vector (d,), whatever their own dtypes are. Float buffers
(running statistics) and integer counters travel beside it as a float32 vector (b,) and an int32 vector
(c,), because they follow other rules: buffers are averaged and never optimised, counters are never
averaged as floats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from dure.errors import ConfigError, did_you_mean
from dure.oracles import tensors as t
from dure.oracles.tensors import Entry, Group

__all__ = ["Entry", "Group", "Layout", "Variables"]


class Variables(NamedTuple):
    """All that a model carries.

    Attributes:
        params: pytree of float arrays: what is trained.
        buffers: pytree of float arrays (running statistics) and integer or boolean arrays (counters).
    """

    params: PyTree
    buffers: PyTree = {}  # noqa: RUF012  (a pytree without leaves; nothing writes to it)


@dataclass(frozen=True)
class Layout:
    """The map between a model's named tensors and flat vectors. Make one with `Layout.of`.

    Hashable and immutable, so that it can be a static argument of a compiled function. In the
    parameter vector the shared tensors come first, then the private ones, each in tree order. Frozen parameters,
    which are neither trained nor sent, lie behind them: the whole vector is (d + f,).

    Attributes:
        entries: the parameters in tree order, then buffers and counters in tree order.
        size: d, elements of the parameter vector (shared and private).
        shared_size: how many of them are shared.
        frozen_size: f, elements of frozen parameters.
        buffer_size: b, elements of float buffers.
        counter_size: c, elements of counters.
        params_tree: structure of the parameter pytree.
        buffers_tree: structure of the buffer pytree.
    """

    entries: tuple[Entry, ...]
    size: int
    shared_size: int
    frozen_size: int
    buffer_size: int
    counter_size: int
    params_tree: jax.tree_util.PyTreeDef
    buffers_tree: jax.tree_util.PyTreeDef

    @classmethod
    def of(
        cls,
        variables: Variables,
        *,
        private: str | Sequence[str] = (),
        frozen: str | Sequence[str] = (),
        tie: bool = True,
    ) -> "Layout":
        """The layout of a model's variables.

        Args:
            variables: concrete arrays, as `Model.init` returns them. dtypes follow JAX's own rule: with
                64-bit mode off, NumPy's float64 and Python floats are float32.
            private: name patterns (as in a shell: `*`, `?`, `[abc]`; `*` also crosses "/") of parameters
                that never leave the client. The name of a folder stands for all that is in it.
            frozen: name patterns of parameters that are neither trained nor sent; they go before `private`.
            tie: store an array object that is found at several places once (tied weights). False makes
                every place a tensor of its own.

        Raises:
            ConfigError: a leaf that is not a float array in the parameters (integer, boolean, complex,
                random key, float64 in 64-bit mode, not an array); an unusable buffer; two tensors with
                one name; a pattern that matches no parameter; a tie between two groups.
        """
        param_names, params = t.named_leaves(variables.params, "params")
        buffer_names, buffers = t.named_leaves(variables.buffers, "buffers")
        names = param_names + buffer_names
        t.check_unique(names)
        private, frozen = ([p] if isinstance(p, str) else p for p in (private, frozen))
        is_frozen = t.match("frozen", param_names, frozen)
        is_private = t.match("private", [n for n in param_names if not is_frozen[n]], private)
        groups: list[Group] = [
            "frozen" if is_frozen[n] else "private" if is_private[n] else "shared" for n in param_names
        ]
        ties = t.find_ties(param_names, params) if tie else {}
        t.check_ties(ties, dict(zip(param_names, groups, strict=True)))
        if tie:
            ties |= t.find_ties(buffer_names, buffers)
        dtypes = [t.param_dtype(n, x) for n, x in zip(param_names, params, strict=True)]
        for name, leaf in zip(buffer_names, buffers, strict=True):
            dtypes.append(t.buffer_dtype(name, leaf))
            groups.append("buffers" if dtypes[-1] in t.FLOATS else "counters")
        shapes = [tuple(int(s) for s in np.shape(x)) for x in params + buffers]
        entries, ends = t.place(names, shapes, dtypes, groups, ties)
        return cls(
            entries,
            size=ends["private"],
            shared_size=ends["shared"],
            frozen_size=ends["frozen"] - ends["private"],
            buffer_size=ends["buffers"],
            counter_size=ends["counters"],
            params_tree=jax.tree.structure(variables.params),
            buffers_tree=jax.tree.structure(variables.buffers),
        )

    @property
    def params(self) -> tuple[Entry, ...]:
        """The entries of the parameters, in tree order."""
        return self.entries[: self.params_tree.num_leaves]

    @property
    def buffers(self) -> tuple[Entry, ...]:
        """The entries of float buffers and counters, in tree order."""
        return self.entries[self.params_tree.num_leaves :]

    @property
    def whole_size(self) -> int:
        """D + f, elements of the whole parameter vector with its frozen part."""
        return self.size + self.frozen_size

    def slice(self, group: str) -> slice:
        """Where a group lies in its vector.

        Args:
            group: "shared", "private" or "frozen" (in the parameter vector), "buffers" or "counters" (in theirs).

        Raises:
            ConfigError: no such group.
        """
        places = {
            "shared": slice(0, self.shared_size),
            "private": slice(self.shared_size, self.size),
            "frozen": slice(self.size, self.whole_size),
            "buffers": slice(0, self.buffer_size),
            "counters": slice(0, self.counter_size),
        }
        if group not in places:
            raise ConfigError(f"Unknown group {group!r}. {did_you_mean(group, get_args(Group))}")
        return places[group]

    def flatten_params(self, params: PyTree) -> Float[Array, " d"]:
        """The float32 vector (d + f,) of a parameter pytree, frozen parameters last. Traceable.

        Raises:
            ConfigError: another structure, shape or kind than the layout's, named; tied places that
                hold different values.
        """
        leaves = t.checked_leaves(params, self.params, "params")
        owned = [(e, leaf) for e, leaf in zip(self.params, leaves, strict=True) if e.tied_to is None]
        # Tree order within a group is the order of the vector.
        ordered = [leaf for group in ("shared", "private", "frozen") for e, leaf in owned if e.group == group]
        return t.join(ordered, jnp.float32)

    def unflatten_params(self, vector: Float[Array | np.ndarray, " d"], dtype: Any = None) -> PyTree:
        """The parameter pytree of a whole vector (d + f,). Traceable: slices, reshapes and casts only.

        Args:
            vector: as from `flatten_params`.
            dtype: dtype of all leaves, such as `jnp.float32`; None gives each leaf its own.

        Raises:
            ConfigError: the vector has another shape than (d + f,).
        """
        t.check_vector(vector, self.whole_size, "parameter")
        vector = jnp.asarray(vector)
        leaves = [t.cut(vector, e, e.dtype if dtype is None else dtype) for e in self.params]
        return self.params_tree.unflatten(leaves)

    def flatten_buffers(self, buffers: PyTree) -> tuple[Float[Array, " b"], Int[Array, " c"]]:
        """The float32 vector (b,) of float buffers and the int32 vector (c,) of counters. Traceable.

        Raises:
            ConfigError: another structure, shape or kind than the layout's; a counter outside int32.
        """
        leaves = t.checked_leaves(buffers, self.buffers, "buffers")
        owned = [(e, leaf) for e, leaf in zip(self.buffers, leaves, strict=True) if e.tied_to is None]
        counters = [(e, leaf) for e, leaf in owned if e.group == "counters"]
        for e, leaf in counters:
            t.check_int32(e.name, leaf)
        floats = t.join([leaf for e, leaf in owned if e.group == "buffers"], jnp.float32)
        return floats, t.join([leaf for _, leaf in counters], jnp.int32)

    def unflatten_buffers(
        self, floats: Float[Array | np.ndarray, " b"], ints: Int[Array | np.ndarray, " c"]
    ) -> PyTree:
        """The buffer pytree, each leaf in its own dtype (int64 is int32 unless JAX is in 64-bit mode).

        Raises:
            ConfigError: a vector has another shape than (b,) or (c,).
        """
        t.check_vector(floats, self.buffer_size, "buffer")
        t.check_vector(ints, self.counter_size, "counter")
        floats, ints = jnp.asarray(floats), jnp.asarray(ints)
        leaves = [
            t.cut(floats if e.group == "buffers" else ints, e, jax.dtypes.canonicalize_dtype(e.dtype))
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
            vector: the parameters, with frozen ones (d + f,).
            floats: the float buffers; may be left out when there are none.
            ints: the counters; may be left out when there are none.

        Raises:
            ConfigError: a vector has a wrong shape.
        """
        floats = np.zeros(0, np.float32) if floats is None else floats
        ints = np.zeros(0, np.int32) if ints is None else ints
        t.check_vector(vector, self.whole_size, "parameter")
        t.check_vector(floats, self.buffer_size, "buffer")
        t.check_vector(ints, self.counter_size, "counter")
        values = _by_group(np.asarray(vector), np.asarray(floats), np.asarray(ints))
        return {
            e.name: values[e.group][e.start : e.stop].reshape(e.shape).astype(t.np_dtype(e.dtype))
            for e in self.entries
        }

    def from_state_dict(
        self, state: Mapping[str, Any]
    ) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " b"], Int[np.ndarray, " c"]]:
        """The three vectors of a state dict. Strict: names, shapes and dtypes must be the layout's.

        Only the second name of a tied tensor may be missing; when it is there it must hold the same values.

        Returns:
            float32 (d + f,), float32 (b,), int32 (c,).

        Raises:
            ConfigError: with the missing, unexpected, misshapen or wrongly typed tensors by name; a
                counter outside int32.
        """
        arrays = {name: np.asarray(value) for name, value in state.items()}
        problems = self._differences(arrays)
        if problems:
            shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
            raise ConfigError(f"The state dict does not fit this model: {shown}.")
        vector = np.zeros(self.whole_size, np.float32)
        floats = np.zeros(self.buffer_size, np.float32)
        ints = np.zeros(self.counter_size, np.int32)
        into = _by_group(vector, floats, ints)
        for e in self.entries:
            if e.group == "counters":
                t.check_int32(e.name, arrays.get(e.name, 0))
            if e.tied_to is None:
                into[e.group][e.start : e.stop] = arrays[e.name].reshape(-1)
        return vector, floats, ints

    def _differences(self, arrays: Mapping[str, np.ndarray]) -> list[str]:
        """What keeps a state dict from fitting, a sentence each."""
        names = {e.name for e in self.entries}
        problems = [f"{e.name!r} is missing" for e in self.entries if not (e.name in arrays or e.tied_to)]
        problems += [f"{n!r} is unexpected ({did_you_mean(n, names)})" for n in arrays if n not in names]
        for e in self.entries:
            found = arrays.get(e.name)
            if found is None:
                continue
            if found.shape != e.shape:
                problems.append(f"{e.name!r} has shape {found.shape}, not {e.shape}")
            elif found.dtype != t.np_dtype(e.dtype):
                problems.append(f"{e.name!r} has dtype {found.dtype}, not {e.dtype}")
            elif e.tied_to and e.tied_to in arrays and not t.same(found, arrays[e.tied_to]):
                problems.append(f"{e.name!r} is tied to {e.tied_to!r} and has other values")
        return problems


def _by_group(vector: np.ndarray, floats: np.ndarray, ints: np.ndarray) -> Mapping[str, np.ndarray]:
    parameters = dict.fromkeys(("shared", "private", "frozen"), vector)
    return MappingProxyType({**parameters, "buffers": floats, "counters": ints})
