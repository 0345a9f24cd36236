"""The losses between predictions, per example, and the sharpening of averaged probabilities."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

Scores = Float[Array | np.ndarray, "*B c"]
Losses = Float[Array, "*B"]


def kl(outputs: Scores, targets: Scores, temperature: Any) -> Losses:
    """T² KL(σ(t/T) ‖ σ(f/T)), teacher first: zero only where the student f puts the teacher's mass.

    The gradient in f is T (σ(f/T) − σ(t/T)): the factor T² keeps its size as T grows (Hinton, Vinyals, Dean
    2015), and tends to (f − t)/C, of centred logits.

    Args:
        outputs: the student's logits f (…, C).
        targets: the teacher's logits t (…, C).
        temperature: T > 0.
    """
    p, q = (jax.nn.log_softmax(jnp.asarray(x) / temperature, -1) for x in (targets, outputs))
    scaled: Array = temperature**2 * jnp.sum(jnp.exp(p) * (p - q), -1)
    return scaled


def kl_to_probabilities(outputs: Scores, targets: Scores) -> Losses:
    """KL(p ‖ σ(f)) for given probabilities p: cross-entropy less the constant entropy of p. No temperature.

    Args:
        outputs: the student's logits f (…, C).
        targets: probabilities p (…, C).
    """
    q = jax.nn.log_softmax(jnp.asarray(outputs), -1)
    return jnp.sum(xlogy(targets, targets) - targets * q, -1)


def l1(outputs: Scores, targets: Scores) -> Losses:
    """The mean over classes of |f − t|.

    Args:
        outputs: the student's logits f (…, C).
        targets: the teacher's logits t (…, C).
    """
    return jnp.mean(jnp.abs(jnp.asarray(outputs) - targets), -1)


def sharpened(mean: Scores, temperature: Any, how: str | None) -> Float[Array, "*B c"]:
    """Averaged probabilities p̄ with less entropy.

    Args:
        mean: p̄ (…, C), rows that sum to 1.
        temperature: T > 0; T → 0 is the one-hot vector of the largest.
        how: "softmax": σ(p̄/T), the rule of DS-FL. Probabilities are small logits, so that it lowers the
            entropy only for T well below 1 and where one label leads: T = 1 raises it, and so does T = 0.1
            for a p̄ that is shared evenly by six of ten labels. "power": p̄^(1/T) / Σ p̄^(1/T), which never
            raises it for T ≤ 1 and is p̄ itself at T = 1. None: p̄.
    """
    mean = jnp.asarray(mean)
    if how is None:
        return mean
    if how == "softmax":
        return jax.nn.softmax(mean / temperature, -1)
    return jax.nn.softmax(jnp.log(mean) / temperature, -1)
