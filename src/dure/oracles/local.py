"""The local problem: one solver for what almost every method asks of a client.

    minimise over y:   F_k(y) + ⟨v, y⟩ + (μ/2)‖y − a‖²        starting from y = s

FedAvg: v = 0, μ = 0. FedProx: a = w, μ > 0. SCAFFOLD: v = c − c_k. FedDyn: v = −λ_k, a = w, μ = α. The whole
gradient, with both terms, goes through the local optimizer. The same code runs for one client at a time, for
a chunk of clients under `vmap`, and eagerly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float32, Int32, PyTree

from dure.errors import ConfigError
from dure.oracles.layout import Layout, Variables
from dure.oracles.optimizer import Optimizer, is_linear
from dure.oracles.rewrite import for_cpu
from dure.oracles.task import Task


class ClientPlan(NamedTuple):
    """What one client reads: its steps' rows in `Shared.order`, and its rows in the columns.

    Attributes:
        first: where the client's batches begin in `order`; step s reads order[first + s·B : first + (s+1)·B].
        steps: number of local steps.
        start: first row of the client in the columns.
        size: n_k, number of its rows.
        key: two words that name the client's random stream in this round.
    """

    first: Any
    steps: Any
    start: Any
    size: Any
    key: Any


@dataclass(frozen=True)
class Shared:
    """What all clients of a round share.

    Attributes:
        columns: the training rows of all clients, (n, …) each.
        order: (P,) row numbers, batch after batch, −1 for a place in a short last batch that is not there.
        floats, ints: the buffers as the server sent them.
        round: number of the round, from 1.
        batch_size: B (static); 0: every step reads all of the client's rows, in blocks.
        max_steps: an upper bound on the steps of any client (static).
        block: rows per block when all data of a client are read.
        masked: clients of a chunk run together, so that some stop before the loop does.
        cpu: rewrite convolutions and small products for XLA's CPU compiler.
    """

    task: Task
    layout: Layout
    optimizer: Optimizer
    columns: Mapping[str, Array]
    order: Array
    floats: Array
    ints: Array
    round: Array
    batch_size: int
    max_steps: int
    block: int
    masked: bool
    cpu: bool


@dataclass(frozen=True)
class Solution:
    """Where the solver stopped.

    Attributes:
        w: (d,) the last iterate.
        steps: local steps taken; fewer than planned for a client that stopped early.
        loss: mean minibatch loss over the steps (without the linear and proximal terms).
    """

    w: Float32[Array, " d"]
    steps: Int32[Array, ""]
    loss: Float32[Array, ""]
    _gain: Callable[[], Array]

    @property
    def gain(self) -> Float32[Array, ""]:
        """Displacement per unit of constant gradient, Σ_s η_s for SGD; FedNova's η‖a‖₁ in general.

        It is the response of the local optimizer, as it is, to a constant gradient of one: right under
        schedules, momentum, a proximal term and early stops. Weight decay counts as a part of F_k.

        Raises:
            ConfigError: the optimizer is not linear in the gradients (Adam, clipping): no such number exists.
        """
        return self._gain()


class Observed(NamedTuple):
    """What the engine records of a client's work, beside what the algorithm returned."""

    loss: Array
    steps: Array
    floats: Array
    ints: Array


