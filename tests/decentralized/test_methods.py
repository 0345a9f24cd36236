"""The pages in float64 on ten quadratics: fixed points, invariants and the reference's numbers of rounds."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dure import decentralized as dd
from dure.decentralized.mixing import lose_links
from problems import Q10

RING = dd.metropolis(dd.ring(10))
OPTIMUM = Q10.optimum(Q10.uniform)
MEAN = Q10.b.mean(0)


class Quadratics:
    """Nodes that hold f_i(x) = ½ (x − b_i)ᵀ A_i (x − b_i) and take K full gradient steps of size η."""

    def __init__(self, eta: float = 0.1, steps: int = 1):
        self.keys = jax.random.split(jax.random.key(0), 10)
        self.eta, self.steps = eta, steps

    def gradient(self, x: Any) -> Any:
        return jnp.einsum("ijk,ik->ij", Q10.A, x - Q10.b)

    def solve(self, start: Any) -> Any:
        for _ in range(self.steps):
            start = start - self.eta * self.gradient(start)
        return start


def path(
    method: Any, rounds: int, nodes: Any, mixing: Any = RING, start: Any = None, state: Any = None
) -> Any:
    """The states after 0, 1, …, `rounds` rounds, each leaf (rounds + 1, …), in float64.

    `mixing`: (N, N), or (rounds, N, N) for another matrix in each round. `state`: to begin at, else `start`.
    """
    with jax.enable_x64(True):
        if state is None:
            state = method.init(jnp.zeros((10, 5)) if start is None else jnp.asarray(start))
        matrices = jnp.broadcast_to(jnp.asarray(mixing), (rounds, 10, 10))

        def turn(state: Any, w: Any) -> Any:
            new = method.step(state, w, nodes)
            return new, new

        _, states = jax.jit(partial(lax.scan, turn))(state, matrices)
        return jax.tree.map(lambda first, rest: np.concatenate([first[None], rest]), state, states)


def worst(models: Any, target: np.ndarray = OPTIMUM) -> np.ndarray:
    """The worst node's distance to the target after each round."""
    return np.asarray(np.linalg.norm(np.asarray(models) - target, axis=-1).max(-1))


def settled(errors: np.ndarray, below: float = 1e-8) -> int:
    """The first round after which the error stays below."""
    return int(np.flatnonzero(errors >= below)[-1]) + 1


def big(blocks: np.ndarray) -> np.ndarray:
    """(N, d, d) blocks as one matrix (N d, N d)."""
    n, d = blocks.shape[:2]
    out = np.zeros((n * d, n * d))
    for i, block in enumerate(blocks):
        out[i * d : (i + 1) * d, i * d : (i + 1) * d] = block
    return out


def dpsgd_limit(eta: float, combine_last: bool, steps: int = 1) -> np.ndarray:
    """The fixed point by a linear system. Local steps map x to M x + (I − M) b with M = (I − η A)^K.

    X = W X + M X + (I − M) b − X, or X = W (M X + (I − M) b).
    """
    m = big(np.stack([np.linalg.matrix_power(np.eye(5) - eta * A, steps) for A in Q10.A]))
    w, eye, b = np.kron(RING, np.eye(5)), np.eye(50), Q10.b.reshape(-1)
    if combine_last:
        x = np.linalg.solve(eye - w @ m, w @ (eye - m) @ b)
    else:
        x = np.linalg.solve(2 * eye - w - m, (eye - m) @ b)
    return x.reshape(10, 5)


# ----- D-PSGD ------------------------------------------------------------------------------------------------

TABLE = {0.1: (1.5083, 1.4495), 0.05: (0.8793, 0.8291), 0.01: (0.2030, 0.1877), 0.001: (0.0210, 0.0193)}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("eta", TABLE)
def test_dpsgd_stops_where_the_linear_system_says(eta: float, last: bool) -> None:
    """The reference's table, and a step from the solution stays at it. In the two larger η it gets there."""
    limit = dpsgd_limit(eta, last)
    assert worst(limit) == pytest.approx(TABLE[eta][last], abs=6e-5)
    stays = path(dd.DPSGD(last), 1, Quadratics(eta), start=limit).x
    np.testing.assert_allclose(stays[1], limit, atol=1e-12)
    if eta >= 0.05:
        found = path(dd.DPSGD(last), 900, Quadratics(eta)).x
        np.testing.assert_allclose(found[-1], limit, atol=1e-9)


