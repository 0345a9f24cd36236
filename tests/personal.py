"""One client of an `exact.Run`: what it answers, and the model that it would use."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from exact import Oracle, Run


def oracle(run: Run, client: int) -> Oracle:
    """The client's oracle in the present round; to be asked in 64-bit mode."""
    return Oracle(jax.tree.map(lambda x: jnp.asarray(x)[client], run.plans()), run.exact, run.shared)


def personal_model(run: Run, client: int) -> np.ndarray:
    """The client's own model now, in float64."""
    page = run.algorithm
    with jax.enable_x64(True):
        own = jax.tree.map(lambda x: x[client], run.clients)
        sent: Any = page.deliver(page.broadcast(run.server), client)
        return np.asarray(page.personal(sent, own, oracle(run, client)))
