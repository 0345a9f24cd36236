"""Algorithm pages in float64 on the quadratics of `problems.Q10`, without the engine.

A page says what happens at the server and at a client; this file plays the rest by the book, in plain Python: who
takes part, whose upload is lost, which state is kept, and full-gradient local steps in numpy. What the engine
computes in float32 is known to about 1e-6; here fixed points and invariants hold to 1e-9 and beyond.

    run = Run(Scaffold(), sampler=cyc3, lost=loss20)
    run.rounds(82)
    run.w, run.server, run.clients, run.mean(lambda c: c)
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dure.algorithms.base import Algorithm, RoundInfo, has_survey
from problems import Q10

# ----- who takes part, whose upload is lost: rounds count from t = 0 as in the reference -------------------


def everyone(t: int) -> Sequence[int]:
    """All ten clients."""
    return range(10)


def cyc3(t: int) -> Sequence[int]:
    """Three of ten, without random numbers."""
    return sorted((3 * t + np.arange(3)) % 10)


def nothing(t: int, client: int) -> bool:
    """No upload is lost."""
    return False


def loss20(t: int, client: int) -> bool:
    """Exactly a fifth of the uploads is lost, without random numbers."""
    return (2 * t + 3 * client) % 5 == 0


#: How many steps each client does where the reference says "the tau list".
TAU = (1, 2, 4, 8, 16, 1, 3, 5, 9, 20)


# ----- one client ------------------------------------------------------------------------------------------


class Solution(NamedTuple):
    """What a page reads of a local solution."""

    w: Any
    steps: Any
    gain: Any
    free_gain: Any
    loss: Any


class Batch:
    """The minibatch of a step: all of the client's data."""

    def __init__(self, oracle: "Oracle"):
        self.gradient, self.loss = oracle.gradient, oracle.loss