@pytest.mark.parametrize("last", [False, True])
def test_the_error_of_dpsgd_is_of_order_eta(last: bool) -> None:
    slope = np.log10(worst(dpsgd_limit(1e-3, last)) / worst(dpsgd_limit(1e-4, last)))
    assert slope == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("steps", [2, 5])
def test_local_steps_move_the_fixed_point_as_they_should(steps: int, last: bool) -> None:
    found = path(dd.DPSGD(last), 500, Quadratics(0.05, steps)).x
    np.testing.assert_allclose(found[-1], dpsgd_limit(0.05, last, steps), atol=1e-9)


def test_adapt_then_combine_on_the_complete_graph_is_fedsgd() -> None:
    """One step, everyone everyone's neighbour: the rounds of gradient descent on the mean of the f_i."""
    nodes, w = Quadratics(0.1), np.full((10, 10), 0.1)
    found = path(dd.DPSGD(True), 30, nodes, w).x
    x = np.zeros(5)
    for t in range(31):
        np.testing.assert_allclose(found[t], np.tile(x, (10, 1)), atol=1e-12)
        x = x - 0.1 * np.einsum("ijk,ik->ij", Q10.A, x - Q10.b).mean(0)
    plain = path(dd.DPSGD(), 1, nodes, w).x
    np.testing.assert_allclose(plain[1].mean(0), found[1, 0], atol=1e-12)  # the mean of the other form, once


@pytest.mark.parametrize("last", [False, True])
def test_the_mean_moves_by_the_mean_gradient_alone(last: bool) -> None:
    x = path(dd.DPSGD(last), 50, Quadratics()).x
    g = np.einsum("ijk,tik->tij", Q10.A, x - Q10.b)
    np.testing.assert_allclose(x[1:].mean(1), x[:-1].mean(1) - 0.1 * g[:-1].mean(1), atol=1e-12)


def test_gossip_averages_at_the_rate_of_the_second_eigenvalue() -> None:
    """‖X − x̄‖_F shrinks by at most λ₂ a round, in the end by just that; 146 rounds to 1e-8 on the ring."""
    x = path(dd.DPSGD(), 200, Quadratics(0.0), start=Q10.b).x
    far = np.linalg.norm(x - MEAN, axis=(1, 2))
    assert (far[1:] <= dd.second_eigenvalue(RING) * far[:-1] + 1e-14).all()
    assert far[100] / far[99] == pytest.approx(0.872678, abs=1e-5)
    assert settled(worst(x, MEAN)) == 146


# ----- gradient tracking ---------------------------------------------------------------------------------------


def test_tracking_is_exact_in_663_rounds_and_keeps_its_sum() -> None:
    states = path(dd.GradientTracking(0.05), 900, Quadratics())
    assert settled(worst(states.x)) == 663
    assert worst(states.x[-1]) < 1e-9
    # A state holds the tracker that made its models: Y_t = … + G(X_t) of the models one round before.
    g = np.einsum("ijk,tik->tij", Q10.A, states.x[:-1] - Q10.b)
    np.testing.assert_allclose(states.g[1:], g, atol=1e-12)
    np.testing.assert_allclose(states.y[1:].sum(1), g.sum(1), atol=1e-11)
    np.testing.assert_allclose(states.y[1], g[0], atol=1e-12)  # Y_0 = G(X_0)


def test_a_tracker_that_begins_at_zero_never_leaves_the_first_mean_gradient() -> None:
    """What happens when Y_0 = 0: the state believes that it knows G(X_0) already."""
    method, nodes = dd.GradientTracking(0.05), Quadratics()
    with jax.enable_x64(True):
        x = jnp.zeros((10, 5))
        wrong = method.init(x)._replace(g=nodes.gradient(x))
    states = path(method, 900, nodes, state=wrong)
    assert worst(states.x[-1]) == pytest.approx(3.2044, abs=5e-5)
    assert worst(states.x[-1]) == pytest.approx(np.linalg.norm(OPTIMUM), abs=1e-9)


