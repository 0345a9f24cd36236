"""Losses of each example in PyTorch: dure's own, and the user's, whether they give one number an example or a mean."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dure.errors import ConfigError

Rows = Callable[[Tensor, Tensor], Tensor]


def softmax_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """As `dure.oracles.metrics.softmax_cross_entropy`: (B, C) or (B, T, C) logits, negative labels are not there."""
    outputs, targets = outputs.float(), targets.long()
    if outputs.ndim == 2:
        # Elementwise operations: several times faster on a CPU than log_softmax along a short last dimension.
        z = outputs - outputs.detach().amax(1, keepdim=True)
        hot = targets[:, None] == torch.arange(outputs.shape[1], device=outputs.device)
        return z.exp().sum(1).log() - (z * hot).sum(1)
    present = targets >= 0
    losses = F.cross_entropy(outputs.flatten(0, -2), targets.clamp(min=0).flatten(), reduction="none")
    losses = (losses.reshape(targets.shape) * present).flatten(1).sum(1)
    return losses / present.flatten(1).sum(1).clamp(min=1)


def sigmoid_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """As `dure.oracles.metrics.sigmoid_cross_entropy`."""
    z, y = outputs.float().flatten(1) if outputs.ndim > 1 else outputs.float()[:, None], targets.float()
    losses = F.binary_cross_entropy_with_logits(z, y.reshape(z.shape), reduction="none")
    return losses.mean(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """As `dure.oracles.metrics.squared_error`."""
    out = outputs.float()
    difference = out - targets.float().reshape(out.shape)
    return difference.square().flatten(1).mean(1) if out.ndim > 1 else difference.square()


OWN: dict[str, Rows] = {f.__name__: f for f in (softmax_cross_entropy, sigmoid_cross_entropy, squared_error)}


class Given:
    """A loss that the user wrote in PyTorch: (outputs, targets) → (B,), or one number for the batch.

    Training uses it as it is, on batches without padding. Where single examples' losses are wanted (evaluation,
    clients that run together) a module with a `reduction` is asked without it, and a function that gives one number
    is asked with one example at a time.
    """

    def __init__(self, loss: Any):
        self._loss = self._each = loss
        if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
            self._each = deepcopy(loss)
            self._each.reduction = "none"
        self.name = type(loss).__name__ if isinstance(loss, nn.Module) else getattr(loss, "__name__", "loss")

    def batch(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The batch's loss, a scalar."""
        return self._asked(self._loss, outputs, targets).mean()

    def rows(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of each example (B,)."""
        found = self._asked(self._each, outputs, targets)
        if found.ndim:
            return found
        each = range(len(outputs))
        return torch.stack([self._asked(self._each, outputs[i : i + 1], targets[i : i + 1]) for i in each])

    def separable(self, outputs: Tensor, targets: Tensor) -> bool:
        """Whether the batch's loss is the mean of the examples' (class weights and the like break that)."""
        rows = self.rows(outputs, targets)
        return rows.ndim == 1 and torch.allclose(
            self.batch(outputs, targets), rows.mean(), rtol=1e-4, atol=1e-6
        )

    def _asked(self, loss: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        if not targets.is_floating_point():
            targets = targets.long()
        elif targets.shape != outputs.shape and targets.numel() == outputs.numel():
            targets = targets.reshape(outputs.shape)  # or (B, 1) against (B,) would be compared B × B
        found = loss(outputs, targets)
        if not isinstance(found, Tensor):
            raise ConfigError(f"The loss {self.name} returned a {type(found).__name__}, not a tensor.")
        if found.ndim == 0 or found.shape == outputs.shape[:1]:
            return found
        if found.shape in (outputs.shape, targets.shape):
            return found.flatten(1).mean(1)
        raise ConfigError(
            f"The loss {self.name} returned shape {tuple(found.shape)} for {outputs.shape[0]} examples: it must "
            "return one number, or one for each example."
        )


def mean(loss: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of a batch without padding; `loss` is a name of `OWN` or `Given`."""
    if loss == "softmax_cross_entropy" and outputs.ndim == 2:  # one operation where nothing is vectorised
        return F.cross_entropy(outputs.float(), targets.long())
    if isinstance(loss, str):
        return OWN[loss](outputs, targets).mean()
    found: Tensor = loss.batch(outputs, targets)
    return found


def rows(loss: Any, outputs: Tensor, targets: Tensor) -> Tensor:
    """The loss of each example (B,)."""
    if isinstance(loss, str):
        return OWN[loss](outputs, targets)
    found: Tensor = loss.rows(outputs, targets)
    return found
