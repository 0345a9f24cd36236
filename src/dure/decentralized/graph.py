"""Who can send to whom: graphs of nodes without a server.

`adjacency[i, j]` says that node i receives from node j, the order in which mixing matrices multiply: X ← W X.
Every graph here is connected, or it is an error: nodes that can't reach each other can't agree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from dure import keys
from dure.errors import ConfigError

#: Draws of a random graph before giving up on a connected one.
TRIES = 100


@dataclass(frozen=True, eq=False)
class Graph:
    """A connected graph on nodes 0 … N − 1, without loops. A directed one is strongly connected.

    Attributes:
        adjacency: (N, N) bool, read-only; [i, j] is True where i receives from j. The diagonal is False.
        name: for records, such as "ring(10)".

    Raises:
        ConfigError: not a square bool matrix of at least two nodes, a loop, or a node that can't be reached.
    """

    adjacency: np.ndarray
    name: str = "graph"

    def __post_init__(self) -> None:
        a = np.array(self.adjacency)
        if a.ndim != 2 or a.shape[0] != a.shape[1] or a.dtype != bool:
            raise ConfigError(
                f"The adjacency of {self.name} is {a.dtype} of shape {a.shape}; it must be bool, (nodes, nodes)."
            )
        if len(a) < 2:
            raise ConfigError(f"{self.name} has {len(a)} nodes; give at least 2.")
        if a.diagonal().any():
            node = int(np.flatnonzero(a.diagonal())[0])
            raise ConfigError(f"{self.name} has the loop {node} → {node}. Nodes keep their own model anyway.")
        check_connected(a, self.name)
        a.flags.writeable = False
        object.__setattr__(self, "adjacency", a)

    @property
    def nodes(self) -> int:
        """N."""
        return len(self.adjacency)

    @property
    def directed(self) -> bool:
        """Whether some node receives from one that it doesn't send to."""
        return not np.array_equal(self.adjacency, self.adjacency.T)

    @property
    def edges(self) -> Int[np.ndarray, "E 2"]:
        """(E, 2) pairs (sender, receiver) in order; an undirected edge is two of them, one for each message."""
        return np.argwhere(self.adjacency.T)

    @property
    def degrees(self) -> Int[np.ndarray, " N"]:
        """(N,) number of nodes that each node sends to."""
        return np.asarray(self.adjacency.sum(0))

    def __repr__(self) -> str:
        kind = "directed" if self.directed else "undirected"
        return f"Graph({self.name!r}, {self.nodes} nodes, {len(self.edges)} directed edges, {kind})"


def reached(adjacency: Bool[np.ndarray, "N N"], start: int = 0) -> Bool[np.ndarray, " N"]:
    """(N,) which nodes a message from `start` can reach, over any number of edges."""
    seen = np.zeros(len(adjacency), bool)
    seen[start] = True
    front = seen
    while front.any():
        front = adjacency[:, front].any(1) & ~seen
        seen |= front
    return seen


def check_connected(adjacency: Bool[np.ndarray, "N N"], name: str) -> None:
    """Every node must hear, over some path, of every other.

    Raises:
        ConfigError: naming a node that can't be reached (or can't reach node 0).
    """
    for there, matrix in ((True, adjacency), (False, adjacency.T)):
        seen = reached(matrix)
        if not seen.all():
            lost = np.flatnonzero(~seen)
            way = f"0 to {lost[0]}" if there else f"{lost[0]} to 0"
            shown = ", ".join(map(str, lost[:10])) + (", …" if len(lost) > 10 else "")
            raise ConfigError(
                f"{name} is not connected: there is no path from node {way} (cut off: {shown}). Nodes that "
                f"can't hear of each other never agree. Add an edge such as {way.replace(' to ', ' → ')}, or "
                "train the parts apart."
            )


def ring(nodes: int) -> Graph:
    """The cycle 0 – 1 – … – N−1 – 0. `nodes` N ≥ 2."""
    _count("ring", "nodes", nodes, 2)
    return Graph(_circulant(nodes, [1, -1]), f"ring({nodes})")


