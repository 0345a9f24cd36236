"""dure (두레): federated learning — one algorithm object in simulation, under a debugger and over a network.

The public names are this table. They are loaded when first used, so that `import dure` is quick and the
command line can print its help without starting JAX.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dure import (
        aggregation,
        attacks,
        boosting,
        data,
        decentralized,
        distillation,
        flower,
        models,
        statistics,
        trackers,
    )
    from dure.algorithms import (
        APFL,
        IFCA,
        L1,
        Algorithm,
        Ball,
        Box,
        ConsensusADMM,
        Ditto,
        FedAdagrad,
        FedAdam,
        FedADMM,
        FedAvg,
        FedAvgM,
        FedBABU,
        FedBN,
        FedDC,
        FedDyn,
        FedExLoRA,
        FedExP,
        FedIT,
        FedLC,
        FedLin,
        FedNova,
        FedOpt,
        FedPD,
        FedPer,
        FedProx,
        FedRep,
        FedSAM,
        FedSGD,
        FedYogi,
        FFALoRA,
        FineTuning,
        FlexLoRA,
        FLoRA,
        HierFAVG,
        LGFedAvg,
        LocalOnly,
        Mime,
        MimeLite,
        MoFedSAM,
        Moon,
        Needs,
        Oracle,
        PerFedAvg,
        PFedMe,
        RoundInfo,
        Scaffold,
        Server,
        Update,
        WorkerMomentum,
    )
    from dure.config.advice import advise
    from dure.data import Federated
    from dure.errors import ConfigError, DataError, DureError, RunError
    from dure.oracles.adapter import merge_lora
    from dure.oracles.estimators.task import scikit_learn
    from dure.oracles.function import oracle
    from dure.oracles.layout import Layout, Variables
    from dure.oracles.lora import lora
    from dure.oracles.metrics import Metric
    from dure.oracles.model import Model
    from dure.oracles.optimizer import Optimizer, sgd
    from dure.oracles.task import Task, binary, classification, regression
    from dure.population import Cohort, Cyclic, Everyone, Once, Poisson, Uniform, Weighted
    from dure.run import Run
    from dure.simulation import Simulation, simulate
    from dure.simulation.sweep import sweep

_NAMES = {
    "dure.algorithms": (
        "APFL",
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
        "IFCA",
        "L1",
        "LGFedAvg",
        "LocalOnly",
        "Mime",
        "MimeLite",
        "MoFedSAM",
        "Moon",
        "Needs",
        "Oracle",
        "PFedMe",
        "PerFedAvg",
        "RoundInfo",
        "Scaffold",
        "Server",
        "Update",
        "WorkerMomentum",
    ),
    "dure.config.advice": ("advise",),
    "dure.data": ("Federated",),
    "dure.errors": ("ConfigError", "DataError", "DureError", "RunError"),
    "dure.oracles.adapter": ("merge_lora",),
    "dure.oracles.estimators.task": ("scikit_learn",),
    "dure.oracles.function": ("oracle",),
    "dure.oracles.layout": ("Layout", "Variables"),
    "dure.oracles.lora": ("lora",),
    "dure.oracles.metrics": ("Metric",),
    "dure.oracles.model": ("Model",),
    "dure.oracles.optimizer": ("Optimizer", "sgd"),
    "dure.oracles.task": ("Task", "binary", "classification", "regression"),
    "dure.population": ("Cohort", "Cyclic", "Everyone", "Once", "Poisson", "Uniform", "Weighted"),
    "dure.run": ("Run",),
    "dure.simulation": ("Simulation", "simulate"),
    "dure.simulation.sweep": ("sweep",),
}
_HOME = {name: module for module, names in _NAMES.items() for name in names}
_ROOMS = (
    "aggregation",
    "attacks",
    "boosting",
    "data",
    "decentralized",
    "distillation",
    "flower",
    "models",
    "statistics",
    "trackers",
)

__all__ = [
    "APFL",
    "IFCA",
    "L1",
    "Algorithm",
    "Ball",
    "Box",
    "Cohort",
    "ConfigError",
    "ConsensusADMM",
    "Cyclic",
    "DataError",
    "Ditto",
    "DureError",
    "Everyone",
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
    "Federated",
    "FineTuning",
    "FlexLoRA",
    "HierFAVG",
    "LGFedAvg",
    "Layout",
    "LocalOnly",
    "Metric",
    "Mime",
    "MimeLite",
    "MoFedSAM",
    "Model",
    "Moon",
    "Needs",
    "Once",
    "Optimizer",
    "Oracle",
    "PFedMe",
    "PerFedAvg",
    "Poisson",
    "RoundInfo",
    "Run",
    "RunError",
    "Scaffold",
    "Server",
    "Simulation",
    "Task",
    "Uniform",
    "Update",
    "Variables",
    "Weighted",
    "WorkerMomentum",
    "advise",
    "aggregation",
    "attacks",
    "binary",
    "boosting",
    "classification",
    "data",
    "decentralized",
    "distillation",
    "flower",
    "lora",
    "merge_lora",
    "models",
    "oracle",
    "regression",
    "scikit_learn",
    "sgd",
    "simulate",
    "statistics",
    "sweep",
    "trackers",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    elif name in _ROOMS:
        value = import_module(f"dure.{name}")
    else:
        raise AttributeError(f"module 'dure' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
