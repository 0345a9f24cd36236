"""The local problem: one solver for what almost every method asks of a client.

    minimise over y:   F_k(y) + ⟨v, y⟩ + (μ/2)‖y − a‖²        starting from y = s

FedAvg: v = 0, μ = 0. FedProx: a = w, μ > 0. SCAFFOLD: v = c − c_k. FedDyn: v = −λ_k, a = w, μ = α. The whole
gradient, with both terms, goes through the local optimizer. The same code runs for one client at a time, for
a chunk of clients under `vmap`, and eagerly.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float32, PyTree

from dure.errors import ConfigError
from dure.oracles.gain import Solution, path_gain, scaled
from dure.oracles.host.base import NOT_REPORTED
from dure.oracles.layout import Variables
from dure.oracles.problem import ClientPlan, Observed, Shared
from dure.oracles.reader import Penalty, Reader

__all__ = ["ClientPlan", "JaxOracle", "Minibatch", "Observed", "Shared", "Solution"]


class Minibatch:
    """The minibatch of one local step. Ask it directly in the step, not inside a JAX loop of your own."""

    def __init__(self, reader: Reader, s: Array, buffers: PyTree):
        """`s`: the local step whose rows these are."""
        self._reader = reader
        self._gradient = reader.step_gradient(s, buffers)
        self._first: tuple[Array, Array, PyTree] | None = None

    def gradient(self, y: Float32[Array, " d"]) -> Float32[Array, " d"]:
        """∇ of the minibatch's mean loss at y (d,); every call uses the same rows and random numbers."""
        return self._reader.join(self._ask(self._reader.split(y)))

    def loss(self, y: Float32[Array, " d"]) -> Float32[Array, ""]:
        """The minibatch's mean training loss at y."""
        return jnp.asarray(self._gradient(self._reader.split(y))[0])

    def _ask(self, y: list[Array]) -> list[Array]:
        loss, rows, buffers, g = self._gradient(y)
        self._first = self._first or (loss, rows, buffers)
        return list(g)

    def _seen(self, y: list[Array]) -> tuple[Array, Array, PyTree]:
        """(loss, rows, new buffers) of the first gradient that was asked for; at y if there was none."""
        if self._first is None:
            self._ask(y)
        assert self._first is not None
        return self._first


