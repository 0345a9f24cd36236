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
from dure.algorithms.fedexp import FedExP
from dure.algorithms.fedlc import FedLC
from dure.algorithms.fedlin import FedLin
from dure.algorithms.fednova import FedNova
from dure.algorithms.fedopt import FedOpt
from dure.algorithms.fedpd import FedPD
from dure.algorithms.fedprox import FedProx
from dure.algorithms.fedsam import FedSAM, MoFedSAM
from dure.algorithms.fedsgd import FedSGD
from dure.algorithms.finetuning import FineTuning, LocalOnly
from dure.algorithms.hierfavg import HierFAVG
from dure.algorithms.ifca import IFCA
from dure.algorithms.mime import Mime, MimeLite
from dure.algorithms.moon import Moon
from dure.algorithms.partial import FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from dure.algorithms.perfedavg import PerFedAvg
from dure.algorithms.pfedme import PFedMe
from dure.algorithms.proximal import L1, Ball, Box
from dure.algorithms.scaffold import Scaffold

#: All methods, in the order of the catalogue: by what they are for.
ALL: tuple[type[Algorithm], ...] = (
    FedAvg,
    FedSGD,
    FedAvgM,
    FedOpt,
    FedAdagrad,
    FedAdam,
    FedYogi,
    FedExP,
    FedProx,
    Scaffold,
    FedNova,
    FedDyn,
    FedDC,
    Mime,
    MimeLite,
    FedLin,
    FedSAM,
    MoFedSAM,
    Moon,
    FedLC,
    ConsensusADMM,
    FedADMM,
    FedPD,
    FineTuning,
    LocalOnly,
    Ditto,
    PFedMe,
    APFL,
    PerFedAvg,
    FedPer,
    FedRep,
    FedBN,
    LGFedAvg,
    FedBABU,
    IFCA,
    HierFAVG,
)

__all__ = [
    "ALL",
    "APFL",
    "IFCA",
    "L1",
    "Algorithm",
    "Ball",
    "Box",
    "ConsensusADMM",
    "Ditto",
    "FedADMM",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedBABU",
    "FedBN",
    "FedDC",
    "FedDyn",
    "FedExP",
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
]
