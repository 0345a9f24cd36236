"""A loss that the user wrote in PyTorch, for JAX."""

from typing import Any

import jax
import numpy as np
import torch
from jaxtyping import Array

from dure.oracles.host.bridge import Handle, ask, shape
from dure.oracles.pytorch import losses


class TorchLoss:
    """A PyTorch loss for a `Task`: JAX asks PyTorch for each example's loss and its gradient."""

    def __init__(self, loss: Any):
        self.given = losses.Given(loss)
        self.__name__ = self.given.name
        self.handle = Handle(LossHost(self.given), here=True)
        self._run = _loss_function(self.handle)

    def __call__(self, outputs: Array, targets: Array) -> Array:
        """The loss of each example, (B,)."""
        found: Array = self._run(outputs, targets)
        return found


def _loss_function(handle: Handle) -> Any:
    @jax.custom_vjp
    def run(outputs: Array, targets: Array) -> Array:
        given = {"outputs": outputs, "targets": targets}
        return ask(handle, "value", given, {"losses": shape(outputs.shape[:1])})["losses"]

    def forward(outputs: Array, targets: Array) -> Any:
        return run(outputs, targets), (outputs, targets)

    def backward(kept: Any, cotangent: Array) -> Any:
        given = {"outputs": kept[0], "targets": kept[1], "cotangent": cotangent}
        return ask(handle, "gradient", given, {"g": shape(kept[0].shape)})["g"], None

    run.defvjp(forward, backward)
    return run


class LossHost:
    """Answers about a loss alone."""

    def __init__(self, given: losses.Given):
        self._given = given

    def answer(self, job: str, given: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> list[Any]:
        """Losses of each example, or their gradient in the outputs."""
        into = next(iter(wanted.values()))
        for k in range(len(into)):
            mine = {n: torch.from_numpy(np.array(a[k % len(a)])) for n, a in given.items()}
            outputs = mine["outputs"].requires_grad_(job == "gradient")
            found = losses.rows(self._given, outputs, mine["targets"])
            if job == "gradient":
                (found,) = torch.autograd.grad(found, outputs, mine["cotangent"])
            into[k] = found.detach().numpy()
        return []
