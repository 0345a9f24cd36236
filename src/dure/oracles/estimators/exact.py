"""The exact solution of a generalised linear model's local problem, in float64.

    minimise over w:   F(w) + ⟨v, w⟩ + (μ/2)‖w − a‖²,        F(w) = mean loss(X w + b) + ½ Σ_j λ_j w_j²

by Newton's method with a line search: with a Cholesky factor up to `DENSE` unknowns, with conjugate gradients
(scipy) beyond. It ends when another step would change the predictions by less than 1e-9 of their size.
"""

from dataclasses import dataclass

import numpy as np

from dure.oracles.estimators.families import Family, Softmax, Weights

#: Up to so many unknowns the Hessian is a matrix.
DENSE = 500
STEPS = 100
TOLERANCE = 1e-9
#: Directions in which the scaled Hessian is below this, relative to the largest, are not determined by the data.
SINGULAR = 1e-12
#: Where the second derivatives have fallen so far below those at η = 0, predictions have become certain: they run away.
FLAT = 1e-10


class NoMinimum(ValueError):
    """The local problem has no minimum: it falls for ever."""


@dataclass(frozen=True)
class Linear:
    """A linear predictor and its loss.

    Attributes:
        family: the loss.
        places: (C, F) or with an intercept (C, F + 1): where each number lies in the vector (d,).
        intercept: whether the last column is one.
        penalty: λ ≥ 0 of every weight; the intercept has none.
    """

    family: Family
    places: np.ndarray
    intercept: bool
    penalty: float

    def problem(
        self,
        x: np.ndarray,
        y: np.ndarray,
        linear: np.ndarray | None = None,
        prox: float = 0.0,
        anchor: np.ndarray | None = None,
    ) -> "Problem":
        """The local problem on rows x (n, F) and targets y (n,), n ≥ 1."""
        x = np.asarray(x, np.float64)
        if self.intercept:
            x = np.concatenate([x, np.ones((len(x), 1))], 1)
        ridge = np.zeros(self.places.size)
        ridge[self.places[:, :-1] if self.intercept else self.places] = self.penalty
        zero = np.zeros(self.places.size)
        v = zero if linear is None else np.asarray(linear, np.float64)
        a = zero if anchor is None else np.asarray(anchor, np.float64)
        labels = y if isinstance(self.family, Softmax) else np.asarray(y, np.float64)
        return Problem(self.family, self.places, x, labels, ridge, v, float(prox), a)


