"""Mixing matrices: how much of each neighbour's model a node takes, W (N, N) in X ← W X.

W_ij is the weight that node i gives to what it receives from node j. Rows that sum to 1 keep agreement, columns
that sum to 1 keep the mean: a matrix with both is doubly stochastic, and gossip with it converges to the mean
with the factor |λ₂|, its second largest eigenvalue modulus; 1 − |λ₂| is the spectral gap.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from dure.decentralized.graph import Graph, check_connected
from dure.errors import ConfigError

#: How far a sum of weights may be from 1: a matrix that was written in float32 passes.
TOLERANCE = 1e-5


def metropolis(graph: Graph) -> Float[np.ndarray, "N N"]:
    """Metropolis–Hastings weights: W_ij = 1 / (1 + max(deg_i, deg_j)) on edges, the rest of the row on W_ii.

    Symmetric and doubly stochastic, and a node needs to know its neighbours' degrees only (Xiao, Boyd,
    Lall: A Scheme for Robust Distributed Sensor Fusion Based on Average Consensus, IPSN 2005).

    Returns:
        (N, N) float64.

    Raises:
        ConfigError: the graph is directed.
    """
    if graph.directed:
        receiver, sender = np.argwhere(graph.adjacency & ~graph.adjacency.T)[0]
        raise ConfigError(
            f"{graph.name} is directed ({sender} → {receiver} has no way back), and Metropolis weights need both "
            "directions. Use PushSum, or give a doubly stochastic mixing=."
        )
    degrees = graph.degrees
    w = np.where(graph.adjacency, 1.0 / (1.0 + np.maximum(degrees[:, None], degrees)), 0.0)
    return w + np.diag(1.0 - w.sum(1))


def equal_shares(graph: Graph) -> Float[np.ndarray, "N N"]:
    """Push-sum's weights: node j keeps 1 / (1 + deg_j) and sends as much to each of those it sends to.

    Columns sum to 1, rows as a rule not. Nodes need to know nothing of each other.

    Returns:
        (N, N) float64, [i, j] is the share of node j's mass that goes to node i.
    """
    whole = graph.adjacency | np.eye(graph.nodes, dtype=bool)
    return np.asarray(whole / whole.sum(0))


def second_eigenvalue(mixing: Float[np.ndarray, "N N"]) -> float:
    """|λ₂|, the second largest modulus of an eigenvalue: how much of a disagreement a round of gossip leaves."""
    symmetric = np.allclose(mixing, mixing.T, rtol=0, atol=1e-12)
    values = np.linalg.eigvalsh(mixing) if symmetric else np.linalg.eigvals(mixing)
    return float(np.sort(np.abs(values))[-2])


def spectral_gap(mixing: Float[np.ndarray, "N N"]) -> float:
    """1 − |λ₂| in [0, 1]: 1 where one round averages (complete graph), near 0 where news travels slowly."""
    return 1.0 - second_eigenvalue(mixing)


def check_mixing(mixing: Any, graph: Graph, kind: str) -> Float[np.ndarray, "N N"]:
    """A mixing matrix that a user gave, or the error in it.

    Args:
        mixing: (N, N) numbers.
        graph: weights may only be where it has edges, and on the diagonal.
        kind: "doubly stochastic", "symmetric" (and doubly stochastic) or "column stochastic".

    Returns:
        (N, N) float64.

    Raises:
        ConfigError: naming the entry, row, column or node, and the way out.
    """
    w = np.asarray(mixing)
    n = graph.nodes
    if w.shape != (n, n) or w.dtype.kind not in "iuf":
        raise ConfigError(
            f"mixing is {w.dtype} of shape {w.shape}; for {graph.name} it must be ({n}, {n}) numbers."
        )
    w = w.astype(np.float64)
    _check_entries(w, graph)
    _check_sums(w, kind)
    uneven = np.argwhere(np.abs(w - w.T) > TOLERANCE)
    if kind == "symmetric" and len(uneven):
        i, j = uneven[0]
        raise ConfigError(
            f"mixing[{i}, {j}] = {w[i, j]:g} and mixing[{j}, {i}] = {w[j, i]:g} differ, and this method needs a "
            "symmetric matrix. Use (W + W.T) / 2 on an undirected graph, or DPSGD or GradientTracking."
        )
    check_connected((w > 0) & ~np.eye(n, dtype=bool), "mixing")
    if second_eigenvalue(w) > 1 - 1e-9:
        raise ConfigError(
            "mixing has spectral gap 0 though it is connected: models would go round and never agree. Let nodes "
            "keep a part of their own, such as mixing=(numpy.eye(N) + W) / 2."
        )
    return w


def mixing_for(graph: Graph, kind: str, mixing: Any = None) -> Float[np.ndarray, "N N"]:
    """The matrix of a method that needs this kind: the one given, checked, or the weights that fit the graph."""
    if mixing is not None:
        return check_mixing(mixing, graph, kind)
    return equal_shares(graph) if kind == "column stochastic" else metropolis(graph)


def _check_entries(w: np.ndarray, graph: Graph) -> None:
    wrong = np.argwhere(~(np.isfinite(w) & (w >= 0)))
    if len(wrong):
        i, j = wrong[0]
        raise ConfigError(f"mixing[{i}, {j}] = {w[i, j]} is not a weight: weights are finite and at least 0.")
    foreign = np.argwhere((w > 0) & ~graph.adjacency & ~np.eye(graph.nodes, dtype=bool))
    if len(foreign):
        i, j = foreign[0]
        raise ConfigError(
            f"mixing[{i}, {j}] = {w[i, j]:g}, but {graph.name} has no edge {j} → {i}. Set it to 0 or add the edge."
        )


def _check_sums(w: np.ndarray, kind: str) -> None:
    for axis, what in ((1, "row"), (0, "column")):
        wrong = np.flatnonzero(np.abs(w.sum(axis) - 1) > TOLERANCE)
        if not len(wrong) or (what == "row" and kind == "column stochastic"):
            continue
        why = "nodes that agree would drift apart" if what == "row" else "the sum of the models would change"
        raise ConfigError(
            f"mixing is not {'column' if kind == 'column stochastic' else 'doubly'} stochastic: {what} {wrong[0]} "
            f"sums to {w.sum(axis)[wrong[0]]:.6g} instead of 1, so {why}. Leave mixing= out for weights that fit the "
            "graph" + ("." if what == "column" else ", or use PushSum, which needs columns only.")
        )


def lose_links(mixing: Float[np.ndarray, "N N"], lost: Bool[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """The matrix of a round in which some messages are lost, their weight back with the sender.

        W'_ij = 0,   W'_jj = W_jj + W_ij            where the message from j to i is lost

    Columns keep their sums, so no mass is lost. Where both directions of a link are lost together and W is
    symmetric, rows keep theirs too: W' is doubly stochastic.

    Args:
        mixing: (N, N).
        lost: (N, N) bool, [i, j] where the message from j to i is lost; the diagonal is False.

    Returns:
        (N, N).
    """
    away = np.where(lost, mixing, 0.0)
    return mixing - away + np.diag(away.sum(0))