class JaxOracle:
    """One client's access to its own data, for JAX models."""

    def __init__(self, shared: Shared, client: ClientPlan, bound: Any, blocks: Any):
        """`bound`, `blocks`: numbers of loop turns, common to all clients that run together."""
        self._shared = shared
        self._client = client
        self._bound = bound
        self._blocks = blocks
        self.examples = client.size
        self.observed = Observed(jnp.float32(0), client.steps, shared.floats, shared.ints)
        self._value_and_grad = self._differentiate()

    # ----- what an algorithm may ask ------------------------------------------------------------------

    def solve(
        self,
        start: Float32[Array, " d"],
        *,
        linear: Float32[Array, " d"] | None = None,
        prox: Any = 0.0,
        anchor: Float32[Array, " d"] | None = None,
        reference: tuple[Array, Array] | None = None,
    ) -> Solution:
        """Run the local optimizer on F_k(y) + ⟨linear, y⟩ + (prox/2)‖y − anchor‖² from y = start.

        Args:
            start: (d,).
            linear: v (d,); None is 0.
            prox: μ ≥ 0.
            anchor: a (d,); None is `start`.
            reference: (x, g), each (d,): steps use the variance-reduced gradient g_B(y) − g_B(x) + g with
                the same minibatch B and the same random numbers (SVRG, Mime, FedLin).
        """
        shared, client = self._shared, self._client
        transformation = shared.optimizer.transformation()
        scale = shared.optimizer.scale(shared.round)
        has_prox = not (isinstance(prox, float) and prox == 0.0)
        v = None if linear is None else self._split(linear)
        a = self._split(start if anchor is None else anchor)
        fixed = None if reference is None else tuple(map(self._split, reference))
        buffers = shared.layout.unflatten_buffers(shared.floats, shared.ints)
        y = self._split(start)

        def step(carry: _Carry) -> _Carry:
            s, y, state, buffers, total, seen = carry
            gradient = self._step_gradient(s, buffers)
            loss, rows, new_buffers, g = gradient(y)
            if fixed is not None:
                x, g_all = fixed
                g_x = gradient(x)[3]
                g = [gi - xi + ri for gi, xi, ri in zip(g, g_x, g_all, strict=True)]
            if v is not None:
                g = [gi + vi for gi, vi in zip(g, v, strict=True)]
            if has_prox:
                g = [gi + prox * (yi - ai) for gi, yi, ai in zip(g, y, a, strict=True)]
            moves, new_state = transformation.update(g, state, y)
            new_y = [yi + _scaled(scale, mi) for yi, mi in zip(y, moves, strict=True)]
            new = _Carry(s + 1, new_y, new_state, new_buffers, total + loss * rows, seen + rows)
            if not shared.masked and shared.max_steps > 1:
                return new
            active = s < client.steps
            kept = jax.tree.map(lambda n, o: jnp.where(active, n, o), new[1:], carry[1:])
            return _Carry(s + 1, *kept)

        zero = jnp.float32(0)
        carry = _Carry(jnp.int32(0), y, transformation.init(y), buffers, zero, zero)
        # One step needs no loop: its forward pass is shared by all clients of a chunk.
        once = shared.max_steps == 1
        carry = step(carry) if once else lax.while_loop(lambda c: c.s < self._bound, step, carry)
        loss = carry.total / jnp.maximum(carry.seen, 1.0)
        floats, ints = shared.layout.flatten_buffers(carry.buffers)
        self.observed = Observed(loss, client.steps, floats, ints)
        return Solution(self._join(carry.y), client.steps, loss, lambda: self._gain(prox))

    def gradient(self, w: Float32[Array, " d"]) -> Float32[Array, " d"]:
        """∇F_k(w) over all of the client's rows, mean over examples; 0 for a client without rows."""
        loss, _, _, g = self._whole_gradient(self._split(w), self._buffers(), jnp.int32(0))
        self.observed = self.observed._replace(loss=loss, steps=jnp.minimum(self._client.size, 1))
        return self._join(g)

    def loss(self, w: Float32[Array, " d"]) -> Float32[Array, ""]:
        """F_k(w), mean over all of the client's rows in evaluation mode; 0 for a client without rows."""
        variables = Variables(self._params(self._split(w)), self._buffers())

        def turn(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            b, total = carry
            batch, mask, _ = self._rows(b, jnp.int32(0))
            loss, _ = self._shared.task.batch_loss(variables, batch, mask, train=False)
            return b + 1, total + mask.sum() * loss

        _, total = lax.while_loop(lambda c: c[0] < self._blocks, turn, (jnp.int32(0), jnp.float32(0)))
        n = jnp.maximum(self._client.size, 1).astype(jnp.float32)
        return jnp.asarray(total / n)

    def predict(self, w: Float32[Array, " d"], inputs: Array) -> Any:
        """The model's outputs for `inputs` (B, …) in evaluation mode."""
        variables = Variables(self._params(self._split(w)), self._buffers())
        outputs, _ = self._shared.task.model.apply(variables, inputs, train=False, key=None, mask=None)
        return outputs

    # ----- how it is done -----------------------------------------------------------------------------

    def _differentiate(self) -> Callable[..., Any]:
        task = self._shared.task

        def loss(y: list[Array], buffers: PyTree, batch: Any, mask: Array, key: Any) -> Any:
            variables = Variables(self._params(y), buffers)
            return task.batch_loss(variables, batch, mask, train=True, key=key)

        function = jax.value_and_grad(loss, has_aux=True)
        return for_cpu(function, together=self._shared.masked) if self._shared.cpu else function

    def _split(self, w: Array) -> list[Array]:
        """The vector as one float32 array per stored tensor: the working form inside loops."""
        entries = [e for e in self._shared.layout.params if e.tied_to is None]
        return [w[e.start : e.stop].reshape(e.shape) for e in entries]

    def _join(self, y: list[Array]) -> Array:
        """The vector of the working form, written slice by slice.

        A concatenation would be fused with whatever reads it, and decide anew for every element which
        tensor it comes from: 30 ms instead of 2 for 1.6 million parameters on a CPU
        (`benchmarks/rewriting.py`).
        """
        entries = [e for e in self._shared.layout.params if e.tied_to is None]
        vector = jnp.zeros(self._shared.layout.size, y[0].dtype)
        for e, yi in zip(entries, y, strict=True):
            vector = lax.dynamic_update_slice(vector, yi.reshape(-1), (e.start,))
        return vector

    def _params(self, y: list[Array]) -> PyTree:
        """The model's own parameters, in its own dtypes: float32 values are kept, the model sees casts."""
        layout = self._shared.layout
        by_name = {
            e.name: yi for e, yi in zip((e for e in layout.params if e.tied_to is None), y, strict=True)
        }
        leaves = [by_name[e.tied_to or e.name].astype(e.dtype) for e in layout.params]
        return layout.params_tree.unflatten(leaves)

    def _buffers(self) -> PyTree:
        return self._shared.layout.unflatten_buffers(self._shared.floats, self._shared.ints)

    def _step_gradient(self, s: Array, buffers: PyTree) -> Callable[[list[Array]], Any]:
        """Local step s's gradient as a function of the iterate: (loss, rows, new buffers, gradient)."""
        if self._shared.batch_size == 0:
            return lambda y: self._whole_gradient(y, buffers, s)
        batch, mask, key = self._batch(s)

        def gradient(y: list[Array]) -> Any:
            (loss, new_buffers), g = self._value_and_grad(y, buffers, batch, mask, key)
            return loss, mask.sum(), new_buffers, g

        return gradient

    def _whole_gradient(self, y: list[Array], buffers: PyTree, s: Array) -> Any:
        """The same over all of the client's rows, in blocks; the buffers stay."""

        def turn(carry: tuple[Array, Array, list[Array]]) -> tuple[Array, Array, list[Array]]:
            b, total, g = carry
            batch, mask, key = self._rows(b, s)
            (loss, _), part = self._value_and_grad(y, buffers, batch, mask, key)
            rows = mask.sum()
            return b + 1, total + rows * loss, [gi + rows * pi for gi, pi in zip(g, part, strict=True)]

        start = (jnp.int32(0), jnp.float32(0), [jnp.zeros_like(yi) for yi in y])
        _, total, g = lax.while_loop(lambda c: c[0] < self._blocks, turn, start)
        n = jnp.maximum(self._client.size, 1).astype(jnp.float32)
        return total / n, self._client.size.astype(jnp.float32), buffers, [gi / n for gi in g]

    def _batch(self, s: Array) -> tuple[dict[str, Array], Array, Any]:
        """The rows of local step s, the mask of those that are there, and the step's key."""
        shared = self._shared
        size = shared.batch_size
        rows = lax.dynamic_slice(shared.order, (self._client.first + s * size,), (size,))
        return self._gather(jnp.where(rows >= 0, rows, self._own_row()), rows >= 0, s)

    def _rows(self, b: Array, s: Array) -> tuple[dict[str, Array], Array, Any]:
        """Block b of all of the client's rows."""
        offset = b * self._shared.block + jnp.arange(self._shared.block, dtype=jnp.int32)
        there = offset < self._client.size
        return self._gather(jnp.where(there, self._client.start + offset, self._own_row()), there, s, b)

    def _own_row(self) -> Array:
        """What stands in a place where no row is: the client's first row.

        Its loss is masked, but not what its gradient makes of an infinite derivative (0 · ∞): another
        client's row there could break this client. (A client without rows may begin behind the last row.)
        """
        last = self._shared.columns[self._shared.task.input].shape[0] - 1
        return jnp.minimum(self._client.start, last)

    def _gather(self, rows: Array, there: Array, *address: Array) -> tuple[dict[str, Array], Array, Any]:
        task = self._shared.task
        # Barriers: rows and batch are computed once, not again by (and in the layout of) every reader.
        rows = lax.optimization_barrier(rows)
        batch = lax.optimization_barrier(
            {
                name: self._shared.columns[name].at[rows].get(mode="promise_in_bounds")
                for name in (task.input, task.target)
            }
        )
        key = None
        if task.model.needs_key:
            key = jax.random.wrap_key_data(self._client.key, impl="threefry2x32")
            for number in address:
                key = jax.random.fold_in(key, number)
        return batch, there.astype(jnp.float32), key

    def _gain(self, prox: Any) -> Array:
        """The path of the optimizer under a constant gradient of one, at the client's number of steps."""
        optimizer = self._shared.optimizer
        if not is_linear(_concrete(optimizer)):
            raise ConfigError(
                "This method divides by the displacement per unit of gradient (`gain`), which the local "
                f"optimizer {_name(optimizer)} does not have: its steps are not linear in the gradients. "
                "Use dure.sgd(…), with momentum or a schedule if wanted, without clip_norm."
            )
        transformation = optimizer.transformation()
        scale = optimizer.scale(self._shared.round)
        origin = jnp.float32(0)

        def step(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], Array]:
            z, state = carry
            move, state = transformation.update(1.0 + prox * z, state, origin)
            z = z + _scaled(scale, move)
            return (z, state), -z

        _, path = lax.scan(step, (origin, transformation.init(origin)), None, self._shared.max_steps)
        gains: Array = jnp.concatenate([jnp.zeros(1, jnp.float32), path])
        return gains[self._client.steps]


class _Carry(NamedTuple):
    s: Array
    y: list[Array]
    state: optax.OptState
    buffers: PyTree
    total: Array
    seen: Array


def _scaled(scale: Any, move: Array) -> Array:
    return move if isinstance(scale, float) and scale == 1.0 else scale * move


def _concrete(optimizer: Optimizer) -> Optimizer:
    """The optimizer with ordinary numbers where values are traced: linearity doesn't depend on them."""
    arguments = {k: 0.5 if isinstance(v, jax.core.Tracer) else v for k, v in optimizer.arguments.items()}
    return Optimizer(optimizer.factory, arguments)


def _name(optimizer: Optimizer) -> str:
    return str(getattr(optimizer.factory, "__name__", optimizer.factory)).lstrip("_")