@dataclass(frozen=True)
class Problem:
    """What is minimised; see the head of this file. `x` has a column of ones where there is an intercept."""

    family: Family
    places: np.ndarray
    x: np.ndarray
    y: np.ndarray
    ridge: np.ndarray
    v: np.ndarray
    prox: float
    a: np.ndarray

    def eta(self, w: np.ndarray) -> np.ndarray:
        """(n, C) linear predictors."""
        return np.asarray(self.x @ w[self.places].T)

    def own(self, w: np.ndarray) -> tuple[float, np.ndarray]:
        """F(w) and its gradient (d,), without v and μ."""
        eta = self.eta(w)
        value = self.family.loss(eta, self.y).mean() + 0.5 * (self.ridge * w * w).sum()
        return float(value), self._back(self.family.slope(eta, self.y)) + self.ridge * w

    def value(self, w: np.ndarray) -> float:
        """The whole objective."""
        own = self.family.loss(self.eta(w), self.y).mean() + 0.5 * (self.ridge * w * w).sum()
        away = w - self.a
        return float(own + self.v @ w + 0.5 * self.prox * (away @ away))

    def gradient(self, w: np.ndarray) -> np.ndarray:
        """The whole objective's gradient (d,)."""
        return np.asarray(self.own(w)[1] + self.v + self.prox * (w - self.a))

    def hessian(self, weights: Weights) -> np.ndarray:
        """The whole objective's Hessian (d, d), for second derivatives of the losses."""
        h = np.zeros((self.ridge.size, self.ridge.size))
        outputs = len(self.places)
        for i in range(outputs):
            for j in range(i, outputs):
                block = self.x.T @ (weights(i, j)[:, None] * self.x) / len(self.x)
                h[np.ix_(self.places[i], self.places[j])] = block
                h[np.ix_(self.places[j], self.places[i])] = block
        return np.asarray(h + np.diag(self.ridge + self.prox))

    def times(self, weights: Weights, u: np.ndarray) -> np.ndarray:
        """The Hessian times u (d,)."""
        moved, outputs = self.eta(u), range(len(self.places))
        bent = [sum(weights(i, j) * moved[:, j] for j in outputs) for i in outputs]
        return np.asarray(self._back(np.stack(bent, 1)) + (self.ridge + self.prox) * u)

    def diagonal(self, weights: Weights) -> np.ndarray:
        """The Hessian's diagonal (d,)."""
        d: np.ndarray = self.ridge + self.prox
        squares = np.square(self.x)
        for i in range(len(self.places)):
            d[self.places[i]] += weights(i, i) @ squares / len(self.x)
        return d

    def noise(self, w: np.ndarray) -> np.ndarray:
        """How large a gradient (d,) may come of rounding alone."""
        terms = np.abs(self.v) + self.ridge * np.abs(w) + self.prox * np.abs(w - self.a)
        slopes = np.abs(self.family.slope(self.eta(w), self.y))
        terms[self.places] += slopes.T @ np.abs(self.x) / len(self.x)
        return np.asarray(10 * np.finfo(np.float64).eps * terms)

    def size(self, w: np.ndarray) -> float:
        """How much w says: root mean square of its predictions, and its length where that is priced."""
        return float(np.sqrt(np.square(self.eta(w)).mean() + ((self.ridge + self.prox) * w * w).sum()))

    def _back(self, slopes: np.ndarray) -> np.ndarray:
        g = np.zeros(self.ridge.size)
        g[self.places] = slopes.T @ self.x / len(self.x)
        return g


def solve(problem: Problem, start: np.ndarray, span: tuple[int, int]) -> np.ndarray:
    """The minimiser (d,), where only the numbers in `span` = [first, last) move.

    Where the data leave directions open (fewer rows than columns, no penalty and μ = 0) it is the minimiser
    nearest to the start; with more than `DENSE` unknowns, one near it, and classes that only some rows separate may
    then be taken for a problem with a (far) minimum.

    Raises:
        NoMinimum: there is none, or Newton's method does not get there.
    """
    w = np.array(start, np.float64)
    free = np.arange(*span)
    dense = len(free) <= DENSE
    basis = _determined(problem, free) if dense else None
    curved = problem.diagonal(_at_first(problem))[free]
    zero = w.copy()  # but for what nothing determines
    zero[free] -= w[free] if basis is None else basis @ (basis.T @ w[free])
    if not problem.value(w) <= problem.value(zero):  # a start so bad says nothing to Newton's method
        w = zero
    for _ in range(STEPS):
        gradient = problem.gradient(w)
        weights = problem.family.weights(problem.eta(w), problem.y)
        step = np.zeros_like(w)
        if (problem.diagonal(weights)[free] < FLAT * curved).any():
            break
        if dense:
            step[free] = _dense_step(problem.hessian(weights)[np.ix_(free, free)], gradient[free], basis)
        else:
            step[free] = _iterated_step(problem, weights, gradient, free, problem.noise(w))
        if not np.isfinite(step).all():
            break
        if problem.size(step) <= TOLERANCE * (1 + problem.size(w)):
            return w + step
        slope = float(gradient @ step)
        if slope >= 0:
            break
        w = _search(problem, w, step, slope)
    raise NoMinimum(
        "the local problem has no minimum that can be found: some direction lowers it for ever. That is so where a "
        "client's rows separate the classes, or lack one, and nothing holds the weights (no penalty on them or on the "
        "intercept, no proximal term). Use a method with a proximal term (FedProx, FedDyn, ConsensusADMM, FedADMM), "
        "or a stronger penalty"
    )


