"""Geometric median: against scipy, at vertices, on lines, with weights, with rows far away; RFA's start."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dure.aggregation import RFA, GeometricMedian
from dure.errors import ConfigError, DomainError


def cost(z, x, weights=None):
    distances = np.sqrt(((x - z) ** 2).sum(1))
    return float(distances @ (np.ones(len(x)) if weights is None else weights))


def by_scipy(x, weights=None):
    """The minimum of the sum of distances by BFGS from several starts, and the best row, if that is better."""
    w = np.ones(len(x)) if weights is None else weights

    def gradient(z):
        apart = z - x
        lengths = np.maximum(np.sqrt((apart**2).sum(1)), 1e-300)
        return (w / lengths) @ apart

    starts = [np.median(x, axis=0) + 1e-3, x.mean(0)]
    found = [
        minimize(cost, s, (x, w), jac=lambda z, *_: gradient(z), method="BFGS", tol=1e-12).x for s in starts
    ]
    return min([*found, *x], key=lambda z: cost(z, x, w))


def gradient_length(z, x, weights):
    apart = x - z
    return np.linalg.norm((weights / np.sqrt((apart**2).sum(1))) @ apart) / weights.sum()


@pytest.mark.parametrize("seed", range(25))
def test_it_is_the_minimum(seed):
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(3, 12)), int(rng.integers(2, 6))
    x = rng.standard_t(2, size=(n, d))
    weights = None if seed % 2 else rng.uniform(0.5, 1.5, n)
    found = GeometricMedian(0)(x, weights)
    best = by_scipy(x, weights)
    assert cost(found.vector, x, weights) <= cost(best, x, weights) * (1 + 1e-14)
    np.testing.assert_allclose(found.vector, best, atol=1e-5)
    assert found.details["residual"] < 1e-12
    if not (found.vector == x).all(1).any():  # the gradient, in full space
        assert gradient_length(found.vector, x, np.ones(n) if weights is None else weights) < 1e-12
    np.testing.assert_allclose(found.weights_used @ x, found.vector, atol=1e-12)
    assert found.weights_used.min() >= 0.0


def test_fermats_point_of_a_triangle():
    # Sides are seen under 120° from it; with an angle of 120° or more it is that corner.
    x = np.array([[0.0, 0.0], [1.0, 0.0], [0.2, 0.9]])
    z = GeometricMedian()(x).vector
    unit = (x - z) / np.linalg.norm(x - z, axis=1, keepdims=True)
    np.testing.assert_allclose((unit @ unit.T)[np.triu_indices(3, 1)], -0.5, atol=1e-12)
    obtuse = np.array([[-1.0, 0.1], [0.0, 0.0], [1.0, 0.1]])
    found = GeometricMedian()(obtuse)
    np.testing.assert_array_equal(found.vector, [0.0, 0.0])
    assert found.details["iterations"] == 0
    assert found.details["residual"] == 0.0


@pytest.mark.parametrize("gap", [1e-2, 1e-5, 1e-8])
def test_a_minimum_close_to_a_vertex_is_found(gap):
    # An isosceles triangle whose apex angle is just below 120°: plain Weiszfeld creeps there.
    angle = np.pi / 3 - gap
    x = np.array([[0.0, 0.0], [np.sin(angle), np.cos(angle)], [-np.sin(angle), np.cos(angle)]])
    found = GeometricMedian()(x)
    # On the axis at height h the sides are seen under 120°: tan 60° = sin/(cos − h).
    height = np.cos(angle) - np.sin(angle) / np.tan(np.pi / 3)
    np.testing.assert_allclose(found.vector, [0.0, height], rtol=1e-6, atol=1e-14)
    assert found.details["iterations"] < 200


def test_four_points_in_convex_position_give_the_crossing_of_the_diagonals():
    x = np.array([[0.0, 0.0], [4.0, 1.0], [5.0, 5.0], [-1.0, 3.0]])
    s, _ = np.linalg.solve(np.array([x[2] - x[0], x[1] - x[3]]).T, x[1] - x[0])
    np.testing.assert_allclose(GeometricMedian()(x).vector, x[0] + s * (x[2] - x[0]), rtol=1e-13)


def test_overwriting_the_weights_is_another_point():
    # The example of several shipped implementations: weights that compound drift to an input.
    x = np.array([[0.0, 10.0], [10.0, 0.0], [5.0, 5.0], [4.5, 5.5]])
    z = GeometricMedian()(x).vector
    assert np.linalg.norm(z - [0, 10]) > 5
    assert cost(z, x) <= cost(np.array([4.88, 5.12]), x) + 1e-9


@pytest.mark.parametrize("direction", [[1.0], [1.0, 0.0], [3.0, -4.0, 12.0]])
def test_on_a_line_the_midpoint_of_all_minima(direction):
    t = np.array([0.0, 7.0, 1.0, 100.0])[:, None]
    x = t * np.array(direction)
    np.testing.assert_allclose(GeometricMedian()(x).vector, 4.0 * np.array(direction), rtol=1e-12)
    odd = np.vstack([x, 2.0 * np.array(direction)])
    np.testing.assert_array_equal(GeometricMedian()(odd).vector, odd[-1])
    # With weights the interval is where half of the mass lies: {0, 7} weigh as much as {1, 100}: 0 1 | 7 100.
    weights = np.array([3.0, 2.0, 1.0, 2.0])
    np.testing.assert_allclose(GeometricMedian()(x, weights).vector, 4.0 * np.array(direction), rtol=1e-12)
    weights = np.array([3.0, 2.0, 1.5, 2.0])
    np.testing.assert_array_equal(GeometricMedian()(x, weights).vector, np.array(direction))


def test_duplicates_on_a_line_of_even_number():
    x = np.array([[0.0], [1.0], [1.0], [5.0], [5.0], [9.0]])
    np.testing.assert_array_equal(GeometricMedian()(x).vector, [3.0])
    np.testing.assert_array_equal(GeometricMedian()(np.array([[2.0], [1.0], [1.0], [1.0]])).vector, [1.0])


@pytest.mark.parametrize("seed", range(5))
def test_weight_2_is_two_copies(seed):
    rng = np.random.default_rng(seed)
    x, weights = rng.normal(size=(7, 3)), rng.integers(1, 4, 7)
    copies = np.repeat(x, weights, axis=0)
    np.testing.assert_allclose(
        GeometricMedian()(x, weights).vector, GeometricMedian()(copies).vector, atol=1e-13
    )


def test_the_mass_of_the_heaviest_must_be_less_than_half():
    x = np.random.default_rng(0).normal(size=(5, 2))
    GeometricMedian(1)(x, [3.9, 1, 1, 1, 1])
    with pytest.raises(DomainError, match="2F < W"):
        GeometricMedian(1)(x, [4, 1, 1, 1, 1])


@pytest.mark.parametrize("scale", [1e6, 1e12, 1e38, 1e100])
def test_rows_far_away_count_by_their_direction_alone(scale):
    # Of a row at infinity only the unit vector is left: min Σ‖z − x_i‖ − Σ u_j·z over the honest ones.
    rng = np.random.default_rng(3)
    honest, units = rng.normal(size=(5, 3)), rng.normal(size=(2, 3))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    limit = minimize(lambda z: cost(z, honest) - units.sum(0) @ z, honest.mean(0), method="BFGS", tol=1e-12).x
    found = GeometricMedian(2)(np.vstack([honest, scale * units]))
    np.testing.assert_allclose(found.vector, limit, atol=30.0 / scale + 2e-6)
    assert found.details["residual"] < 1e-9


@pytest.mark.parametrize("scale", [1e20, 1e38])
def test_far_rows_leave_a_minimum_at_a_row_exact(scale):
    # Sums of distances of the size of `scale` have no digit left that tells the honest rows apart.
    u = np.array([[0.3, -0.2, 0.9], [0.5, 0.5, -0.1], [-0.7, 0.2, 0.4]])
    centre = np.array([0.125, 0.25, -0.5])
    x = np.vstack([centre + 2 * u, centre - u, [centre], [[scale, 0, 0]], [[-scale, 0, 0]]])
    found = GeometricMedian(2)(x)
    np.testing.assert_array_equal(found.vector, centre)
    assert found.details["iterations"] == 0


def outlying(seed=0):
    """The reference's example: n = 9, f = 4, honest rows around an offset, the others 10⁶ away."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(size=(5, 3)) + 100.0 * np.array([1.0, 1.0, 1.0])
    return np.vstack([honest, 1e6 * np.array([1.0, -1.0, 1.0]) + rng.normal(size=(4, 3))]), honest.mean(0)


