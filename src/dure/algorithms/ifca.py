"""IFCA: several models; each client trains the one that fits it best.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS 2020 (model
averaging).

    client k:  j = argmin_j F_k(w_j),   y_k ≈ argmin F_k(y) from y = w_j;   sends y_k − w_j and j
    server:    w_j ← w_j + Σ_{k in j} p_k (y_k − w_j) / Σ_{k in j} p_k
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dure.algorithms import _checks as check
from dure.algorithms.base import Algorithm, Needs, Oracle, RoundInfo


class Clusters(NamedTuple):
    """The models (k, d) and the share of the last round's weight that chose each (k,)."""

    models: Array
    mass: Array


class Chosen(NamedTuple):
    """A client's update (d,) and the number of the model that it belongs to."""

    delta: Array
    cluster: Array


class Spread(NamedTuple):
    """The update in its model's row (k, d), and 1 there (k,)."""

    delta: Array
    mass: Array


@dataclass(frozen=True)
class IFCA(Algorithm):
    """IFCA. `clusters` k ≥ 1; models start at w + `spread` · N(0, I), each with its own noise.

    What is evaluated as the server's model is the one that most of the last round's weight chose.
    """

    citation: ClassVar[str] = (
        "A. Ghosh, J. Chung, D. Yin, K. Ramchandran. An Efficient Framework for Clustered Federated Learning. "
        "NeurIPS 2020."
    )
    needs: ClassVar[Needs] = Needs(downlink=2, personal=True)  # as many as there are models, two by default
    clusters: int = 2
    spread: float = 0.1

    def __post_init__(self) -> None:
        check.count(self, "clusters")
        check.number(self, "spread", 0)

    def init(self, w: Float[Array, " d"]) -> Clusters:  # noqa: D102
        noise = jax.random.normal(jax.random.key(0), (self.clusters, w.shape[0]), w.dtype)
        return Clusters(w + self.spread * noise, jnp.zeros(self.clusters, w.dtype))

    def broadcast(self, server: Clusters) -> Array:  # noqa: D102
        return server.models

    def _best(self, models: Array, oracle: Oracle) -> Array:
        return jnp.argmin(jnp.stack([oracle.loss(models[j]) for j in range(self.clusters)]))

    def local(self, models: Array, client: Any, oracle: Oracle) -> tuple[Chosen, Any]:  # noqa: D102
        j = self._best(models, oracle)
        w = models[j]
        return Chosen(oracle.solve(w).w - w, j.astype(jnp.int32)), client

    def receive(self, update: Chosen) -> Spread:  # noqa: D102
        row = jax.nn.one_hot(update.cluster, self.clusters, dtype=update.delta.dtype)
        return Spread(row[:, None] * update.delta, row)

    def apply(self, server: Clusters, mean: Spread, round: RoundInfo) -> Clusters:  # noqa: D102
        mass = jnp.where(mean.mass > 0, mean.mass, 1)[:, None]
        return Clusters(server.models + mean.delta / mass, mean.mass)

    def model(self, server: Clusters) -> Array:  # noqa: D102
        return server.models[jnp.argmax(server.mass)]

    def personal(self, models: Array, client: Any, oracle: Oracle) -> Array:  # noqa: D102
        return models[self._best(models, oracle)]