class Oracle:
    """f(x) = ½ (x − b)ᵀ A (x − b) of one client, and its local optimizer: heavy ball with rates η_s."""

    def __init__(
        self,
        client: int,
        A: np.ndarray,
        b: np.ndarray,
        rates: Sequence[float],
        momentum: float = 0.0,
        exact: bool = False,
        shared: int | None = None,
    ):
        """`exact`: `solve` gives the minimiser itself; `shared`: so many coordinates travel, all if None."""
        self.client, self.examples, self.steps = jnp.int32(client), jnp.int32(1), len(rates)
        self._A, self._b, self._rates, self._momentum = A, b, tuple(rates), momentum
        self._exact, self._shared = exact, len(b) if shared is None else shared

    def gradient(self, w: Any) -> Any:
        return jnp.asarray(self._A @ (np.asarray(w) - self._b))

    def loss(self, w: Any) -> Any:
        away = np.asarray(w) - self._b
        return jnp.asarray(0.5 * away @ self._A @ away)

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
        y = np.asarray(start, np.float64)
        v = np.zeros_like(y) if linear is None else np.asarray(linear)
        a = y if anchor is None else np.asarray(anchor)
        prox, rate = float(prox), float(rate)
        moves = np.ones_like(y)
        if train is not None:
            moves[slice(self._shared, None) if train == "shared" else slice(self._shared)] = 0
        if reference is not None:
            x, g = map(np.asarray, reference)
            v = v + g - self._A @ (x - self._b)
        rates = tuple(rate * r for r in self._rates * repeats)
        if self._exact:
            assert direction is None
            y = self._minimiser(y, v, prox, a, moves > 0)
        else:
            buffer = np.zeros_like(y)
            for eta in rates:
                if direction is None:
                    g = self._A @ (y - self._b)
                else:
                    g = np.asarray(direction(Batch(self), jnp.asarray(y)))
                buffer = self._momentum * buffer + g + v + prox * (y - a)
                y = y - eta * buffer * moves
        gains = [jnp.asarray(gain(rates, self._momentum, mu)) for mu in (prox, 0.0)]
        return Solution(jnp.asarray(y), jnp.int32(len(rates)), *gains, self.loss(y))

    def _minimiser(
        self, y: np.ndarray, v: np.ndarray, prox: float, a: np.ndarray, free: np.ndarray
    ) -> np.ndarray:
        """Where the gradient of the local problem is 0 in the free coordinates; the others stay."""
        H = self._A + prox * np.eye(len(y))
        gradient = self._A @ (y - self._b) + v + prox * (y - a)
        y = y.copy()
        y[free] -= np.linalg.solve(H[np.ix_(free, free)], gradient[free])
        return y

    def walk(self, start: Any, step: Callable[..., Any], *, batches: int = 1) -> Any:
        state = start
        for _ in range(-(-self.steps // batches)):
            state = step(state, *[Batch(self)] * batches)
        return state

    def labels(self, classes: int) -> Any:
        raise NotImplementedError("these clients have no labels")

    def join(self, shared: Any, private: Any) -> Any:
        return jnp.concatenate([shared, private])

    def shared(self, w: Any) -> Any:
        return w[: self._shared]

    def private(self, w: Any) -> Any:
        return w[self._shared :]


@lru_cache(maxsize=4096)
def gain(rates: tuple[float, ...], momentum: float, prox: float) -> float:
    """Displacement per unit of gradient: Σ over single impulses of how far each one carries (section 7)."""
    total = 0.0
    for k in range(len(rates)):
        z = buffer = 0.0
        for s, eta in enumerate(rates):
            buffer = momentum * buffer + (1.0 if s == k else 0.0) + prox * z
            z = z - eta * buffer
        total -= z
    return total


# ----- one training ----------------------------------------------------------------------------------------


class Run:
    """A training from w = 0, all of it in float64."""

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
            p: the clients' weights.
            A: (N, d, d) the quadratics.
            b: (N, d) their minimisers.
            start: w at first, zeros if None.
            exact: local solves are exact.
            shared: number of coordinates that travel (partial sharing), all if None.
        """
        self.algorithm, self.A, self.b, self.p = algorithm, A, b, p
        self.steps = (steps,) * len(p) if isinstance(steps, int) else tuple(steps)
        self.eta, self.momentum, self.exact = eta, momentum, exact
        self.sampler, self.lost, self.commit_lost = sampler, lost, commit_lost
        self.shared = b.shape[1] if shared is None else shared
        self.t = 0
        with jax.enable_x64(True):
            w = jnp.zeros(b.shape[1]) if start is None else jnp.asarray(start)
            self.server = algorithm.init(w[: self.shared])
            own = w[self.shared :] if algorithm.private_patterns else w
            self.clients = [algorithm.init_client(own) for _ in p]

    def oracle(self, client: int) -> Oracle:
        """The client's oracle in the present round."""
        rate = self.eta if callable(self.eta) else lambda t, s: self.eta
        rates = [rate(self.t, s) for s in range(self.steps[client])]
        A, b = self.A[client], self.b[client]
        return Oracle(client, A, b, rates, self.momentum, self.exact, self.shared)

    def round(self) -> None:
        """One round; without any upload nothing changes at the server."""
        with jax.enable_x64(True):
            self._round()
        self.t += 1

    def _round(self) -> None:
        page = self.algorithm
        cohort = [int(k) for k in self.sampler(self.t)]
        arrived = [k for k in cohort if not self.lost(self.t, k)]
        oracles = {k: self.oracle(k) for k in cohort}
        sent, survey = page.broadcast(self.server), None
        if has_survey(page) and arrived:
            answers = [page.survey(page.deliver(sent, k), self.clients[k], oracles[k]) for k in arrived]
            survey = self._mean(arrived, answers)
            sent = page.inform(sent, survey)
        updates = []
        for k in cohort:
            update, proposed = page.local(page.deliver(sent, oracles[k].client), self.clients[k], oracles[k])
            if k in arrived:
                updates.append(page.receive(update))
            if k in arrived or self.commit_lost or "*" in page.own:
                self.clients[k] = proposed
            elif page.own:
                alone = {name: getattr(proposed, name) for name in page.own}
                self.clients[k] = self.clients[k]._replace(**alone)
        if not arrived:
            return
        info = RoundInfo(
            jnp.int32(self.t + 1),
            jnp.int32(len(arrived)),
            jnp.asarray(len(arrived) / len(self.p)),
            jnp.asarray(self.p[arrived].sum()),
            survey,
        )
        self.server = page.apply(self.server, self._mean(arrived, updates), info)

    def _mean(self, clients: list[int], trees: list[Any]) -> Any:
        weights = self.p[clients] / self.p[clients].sum()
        return jax.tree.map(lambda *x: sum(w * xi for w, xi in zip(weights, x, strict=True)), *trees)

    def rounds(self, number: int) -> "Run":
        for _ in range(number):
            self.round()
        return self

    @property
    def w(self) -> np.ndarray:
        """The server's model."""
        return np.asarray(self.server.w)

    def mean(self, part: Callable[[Any], Any] = lambda state: state) -> np.ndarray:
        """Σ p_k part(state of k) over all clients."""
        return np.einsum("k,kj->j", self.p, np.stack([np.asarray(part(c)) for c in self.clients]))

    def error(self, optimum: np.ndarray | None = None) -> float:
        """Distance of the model to the optimum of Σ p_k f_k, or to what is given."""
        return float(np.linalg.norm(self.w - (Q10.optimum(self.p) if optimum is None else optimum)))

    def settles(self, number: int, below: float = 1e-8) -> int:
        """After which round the error stays under `below` until round `number`: the reference's "rounds"."""
        last = 0
        for _ in range(number):
            self.round()
            last = last if self.error() < below else self.t
        return last + 1
