"""Mixing matrices: doubly stochastic whatever the graph, whatever is lost; and what is refused."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure import decentralized as dd
from dure.decentralized.mixing import check_mixing, lose_links, mixing_for
from dure.errors import ConfigError


@st.composite
def graphs(draw: Any, directed: bool = False) -> dd.Graph:
    """A connected graph: a ring through all nodes in some order, and any other edges."""
    n = draw(st.integers(2, 12))
    order = draw(st.permutations(range(n)))
    a = np.zeros((n, n), bool)
    for i, j in zip(order, [*order[1:], order[0]], strict=True):
        a[j, i] = True
    more = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=3 * n))
    for i, j in more:
        a[j, i] = i != j
    return dd.Graph(a if directed else a | a.T)


def masks(n: int, seed: int, share: float) -> np.ndarray:
    lost = np.random.default_rng(seed).random((n, n)) < share
    return lost & ~np.eye(n, dtype=bool)


@settings(max_examples=100, deadline=None)
@given(graph=graphs(), seed=st.integers(0, 100), share=st.floats(0, 1))
def test_metropolis_is_symmetric_and_doubly_stochastic_also_when_links_are_lost(
    graph: dd.Graph, seed: int, share: float
) -> None:
    w = dd.metropolis(graph)
    lost = masks(graph.nodes, seed, share)
    for matrix in (w, lose_links(w, lost | lost.T)):
        assert (matrix >= 0).all()
        assert np.array_equal(matrix, matrix.T)
        np.testing.assert_allclose(matrix.sum(0), 1, atol=1e-12)
        np.testing.assert_allclose(matrix.sum(1), 1, atol=1e-12)
    assert ((w > 0) == (graph.adjacency | np.eye(graph.nodes, dtype=bool))).all()
    assert 0 < dd.spectral_gap(w) <= 1 + 1e-12


@settings(max_examples=100, deadline=None)
@given(graph=graphs(directed=True), seed=st.integers(0, 100), share=st.floats(0, 1))
def test_equal_shares_keep_all_mass_also_when_messages_are_lost(
    graph: dd.Graph, seed: int, share: float
) -> None:
    p = dd.equal_shares(graph)
    lost = masks(graph.nodes, seed, share)
    after = lose_links(p, lost)
    np.testing.assert_allclose(p.sum(0), 1, atol=1e-12)
    np.testing.assert_allclose(after.sum(0), 1, atol=1e-12)
    assert (after[lost] == 0).all()
    for j in range(graph.nodes):
        shares = p[:, j][p[:, j] > 0]
        assert np.all(shares == shares[0])


def test_ring_of_ten() -> None:
    w = dd.metropolis(dd.ring(10))
    np.testing.assert_allclose(w[w > 0], 1 / 3, atol=1e-15)
    assert dd.second_eigenvalue(w) == pytest.approx((1 + 2 * np.cos(np.pi / 5)) / 3, abs=1e-12)
    assert dd.second_eigenvalue(w) == pytest.approx(0.872678, abs=5e-7)
    assert dd.spectral_gap(w) == pytest.approx(1 - 0.872678, abs=5e-7)


def test_metropolis_by_hand() -> None:
    """A star of four: the middle has degree 3, W = 1 / 4 on its edges, the leaves keep 3 / 4."""
    star = dd.graph_of([[0, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0], [1, 0, 0, 0]])
    expected = [[0.25] * 4, [0.25, 0.75, 0, 0], [0.25, 0, 0.75, 0], [0.25, 0, 0, 0.75]]
    np.testing.assert_allclose(dd.metropolis(star), expected)


@pytest.mark.parametrize("n", [2, 5, 16])
def test_one_round_on_the_complete_graph_averages(n: int) -> None:
    w = dd.metropolis(dd.complete(n))
    np.testing.assert_allclose(w, 1 / n, atol=1e-15)
    assert dd.spectral_gap(w) == pytest.approx(1, abs=1e-12)


def test_the_directed_exponential_graph_has_the_published_gap() -> None:
    """Ying et al., NeurIPS 2021: 1 − |λ₂| = 2 / (1 + ⌈log₂ n⌉) for even n; its shares are doubly stochastic."""
    for n in (4, 6, 10, 16, 64):
        p = dd.equal_shares(dd.exponential(n, directed=True))
        np.testing.assert_allclose(p.sum(1), 1, atol=1e-12)
        assert dd.spectral_gap(p) == pytest.approx(2 / (1 + np.ceil(np.log2(n))), abs=1e-9)


def test_a_matrix_of_ones_own_is_taken() -> None:
    graph = dd.ring(4)
    w = 0.5 * np.eye(4) + 0.25 * graph.adjacency
    np.testing.assert_array_equal(mixing_for(graph, "symmetric", w), w)
    np.testing.assert_array_equal(mixing_for(graph, "doubly stochastic", w.tolist()), w)
    np.testing.assert_array_equal(mixing_for(graph, "symmetric"), dd.metropolis(graph))
    np.testing.assert_array_equal(mixing_for(graph, "column stochastic"), dd.equal_shares(graph))
    rounded = dd.metropolis(dd.ring(7)).astype(np.float32)
    np.testing.assert_array_equal(check_mixing(rounded, dd.ring(7), "symmetric"), rounded)


def changed(**entries: float) -> np.ndarray:
    """The ring of four's matrix with other entries, such as w01=0.5."""
    w = 0.5 * np.eye(4) + 0.25 * dd.ring(4).adjacency
    for name, value in entries.items():
        w[int(name[1]), int(name[2])] = value
    return w


