"""A3FL: a trigger that is optimised against the model, and against models that are hardened against it.

Zhang, Jia, Chen, Lin and Wu: A3FL: Adversarially Adaptive Backdoor Attacks to Federated Learning, NeurIPS 2023.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite, checked_number
from dure.attacks.base import View
from dure.attacks.images import window
from dure.attacks.triggers import AdaptiveTrigger
from dure.errors import ConfigError, DataError
from dure.keys import generator

#: (inputs (n, …), labels (n,)) → d loss / d inputs, in the shape of the inputs
Gradient = Callable[[np.ndarray, np.ndarray], np.ndarray]


def optimized_trigger(
    gradient: Gradient,
    inputs: np.ndarray,
    trigger: AdaptiveTrigger,
    *,
    hardened: Callable[[AdaptiveTrigger], tuple[Gradient, float]] | None = None,
    steps: int = 200,
    step_size: float = 0.01,
    bound: float = 2.0,
    balance: float = 0.01,
) -> AdaptiveTrigger:
    """The trigger after sign steps that make the model give triggered inputs the attacker's label.

        g = d loss(stamped inputs, target) / d pattern  +  balance · cos · (the same of the hardened model)
        pattern ← clip(pattern − step_size · sign(g), −bound, bound)

    Args:
        gradient: of the loss of the global model by its inputs: (inputs, labels (n,) int64) → array like the inputs.
            It may be that of the sum or of the mean over rows: only its sign is used.
        inputs: (n, …) clean inputs of the attacker, n ≥ 1.
        trigger: where it starts. The paper: 5×5 pixels of 0.5 at (2, 2).
        hardened: trigger → (gradient of a copy of the model that was trained to give inputs with this trigger their
            true labels, its similarity to the global model), asked before every step; None: no such copy. The
            paper's copy takes 5 epochs of SGD, step 0.01, momentum 0.9; similarity: the cosine of the parameters.
        steps: how many, at least 0. The paper takes 200.
        step_size: of one step in units of the inputs, above 0.
        bound: largest magnitude of the pattern, above 0.
        balance: weight of the hardened model's part; its sign is kept.

    Returns:
        A new trigger; the old one and the inputs stay as they are.

    Raises:
        ConfigError: a step or bound out of range, or a trigger that doesn't fit on the inputs.
        DataError: no inputs, inputs that are no images, or a gradient of another shape.
    """
    if steps < 0 or not step_size > 0 or not bound > 0:
        raise ConfigError(
            f"optimized_trigger(steps={steps!r}, step_size={step_size!r}, bound={bound!r}) is not allowed: steps must "
            "be at least 0, the others above 0."
        )
    if not len(inputs):
        raise DataError(
            "optimized_trigger has no inputs to find a trigger with: the attacker's client is empty."
        )
    for _ in range(steps):
        slope = _slope(gradient, inputs, trigger)
        if hardened is not None:
            other, similarity = hardened(trigger)
            slope = slope + balance * similarity * _slope(other, inputs, trigger)
        pattern = np.clip(trigger.pattern - step_size * np.sign(slope), -bound, bound)
        trigger = replace(trigger, pattern=pattern.astype(trigger.pattern.dtype))
    return trigger


@dataclass(frozen=True)
class A3FL(AdaptiveTrigger):
    """A backdoor whose trigger is found anew for the global model before every round.

    The attackers look for the pattern with which the global model, and a copy of it that was hardened against the
    trigger, call their inputs `target` (see `optimized_trigger`); then they train with it.

    Args:
        target, pattern, position, share, source, shape: see `AdaptiveTrigger`; `pattern` is where the search starts.
        steps: sign steps in a round, at least 0; 200 in the paper.
        step_size: of one of them, in units of the inputs.
        bound: largest magnitude of the pattern.
        balance: weight of the hardened copy's gradient; 0: no such copy.
        epochs: full-batch steps of SGD that harden the copy before every sign step; 5 in the paper.
        rate, momentum: of that SGD.
        rows: of the attackers' inputs that are used, at most; drawn anew in every round.
    """

    steps: int = 200
    step_size: float = 0.01
    bound: float = 2.0
    balance: float = 0.01
    epochs: int = 5
    rate: float = 0.01
    momentum: float = 0.9
    rows: int = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("steps", "epochs"):
            checked_count(self, name, getattr(self, name))
        checked_count(self, "rows", self.rows, 1)
        for name in ("step_size", "bound", "rate"):
            checked_finite(self, name, getattr(self, name), above=0)
        checked_finite(self, "balance", self.balance)
        if self.momentum:
            checked_number(self, "momentum", self.momentum, 0.0, np.nextafter(1.0, 0.0), "in [0, 1)")

    def adapt(self, view: View) -> "A3FL":  # noqa: D102
        if not len(view.inputs):
            return self
        draw = generator(view.key, "adapt")
        rows = np.sort(draw.permutation(len(view.inputs))[: self.rows])
        inputs, targets = view.inputs[rows], view.targets[rows].astype(np.int64)

        def hardened(trigger: AdaptiveTrigger) -> tuple[Gradient, float]:
            w, velocity = view.w.astype(np.float64), np.zeros(len(view.w))
            stamped = trigger.stamped(inputs, None)
            for _ in range(self.epochs):
                velocity = self.momentum * velocity + view.by_model(w.astype(view.w.dtype), stamped, targets)
                w = w - self.rate * velocity
            copy = w.astype(view.w.dtype)
            length = float(np.linalg.norm(view.w) * np.linalg.norm(copy))
            similarity = float(view.w @ copy) / length if length else 0.0
            return (lambda x, y: view.by_inputs(copy, x, y)), similarity

        found = optimized_trigger(
            lambda x, y: view.by_inputs(view.w, x, y),
            inputs,
            self,
            hardened=hardened if self.balance else None,
            steps=self.steps,
            step_size=self.step_size,
            bound=self.bound,
            balance=self.balance,
        )
        return replace(self, pattern=found.pattern)

    def snapshot(self) -> dict[str, np.ndarray]:  # noqa: D102
        return {"pattern": self.pattern}

    def restored(self, snapshot: dict[str, np.ndarray]) -> "A3FL":  # noqa: D102
        return replace(self, pattern=snapshot["pattern"])


def _slope(gradient: Gradient, inputs: np.ndarray, trigger: AdaptiveTrigger) -> np.ndarray:
    """D loss / d pattern, in the shape of the pattern."""
    labels = np.full(len(inputs), trigger.target, np.int64)
    found = np.ascontiguousarray(gradient(trigger.stamped(inputs, None), labels))
    if found.shape != inputs.shape:
        raise DataError(
            f"The gradient has shape {list(found.shape)}, and the inputs have {list(inputs.shape)}."
        )
    slope = window(trigger, found, trigger.shape, trigger.patch).sum(0, dtype=np.float64)
    if trigger.pattern.shape == slope.shape:
        return np.asarray(slope)
    # One value for all channels: it moves them together.
    return np.asarray(slope.sum(-1, keepdims=trigger.pattern.ndim == 3))
