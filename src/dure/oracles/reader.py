"""A client's rows and the gradient on them, in the working form: one float32 array per stored tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, PyTree

from dure.errors import ConfigError
from dure.oracles.layout import Variables
from dure.oracles.problem import ClientPlan, Shared
from dure.oracles.rewrite import for_cpu
from dure.oracles.tensors import Entry

Penalty = Callable[[Callable[[Array], Any], Array], Array]


@dataclass(frozen=True)
class Reader:
    """Reads a client's rows; knows what the gradient is of.

    Attributes:
        shared: what all clients of the round share.
        client: the client's plan.
        blocks: number of loop turns over all of the client's rows, common to clients that run together.
        loss: (outputs, targets) → (B,) in the place of the task's loss while training.
        penalty: (features, y) → (B,) added to each example's loss while training, see `JaxOracle.solve`.
        frozen: (f,) in the place of the model's own frozen parameters.
    """

    shared: Shared
    client: ClientPlan
    blocks: Any
    loss: Callable[[Any, Any], Array] | None = None
    penalty: Penalty | None = None
    frozen: Array | None = None

    # ----- vectors ------------------------------------------------------------------------------------

    @property
    def entries(self) -> list[Entry]:
        """The stored tensors that are trained, in tree order."""
        return [e for e in self.shared.layout.params if e.tied_to is None and e.group != "frozen"]

    def split(self, w: Array) -> list[Array]:
        """The vector as one float32 array per stored tensor: the working form inside loops."""
        return [w[e.start : e.stop].reshape(e.shape) for e in self.entries]

    def join(self, y: list[Array]) -> Array:
        """The vector of the working form, written slice by slice.

        A concatenation would be fused with whatever reads it, and decide anew for every element which
        tensor it comes from: 30 ms instead of 2 for 1.6 million parameters on a CPU
        (`benchmarks/rewriting.py`).
        """
        vector = jnp.zeros(self.shared.layout.size, y[0].dtype)
        for e, yi in zip(self.entries, y, strict=True):
            vector = lax.dynamic_update_slice(vector, yi.reshape(-1), (e.start,))
        return vector

    def params(self, y: list[Array]) -> PyTree:
        """The model's own parameters, in its own dtypes: float32 values are kept, the model sees casts."""
        layout = self.shared.layout
        by_name = {e.name: yi for e, yi in zip(self.entries, y, strict=True)} | self._still()
        leaves = [by_name[e.tied_to or e.name].astype(e.dtype) for e in layout.params]
        return layout.params_tree.unflatten(leaves)

    def _still(self) -> dict[str, Array]:
        """The frozen parameters by name."""
        layout = self.shared.layout
        if not layout.frozen_size:
            return {}
        vector = self.shared.frozen if self.frozen is None else self.frozen
        stored = [e for e in layout.params if e.tied_to is None and e.group == "frozen"]
        return {e.name: vector[e.start - layout.size : e.stop - layout.size].reshape(e.shape) for e in stored}

    def buffers(self) -> PyTree:
        """The buffers that the client begins with."""
        return self.shared.layout.unflatten_buffers(self.shared.floats, self.shared.ints)

    # ----- gradients ----------------------------------------------------------------------------------

    def value_and_grad(self) -> Callable[..., Any]:
        """(y, buffers, batch, mask, key) → ((loss, new buffers), gradient)."""
        task = self.shared.task

        def loss(y: list[Array], buffers: PyTree, batch: Any, mask: Array, key: Any) -> Any:
            variables = Variables(self.params(y), buffers)
            extra = None
            if self.penalty is not None:
                extra = self.penalty(*self._representation(y, buffers, batch, mask, key))
            return task.batch_loss(variables, batch, mask, train=True, key=key, loss=self.loss, extra=extra)

        function = jax.value_and_grad(loss, has_aux=True)
        return for_cpu(function, together=self.shared.masked) if self.shared.cpu else function

    def _representation(
        self, y: list[Array], buffers: PyTree, batch: Any, mask: Array, key: Any
    ) -> tuple[Callable[[Array], Any], Array]:
        """(features, present iterate): what the model makes of the batch before its last layer."""
        model = self.shared.task.model
        if model.features is None:
            raise ConfigError(
                f"This method compares representations, and model {model.name!r} does not say what its "
                "representation is. Give Model.from_functions(…, features=f) with f(params, x) → (B, p)."
            )
        present = self.join(y)

        def features(w: Array) -> Array:
            train = w is present
            params = self.params(y if train else self.split(w))
            return jnp.asarray(
                model.features(  # type: ignore[misc]
                    Variables(params, buffers if train else self.buffers()),
                    batch[self.shared.task.input],
                    train=train,
                    key=key if train else None,
                    mask=mask,
                )
            )

        return features, present

    def step_gradient(self, s: Array, buffers: PyTree) -> Callable[[list[Array]], Any]:
        """Local step s's gradient as a function of the iterate: (loss, rows, new buffers, gradient)."""
        value_and_grad = self.value_and_grad()
        if self.shared.batch_size == 0:
            return lambda y: self.whole_gradient(y, buffers, s)
        batch, mask, key = self.batch(s)

        def gradient(y: list[Array]) -> Any:
            (loss, new_buffers), g = value_and_grad(y, buffers, batch, mask, key)
            return loss, mask.sum(), new_buffers, g

        return gradient

    def whole_gradient(self, y: list[Array], buffers: PyTree, s: Array) -> Any:
        """The same over all of the client's rows, in blocks; the buffers stay."""
        value_and_grad = self.value_and_grad()

        def turn(carry: tuple[Array, Array, list[Array]]) -> tuple[Array, Array, list[Array]]:
            b, total, g = carry
            batch, mask, key = self.rows(b, s)
            (loss, _), part = value_and_grad(y, buffers, batch, mask, key)
            rows = mask.sum()
            return b + 1, total + rows * loss, [gi + rows * pi for gi, pi in zip(g, part, strict=True)]

        start = (jnp.int32(0), jnp.float32(0), [jnp.zeros_like(yi) for yi in y])
        _, total, g = lax.while_loop(lambda c: c[0] < self.blocks, turn, start)
        n = jnp.maximum(self.client.size, 1).astype(jnp.float32)
        return total / n, self.client.size.astype(jnp.float32), buffers, [gi / n for gi in g]

    # ----- rows ---------------------------------------------------------------------------------------

    def batch(self, s: Array) -> tuple[dict[str, Array], Array, Any]:
        """The rows of local step s, the mask of those that are there, and the step's key."""
        size = self.shared.batch_size
        rows = lax.dynamic_slice(self.shared.order, (self.client.first + s * size,), (size,))
        return self._gather(jnp.where(rows >= 0, rows, self._own_row()), rows >= 0, s)

    def rows(self, b: Array, s: Array) -> tuple[dict[str, Array], Array, Any]:
        """Block b of all of the client's rows."""
        offset = b * self.shared.block + jnp.arange(self.shared.block, dtype=jnp.int32)
        there = offset < self.client.size
        return self._gather(jnp.where(there, self.client.start + offset, self._own_row()), there, s, b)

    def _own_row(self) -> Array:
        """What stands in a place where no row is: the client's first row.

        Its loss is masked, but not what its gradient makes of an infinite derivative (0 · ∞): another
        client's row there could break this client. (A client without rows may begin behind the last row.)
        """
        last = self.shared.columns[self.shared.task.input].shape[0] - 1
        return jnp.minimum(self.client.start, last)

    def _gather(self, rows: Array, there: Array, *address: Array) -> tuple[dict[str, Array], Array, Any]:
        task = self.shared.task
        # Barriers: rows and batch are computed once, not again by (and in the layout of) every reader.
        rows = lax.optimization_barrier(rows)
        batch = lax.optimization_barrier(
            {
                name: self.shared.columns[name].at[rows].get(mode="promise_in_bounds")
                for name in (task.input, task.target)
            }
        )
        key = None
        if task.model.needs_key:
            key = jax.random.wrap_key_data(self.client.key, impl="threefry2x32")
            for number in address:
                key = jax.random.fold_in(key, number)
        return batch, there.astype(jnp.float32), key