# ----- EXTRA -----------------------------------------------------------------------------------------------------


def test_extra_is_exact_after_its_first_step_and_664_more() -> None:
    """The reference counts the steps of the two-term recursion, which begin after X_1."""
    errors = worst(path(dd.Extra(0.05), 900, Quadratics()).x)
    assert settled(errors) == 1 + 664
    assert errors[-1] < 1e-9


def test_extra_is_its_recursion() -> None:
    x, d = path(dd.Extra(0.05), 20, Quadratics())
    np.testing.assert_allclose(d.sum(1), 0, atol=1e-12)
    g = np.einsum("ijk,tik->tij", Q10.A, x - Q10.b)
    both = np.eye(10) + RING
    np.testing.assert_allclose(x[1], RING @ x[0] - 0.05 * g[0], atol=1e-13)
    for t in range(19):
        expected = both @ x[t + 1] - 0.5 * both @ x[t] - 0.05 * (g[t + 1] - g[t])
        np.testing.assert_allclose(x[t + 2], expected, atol=1e-12)


# ----- lost links --------------------------------------------------------------------------------------------------


def lossy(rounds: int, w: np.ndarray, both: bool, share: float = 0.2) -> np.ndarray:
    """(rounds, N, N): every link lost in a fifth of the rounds."""
    lost = np.random.default_rng(0).random((rounds, 10, 10)) < share
    lost = np.triu(lost, 1) if both else lost
    lost = lost | lost.transpose(0, 2, 1) if both else lost
    lost[:, range(10), range(10)] = False
    return np.stack([lose_links(w, k) for k in lost])


@pytest.mark.parametrize("method", [dd.GradientTracking(0.05), dd.Extra(0.05)], ids=["tracking", "extra"])
def test_exact_methods_stay_exact_when_a_fifth_of_the_links_is_lost(method: Any) -> None:
    states = path(method, 1500, Quadratics(), lossy(1500, RING, True))
    assert worst(states.x[-1]) < 1e-9


def test_averaging_keeps_the_mean_when_links_are_lost() -> None:
    x = path(dd.DPSGD(), 400, Quadratics(0.0), lossy(400, RING, True), start=Q10.b).x
    np.testing.assert_allclose(x.mean(1), np.tile(MEAN, (401, 1)), atol=1e-12)
    assert worst(x[-1], MEAN) < 1e-9


# ----- push-sum ----------------------------------------------------------------------------------------------------


def directed() -> dd.Graph:
    """i → i + 1, and i → i + 3 for even i."""
    a = np.zeros((10, 10), bool)
    for i in range(10):
        a[(i + 1) % 10, i] = True
        a[(i + 3) % 10, i] |= i % 2 == 0
    return dd.Graph(a)


SHARES = dd.equal_shares(directed())


def test_push_sum_averages_on_a_directed_graph_and_without_its_weight_does_not() -> None:
    """7e-8 after 100 rounds in the worst coordinate, 0.40 without dividing by the weight."""
    states = path(dd.PushSum(), 100, Quadratics(0.0), SHARES, start=Q10.b)
    ratio = states.x[-1] / states.w[-1][:, None]
    assert f"{np.abs(ratio - MEAN).max():.0e}" == "7e-08"
    assert np.abs(states.x[-1] - MEAN).max() == pytest.approx(0.40, abs=0.005)
    np.testing.assert_allclose(states.w.sum(1), 10, atol=1e-12)
    np.testing.assert_allclose(states.x.sum(1), np.tile(10 * MEAN, (101, 1)), atol=1e-11)


def test_push_sum_loses_no_mass_when_messages_are_lost() -> None:
    states = path(dd.PushSum(), 600, Quadratics(0.0), lossy(600, SHARES, False), start=Q10.b)
    np.testing.assert_allclose(states.x.sum(1), np.tile(10 * MEAN, (601, 1)), atol=1e-11)
    assert worst(states.x[-1] / states.w[-1][:, None], MEAN) < 1e-9


