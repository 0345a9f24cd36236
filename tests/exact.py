"""Algorithm pages in float64 on the quadratics of `problems.Q10`, without the engine.

A page says what happens at the server and at a client; this file plays the rest by the book: who takes part, whose
upload is lost, which state is kept, and full-gradient local steps. What the engine computes in float32 is known to
about 1e-6; here fixed points and invariants hold to 1e-9 and beyond.

    run = Run(Scaffold(), sampler=cyc3, lost=loss20)
    run.rounds(82)
    run.w, run.server.c, run.clients, run.mean()        # clients' states are stacked, (N, …)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dure.algorithms.base import Algorithm, RoundInfo, has_survey
from dure.oracles.optimizer import sgd
from dure.simulation import hyper
from dure.simulation.engine import Engine
from problems import Q10, QUADRATIC, Cyclic, make_engine, q10

# ----- who takes part, whose upload is lost: rounds count from t = 0 as in the reference -------------------


def everyone(t: int) -> Sequence[int]:
    """All ten clients."""
    return range(10)


def cyc3(t: int) -> Sequence[int]:
    """Three of ten, without random numbers."""
    return [(3 * t + i) % 10 for i in range(3)]


def nothing(t: int, client: int) -> bool:
    """No upload is lost."""
    return False


def loss20(t: int, client: int) -> bool:
    """Exactly a fifth of the uploads is lost, without random numbers."""
    return (2 * t + 3 * client) % 5 == 0


#: How many steps each client does where the reference says "the tau list".
TAU = (1, 2, 4, 8, 16, 1, 3, 5, 9, 20)


# ----- one client ------------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """A client's f(x) = ½ (x − b)ᵀ A (x − b) and its local optimizer: `steps` heavy-ball steps with these rates."""

    client: Any
    A: Any
    b: Any
    steps: Any
    rates: Any
    momentum: Any


class Batch(NamedTuple):
    """The minibatch of a step: all of the client's data."""

    gradient: Callable[[Any], Any]
    loss: Callable[[Any], Any]


@dataclass(frozen=True)
class Solution:
    """What a page reads of a local solution."""

    w: Any
    steps: Any
    loss: Any
    _gain: Callable[[Any], Any]

    @property
    def gain(self) -> Any:
        return self._gain(None)

    @property
    def free_gain(self) -> Any:
        return self._gain(0.0)


