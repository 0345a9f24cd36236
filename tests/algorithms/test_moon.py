"""MOON: the contrastive term, whose two models are constants, and a client's own last model."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.algorithms.base import Server
from dure.algorithms.moon import Last
from dure.errors import ConfigError
from dure.oracles.model import Model
from exact import Oracle, Plan, Solution
from problems import LINEAR, make_engine, rows_data

Moon = dure.Moon


# ----- the term --------------------------------------------------------------------------------------------


class Asked(Oracle):
    """Takes down what `solve` was asked."""

    def __init__(self) -> None:
        super().__init__(Plan(jnp.int32(0), jnp.eye(6), jnp.zeros(6), 1, jnp.ones(1), 0.0), False, 6)

    def solve(self, start: Any, *, penalty: Any = None, **others: Any) -> Solution:
        self.penalty = penalty
        return Solution(start + 1, jnp.int32(1), jnp.float32(0), lambda mu: jnp.float32(1))


X = np.array([[1.0, 2.0, -1.0], [0.5, -1.0, 3.0], [2.0, 0.0, 1.0], [-1.0, 1.0, 1.0]], np.float32)


def features(w: Any) -> Any:
    """Representations (4, 2) of four rows."""
    return jnp.tanh(X @ w.reshape(3, 2))


Y, W, P = (jnp.asarray(np.sin(k + np.arange(6.0)), jnp.float32) for k in (1, 2, 3))


def term(page: dure.Moon, server: Any, last: Any, known: float = 1.0) -> Any:
    oracle = Asked()
    page.local(Server(server), Last(last, jnp.float32(known)), oracle)
    return lambda y: oracle.penalty(features, y)


def test_the_client_keeps_where_its_own_steps_ended() -> None:
    update, new = Moon().local(Server(W), Last(P, jnp.float32(0)), Asked())
    np.testing.assert_array_equal(new.w, W + 1)
    assert new.known == 1
    np.testing.assert_allclose(update.delta, 1, atol=1e-6)


def literal(mu: float, T: float, y: Any, w: Any, p: Any) -> np.ndarray:
    z, z_g, z_p = (np.asarray(features(v), float) for v in (y, w, p))

    def cosine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    near, far = np.exp(cosine(z, z_g) / T), np.exp(cosine(z, z_p) / T)
    return -mu * np.log(near / (near + far))


@pytest.mark.parametrize(("mu", "T"), [(1.0, 0.5), (5.0, 2.0)])
def test_it_is_the_papers_formula(mu: float, T: float) -> None:
    np.testing.assert_allclose(term(Moon(mu, T), W, P)(Y), literal(mu, T, Y, W, P), rtol=1e-5)


def test_it_falls_towards_the_global_model_and_rises_towards_the_last() -> None:
    """The sign: nearer to the received representation is better."""
    of = term(Moon(), W, P)
    assert of(W).mean() < np.log(2) < of(P).mean()


def test_equal_models_give_log_two_and_no_gradient() -> None:
    of = term(Moon(mu=3.0), W, W)
    np.testing.assert_allclose(of(Y), 3 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(jax.grad(lambda y: of(y).sum())(Y), 0, atol=1e-6)


def test_at_first_there_is_no_term() -> None:
    np.testing.assert_array_equal(term(Moon(), W, P, known=0.0)(Y), 0)
    assert Moon().init_client(W).known == 0


def test_the_two_models_are_constants() -> None:
    """No gradient flows through what they make of the batch, even where y is one of them."""
    numeric = np.array(
        [
            (literal(1.0, 0.5, Y + h, W, P).sum() - literal(1.0, 0.5, Y - h, W, P).sum()) / 0.02
            for h in 0.01 * np.eye(6, dtype=np.float32)
        ]
    )
    np.testing.assert_allclose(jax.grad(lambda y: term(Moon(), W, P)(y).sum())(Y), numeric, atol=2e-3)
    through = jax.grad(lambda w: term(Moon(), w, P)(Y).sum())(W)
    np.testing.assert_array_equal(through, 0)


def test_representations_of_zero_are_no_trouble() -> None:
    of = term(Moon(), W, jnp.zeros(6, jnp.float32))
    gradient = jax.grad(lambda y: of(y).sum())(jnp.zeros(6, jnp.float32))
    assert np.isfinite(gradient).all()
    assert np.isfinite(of(Y)).all()


# ----- in a training ---------------------------------------------------------------------------------------


def network() -> dure.Task:
    """tanh(x W) v: the representation is what comes before v."""
    shape = (3, 4)

    def init(key: Any) -> Any:
        return {"W": jnp.cos(jnp.arange(12.0)).reshape(shape), "v": jnp.ones(4)}

    def represent(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params["W"])

    model = Model.from_functions(
        init, lambda p, x: represent(p, x) @ p["v"], features=represent, name="network"
    )
    return dure.Task(model, lambda outputs, targets: (outputs - targets) ** 2, name="network")


NETWORK = network()
KEYWORDS: dict[str, Any] = {
    "batch_size": 64,
    "steps": 1,
    "optimizer": 0.3,
    "devices": 1,
    "schedule": "sequential",
}


def losses(page: Any, sizes: list[int], rounds: int, **keywords: Any) -> np.ndarray:
    """Training loss of every client in every round (rounds, clients)."""
    engine = make_engine(page, NETWORK, rows_data(sizes, seed=1), **{**KEYWORDS, **keywords})
    return np.stack([engine.collect(engine.launch()).loss for _ in range(rounds)])


def test_the_term_is_log_two_only_where_the_client_is_alone() -> None:
    """Alone, a client's last model is the global one. With others it is not: a previous model that was
    replaced on receiving the parameters, or lost with the client, would make it log 2 or nothing again."""
    alone = losses(Moon(mu=2.0), [6], 3) - losses(dure.FedAvg(), [6], 3)
    np.testing.assert_allclose(alone[:, 0], [0, 2 * np.log(2), 2 * np.log(2)], atol=1e-5)
    both = losses(Moon(mu=2.0), [6, 9], 2) - losses(dure.FedAvg(), [6, 9], 2)
    np.testing.assert_allclose(both[0], 0, atol=1e-6)
    assert (both[1] > 0.5).all()
    assert (np.abs(both[1] - 2 * np.log(2)) > 1e-3).all()


def test_the_last_model_is_the_clients_own_whether_or_not_its_upload_arrived() -> None:
    lost: dict[str, Any] = {"lost_uploads": lambda seed, round, ids: (ids == 0) & (round == 1)}
    engine = make_engine(Moon(), NETWORK, rows_data([6, 9], seed=1), client_state="host", **KEYWORDS, **lost)
    columns = {name: column[:6] for name, column in rows_data([6, 9], seed=1).columns.items()}
    average = make_engine(dure.FedAvg(), NETWORK, dure.Federated(columns, np.array([0, 6])), **KEYWORDS)
    engine.launch()
    average.launch()
    own = engine.store.gather(np.arange(2))
    np.testing.assert_allclose(own[0, :-1], average.model.server.w, atol=1e-6)
    np.testing.assert_array_equal(own[:, -1], 1)


def test_a_model_without_representation_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not say what its representation is"):
        make_engine(Moon(), LINEAR, rows_data([3, 4])).launch()


def test_clients_that_come_once_are_refused() -> None:
    with pytest.raises(ConfigError, match="Moon keeps state with each client"):
        make_engine(Moon(), NETWORK, rows_data([3, 4]), sampler=dure.Once(1))


@pytest.mark.parametrize(
    ("keywords", "named"), [({"mu": -1.0}, r"mu=-1\.0"), ({"temperature": 0.0}, r"temperature=0\.0")]
)
def test_impossible_numbers_are_refused(keywords: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Moon(**keywords)