def test_push_sum_descends_on_directed_graphs() -> None:
    """Σ x_i moves by the gradients at z alone, and a smaller step ends nearer to the optimum."""
    ends = {}
    for eta in (0.02, 0.01):
        states = path(dd.PushSum(), 3000, Quadratics(eta), SHARES)
        z = states.x / states.w[..., None]
        g = np.einsum("ijk,tik->tij", Q10.A, z - Q10.b)
        np.testing.assert_allclose(
            states.x[1:].sum(1), states.x[:-1].sum(1) - eta * g[:-1].sum(1), atol=1e-10
        )
        ends[eta] = worst(z[-1])
    assert np.log2(ends[0.02] / ends[0.01]) == pytest.approx(1, abs=0.1)


def test_push_sum_with_doubly_stochastic_shares_is_adapt_then_combine() -> None:
    push, plain = (path(m, 40, Quadratics()) for m in (dd.PushSum(), dd.DPSGD(True)))
    np.testing.assert_allclose(push.x, plain.x, atol=1e-11)
    np.testing.assert_allclose(push.w, 1, atol=1e-12)


# ----- CHOCO -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gamma", "k", "rounds"), [(1.0, 5, 146), (0.4, 2, 380), (0.3, 1, 503)])
def test_choco_averages_in_the_rounds_of_the_reference(gamma: float, k: int, rounds: int) -> None:
    x = path(dd.Choco(dd.TopK(k), gamma), 700, Quadratics(0.0), start=Q10.b).x
    assert settled(worst(x, MEAN)) == rounds
    np.testing.assert_allclose(x.mean(1), np.tile(MEAN, (701, 1)), atol=1e-12)


def test_choco_that_compresses_nothing_is_plain_gossip() -> None:
    choco = path(dd.Choco(dd.TopK(5), 1.0), 60, Quadratics(0.0), start=Q10.b).x
    plain = path(dd.DPSGD(), 60, Quadratics(0.0), start=Q10.b).x
    np.testing.assert_allclose(choco, plain, atol=1e-12)


def test_choco_with_too_large_a_gamma_diverges() -> None:
    x = path(dd.Choco(dd.TopK(1), 1.0), 700, Quadratics(0.0), start=Q10.b).x
    assert worst(x[-1], MEAN) > 1e6


def test_gossip_of_compressed_models_without_replicas_stalls() -> None:
    """The wrong one, x_i += Σ_j W_ij (C(x_j) − C(x_i)) with the two largest: 0.26 in the worst coordinate."""
    x = Q10.b.copy()
    for _ in range(500):
        c = np.where(np.argsort(np.argsort(-np.abs(x), 1, kind="stable"), 1) < 2, x, 0)
        x = x + RING @ c - c
    assert np.abs(x - MEAN).max() == pytest.approx(0.26, abs=0.005)


def test_choco_sgd_uncompressed_is_adapt_then_combine() -> None:
    choco = path(dd.Choco(dd.TopK(5), 1.0), 60, Quadratics()).x
    np.testing.assert_allclose(choco, path(dd.DPSGD(True), 60, Quadratics()).x, atol=1e-12)


# ----- gossip ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "method"),
    [
        (dd.ring(10), None),
        (directed(), dd.PushSum()),
        (dd.ring(10), dd.Choco(dd.RandomK(2), 0.3)),
        (dd.ring(10), dd.Choco(dd.RandomK(4, unbiased=True), 0.3)),
        (dd.ring(10), dd.GradientTracking()),
        (dd.ring(10), dd.Extra()),
    ],
    ids=["plain", "push-sum", "random-k", "unbiased", "tracking", "extra"],
)
def test_gossip_finds_the_mean(graph: dd.Graph, method: Callable[..., Any] | None) -> None:
    with jax.enable_x64(True):
        found = np.asarray(dd.gossip(Q10.b, graph, rounds=800, method=method))
    np.testing.assert_allclose(found, np.tile(MEAN, (10, 1)), atol=1e-9)
