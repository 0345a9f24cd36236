"""Mime and MimeLite: the server's momentum is applied, unchanged, in every local step.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: Mime: Mimicking Centralized Stochastic Algorithms in
Federated Learning, 2020 (NeurIPS 2021: Breaking the Centralized Barrier for Cross-Device Federated Learning).

    survey:    c = Σ_S p_k ∇F_k(w) / Σ_S p_k                      (Mime)
    client k:  y ← y − η ((1 − β) g + β m)                        m stays as it is during the round
               g = g_B(y) − g_B(w) + c                            Mime, the same minibatch B twice
               g = g_B(y)                                         MimeLite
    server:    m ← (1 − β) c + β m,    w ← Σ_S p_k y_k / Σ_S p_k
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Minibatch, Needs, Oracle, RoundInfo, Update


class Mimicked(NamedTuple):
    """The model and the momentum, (d,) each."""

    w: Array
    m: Array


class Informed(NamedTuple):
    """What a client of Mime works with: model, momentum, mean gradient, (d,) each."""

    w: Array
    m: Array
    c: Array


class Gradient(NamedTuple):
    """∇F_k(w) (d,)."""

    gradient: Array


class WithGradient(NamedTuple):
    """A client's update and its gradient at the server's model, (d,) each."""

    delta: Array
    gradient: Array


@dataclass(frozen=True)
class Mime(Algorithm):
    """Mime with momentum. `beta` β in [0, 1), the server's momentum."""

    citation: ClassVar[str] = (
        "S. P. Karimireddy, M. Jaggi, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh. Breaking the "
        "Centralized Barrier for Cross-Device Federated Learning. NeurIPS 2021."
    )
    needs: ClassVar[Needs] = Needs(uplink=2, downlink=3)
    beta: float = 0.9

    def __post_init__(self) -> None:
        check.number(self, "beta", 0, 1, open_high=True)

    def init(self, w: Float[Array, " d"]) -> Mimicked:  # noqa: D102
        return Mimicked(w, jnp.zeros_like(w))

    def survey(self, server: Mimicked, client: Any, oracle: Oracle) -> Gradient:  # noqa: D102
        return Gradient(oracle.gradient(server.w))

    def inform(self, sent: Mimicked, mean: Gradient) -> Informed:  # noqa: D102
        return Informed(sent.w, sent.m, mean.gradient)

    def local(self, server: Informed, client: Any, oracle: Oracle) -> tuple[Update, Any]:  # noqa: D102
        w, m, c = server

        def direction(batch: Minibatch, y: Array) -> Array:
            g = batch.gradient(y) - batch.gradient(w) + c
            return (1 - self.beta) * g + self.beta * m

        return Update(oracle.solve(w, direction=direction).w - w), client

    def apply(self, server: Mimicked, mean: Update, round: RoundInfo) -> Mimicked:  # noqa: D102
        m = (1 - self.beta) * round.survey.gradient + self.beta * server.m
        return Mimicked(server.w + mean.delta, m)


@dataclass(frozen=True)
class MimeLite(Algorithm):
    """MimeLite with momentum: no survey, no correction of the gradients. `beta` β in [0, 1); 0 is FedAvg."""

    citation: ClassVar[str] = Mime.citation
    needs: ClassVar[Needs] = Needs(uplink=2, downlink=2)
    beta: float = 0.9

    def __post_init__(self) -> None:
        check.number(self, "beta", 0, 1, open_high=True)

    def init(self, w: Float[Array, " d"]) -> Mimicked:  # noqa: D102
        return Mimicked(w, jnp.zeros_like(w))

    def local(self, server: Mimicked, client: Any, oracle: Oracle) -> tuple[WithGradient, Any]:  # noqa: D102
        def direction(batch: Minibatch, y: Array) -> Array:
            return (1 - self.beta) * batch.gradient(y) + self.beta * server.m

        y = oracle.solve(server.w, direction=direction)
        return WithGradient(y.w - server.w, oracle.gradient(server.w)), client

    def apply(self, server: Mimicked, mean: WithGradient, round: RoundInfo) -> Mimicked:  # noqa: D102
        m = (1 - self.beta) * mean.gradient + self.beta * server.m
        return Mimicked(server.w + mean.delta, m)