class JaxOracle:
    """One client's access to its own data, for JAX models."""

    def __init__(self, shared: Shared, client: ClientPlan, bound: Any, blocks: Any):
        """`bound`, `blocks`: numbers of loop turns, common to all clients that run together."""
        self._shared = shared
        self._client = client
        self._bound = bound
        self._reader = Reader(shared, client, blocks)
        self.examples = client.size
        self.client = client.client
        self.observed = Observed(jnp.float32(0), client.steps, shared.floats, shared.ints)
        self._worked = False

    @property
    def steps(self) -> Array:
        """Local steps that this client does in this round, at least 1."""
        return jnp.maximum(self._client.steps, 1)

    # ----- what an algorithm may ask ------------------------------------------------------------------

    def solve(
        self,
        start: Float32[Array, " d"],
        *,
        linear: Float32[Array, " d"] | None = None,
        prox: Any = 0.0,
        anchor: Float32[Array, " d"] | None = None,
        reference: tuple[Array, Array] | None = None,
        direction: Callable[[Any, Array], Array] | None = None,
        loss: Callable[[Any, Any], Array] | None = None,
        penalty: Penalty | None = None,
        train: str | None = None,
        frozen: Float32[Array, " f"] | None = None,
        rate: Any = 1.0,
        repeats: int = 1,
        project: Callable[[Array], Array] | None = None,
    ) -> Solution:
        """Run the local optimizer on F_k(y) + ⟨linear, y⟩ + (prox/2)‖y − anchor‖² from y = start.

        Args:
            start: (d,).
            linear: v (d,); None is 0.
            prox: μ ≥ 0.
            anchor: a (d,); None is `start`.
            reference: (x, g), each (d,): steps use the variance-reduced gradient g_B(y) − g_B(x) + g with
                the same minibatch B and the same random numbers (SVRG, Mime, FedLin).
            direction: (minibatch, y) → (d,), used in the place of the minibatch's gradient at y; it may ask
                `minibatch.gradient` at any points (FedSAM).
            loss: (outputs, targets) → (B,), used in the place of the task's loss (FedLC).
            penalty: (features, y) → (B,), added to the examples' losses; `features(w)` is the model's
                representation (B, p) of the batch, in training mode for the present iterate y and in
                evaluation mode for any other w (MOON).
            train: "shared" or "private": only these parameters move (FedRep); None: all.
            frozen: (f,), the frozen parameters in the place of the model's own (FedEx-LoRA).
            rate: factor on every displacement (FedLin's 1/τ_k).
            repeats: how many times the client's plan is gone through, at least 1.
            project: (d,) → (d,), what becomes of the iterate after every step, such as its projection to a set.

        Raises:
            ConfigError: the optimizer's displacement is asked for (`gain`) and has no meaning; `train` is
                unknown; the model does not say what its representation is.
        """
        shared, client = self._shared, self._client
        reader = replace(self._reader, loss=loss, penalty=penalty, frozen=frozen)
        moving = self._moving(train)
        has_prox = not (isinstance(prox, float) and prox == 0.0)
        if direction is None and loss is None and penalty is None and project is None:
            terms = {
                "linear": linear,
                "prox": prox if has_prox else None,
                "anchor": anchor if has_prox else None,
                "frozen": frozen,
            }
            outside = self._outside(start, terms, reference, rate, repeats, train)
            if outside is not None:
                return outside
        transformation = shared.optimizer.transformation()
        scale = shared.optimizer.scale(shared.round)
        v = None if linear is None else reader.split(linear)
        a = reader.split(start if anchor is None else anchor)
        fixed = None if reference is None else tuple(map(reader.split, reference))
        planned = client.steps * repeats

        def step(carry: _Carry) -> _Carry:
            s, y, state, buffers, total, seen = carry
            row = s if repeats == 1 else s % jnp.maximum(client.steps, 1)
            batch = Minibatch(reader, row, buffers)
            g = batch._ask(y) if direction is None else reader.split(direction(batch, reader.join(y)))
            loss, rows, new_buffers = batch._seen(y)
            if fixed is not None:
                x, g_all = fixed
                g_x = batch._ask(x)
                g = [gi - xi + ri for gi, xi, ri in zip(g, g_x, g_all, strict=True)]
            if v is not None:
                g = [gi + vi for gi, vi in zip(g, v, strict=True)]
            if has_prox:
                g = [gi + prox * (yi - ai) for gi, yi, ai in zip(g, y, a, strict=True)]
            moves, new_state = transformation.update(_those(moving, g), state, _those(moving, y))
            moves = [scaled(rate, scaled(scale, mi)) for mi in moves]
            new_y = _add(moving, y, moves)
            if project is not None:
                new_y = reader.split(project(reader.join(new_y)))
            new = _Carry(s + 1, new_y, new_state, new_buffers, total + loss * rows, seen + rows)
            if not shared.masked and shared.max_steps > 1:
                return new
            active = s < planned
            kept = jax.tree.map(lambda n, o: jnp.where(active, n, o), new[1:], carry[1:])
            return _Carry(s + 1, *kept)

        zero = jnp.float32(0)
        y = reader.split(start)
        carry = _Carry(jnp.int32(0), y, transformation.init(_those(moving, y)), reader.buffers(), zero, zero)
        # One step needs no loop: its forward pass is shared by all clients of a chunk.
        once = shared.max_steps * repeats == 1
        bound = self._bound * repeats
        carry = step(carry) if once else lax.while_loop(lambda c: c.s < bound, step, carry)
        mean_loss = carry.total / jnp.maximum(carry.seen, 1.0)
        self._observe(mean_loss, carry.buffers)

        def gain(with_prox: bool) -> Array:
            mu = prox if with_prox else 0.0
            longest = shared.max_steps * repeats
            return path_gain(shared.optimizer, shared.round, rate, mu, planned, longest)

        return Solution(reader.join(carry.y), planned, mean_loss, gain)

    def _outside(
        self,
        start: Array,
        terms: dict[str, Any],
        reference: tuple[Array, Array] | None,
        rate: Any,
        repeats: int,
        train: str | None,
    ) -> Solution | None:
        """The solution by a framework's own solver, if the model has one that can do it."""
        shared, client, outside = self._shared, self._client, self._shared.task.model.outside
        if outside is None:
            return None
        x, gx = reference or (None, None)
        arrays = {n: a for n, a in {"start": start, "x": x, "gx": gx, **terms}.items() if a is not None}
        found = outside.solve(shared, client, arrays, rate, repeats, train)
        if found is None:
            return None
        w, loss, floats, ints = found
        self._worked = True
        self.observed = Observed(loss, client.steps, floats, ints)
        loss = jnp.where(loss == NOT_REPORTED, jnp.nan, loss)
        planned, longest = client.steps * repeats, shared.max_steps * repeats

        def gain(with_prox: bool) -> Array:
            mu = terms["prox"] if with_prox and terms["prox"] is not None else 0.0
            there = outside.gain(shared, mu, rate, planned, longest)
            return (
                there
                if there is not None
                else path_gain(shared.optimizer, shared.round, rate, mu, planned, longest)
            )

        return Solution(w, planned, loss, gain)

    def walk(self, start: Any, step: Callable[..., Any], *, batches: int = 1) -> Any:
        """A local loop of the method's own: state ← step(state, minibatch, …) over the client's plan.

        For methods whose local work is not one optimizer on one vector (APFL, Per-FedAvg, pFedMe). The local
        optimizer plays no part: the method has learning rates of its own.

        Args:
            start: the first state, a pytree of arrays whose first leaf is a vector (d,).
            step: (state, *minibatches) → state of the same structure; ask the minibatches directly.
            batches: b ≥ 1 minibatches for each turn, one behind the other in the plan, beginning anew at its
                end; there are ⌈steps / b⌉ turns.
        """
        shared, client = self._shared, self._client
        steps = jnp.maximum(client.steps, 1)
        turns = -(-client.steps // batches)

        def turn(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            t, state, buffers, total, seen = carry
            given = [Minibatch(self._reader, (t * batches + i) % steps, buffers) for i in range(batches)]
            new_state = step(state, *given)
            loss, rows, new_buffers = given[0]._seen(self._reader.split(jax.tree.leaves(state)[0]))
            new = (new_state, new_buffers, total + loss * rows, seen + rows)
            kept = jax.tree.map(lambda n, o: jnp.where(t < turns, n, o), new, carry[1:])
            return (t + 1, *kept)

        carry = (jnp.int32(0), start, self._reader.buffers(), jnp.float32(0), jnp.float32(0))
        if shared.max_steps <= batches:
            carry = turn(carry)
        else:
            bound = -(-self._bound // batches)
            carry = lax.while_loop(lambda c: c[0] < bound, turn, carry)
        _, state, buffers, total, seen = carry
        self._observe(total / jnp.maximum(seen, 1.0), buffers)
        return state

    def gradient(self, w: Float32[Array, " d"]) -> Float32[Array, " d"]:
        """∇F_k(w) over all of the client's rows, mean over examples; 0 for a client without rows."""
        found = self._value(w)
        if found is None:
            reader = self._reader
            loss, _, _, parts = reader.whole_gradient(reader.split(w), reader.buffers(), jnp.int32(0))
            found = loss, reader.join(parts)
        loss, g = found
        if not self._worked:
            self.observed = self.observed._replace(loss=loss, steps=jnp.minimum(self._client.size, 1))
        return jnp.asarray(g)

    def loss(self, w: Float32[Array, " d"]) -> Float32[Array, ""]:
        """F_k(w), mean over all of the client's rows in evaluation mode; 0 for a client without rows."""
        found = self._value(w)
        if found is not None:
            return jnp.asarray(found[0])
        reader = self._reader
        variables = Variables(reader.params(reader.split(w)), reader.buffers())

        def turn(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            b, total = carry
            batch, mask, _ = reader.rows(b, jnp.int32(0))
            loss, _ = self._shared.task.batch_loss(variables, batch, mask, train=False)
            return b + 1, total + mask.sum() * loss

        _, total = lax.while_loop(lambda c: c[0] < reader.blocks, turn, (jnp.int32(0), jnp.float32(0)))
        n = jnp.maximum(self._client.size, 1).astype(jnp.float32)
        return jnp.asarray(total / n)

    def _value(self, w: Array) -> tuple[Array, Array] | None:
        """(F_k, ∇F_k) by a framework's own means, if they don't follow from the task's loss."""
        outside = self._shared.task.model.outside
        if outside is None:
            return None
        found: tuple[Array, Array] | None = outside.value(self._shared, self._client, w)
        return found

    def labels(self, classes: int) -> Float32[Array, " c"]:
        """How many of the client's rows have each of the labels 0 … classes − 1 (C,)."""
        reader, target = self._reader, self._shared.task.target

        def turn(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            b, counts = carry
            batch, mask, _ = reader.rows(b, jnp.int32(0))
            hot = (batch[target][:, None] == jnp.arange(classes)) * mask[:, None]
            return b + 1, counts + hot.sum(0)

        start = (jnp.int32(0), jnp.zeros(classes, jnp.float32))
        _, counts = lax.while_loop(lambda c: c[0] < reader.blocks, turn, start)
        return counts

    def predict(self, w: Float32[Array, " d"], inputs: Array) -> Any:
        """The model's outputs for `inputs` (B, …) in evaluation mode."""
        reader = self._reader
        variables = Variables(reader.params(reader.split(w)), reader.buffers())
        outputs, _ = self._shared.task.model.apply(variables, inputs, train=False, key=None, mask=None)
        return outputs

    # ----- shared and private -------------------------------------------------------------------------

    def join(self, shared: Float32[Array, " s"], private: Float32[Array, " p"]) -> Float32[Array, " d"]:
        """The whole parameter vector (d,) of its shared (s,) and its private part (p,)."""
        return jnp.concatenate([shared, private])

    def shared(self, w: Float32[Array, " d"]) -> Float32[Array, " s"]:
        """The part of the vector that travels."""
        return w[: self._shared.layout.shared_size]

    def private(self, w: Float32[Array, " d"]) -> Float32[Array, " p"]:
        """The part of the vector that stays with the client."""
        return w[self._shared.layout.shared_size :]

    @property
    def frozen(self) -> Float32[Array, " f"]:
        """The frozen parameters that every client has."""
        return self._shared.frozen

    def whole(self, w: Float32[Array, " d"]) -> Float32[Array, " e"]:
        """The parameter vector (d,) with the frozen parameters behind it (d + f,)."""
        return jnp.concatenate([w, self._shared.frozen]) if self._shared.layout.frozen_size else w

    def _moving(self, train: str | None) -> list[bool]:
        if train not in (None, "shared", "private"):
            raise ConfigError(f"train={train!r} is not known: give 'shared', 'private' or None for all.")
        return [train is None or e.group == train for e in self._reader.entries]

    def _observe(self, loss: Array, buffers: PyTree) -> None:
        floats, ints = self._shared.layout.flatten_buffers(buffers)
        self._worked = True
        self.observed = Observed(loss, self._client.steps, floats, ints)


class _Carry(NamedTuple):
    s: Array
    y: list[Array]
    state: optax.OptState
    buffers: PyTree
    total: Array
    seen: Array


def _those(moving: list[bool], y: list[Array]) -> list[Array]:
    return [yi for yi, m in zip(y, moving, strict=True) if m]


def _add(moving: list[bool], y: list[Array], moves: list[Array]) -> list[Array]:
    ahead = iter(moves)
    return [yi + next(ahead) if m else yi for yi, m in zip(y, moving, strict=True)]
