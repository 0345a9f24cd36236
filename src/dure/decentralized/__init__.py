"""Methods without a server: nodes on a graph that exchange models with their neighbours.

graphs      ring, torus, complete, exponential, erdos_renyi, random_regular, graph_of
matrices    metropolis, equal_shares, spectral_gap
methods     DPSGD, GradientTracking, Extra, PushSum, Choco (with TopK, RandomK)
training    simulate;  averaging alone: gossip
"""

from dure.decentralized.base import Method, Models, Nodes
from dure.decentralized.choco import Choco
from dure.decentralized.compressors import Compressor, RandomK, TopK
from dure.decentralized.dpsgd import DPSGD
from dure.decentralized.extra import Extra
from dure.decentralized.gossiping import gossip
from dure.decentralized.graph import (
    Graph,
    complete,
    erdos_renyi,
    exponential,
    graph_of,
    random_regular,
    ring,
    torus,
)
from dure.decentralized.mixing import equal_shares, metropolis, second_eigenvalue, spectral_gap
from dure.decentralized.pushsum import PushSum
from dure.decentralized.tracking import GradientTracking
from dure.decentralized.training import simulate

__all__ = [
    "DPSGD",
    "Choco",
    "Compressor",
    "Extra",
    "GradientTracking",
    "Graph",
    "Method",
    "Models",
    "Nodes",
    "PushSum",
    "RandomK",
    "TopK",
    "complete",
    "equal_shares",
    "erdos_renyi",
    "exponential",
    "gossip",
    "graph_of",
    "metropolis",
    "random_regular",
    "ring",
    "second_eigenvalue",
    "simulate",
    "spectral_gap",
    "torus",
]
