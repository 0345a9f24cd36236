"""One page per method: the paper's formulas, the citation, and nothing else."""

from dure.algorithms.base import Algorithm, Oracle, RoundInfo, Server, Update
from dure.algorithms.fedavg import FedAvg
from dure.algorithms.fedsgd import FedSGD

#: All methods, in the order of the catalogue.
ALL: tuple[type[Algorithm], ...] = (FedAvg, FedSGD)

__all__ = ["ALL", "Algorithm", "FedAvg", "FedSGD", "Oracle", "RoundInfo", "Server", "Update"]
