"""Nothing is averaged unchecked: which updates are set aside, and why (law 4 of the design)."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dure.aggregation import exact

# Why an update was set aside, as bits of a verdict.
NOT_FINITE, LOSS_NOT_FINITE, TOO_LARGE = 1, 2, 4
REASONS = {
    NOT_FINITE: "update not finite",
    LOSS_NOT_FINITE: "loss not finite",
    TOO_LARGE: f"update too large (weight times a value is over {exact.LIMIT:.1e})",
}


def judge(payload: PyTree, loss: Array, weight: Array) -> tuple[Array, Array]:
    """The update's 2-norm and why it must be set aside (0: it need not), in two passes over it.

    A sum of squares is NaN if and only if an element is; it is infinite for an infinite element or one
    beyond 1e19, which the largest magnitude tells apart.
    """
    leaves = [x for x in jax.tree.leaves(payload) if x.size]
    if not leaves:  # a method that sends nothing
        return jnp.float32(0), jnp.where(jnp.isfinite(loss), 0, LOSS_NOT_FINITE)
    squares = [jnp.vdot(x, x) for x in leaves]
    largest = jnp.stack([jnp.abs(x).max() for x in leaves]).max()
    broken = jnp.isnan(jnp.stack(squares)).any() | jnp.isinf(largest)
    large = ~broken & (largest >= jnp.float32(exact.LIMIT) / jnp.maximum(weight, 1e-30))
    verdict = jnp.where(broken, NOT_FINITE, 0) | jnp.where(large, TOO_LARGE, 0)
    verdict = verdict | jnp.where(jnp.isfinite(loss), 0, LOSS_NOT_FINITE)
    main = getattr(payload.update, "delta", None)
    norm = jnp.sqrt(sum(squares)) if main is None else jnp.sqrt(jnp.vdot(main, main))
    return norm, verdict


def statuses(sizes: np.ndarray, steps: np.ndarray, lost: np.ndarray, verdict: np.ndarray) -> list[str]:
    """One word of status per client, "ok" or why its update was not used."""
    texts = ["ok"] * len(sizes)
    for k in np.flatnonzero((sizes == 0) | (steps == 0) | lost | (verdict != 0)):
        if sizes[k] == 0:
            texts[k] = "no examples"
        elif steps[k] == 0:
            texts[k] = "no steps"
        elif lost[k]:
            texts[k] = "upload lost"
        else:
            texts[k] = "; ".join(text for bit, text in REASONS.items() if verdict[k] & bit)
    return texts
