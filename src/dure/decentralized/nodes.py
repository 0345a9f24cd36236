"""All nodes' oracles at once: the federated engine's oracle for each row of X, so that gradients are the same code.

Nothing is averaged unchecked (law 4): a node whose work is not finite or too large, by the federated engine's
verdict, contributes none. Its row of `solve` is where it started, its row of `gradient` is 0; the record names it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32

from dure.oracles.local import JaxOracle
from dure.oracles.problem import ClientPlan, Shared
from dure.simulation.statics import Payload
from dure.simulation.verdict import judge


class StackedOracles:
    """The nodes of one round, as a method's `Nodes`.

    Args:
        shared: what all nodes share; `shared.masked` says that they run together under `vmap`, else one after
            the other.
        plan: (N,) each, what each node reads.
        keys: (N,) keys for the method's own random choices.
    """

    def __init__(self, shared: Shared, plan: ClientPlan, keys: Array):
        self.keys = keys
        self._shared, self._plan = shared, plan
        #: Of the last question, (N,) each: mean training loss, 2-norm of the work, why it was set aside (0: it wasn't).
        self.loss = self.norm = jnp.zeros(plan.size.shape, jnp.float32)
        self.verdict = jnp.zeros(plan.size.shape, jnp.int32)

    def solve(self, start: Float32[Array, "N d"]) -> Float32[Array, "N d"]:
        """Where each node's local optimizer leads from its row, over its plan."""
        return start + self._ask(lambda oracle, x: oracle.solve(x).w - x, start)

    def gradient(self, x: Float32[Array, "N d"]) -> Float32[Array, "N d"]:
        """Each node's mean minibatch gradient over its plan, at its row of x."""
        return self._ask(_mean_gradient, x)

    def _ask(self, question: Callable[[JaxOracle, Array], Array], x: Array) -> Array:
        """Each node's answer (d,) to a question at its row of x; 0 where it can't be used."""
        plan, shared = self._plan, self._shared
        turns, blocks = plan.steps, -(-plan.size // shared.block)

        def one(plan: ClientPlan, x: Array, turns: Array, blocks: Array) -> tuple[Array, ...]:
            oracle = JaxOracle(shared, plan, turns, blocks)
            answer = question(oracle, x)
            loss = oracle.observed.loss
            norm, verdict = judge(Payload({"x": answer}, None), loss, jnp.float32(1))
            return jnp.where(verdict == 0, answer, 0.0), loss, norm, verdict

        if shared.masked:
            answers = jax.vmap(one, (0, 0, None, None))(plan, x, turns.max(), blocks.max())
        else:
            answers = lax.map(lambda node: one(*node), (plan, x, turns, blocks))
        work, self.loss, self.norm, self.verdict = answers
        return work


def _mean_gradient(oracle: JaxOracle, x: Array) -> Array:
    """The mean over the plan's minibatches of their gradients, all at x (d,)."""

    def add(state: tuple[Array, Array], batch: Any) -> tuple[Array, Array]:
        return x, state[1] + batch.gradient(x)

    total: Array = oracle.walk((x, jnp.zeros_like(x)), add)[1]
    return total / oracle.steps