def torus(rows: int, columns: int) -> Graph:
    """A grid whose ends are joined; node r·columns + c has neighbours above, below, left, right.

    Args:
        rows: at least 2.
        columns: at least 2.
    """
    _count("torus", "rows", rows, 2)
    _count("torus", "columns", columns, 2)
    vertical = np.kron(_circulant(rows, [1, -1]), np.eye(columns, dtype=bool))
    horizontal = np.kron(np.eye(rows, dtype=bool), _circulant(columns, [1, -1]))
    return Graph(vertical | horizontal, f"torus({rows}, {columns})")


def complete(nodes: int) -> Graph:
    """Everyone is everyone's neighbour. `nodes` N ≥ 2."""
    _count("complete", "nodes", nodes, 2)
    return Graph(~np.eye(nodes, dtype=bool), f"complete({nodes})")


def exponential(nodes: int, *, directed: bool = False) -> Graph:
    """Node i sends to i + 1, i + 2, i + 4, … modulo N: about log₂ N neighbours, and a gap of about 1 / log₂ N.

    Ying, Yuan, Chen, Hu, Pan, Yin: Exponential Graph is Provably Efficient for Decentralized Deep Training,
    NeurIPS 2021. Their graph is the directed one.

    Args:
        nodes: N ≥ 2.
        directed: False adds the opposite of every edge.
    """
    _count("exponential", "nodes", nodes, 2)
    hops = [1 << k for k in range((nodes - 1).bit_length())]
    hops += [] if directed else [-h for h in hops]
    return Graph(_circulant(nodes, hops), f"exponential({nodes}{', directed' if directed else ''})")


def erdos_renyi(nodes: int, probability: float, *, seed: int = 0) -> Graph:
    """Each pair is an edge with this probability; drawn again, up to 100 times, until it is connected.

    Args:
        nodes: N ≥ 2.
        probability: p in (0, 1]; above ln(N) / N a draw is connected as a rule.
        seed: of the draws.

    Raises:
        ConfigError: a value out of its range; no draw was connected.
    """
    _count("erdos_renyi", "nodes", nodes, 2)
    number = isinstance(probability, int | float) and not isinstance(probability, bool)
    if not number or not 0 < probability <= 1:
        raise ConfigError(f"erdos_renyi(probability={probability!r}) is not allowed: it must be in (0, 1].")
    for attempt in range(TRIES):
        draw = keys.generator(seed, "erdos_renyi", attempt).random((nodes, nodes)) < probability
        upper = np.triu(draw, 1)
        a = upper | upper.T
        if reached(a).all():
            return Graph(a, f"erdos_renyi({nodes}, {probability:g}, seed={seed})")
    raise ConfigError(
        f"None of {TRIES} graphs erdos_renyi({nodes}, {probability:g}, seed={seed}) is connected. Give a larger "
        f"probability: ln(N) / N = {np.log(nodes) / nodes:.3g} is where they begin to be."
    )


