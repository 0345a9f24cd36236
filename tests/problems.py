"""Problems with closed forms, and small algorithms that let a test look inside a round.

Found by the tests through `conftest.py`, which puts this folder on the path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dure
from dure.algorithms.base import Algorithm
from dure.oracles.model import Model
from dure.oracles.task import Task
from dure.population.samplers import Cohort
from dure.simulation.engine import Engine
from dure.simulation.settings import settings

# ----- ten heterogeneous quadratics in five dimensions ---------------------------------------------------


class Q10:
    """f_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i), i = 0..9, without random numbers; A_i don't commute."""

    _i, _j = np.arange(10)[:, None], np.arange(5)[None]
    _lam = 0.2 + 0.8 * np.mod((5 * _i + _j + 1) * (np.sqrt(5) - 1) / 2, 1.0)
    _u = np.cos(1.0 + _i + 2.0 * _j)
    _h = np.eye(5) - 2 * np.einsum("ij,ik->ijk", _u, _u) / (_u * _u).sum(1)[:, None, None]
    A = np.einsum("ijk,ik,ilk->ijl", _h, _lam, _h)
    b = 4 * np.sin(3.0 * (_i + 1) * (_j + 1))
    uniform = np.full(10, 0.1)
    weighted = np.arange(1, 11) / 55

    @staticmethod
    def optimum(p: np.ndarray) -> np.ndarray:
        """Minimiser of Σ p_i f_i."""
        return np.linalg.solve(np.einsum("i,ijk->jk", p, Q10.A), np.einsum("i,ijk,ik->j", p, Q10.A, Q10.b))


def quadratic_task(d: int = 5) -> Task:
    """½‖R x − t‖² of a row (R, t): with RᵀR = A and t = R b it is ½ (x − b)ᵀ A (x − b). Starts at 0."""
    model = Model.from_functions(
        lambda key: {"x": jnp.zeros(d, jnp.float32)},
        lambda params, rows: jnp.einsum("nij,j->ni", rows, params["x"], precision="highest"),
        name="quadratic",
    )
    return Task(model, _half_square, name="quadratic")


def _half_square(outputs: Any, targets: Any) -> Any:
    return 0.5 * jnp.sum((outputs - targets) ** 2, -1)


QUADRATIC = quadratic_task()


def quadratic_data(A: np.ndarray = Q10.A, b: np.ndarray = Q10.b, copies: Any = 1) -> dure.Federated:
    """Client i holds `copies[i]` equal rows, so that its objective is f_i and its weight n_i."""
    copies = np.broadcast_to(copies, len(A))
    R = np.linalg.cholesky(A).transpose(0, 2, 1)
    t = np.einsum("ijk,ik->ij", R, b)
    columns = {
        "x": np.repeat(R, copies, 0).astype(np.float32),
        "y": np.repeat(t, copies, 0).astype(np.float32),
    }
    return dure.Federated(columns, np.concatenate([[0], np.cumsum(copies)]))


def q10(*, weighted: bool = False) -> dure.Federated:
    """Q10 with one row for each client, or with i + 1 rows for client i."""
    return quadratic_data(copies=np.arange(1, 11) if weighted else 1)


# ----- rows of different numbers, for everything about batches -------------------------------------------


def rows_data(sizes: Any, d: int = 3, seed: int = 0) -> dure.Federated:
    """Least-squares rows: client k has sizes[k] of them, in general position."""
    rng = np.random.default_rng(seed)
    n = int(np.sum(sizes))
    columns = {"x": rng.normal(size=(n, d)).astype(np.float32), "y": rng.normal(size=n).astype(np.float32)}
    return dure.Federated(columns, np.concatenate([[0], np.cumsum(sizes)]))


def linear_task(d: int = 3, start: float = 0.0) -> Task:
    """½ (xᵀw − y)², from w = start in every coordinate."""
    model = Model.from_functions(
        lambda key: {"w": jnp.full(d, start, jnp.float32)}, lambda params, x: x @ params["w"], name="linear"
    )
    return Task(model, lambda outputs, targets: 0.5 * (outputs - targets) ** 2, name="linear")


LINEAR = linear_task()


