"""FedAdagrad, FedAdam, FedYogi: adaptive server steps.

Reddi et al.: Adaptive Federated Optimization, ICLR 2021, Algorithm 2; element-wise, Δ = Σ p_k Δ_k:

    m ← β₁ m + (1 − β₁) Δ
    v ← v + Δ²                                   Adagrad
    v ← v − (1 − β₂) Δ² sign(v − Δ²)             Yogi
    v ← β₂ v + (1 − β₂) Δ²                       Adam
    w ← w + η m / (√v + τ)

τ is outside the root, v starts at τ², and there is no bias correction. `bias_correction` names the variants
that are found elsewhere: "kingma" scales η by √(1 − β₂ᵗ) / (1 − β₁ᵗ), as Keras does; "torch" divides m and v by
1 − βᵗ before the step. Both start v at 0.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update
from dure.algorithms.fedopt import FedOpt


class Moments(NamedTuple):
    """The model, the mean of updates m, of their squares v, (d,) each, and the number of steps taken."""

    w: Array
    m: Array
    v: Array
    t: Array


@dataclass(frozen=True)
class _Adaptive(Algorithm):
    citation: ClassVar[str] = FedOpt.citation
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    bias_correction: str = "none"

    def __post_init__(self) -> None:
        check.number(self, "server_lr", 0, open_low=True)
        check.number(self, "beta1", 0, 1, open_high=True)
        check.number(self, "beta2", 0, 1, open_high=True)
        check.number(self, "tau", 0, open_low=True)
        check.one_of(self, "bias_correction", ("none", "kingma", "torch"))

    def init(self, w: Float[Array, " d"]) -> Moments:
        first = self.tau**2 if self.bias_correction == "none" else 0.0
        return Moments(w, jnp.zeros_like(w), jnp.full_like(w, first), jnp.int32(0))

    def broadcast(self, server: Moments) -> Server:
        return Server(server.w)

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Update, Any]:
        return Update(oracle.solve(server.w).w - server.w), client

    def _second(self, v: Array, square: Array) -> Array:
        raise NotImplementedError

    def apply(self, server: Moments, mean: Update, round: RoundInfo) -> Moments:
        t = server.t + 1
        m = self.beta1 * server.m + (1 - self.beta1) * mean.delta
        v = self._second(server.v, mean.delta**2)
        rate: Any = self.server_lr
        m_hat, v_hat = m, v
        if self.bias_correction == "kingma":
            rate = rate * jnp.sqrt(1 - self.beta2**t) / (1 - self.beta1**t)
        elif self.bias_correction == "torch":
            m_hat, v_hat = m / (1 - self.beta1**t), v / (1 - self.beta2**t)
        return Moments(server.w + rate * m_hat / (jnp.sqrt(v_hat) + self.tau), m, v, t)


@dataclass(frozen=True)
class FedAdagrad(_Adaptive):
    """FedAdagrad: server steps that shrink with all squared updates so far.

    `server_lr` η > 0, `tau` τ > 0 the degree of adaptivity; β₁ = 0 as in the paper.
    """

    beta1: float = 0.0
    beta2: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(self, "bias_correction", ("none",))

    def _second(self, v: Array, square: Array) -> Array:
        return v + square


@dataclass(frozen=True)
class FedAdam(_Adaptive):
    """FedAdam: Adam's moments in the server's step.

    `server_lr` η > 0, `beta1`, `beta2` in [0, 1), `tau` τ > 0 the degree of adaptivity.
    """

    def _second(self, v: Array, square: Array) -> Array:
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(_Adaptive):
    """FedYogi: Adam's moments with a second moment that grows and falls slowly.

    `server_lr` η > 0, `beta1`, `beta2` in [0, 1), `tau` τ > 0 the degree of adaptivity.
    """

    def _second(self, v: Array, square: Array) -> Array:
        return v - (1 - self.beta2) * square * jnp.sign(v - square)