def _at_first(problem: Problem) -> Weights:
    """Second derivatives at η = 0, up to a factor."""
    n, outputs = len(problem.x), len(problem.places)
    same = np.full(n, (outputs - 1) / outputs**2 if outputs > 1 else 1.0)
    other = np.full(n, -1 / outputs**2)
    return lambda i, j: same if i == j else other


def _determined(problem: Problem, free: np.ndarray) -> np.ndarray | None:
    """An orthonormal basis of the directions that the rows, the penalty or μ determine; None if all are.

    Raises:
        NoMinimum: v has a part in the others.
    """
    # Where it is flat at the start of training, it is flat everywhere.
    h = problem.hessian(_at_first(problem))[np.ix_(free, free)]
    scale = 1 / np.sqrt(np.where(np.diag(h) > 0, np.diag(h), 1))
    values, vectors = np.linalg.eigh(h * scale[:, None] * scale)
    open_ = values <= SINGULAR * values[-1]
    if not open_.any():
        return None
    turned = np.linalg.qr(scale[:, None] * vectors[:, open_], mode="complete")[0]
    undetermined, basis = np.split(turned, [int(open_.sum())], 1)
    v = problem.v[free]
    # v came in float32: a part of the size of its rounding says nothing.
    if np.linalg.norm(v @ undetermined) > 1e-4 * np.linalg.norm(v) + 1e-6:
        raise NoMinimum(
            "the method's linear term points where the client's rows determine nothing (fewer rows than columns, or "
            "columns that say the same), so that the local problem falls for ever. Use a method with a proximal term "
            "(FedProx, FedDyn, ConsensusADMM, FedADMM), or a penalty"
        )
    return basis


def _dense_step(h: np.ndarray, g: np.ndarray, basis: np.ndarray | None) -> np.ndarray:
    from scipy.linalg import LinAlgError, cho_factor, cho_solve  # type: ignore[import-untyped]

    if basis is not None:
        h, g = basis.T @ h @ basis, basis.T @ g
    if not len(g):
        return np.zeros(0 if basis is None else len(basis))
    scale = 1 / np.sqrt(np.diag(h))
    try:
        step = -scale * cho_solve(cho_factor(h * scale[:, None] * scale), scale * g)
    except (LinAlgError, ValueError):  # not positive, or not finite: weights that have run away
        return np.full(len(g) if basis is None else len(basis), np.nan)
    return np.asarray(step if basis is None else basis @ step)


def _iterated_step(
    problem: Problem, weights: Weights, gradient: np.ndarray, free: np.ndarray, noise: np.ndarray
) -> np.ndarray:
    from scipy.sparse.linalg import LinearOperator, cg  # type: ignore[import-untyped]

    def times(u: np.ndarray) -> np.ndarray:
        whole = np.zeros(problem.ridge.size)
        whole[free] = u.reshape(-1)
        return np.asarray(problem.times(weights, whole)[free])

    diagonal = problem.diagonal(weights)[free]
    shape = (len(free), len(free))
    scale = LinearOperator(shape, lambda u: u / np.where(diagonal > 0, diagonal, 1))
    hessian, least = LinearOperator(shape, times), float(np.linalg.norm(noise[free]))
    found = cg(hessian, -gradient[free], rtol=1e-10, atol=least, maxiter=10 * len(free), M=scale)
    return np.asarray(found[0])


def _search(problem: Problem, w: np.ndarray, step: np.ndarray, slope: float) -> np.ndarray:
    """The next iterate: the step, halved until the objective falls enough."""
    before, length = problem.value(w), 1.0
    rounding = 1e-12 * (1 + abs(before))
    for _ in range(60):
        value = problem.value(w + length * step)
        if value <= before + 1e-4 * length * slope + rounding:
            break
        length /= 2
    return w + length * step
