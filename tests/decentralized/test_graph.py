"""Graphs: who can send to whom, and that everyone can hear of everyone."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure import decentralized as dd
from dure.errors import ConfigError


def neighbours(graph: dd.Graph, node: int) -> set[int]:
    """Those whom a node sends to."""
    return {int(r) for s, r in graph.edges if s == node}


def test_ring_and_complete() -> None:
    ring = dd.ring(5)
    assert neighbours(ring, 0) == {1, 4}
    assert neighbours(ring, 3) == {2, 4}
    assert len(ring.edges) == 10
    assert not ring.directed
    assert len(dd.complete(6).edges) == 30
    assert dd.ring(2).degrees.tolist() == [1, 1]


def test_torus() -> None:
    torus = dd.torus(3, 4)
    assert neighbours(torus, 0) == {4, 8, 1, 3}
    assert neighbours(torus, 6) == {2, 10, 5, 7}
    assert torus.degrees.tolist() == [4] * 12
    assert dd.torus(2, 2).degrees.tolist() == [2] * 4  # above is below


def test_exponential() -> None:
    directed = dd.exponential(10, directed=True)
    assert neighbours(directed, 7) == {8, 9, 1, 5}  # 7 + 1, 2, 4, 8 modulo 10
    assert directed.directed
    both = dd.exponential(10)
    assert not both.directed
    assert neighbours(both, 0) == {1, 2, 4, 8, 9, 6}
    assert neighbours(dd.exponential(2), 0) == {1}


@settings(max_examples=30, deadline=None)
@given(nodes=st.integers(3, 24), degree=st.integers(2, 6), seed=st.integers(0, 5), p=st.floats(0.3, 1.0))
def test_random_graphs_are_connected_and_what_they_say(nodes: int, degree: int, seed: int, p: float) -> None:
    if degree < nodes and nodes * degree % 2 == 0:
        regular = dd.random_regular(nodes, degree, seed=seed)
        assert regular.degrees.tolist() == [degree] * nodes
        assert not regular.directed
        assert np.array_equal(regular.adjacency, dd.random_regular(nodes, degree, seed=seed).adjacency)
    drawn = dd.erdos_renyi(nodes, p, seed=seed)
    assert not drawn.directed
    power = np.linalg.matrix_power(drawn.adjacency.astype(float) + np.eye(nodes), nodes)
    assert (power > 0).all()


def test_random_graphs_follow_their_seed() -> None:
    assert not np.array_equal(dd.erdos_renyi(12, 0.5).adjacency, dd.erdos_renyi(12, 0.5, seed=1).adjacency)
    one, two = dd.random_regular(12, 3), dd.random_regular(12, 3, seed=1)
    assert not np.array_equal(one.adjacency, two.adjacency)


def test_erdos_renyi_has_the_edges_it_should() -> None:
    """Mean and spread of the number of edges over 100 graphs: Binomial(n (n − 1) / 2, p), within five errors."""
    counts = np.array([len(dd.erdos_renyi(20, 0.5, seed=s).edges) // 2 for s in range(100)])
    assert abs(counts.mean() - 95) < 5 * np.sqrt(47.5 / 100)


def test_random_regular_graphs_reach_every_edge() -> None:
    """Each pair is an edge with probability r / (n − 1), whichever circulant the exchanges began at."""
    share = np.mean([dd.random_regular(8, 3, seed=s).adjacency for s in range(150)], axis=0)
    off = share[~np.eye(8, dtype=bool)]
    assert np.abs(off - 3 / 7).max() < 5 * np.sqrt(3 / 7 * 4 / 7 / 150)


def test_from_a_matrix() -> None:
    """Row i receives from column j, and the diagonal doesn't matter."""
    graph = dd.graph_of(np.array([[1, 0, 1], [1, 0, 0], [0, 1, 0]]))
    assert graph.edges.tolist() == [[0, 1], [1, 2], [2, 0]]
    assert graph.directed
    assert dd.graph_of([[0, 1], [1, 0]]).nodes == 2
    assert dd.graph_of(graph) is graph


def test_from_networkx() -> None:
    networkx = pytest.importorskip("networkx")
    path = dd.graph_of(networkx.path_graph(["a", "b", "c"]))
    assert path.edges.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    circle = dd.graph_of(networkx.DiGraph([(0, 1), (1, 2), (2, 0), (1, 1)]))
    assert circle.edges.tolist() == [[0, 1], [1, 2], [2, 0]]


def test_anything_like_networkx_will_do() -> None:
    edges = [("b", "a", 0), ("a", "b", 0), ("a", "b", 1)]
    like = SimpleNamespace(nodes=["a", "b"], edges=edges, is_directed=lambda: True)
    assert dd.graph_of(like).edges.tolist() == [[0, 1], [1, 0]]


def test_a_graph_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        dd.ring(4).adjacency[0, 2] = True


TWO_PAIRS = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dd.ring(1), r"ring\(nodes=1\).*at least 2"),
        (lambda: dd.complete(True), r"complete\(nodes=True\)"),
        (lambda: dd.torus(1, 4), r"torus\(rows=1\)"),
        (lambda: dd.torus(4, 0), r"torus\(columns=0\)"),
        (lambda: dd.exponential(0), r"exponential\(nodes=0\)"),
        (lambda: dd.erdos_renyi(10, 0.0), r"probability=0.0.*\(0, 1\]"),
        (lambda: dd.erdos_renyi(10, 1.2), r"probability=1.2"),
        (lambda: dd.erdos_renyi(40, 0.01), r"None of 100 graphs.*larger probability: ln\(N\) / N = 0.0922"),
        (lambda: dd.random_regular(5, 3), r"no connected 3-regular graph on 5 nodes.*nodes · degree even"),
        (lambda: dd.random_regular(4, 4), r"no connected 4-regular graph on 4 nodes"),
        (lambda: dd.random_regular(4, 1), r"no connected 1-regular graph on 4 nodes"),
        (
            lambda: dd.graph_of(TWO_PAIRS),
            r"no path from node 0 to 2 \(cut off: 2, 3\).*Add an edge such as 0 → 2",
        ),
        (lambda: dd.graph_of([[0, 0], [1, 0]]), r"no path from node 1 to 0"),
        (lambda: dd.graph_of([[0, 0.5], [0.5, 0]]), r"zeros and ones.*mixing=W, next to graph=\(W != 0\)"),
        (lambda: dd.graph_of(np.ones((2, 3))), r"shape \(2, 3\); it must be bool, \(nodes, nodes\)"),
        (lambda: dd.graph_of(np.ones(3)), r"shape \(3,\)"),
        (lambda: dd.graph_of("ring"), r"graph='ring' is not a graph"),
        (lambda: dd.graph_of(10), r"graph=10 is not a graph: give dure.decentralized.ring\(10\)"),
        (lambda: dd.Graph(np.eye(2, dtype=bool)), r"the loop 0 → 0"),
        (lambda: dd.Graph(np.zeros((1, 1), bool)), r"1 nodes; give at least 2"),
    ],
)
def test_bad_graphs_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
