"""Attackers that look at the global model before a round, and change their data for it (A3FL)."""

from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dure import devices, keys
from dure.attacks.base import View
from dure.errors import ConfigError
from dure.oracles.layout import Layout, Variables
from dure.oracles.task import Task
from dure.simulation.defence import Defence
from dure.simulation.hostile import poisoned_columns


@lru_cache(maxsize=8)
def _gradients(task: Task, layout: Layout) -> tuple[Any, Any]:
    """(by the inputs, by the parameters) of the loss, jitted; buffers as they are, in evaluation mode."""

    def total(w: Array, inputs: Array, labels: Array, floats: Array, ints: Array) -> Array:
        variables = Variables(layout.unflatten_params(w), layout.unflatten_buffers(floats, ints))
        batch = {task.input: inputs, task.target: labels}
        loss, _ = task.batch_loss(variables, batch, jnp.ones(len(labels)), train=False)
        return loss

    return jax.jit(jax.grad(total, argnums=1)), jax.jit(jax.grad(total, argnums=0))


def check_adapting(task: Task) -> None:
    """Attacks on the global model need its gradients.

    Raises:
        ConfigError: JAX doesn't compute this model.
    """
    if task.model.outside is not None:
        raise ConfigError(
            f"The attack looks for its trigger with gradients of the model, and {task.model.name!r} is not computed by "
            "JAX. Give a JAX model, or an attack with a fixed trigger (PixelTrigger)."
        )


def adapted(engine: Any, defence: Defence, number: int) -> None:
    """Before round `number`: the attack is made for the present model, and its clients' data are poisoned by it."""
    enemy = defence.enemy
    if enemy is None or not enemy.ids or not enemy.attack.adapts:
        return
    data, task = engine.clean, engine.task
    by_inputs, by_model = _gradients(task, engine.layout)
    model = engine.model
    rows = np.concatenate([np.arange(data.offsets[k], data.offsets[k + 1]) for k in enemy.ids])
    labels = data.columns[task.target].dtype

    def called(function: Any) -> Any:
        def call(w: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
            given = jnp.asarray(w, jnp.float32), jnp.asarray(inputs), jnp.asarray(targets.astype(labels))
            return np.asarray(function(*given, model.floats, model.ints))

        return call

    view = View(
        data.columns[task.input][rows],
        data.columns[task.target][rows],
        np.asarray(engine.vector()),
        called(by_inputs),
        called(by_model),
        keys.number(engine.settings.seed, "adapt", number),
    )
    attack = enemy.attack.adapt(view)
    defence.enemy = replace(enemy, attack=attack)
    defence.memory["trigger"] = attack.snapshot()
    made = poisoned_columns(data, defence.enemy, engine.settings.seed, task.input, task.target)
    engine.columns = {**engine.columns, **{n: devices.replicate(x, engine.mesh) for n, x in made.items()}}