def test_a_few_steps_depend_on_their_start():
    x, mean = outlying()
    error = {
        s: np.linalg.norm(RFA(4, steps=3, start=s)(x).vector - mean) for s in ("median", "center", "mean")
    }
    assert error["median"] < 30 < 60 < error["center"] < 1e4 < 1e5 < error["mean"]
    exact = GeometricMedian(4)(x)
    assert np.linalg.norm(exact.vector - mean) < 30
    assert exact.details["residual"] < 1e-9
    bound = GeometricMedian(4).kappa(9, 4) * ((x[:5] - mean) ** 2).sum(1).mean()
    assert np.linalg.norm(exact.vector - mean) ** 2 <= bound < np.linalg.norm(weiszfeld(x, 20) - mean) ** 2


def weiszfeld(x, steps):
    """From the mean, unsmoothed."""
    z = x.mean(0)
    for _ in range(steps):
        pulls = 1 / np.maximum(np.sqrt(((x - z) ** 2).sum(1)), 1e-12)
        z = pulls @ x / pulls.sum()
    return z


@pytest.mark.parametrize("start", ["median", "mean", "center"])
def test_rfa_is_smoothed_weiszfeld(start):
    x, weights = np.random.default_rng(1).normal(size=(8, 4)), np.array([1.0, 2, 1, 1, 1, 3, 1, 1])
    z = {"mean": weights @ x / weights.sum(), "center": np.full(4, 0.3)}.get(start)
    if z is None:
        z = np.median(np.repeat(x, weights.astype(int), axis=0), axis=0)
    for _ in range(5):
        pulls = weights / np.maximum(0.8, np.sqrt(((x - z) ** 2).sum(1)))
        z = pulls @ x / pulls.sum()
    found = RFA(1, steps=5, smoothing=0.8, start=start)(x, weights, center=np.full(4, 0.3))
    np.testing.assert_allclose(found.vector, z, rtol=1e-12)


def test_many_rfa_steps_are_the_geometric_median():
    x = np.random.default_rng(2).normal(size=(9, 3))
    np.testing.assert_allclose(
        RFA(steps=2000, smoothing=1e-9)(x).vector, GeometricMedian()(x).vector, atol=1e-9
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: GeometricMedian(-1),
        lambda: RFA(steps=0),
        lambda: RFA(smoothing=0.0),
        lambda: RFA(smoothing=np.nan),
        lambda: RFA(start="zero"),
    ],
)
def test_impossible_arguments_are_refused(make):
    with pytest.raises(ConfigError, match="is not allowed"):
        make()