def random_regular(nodes: int, degree: int, *, seed: int = 0) -> Graph:
    """A random connected graph in which every node has `degree` neighbours.

    A regular circulant graph whose edges are exchanged at random, a–b and c–d for a–d and c–b, ten times as
    often as there are edges: close to uniform over all such graphs, and never a draw that has to be thrown
    away because it isn't regular. Exchanged on, up to 100 times, until it is connected.

    Args:
        nodes: N ≥ 3.
        degree: r in [2, N − 1] (or r = 1 for N = 2), with N · r even.
        seed: of the exchanges.

    Raises:
        ConfigError: there is no such graph; none was connected.
    """
    _count("random_regular", "nodes", nodes, 2)
    _count("random_regular", "degree", degree, 1)
    if degree >= nodes or nodes * degree % 2 or (degree == 1 and nodes > 2):
        raise ConfigError(
            f"There is no connected {degree}-regular graph on {nodes} nodes: degree must be in [2, nodes − 1] "
            "and nodes · degree even."
        )
    hops = [sign * h for h in range(1, degree // 2 + 1) for sign in (1, -1)]
    a = _circulant(nodes, hops + ([nodes // 2] if degree % 2 else []))
    for attempt in range(TRIES):
        _exchange(a, keys.generator(seed, "random_regular", attempt))
        if reached(a).all():
            return Graph(a, f"random_regular({nodes}, {degree}, seed={seed})")
    raise ConfigError(
        f"None of {TRIES} {degree}-regular graphs on {nodes} nodes was connected. Try another seed."
    )


def graph_of(thing: Any) -> Graph:
    """A `Graph` from a graph, a matrix or a networkx graph.

    Args:
        thing: a `Graph` (returned as it is); a square matrix of zeros and ones or of bools, [i, j] = 1 where
            node i receives from node j, whose diagonal doesn't matter; or a networkx graph or digraph, whose
            nodes are numbered in its own order and whose edge (u, v) is u → v.

    Raises:
        ConfigError: something else; weights instead of zeros and ones; a graph that isn't connected.
    """
    if isinstance(thing, Graph):
        return thing
    if all(hasattr(thing, name) for name in ("nodes", "edges", "is_directed")):
        return _of_networkx(thing)
    if not isinstance(thing, np.ndarray | Sequence) or isinstance(thing, str):
        raise ConfigError(
            f"graph={thing!r} is not a graph: give dure.decentralized.ring(10) or another of its graphs, a matrix "
            "of zeros and ones, or a networkx graph."
        )
    matrix = np.asarray(thing)
    if matrix.dtype != bool and not (matrix.dtype.kind in "iuf" and np.isin(matrix, (0, 1)).all()):
        raise ConfigError(
            "A graph's matrix holds zeros and ones: who receives from whom. Weights belong in mixing=W, next to "
            "graph=(W != 0)."
        )
    a = matrix.astype(bool)
    if a.ndim == 2:
        a = a & ~np.eye(a.shape[0], a.shape[1], dtype=np.bool_)
    return Graph(a, f"matrix({len(a)})")


def _of_networkx(graph: Any) -> Graph:
    place = {node: i for i, node in enumerate(graph.nodes)}
    a = np.zeros((len(place), len(place)), bool)
    for edge in graph.edges:  # a multigraph's edges have a third part
        sender, receiver = place[edge[0]], place[edge[1]]
        a[receiver, sender] = sender != receiver
    if not graph.is_directed():
        a = a | a.T
    return Graph(a, f"{type(graph).__name__}({len(a)})")


def _circulant(nodes: int, hops: Sequence[int]) -> np.ndarray:
    """Node i sends to i + h for every hop h, modulo `nodes`; hops that lead back to i are left out."""
    a = np.zeros((nodes, nodes), bool)
    i = np.arange(nodes)
    for hop in hops:
        a[(i + hop) % nodes, i] = hop % nodes != 0
    return a


def _exchange(a: np.ndarray, generator: np.random.Generator) -> None:
    """Random exchanges of edge ends, in place; the degrees stay."""
    pairs = np.argwhere(np.triu(a))
    draws = generator.integers(len(pairs), size=(10 * len(pairs), 2))
    flips = generator.random(len(draws)) < 0.5
    for (first, second), flip in zip(draws, flips, strict=True):
        one, two = pairs[first], pairs[second][::-1] if flip else pairs[second]
        (u, v), (x, y) = one.copy(), two.copy()
        if len({int(u), int(v), int(x), int(y)}) < 4 or a[u, y] or a[x, v]:
            continue
        a[u, v] = a[v, u] = a[x, y] = a[y, x] = False
        a[u, y] = a[y, u] = a[x, v] = a[v, x] = True
        pairs[first], pairs[second] = (u, y), (x, v)


def _count(graph: str, name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(
            f"{graph}({name}={value!r}) is not allowed: it must be an integer of at least {least}."
        )