class Oracle:
    """What one client answers."""

    def __init__(self, plan: Plan, exact: bool, shared: int):
        """`exact`: `solve` gives the minimiser itself; `shared`: so many coordinates travel."""
        self.client, self.examples, self.steps = plan.client, jnp.int32(1), plan.steps
        self._plan, self._exact, self._shared = plan, exact, shared
        self._batch = Batch(self.gradient, self.loss)
        self.frozen = jnp.zeros(0)

    def gradient(self, w: Any) -> Any:
        return self._plan.A @ (w - self._plan.b)

    def loss(self, w: Any) -> Any:
        return 0.5 * (w - self._plan.b) @ self.gradient(w)

    def solve(
        self,
        start: Any,
        *,
        linear: Any = None,
        prox: Any = 0.0,
        anchor: Any = None,
        reference: Any = None,
        direction: Callable[[Any, Any], Any] | None = None,
        train: str | None = None,
        rate: Any = 1.0,
        repeats: int = 1,
    ) -> Solution:
        """Steps on f(y) + ⟨linear, y⟩ + (prox/2)‖y − anchor‖²; the whole gradient goes through the momentum."""
        plan = self._plan
        a = start if anchor is None else anchor
        free = np.ones(start.shape, bool)
        if train is not None:
            free[slice(self._shared, None) if train == "shared" else slice(self._shared)] = False

        def gradient(y: Any) -> Any:
            g = self.gradient(y) if direction is None else direction(self._batch, y)
            if reference is not None:
                g = g - self.gradient(reference[0]) + reference[1]
            return g + (0 if linear is None else linear) + prox * (y - a)

        def step(s: Any, carry: Any) -> Any:
            y, buffer = carry
            buffer = plan.momentum * buffer + gradient(y)
            return y - jnp.where(free, rate * plan.rates[s % plan.steps] * buffer, 0), buffer

        if self._exact:  # a Newton step is exact on quadratics
            assert direction is None
            hessian = (plan.A + prox * jnp.eye(start.size))[np.ix_(free, free)]
            y = start.at[free].add(-jnp.linalg.solve(hessian, gradient(start)[free]))
        else:
            y, _ = lax.fori_loop(0, plan.steps * repeats, step, (start, jnp.zeros_like(start)))
        gains = lambda mu: gain(plan, prox if mu is None else mu, rate, repeats)  # noqa: E731
        return Solution(y, plan.steps * repeats, self.loss(y), gains)

    def walk(self, start: Any, step: Callable[..., Any], *, batches: int = 1) -> Any:
        turns = -(-self._plan.steps // batches)
        return lax.fori_loop(0, turns, lambda _, state: step(state, *[self._batch] * batches), start)

    def labels(self, classes: int) -> Any:
        raise NotImplementedError("these clients have no labels")

    def join(self, shared: Any, private: Any) -> Any:
        return jnp.concatenate([shared, private])

    def shared(self, w: Any) -> Any:
        return w[: self._shared]

    def private(self, w: Any) -> Any:
        return w[self._shared :]


def gain(plan: Plan, prox: Any = 0.0, rate: Any = 1.0, repeats: int = 1) -> Any:
    """Displacement per unit of gradient: Σ over single impulses of how far each one carries (section 7)."""

    def carried(k: Any) -> Any:
        def step(s: Any, carry: Any) -> Any:
            z, buffer = carry
            buffer = plan.momentum * buffer + (s == k) + prox * z
            return z - rate * plan.rates[s % plan.steps] * buffer, buffer

        return -lax.fori_loop(0, plan.steps * repeats, step, (jnp.zeros(()), jnp.zeros(())))[0]

    impulses = jnp.arange(plan.rates.size * repeats)
    return jnp.where(impulses < plan.steps * repeats, jax.vmap(carried)(impulses), 0).sum()


# ----- one round -------------------------------------------------------------------------------------------


class Who(NamedTuple):
    """Of each client (N,): whether its update arrives, whether its state takes the proposed value."""

    arrived: Any
    commits: Any
    commits_own: Any


@lru_cache(maxsize=256)
def _compiled(structure: Any, exact: bool, shared: int) -> Any:
    """Numbers of the page are inputs: another α doesn't compile again."""
    return jax.jit(partial(_round, structure, exact, shared))


def _round(
    structure: Any,
    exact: bool,
    shared: int,
    numbers: Any,
    number: Any,
    plans: Plan,
    p: Any,
    who: Who,
    server: Any,
    clients: Any,
) -> tuple[Any, Any]:
    page: Algorithm = hyper.join(structure, iter(numbers))
    sent, survey = page.broadcast(server), None

    def answer(plan: Plan, state: Any) -> Any:
        return page.survey(page.deliver(sent, plan.client), state, Oracle(plan, exact, shared))

    def work(plan: Plan, state: Any) -> Any:
        update, proposed = page.local(page.deliver(sent, plan.client), state, Oracle(plan, exact, shared))
        return page.receive(update), proposed

    weight = jnp.where(who.arrived, p, 0)
    mass = jnp.where(who.arrived.any(), weight.sum(), 1)

    def mean(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jnp.tensordot(weight, jnp.where(_like(who.arrived, x), x, 0), 1) / mass, tree
        )

    if has_survey(page):
        survey = mean(jax.vmap(answer)(plans, clients))
        sent = page.inform(sent, survey)
    updates, proposed = jax.vmap(work)(plans, clients)
    accepted = who.arrived.sum()
    info = RoundInfo(number, accepted.astype(jnp.int32), accepted / p.size, weight.sum(), survey)
    new = page.apply(server, mean(updates), info)
    server = jax.tree.map(lambda n, o: jnp.where(accepted > 0, n, o), new, server)
    return server, _commit(page, who, clients, proposed)


def _commit(page: Algorithm, who: Who, old: Any, proposed: Any) -> Any:
    def take(takes: Any, new: Any, old: Any) -> Any:
        return jax.tree.map(lambda n, o: jnp.where(_like(takes, n), n, o), new, old)

    if "*" in page.own:
        return take(who.commits_own, proposed, old)
    kept = take(who.commits, proposed, old)
    for name in page.own:
        own = take(who.commits_own, getattr(proposed, name), getattr(old, name))
        kept = kept._replace(**{name: own})
    return kept


def _like(mask: Any, x: Any) -> Any:
    return mask.reshape(mask.shape + (1,) * (x.ndim - 1))


# ----- one training ----------------------------------------------------------------------------------------


class Run:
    """A training on quadratics, all of it in float64."""

    def __init__(
        self,
        algorithm: Algorithm,
        *,
        steps: int | Sequence[int] = 10,
        eta: float | Callable[[int, int], float] = 0.1,
        momentum: float = 0.0,
        sampler: Callable[[int], Sequence[int]] = everyone,
        lost: Callable[[int, int], bool] = nothing,
        commit_lost: bool = False,
        p: np.ndarray = Q10.uniform,
        A: np.ndarray = Q10.A,
        b: np.ndarray = Q10.b,
        start: np.ndarray | None = None,
        exact: bool = False,
        shared: int | None = None,
    ):
        """A training that is about to begin.

        Args:
            algorithm: the page.
            steps: local steps K, of all clients or one number for each.
            eta: local rate, or a function (t, s) → rate of step s in round t, both from 0.
            momentum: of the local optimizer; its buffer is new in every round.
            sampler: t → client numbers.
            lost: (t, client) → whether the upload is lost; the client then keeps its old state.
            commit_lost: a client whose upload is lost takes the proposed state all the same (wrong).
            p: (N,) the clients' weights.
            A: (N, d, d) the quadratics.
            b: (N, d) their minimisers.
            start: w at first, zeros if None.
            exact: local solves are exact.
            shared: number of coordinates that travel (partial sharing), all if None.
        """
        self.algorithm, self.A, self.b, self.p = algorithm, A, b, p
        self.steps = np.broadcast_to(np.asarray(steps, np.int32), p.shape)
        self.eta = eta if callable(eta) else lambda t, s: eta
        self.momentum, self.exact = momentum, exact
        self.sampler, self.lost, self.commit_lost = sampler, lost, commit_lost
        self.shared = b.shape[1] if shared is None else shared
        self.t = 0
        N, length = len(p), 32 * -(-int(self.steps.max()) // 32)  # other numbers of steps compile nothing
        with jax.enable_x64(True):
            w = jnp.zeros(b.shape[1]) if start is None else jnp.asarray(start, jnp.float64)
            self.server = algorithm.init(w[: self.shared])
            first = algorithm.init_client(w[self.shared :] if algorithm.private_patterns else w)
            self.clients = jax.tree.map(lambda x: jnp.stack([x] * N), first)
            rates, factors = np.zeros((N, length)), np.full(N, momentum)
            plans = Plan(np.arange(N, dtype=np.int32), A, b, self.steps, rates, factors)
            self._plans, self._p = jax.tree.map(jnp.asarray, (plans, p))

    def plans(self) -> Plan:
        """What the clients do in the present round, (N, …)."""
        rates = np.zeros(self._plans.rates.shape)
        rates[:, : self.steps.max()] = [self.eta(self.t, s) for s in range(self.steps.max())]
        return self._plans._replace(rates=rates)

    def round(self) -> None:
        """One round; without any upload nothing changes at the server."""
        present = np.isin(np.arange(len(self.p)), self.sampler(self.t))
        arrived = present & ~np.array([self.lost(self.t, k) for k in range(len(self.p))])
        who = Who(arrived, present if self.commit_lost else arrived, present)
        structure, numbers = hyper.split(self.algorithm)
        with jax.enable_x64(True):
            self.server, self.clients = _compiled(structure, self.exact, self.shared)(
                np.asarray(numbers),
                jnp.int32(self.t + 1),
                self.plans(),
                self.p,
                who,
                self.server,
                self.clients,
            )
        self.t += 1

    def rounds(self, number: int) -> "Run":
        for _ in range(number):
            self.round()
        return self

    @property
    def w(self) -> np.ndarray:
        """The server's model."""
        return np.asarray(self.server.w)

    def mean(self, part: Callable[[Any], Any] = lambda clients: clients) -> np.ndarray:
        """Σ p_k part_k over all clients; `part` of the stacked states is (N, d)."""
        return self.p @ np.asarray(part(self.clients))

    def error(self, optimum: np.ndarray | None = None) -> float:
        """Distance of the model to the optimum of Σ p_k f_k, or to what is given."""
        return float(np.linalg.norm(self.w - (self.optimum() if optimum is None else optimum)))

    def optimum(self) -> np.ndarray:
        """The minimiser of Σ p_k f_k."""
        A = np.einsum("i,ijk->jk", self.p, self.A)
        return np.linalg.solve(A, np.einsum("i,ijk,ik->j", self.p, self.A, self.b))

    def settles(self, number: int, below: float = 1e-8) -> int:
        """The first round after which the error stays under `below` until round `number`: the reference's "rounds"."""
        last = 0
        for _ in range(number):
            self.round()
            last = last if self.error() < below else self.t
        return last + 1


# ----- what is compared with -------------------------------------------------------------------------------


def contraction(A: np.ndarray, steps: int, eta: float, mu: float = 0.0, momentum: float = 0.0) -> np.ndarray:
    """C with y − x = C (b − x) after local steps with the proximal term (mu/2)‖y − x‖² (section 2)."""
    moved, buffer = np.zeros_like(A), np.zeros_like(A)
    for _ in range(steps):
        buffer = momentum * buffer + (A + mu * np.eye(len(A))) @ moved - A
        moved = moved - eta * buffer
    return moved


def limit(
    q: np.ndarray, steps: int | Sequence[int], eta: float, mu: float = 0.0, momentum: float = 0.0
) -> np.ndarray:
    """Where Σ q_i C_i (b_i − x) = 0: the fixed point of FedAvg, FedProx and FedNova."""
    steps = np.broadcast_to(steps, q.shape)
    C = np.stack([contraction(A, k, eta, mu, momentum) for A, k in zip(Q10.A, steps, strict=True)])
    return np.linalg.solve(np.einsum("i,ijk->jk", q, C), np.einsum("i,ijk,ik->j", q, C, Q10.b))


def gradients(x: np.ndarray) -> np.ndarray:
    """∇f_i(x) of all ten clients (10, 5)."""
    return np.einsum("ijk,ik->ij", Q10.A, x - Q10.b)


def applied(page: Algorithm, server: Any, mean: Any, *, number: int = 1, share: float = 1.0) -> Any:
    """The server's step alone, in float64, with N = 10."""
    with jax.enable_x64(True):
        server, mean = jax.tree.map(jnp.asarray, (server, mean))
        info = RoundInfo(jnp.int32(number), jnp.int32(10 * share), jnp.asarray(share), jnp.asarray(share))
        return jax.tree.map(np.asarray, page.apply(server, mean, info))


def begun(page: Algorithm, w: np.ndarray) -> Any:
    """The server's state before the first round, in float64."""
    with jax.enable_x64(True):
        return page.init(jnp.asarray(w))


def check_order(page: Algorithm) -> None:
    """Clients that are numbered otherwise make the same model."""
    order = np.array([3, 9, 0, 7, 1, 8, 2, 6, 5, 4])
    numbered = Run(page, steps=TAU, p=Q10.weighted, eta=0.05, lost=loss20).rounds(4)
    other = Run(
        page,
        steps=np.array(TAU)[order],
        p=Q10.weighted[order],
        A=Q10.A[order],
        b=Q10.b[order],
        eta=0.05,
        lost=lambda t, k: loss20(t, int(order[k])),
    ).rounds(4)
    np.testing.assert_allclose(other.w, numbered.w, atol=1e-12)


def engine(page: Algorithm, *, steps: int | Sequence[int], optimizer: Any, **keywords: Any) -> Engine:
    """The engine on the same clients, three of ten a round; all such engines of a page share one program."""
    steps = np.broadcast_to(steps, 10)
    return make_engine(
        page,
        QUADRATIC,
        q10(weighted=True),
        sampler=Cyclic(3),
        steps=20,
        batch_size=np.inf,
        optimizer=optimizer,
        work_limit=lambda seed, round, ids, planned: steps[ids],
        schedule="vectorised",
        width=2,
        devices=1,
        **keywords,
    )


def check_engine(page: Algorithm, rounds: int = 6) -> None:
    """The engine's rounds, in float32, are those of this file: sampled, lost, weighted, of unequal lengths."""
    run = Run(
        page,
        steps=TAU,
        eta=lambda t, s: 0.05 * 0.9**t,
        momentum=0.5,
        p=Q10.weighted,
        sampler=cyc3,
        lost=loss20,
    )
    compiled = engine(
        page,
        steps=TAU,
        optimizer=sgd(0.05, momentum=0.5, round_decay=0.9),
        lost_uploads=lambda seed, round, ids: np.array([loss20(round - 1, k) for k in ids]),
    )
    for _ in range(rounds):
        run.round()
        compiled.launch()
    for wanted, found in zip(
        jax.tree.leaves(run.server), jax.tree.leaves(compiled.model.server), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)
    if run.clients is not None:
        rows = [np.asarray(leaf).reshape(10, -1) for leaf in jax.tree.leaves(run.clients)]
        found = compiled.store.gather(np.arange(10))
        np.testing.assert_allclose(found, np.concatenate(rows, 1), rtol=1e-4, atol=2e-5)


def check_float32(page: Algorithm, rounds: int, *, eta: float = 0.1, steps: int | Sequence[int] = 10) -> None:
    """The engine reaches the optimum of the mean of the ten within what float32 can tell, under sampling."""
    compiled = engine(
        page, steps=steps, optimizer=sgd(eta, momentum=0.0, round_decay=1.0), weighting="uniform"
    )
    for _ in range(rounds):
        compiled.launch()
    error = np.linalg.norm(np.asarray(compiled.model.server.w) - Q10.optimum(Q10.uniform))
    assert error < 1e-5