# ----- samplers --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Only:
    """Always these clients, with this inclusion probability."""

    ids: tuple[int, ...]
    inclusion: float = 1.0

    def sample(self, seed: int, round: int, population: Any) -> Cohort:
        ids = np.array(sorted(self.ids), np.int64)
        return Cohort(ids, np.full(len(ids), self.inclusion), np.ones(len(ids), np.int64))

    def expected_size(self, population: Any) -> float:
        return float(len(self.ids))

    def describe(self) -> str:
        return f"only {self.ids}"


@dataclass(frozen=True)
class Cyclic:
    """Sampling without random numbers: clients {m t, …, m t + m − 1} mod N, t = round − 1."""

    count: int

    def sample(self, seed: int, round: int, population: Any) -> Cohort:
        ids = np.sort((self.count * (round - 1) + np.arange(self.count)) % population.clients)
        share = np.full(self.count, self.count / population.clients)
        return Cohort(ids.astype(np.int64), share, np.ones(self.count, np.int64))

    def expected_size(self, population: Any) -> float:
        return float(self.count)

    def describe(self) -> str:
        return f"cyclic {self.count}"


# ----- algorithms that look inside -------------------------------------------------------------------------


class Seen(NamedTuple):
    w: Any
    mean: Any
    number: Any
    accepted: Any
    participation: Any


class Answer(NamedTuple):
    answer: Any


@dataclass(frozen=True)
class Probe(Algorithm):
    """Asks every client `question(w, oracle, *numbers)`, a vector (size,), and keeps the answers as they are.

    The server's model never moves. Each client's own answer is its state; the server keeps their mean.
    """

    question: Callable[..., Any]
    size: int
    numbers: tuple[float, ...] = ()
    keep: bool = True

    def init(self, w: Any) -> Seen:
        zero = jnp.float32(0)
        return Seen(w, jnp.zeros(self.size, jnp.float32), jnp.int32(0), jnp.int32(0), zero)

    def init_client(self, w: Any) -> Any:
        return jnp.full(self.size, jnp.nan, jnp.float32) if self.keep else None

    def local(self, server: Seen, client: Any, oracle: Any) -> tuple[Answer, Any]:
        answer = self.question(server.w, oracle, *self.numbers)
        return Answer(answer), answer if self.keep else client

    def apply(self, server: Seen, mean: Answer, round: Any) -> Seen:
        return Seen(server.w, mean.answer, round.number, round.accepted, round.participation)


def vector(*parts: Any) -> Any:
    """Numbers and vectors, one behind the other."""
    return jnp.concatenate([jnp.atleast_1d(p).astype(jnp.float32) for p in parts])


def ask(
    question: Callable[..., Any],
    size: int,
    task: Task,
    data: Any,
    *,
    clients: Any = (0,),
    numbers: tuple[float, ...] = (),
    start: Any = None,
    rounds: int = 1,
    **keywords: Any,
) -> np.ndarray:
    """Each client's answer in the last of `rounds` rounds, (m, size); NaN for one that was set aside."""
    engine = make_engine(
        Probe(question, size, numbers), task, data, start=start, sampler=Only(tuple(clients)), **keywords
    )
    for _ in range(rounds):
        engine.launch()
    return engine.store.gather(np.array(sorted(clients)))


def make_engine(algorithm: Any, task: Task, data: Any, *, start: Any = None, **keywords: Any) -> Engine:
    """An engine, from the vector `start` if given."""
    variables = None
    if start is not None:
        example = task.model.init(jax.random.key(0))
        leaves, structure = jax.tree.flatten(example.params)
        assert len(leaves) == 1
        leaf = jnp.asarray(start, jnp.float32).reshape(leaves[0].shape)
        variables = example._replace(params=jax.tree.unflatten(structure, [leaf]))
    return Engine(algorithm, task, data, settings(data, **keywords), variables=variables)


def train(algorithm: Any, task: Task, data: Any, rounds: int, **keywords: Any) -> np.ndarray:
    """The model's vector after some rounds."""
    engine = make_engine(algorithm, task, data, **keywords)
    for _ in range(rounds):
        engine.launch()
    return np.asarray(engine.model.server.w)