SWAP = np.array([[0.0, 1.0], [1.0, 0.0]])
RING3 = dd.Graph(np.roll(np.eye(3, dtype=bool), 1, 0))  # directed: i → i + 1
APART = np.kron(np.eye(2), np.full((2, 2), 0.5))  # pairs 0–1 and 2–3


@pytest.mark.parametrize(
    ("graph", "kind", "mixing", "words"),
    [
        (dd.ring(4), "symmetric", np.eye(3), r"shape \(3, 3\); for ring\(4\) it must be \(4, 4\)"),
        (dd.ring(4), "symmetric", np.full((4, 4), "a"), r"mixing is <U1"),
        (dd.ring(4), "symmetric", changed(w01=-0.25), r"mixing\[0, 1\] = -0.25 is not a weight"),
        (dd.ring(4), "symmetric", changed(w23=np.nan), r"mixing\[2, 3\] = nan"),
        (dd.ring(4), "symmetric", changed(w13=0.1), r"mixing\[1, 3\] = 0.1, but ring\(4\) has no edge 3 → 1"),
        (dd.ring(4), "symmetric", changed(w21=0.5), r"not doubly stochastic: row 2 sums to 1.25.*PushSum"),
        (
            dd.ring(4),
            "doubly stochastic",
            changed(w21=0.5, w22=0.25),
            r"not doubly stochastic: column 1 sums to 1.25 instead of 1, so the sum of the models would change",
        ),
        (dd.ring(4), "column stochastic", changed(w21=0.5), r"not column stochastic: column 1 sums to 1.25"),
        (
            RING3,
            "symmetric",
            (np.eye(3) + RING3.adjacency) / 2,
            r"mixing\[0, 1\] = 0 and mixing\[1, 0\] = 0.5",
        ),
        (dd.ring(4), "symmetric", APART, r"mixing is not connected: there is no path from node 0 to 2"),
        (dd.ring(2), "symmetric", SWAP, r"spectral gap 0.*\(numpy.eye\(N\) \+ W\) / 2"),
    ],
)
def test_bad_matrices_are_refused(graph: dd.Graph, kind: str, mixing: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_mixing(mixing, graph, kind)


def test_metropolis_needs_both_directions() -> None:
    with pytest.raises(ConfigError, match=r"directed \(2 → 0 has no way back\).*Use PushSum"):
        dd.metropolis(RING3)
    half = (np.eye(3) + RING3.adjacency) / 2  # doubly stochastic without being symmetric
    np.testing.assert_array_equal(mixing_for(RING3, "doubly stochastic", half), half)
