"""IFCA: each client trains the model that fits it best, and clusters find their own optima."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.algorithms.ifca import Chosen, Clusters
from dure.errors import ConfigError
from exact import Run
from personal import oracle, personal_model
from problems import Q10, QUADRATIC, make_engine, quadratic_data

LOCAL = {"steps": 1, "batch_size": math.inf, "optimizer": 1.0}
#: Clients 0–3 around one point, 4–9 around another, far away.
GROUP = np.array([0, 0, 0, 0, 1, 1, 1, 1, 1, 1])
CENTRES = np.array([[3.0, 3, 3, 3, 3], [-3.0, -3, -3, -3, -3]])
TARGETS = CENTRES[GROUP] + 0.05 * Q10.b
COPIES = np.arange(1, 11)


def optimum(group: int) -> np.ndarray:
    p = np.where(group == GROUP, COPIES, 0.0)
    right = np.einsum("i,ijk,ik->j", p, Q10.A, TARGETS)
    return np.linalg.solve(np.einsum("i,ijk->jk", p, Q10.A), right)


def test_two_groups_find_their_own_optima() -> None:
    """Starts are random but for their sides: the model nearer to a group is taken by all of it."""
    engine = make_engine(
        dure.IFCA(2, spread=1.0), QUADRATIC, quadratic_data(b=TARGETS, copies=COPIES), **LOCAL
    )
    for _ in range(60):
        engine.launch()
    models = np.asarray(engine.model.server.models)
    order = np.argsort(-models[:, 0])
    np.testing.assert_allclose(models[order], [optimum(0), optimum(1)], atol=1e-5)
    # What is evaluated as "the" model is the one that most of the weight chose: the second group's.
    np.testing.assert_allclose(engine.vector(), optimum(1), atol=1e-5)
    np.testing.assert_allclose(engine.model.server.mass[order], [10 / 55, 45 / 55], rtol=1e-6)


def test_one_cluster_is_fedavg() -> None:
    run = Run(dure.IFCA(1, spread=0.0), steps=5, eta=0.1, p=Q10.weighted).rounds(4)
    other = Run(dure.FineTuning(), steps=5, eta=0.1, p=Q10.weighted).rounds(4)
    np.testing.assert_allclose(run.server.models[0], other.w, atol=1e-13)


class Placed(dure.IFCA):
    """Models that begin where the test puts them."""

    def init(self, w: Any) -> Clusters:
        return Clusters(jnp.asarray(CENTRES, w.dtype), jnp.zeros(2, w.dtype))


def test_a_model_that_nobody_chose_stays() -> None:
    """Only clients of the second group come: the first group's model keeps its bits."""
    run = Run(Placed(2), steps=1, eta=1.0, p=COPIES / 55, b=TARGETS, sampler=lambda t: [4, 7, 9]).rounds(3)
    np.testing.assert_array_equal(run.server.models[0], CENTRES[0])
    p = np.where(np.isin(np.arange(10), [4, 7, 9]), COPIES, 0.0)
    w = CENTRES[1]
    for _ in range(3):
        w = w - np.einsum("i,ijk,ik->j", p / p.sum(), Q10.A, w - TARGETS)
    np.testing.assert_allclose(run.server.models[1], w, atol=1e-12)
    np.testing.assert_array_equal(run.server.mass, [0, 1])


def test_a_client_uses_and_sends_its_best_model_only() -> None:
    run = Run(Placed(2), steps=1, eta=0.1, b=TARGETS)
    with jax.enable_x64(True):
        for client in (1, 8):
            update, _ = run.algorithm.local(run.server.models, None, oracle(run, client))
            assert isinstance(update, Chosen)
            assert update.delta.shape == (5,)
            assert int(update.cluster) == GROUP[client]
            np.testing.assert_array_equal(personal_model(run, client), CENTRES[GROUP[client]])


def test_starts_differ() -> None:
    models = dure.IFCA(3, spread=0.1).init(jnp.ones(4)).models
    assert len({np.asarray(m).tobytes() for m in models}) == 3
    np.testing.assert_allclose(models, 1.0, atol=0.5)


@pytest.mark.parametrize("arguments", [{"clusters": 0}, {"spread": -0.1}])
def test_impossible_numbers(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(arguments))):
        dure.IFCA(**arguments)
