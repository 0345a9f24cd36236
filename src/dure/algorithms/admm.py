"""ADMM with a server: consensus ADMM (everyone, every round) and FedADMM (a sample of clients).

Boyd, Parikh, Chu, Peleato, Eckstein: Distributed Optimization and Statistical Learning via the Alternating
Direction Method of Multipliers, 2011, section 7.1. Zhou, Li: Federated Learning via Inexact ADMM, 2021, and
Gong, Li, Freris: FedADMM, ICDE 2022, for the sampled form. Scaled duals u_k; p_k over all clients:

    consensus  client k:  u_k ← u_k + x_k − z
                          x_k ≈ argmin F_k(x) + (ρ/2) ‖x − z + u_k‖²      from the last x_k
               server:    z ← prox_{g/ρ}( Σ p_k (x_k + u_k) )

    FedADMM    client k:  x_k as above, then u_k ← u_k + x_k − z          z as received
                          sends the change of x_k + u_k
               server:    v ← v + Σ_S p_k change_k,  z ← prox_{g/ρ}(v)    Σ_S with p_k: (|S|/N) · mean

All x_k and z begin at the model's start, all u_k at zero. g is a regulariser or a constraint set.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server, Update

Proximal = Callable[[Any, Any], Any]


class Primal(NamedTuple):
    """A client's local solution and scaled dual, (d,) each."""

    x: Array
    u: Array


class Consensus(NamedTuple):
    """The model z and the mean of x_k + u_k before the proximal step, (d,) each."""

    w: Array
    v: Array


@dataclass(frozen=True)
class ConsensusADMM(Algorithm):
    """Consensus ADMM: primal and dual steps of everyone in every round; the server can regularise.

    `rho` ρ > 0; `proximal`: a regulariser such as `L1(0.1)` or a set such as `Box(0, 1)`.
    """

    citation: ClassVar[str] = (
        "S. Boyd, N. Parikh, E. Chu, B. Peleato, J. Eckstein. Distributed Optimization and Statistical Learning "
        "via the Alternating Direction Method of Multipliers. Foundations and Trends in Machine Learning, 2011."
    )
    needs: ClassVar[Needs] = Needs(everyone=True)
    rho: float = 1.0
    proximal: Proximal | None = None

    def __post_init__(self) -> None:
        check.number(self, "rho", 0, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Server:  # noqa: D102
        return Server(w)

    def init_client(self, w: Float[Array, " d"]) -> Primal:  # noqa: D102
        return Primal(w, jnp.zeros_like(w))

    def local(self, server: Server, own: Primal, oracle: Oracle) -> tuple[Update, Primal]:  # noqa: D102
        u = own.u + own.x - server.w
        x = oracle.solve(own.x, prox=self.rho, anchor=server.w - u).w
        return Update(x + u - server.w), Primal(x, u)

    def apply(self, server: Server, mean: Update, round: RoundInfo) -> Server:  # noqa: D102
        v = server.w + mean.delta
        return Server(v if self.proximal is None else self.proximal(v, 1 / self.rho))


@dataclass(frozen=True)
class FedADMM(Algorithm):
    """FedADMM: ADMM with a sample of clients, exact; the server can regularise.

    `rho` ρ > 0; `proximal` as in `ConsensusADMM`.
    """

    citation: ClassVar[str] = (
        "Y. Gong, Y. Li, N. M. Freris. FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to "
        "System Heterogeneity. ICDE 2022."
    )
    needs: ClassVar[Needs] = Needs(mean_of_states=True)
    rho: float = 1.0
    proximal: Proximal | None = None

    def __post_init__(self) -> None:
        check.number(self, "rho", 0, open_low=True)

    def init(self, w: Float[Array, " d"]) -> Consensus:  # noqa: D102
        return Consensus(w, w)

    def init_client(self, w: Float[Array, " d"]) -> Primal:  # noqa: D102
        return Primal(w, jnp.zeros_like(w))

    def broadcast(self, server: Consensus) -> Server:  # noqa: D102
        return Server(server.w)

    def local(self, server: Server, own: Primal, oracle: Oracle) -> tuple[Update, Primal]:  # noqa: D102
        x = oracle.solve(own.x, prox=self.rho, anchor=server.w - own.u).w
        new = Primal(x, own.u + x - server.w)
        return Update(new.x + new.u - own.x - own.u), new

    def apply(self, server: Consensus, mean: Update, round: RoundInfo) -> Consensus:  # noqa: D102
        v = server.v + round.share * mean.delta
        return Consensus(v if self.proximal is None else self.proximal(v, 1 / self.rho), v)
