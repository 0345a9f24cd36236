"""One page per method: the paper's formulas, the citation, and nothing else."""

from dure.algorithms.adaptive import FedAdagrad, FedAdam, FedYogi
from dure.algorithms.admm import ConsensusADMM, FedADMM
from dure.algorithms.apfl import APFL
from dure.algorithms.base import Algorithm, Minibatch, Needs, Oracle, RoundInfo, Server, Solution, Update
from dure.algorithms.ditto import Ditto
from dure.algorithms.fedavg import FedAvg
from dure.algorithms.fedavgm import FedAvgM
from dure.algorithms.feddc import FedDC
from dure.algorithms.feddyn import FedDyn
from dure.algorithms.fedexlora import FedExLoRA
from dure.algorithms.fedexp import FedExP
from dure.algorithms.fedit import FedIT
from dure.algorithms.fedlc import FedLC
from dure.algorithms.fedlin import FedLin
from dure.algorithms.fednova import FedNova
from dure.algorithms.fedopt import FedOpt
from dure.algorithms.fedpd import FedPD
from dure.algorithms.fedprox import FedProx
from dure.algorithms.fedsam import FedSAM, MoFedSAM
from dure.algorithms.fedsgd import FedSGD
from dure.algorithms.ffalora import FFALoRA
from dure.algorithms.finetuning import FineTuning, LocalOnly
from dure.algorithms.flexlora import FlexLoRA
from dure.algorithms.flora import FLoRA
from dure.algorithms.hierfavg import HierFAVG
from dure.algorithms.ifca import IFCA
from dure.algorithms.mime import Mime, MimeLite
from dure.algorithms.moon import Moon
from dure.algorithms.partial import FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from dure.algorithms.perfedavg import PerFedAvg
from dure.algorithms.pfedme import PFedMe
from dure.algorithms.proximal import L1, Ball, Box
from dure.algorithms.scaffold import Scaffold
from dure.algorithms.workermomentum import WorkerMomentum

#: All methods by what they are for, in the order of the catalogue.
GROUPS: dict[str, tuple[type[Algorithm], ...]] = {
    "Averaging": (FedAvg, FedSGD),
    "Server steps": (FedAvgM, FedOpt, FedAdagrad, FedAdam, FedYogi, FedExP),
    "Against drift": (FedProx, Scaffold, FedNova, FedDyn, FedDC, Mime, MimeLite, FedLin),
    "Local loss": (FedSAM, MoFedSAM, Moon, FedLC),
    "ADMM": (ConsensusADMM, FedADMM, FedPD),
    "Personal models": (FineTuning, LocalOnly, Ditto, PFedMe, APFL, PerFedAvg),
    "Partial sharing": (FedPer, FedRep, FedBN, LGFedAvg, FedBABU),
    "Low-rank adapters": (FedIT, FFALoRA, FedExLoRA, FLoRA, FlexLoRA),
    "Hostile clients": (WorkerMomentum,),
    "Clusters and hierarchies": (IFCA, HierFAVG),
}
ALL: tuple[type[Algorithm], ...] = tuple(method for group in GROUPS.values() for method in group)

__all__ = [
    "ALL",
    "APFL",
    "GROUPS",
    "IFCA",
    "L1",
    "Algorithm",
    "Ball",
    "Box",
    "ConsensusADMM",
    "Ditto",
    "FFALoRA",
    "FLoRA",
    "FedADMM",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedDC",
    "FedDyn",
    "FedExLoRA",
    "FedExP",
    "FedIT",
    "FedLC",
    "FedLin",
    "FedNova",
    "FedOpt",
    "FedPD",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSAM",
    "FedSGD",
    "FedYogi",
    "FineTuning",
    "FlexLoRA",
    "HierFAVG",
    "LGFedAvg",
    "LocalOnly",
    "Mime",
    "MimeLite",
    "Minibatch",
    "MoFedSAM",
    "Moon",
    "Needs",
    "Oracle",
    "PFedMe",
    "PerFedAvg",
    "RoundInfo",
    "Scaffold",
    "Server",
    "Solution",
    "Update",
    "WorkerMomentum",
]
