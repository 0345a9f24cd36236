"""HierFAVG: edge servers average often, the cloud averages the edges' models now and then.

Liu, Zhang, Song, Letaief: Client-Edge-Cloud Hierarchical Federated Learning, ICC 2020. A round of the simulation
is an edge round: κ₁ local steps are its local work, and in every κ₂-th round the cloud averages.

    client k of edge e:  y_k ≈ argmin F_k(y)                               from the edge's model w_e
    edge:                w_e ← w_e + Σ_{k in e} p_k (y_k − w_e) / Σ_{k in e} p_k
    cloud, every κ₂:     w ← Σ_e m_e w_e / Σ_e m_e,  all w_e ← w           m_e: weights that reported since

A subtree counts by the weights that reported in it. Uplink and downlink are those of the clients.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo, Server
from dure.algorithms.ifca import Spread
from dure.errors import ConfigError


class Edges(NamedTuple):
    """The cloud's model (d,), the edges' models (e, d), and the weight that reported to each since (e,)."""

    w: Array
    models: Array
    mass: Array


class Reported(NamedTuple):
    """A client's update (d,) and the number of its edge."""

    delta: Array
    edge: Array


@dataclass(frozen=True)
class HierFAVG(Algorithm):
    """HierFAVG. `edges`: the edge of each client, numbered from 0; `cloud_every` κ₂ ≥ 1 edge rounds.

    What is evaluated as the server's model is the cloud's.
    """

    citation: ClassVar[str] = (
        "L. Liu, J. Zhang, S. H. Song, K. B. Letaief. Client-Edge-Cloud Hierarchical Federated Learning. ICC 2020."
    )
    needs: ClassVar[Needs] = Needs(mean_of_states=True)
    edges: tuple[int, ...]
    cloud_every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "edges", tuple(int(e) for e in self.edges))
        if not self.edges or sorted(set(self.edges)) != list(range(max(self.edges) + 1)):
            raise ConfigError(
                f"HierFAVG(edges={self.edges[:10]}…): give one edge number for each client, with every number "
                "from 0 to the largest in use."
            )
        check.count(self, "cloud_every")

    def check(self, clients: int) -> None:  # noqa: D102
        if len(self.edges) != clients:
            raise ConfigError(
                f"HierFAVG got edges for {len(self.edges)} clients, and the data have {clients}: give one edge "
                "number for each client."
            )

    def init(self, w: Float[Array, " d"]) -> Edges:  # noqa: D102
        count = max(self.edges) + 1
        return Edges(w, jnp.tile(w, (count, 1)), jnp.zeros(count, w.dtype))

    def broadcast(self, server: Edges) -> Array:  # noqa: D102
        return server.models

    def _edge(self, client: Any) -> Int32[Array, ""]:
        return jnp.asarray(self.edges, jnp.int32)[client]

    def deliver(self, sent: Array, client: Any) -> Server:  # noqa: D102
        return Server(sent[self._edge(client)])

    def local(self, server: Server, client: Any, oracle: Oracle) -> tuple[Reported, Any]:  # noqa: D102
        return Reported(oracle.solve(server.w).w - server.w, self._edge(oracle.client)), client

    def receive(self, update: Reported) -> Spread:  # noqa: D102
        row = jax.nn.one_hot(update.edge, max(self.edges) + 1, dtype=update.delta.dtype)
        return Spread(row[:, None] * update.delta, row)

    def apply(self, server: Edges, mean: Spread, round: RoundInfo) -> Edges:  # noqa: D102
        models = server.models + mean.delta / jnp.where(mean.mass > 0, mean.mass, 1)[:, None]
        mass = server.mass + round.share * mean.mass
        w = mass @ models / mass.sum()
        cloud = round.number % self.cloud_every == 0
        together = Edges(w, jnp.tile(w, (models.shape[0], 1)), jnp.zeros_like(mass))
        apart = Edges(server.w, models, mass)
        chosen: Edges = jax.tree.map(lambda a, b: jnp.where(cloud, a, b), together, apart)
        return chosen
