"""What `methods.py` tries: every method that makes one model for all, and its small grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import optax

import dure

RATES = (0.03, 0.1, 0.3)  # local learning rates; the command goes on beyond an edge that is best
STEP = 10**0.5


@dataclass(frozen=True)
class Entry:
    """One row of the tables.

    Attributes:
        name: of the row.
        variants: the algorithm with each of its own hyper-parameters that are tried.
        rates: local learning rates to begin with.
        cohort: "some" (as the split says), "all" or "one"; the number of rounds is set so that all have the
            same number of client visits.
        momentum: of the local optimizer.
    """

    name: str
    variants: tuple[Any, ...]
    rates: tuple[float, ...] = RATES
    cohort: str = "some"
    momentum: float | None = None

    def point(self, variant: Any, rate: float) -> tuple[Any, Any]:
        """(algorithm, optimizer) with a learning rate; FedSGD has it on the server."""
        if isinstance(variant, dure.FedSGD):
            return replace(variant, learning_rate=rate), dure.sgd(rate)
        return variant, dure.sgd(rate, momentum=self.momentum)

    def describe(self, variant: int, rate: float) -> str:
        """The rate and what tells the variant from the others, in a few signs."""
        words, algorithm = [f"rate {rate:.3g}"], self.variants[variant]
        if isinstance(algorithm, dure.FedOpt):
            words.append(f"server_lr {algorithm.optimizer.arguments['learning_rate']:g}")
        else:
            for name in ("server_lr", "mu", "alpha", "beta", "rho", "tau", "eta"):
                if len({getattr(v, name, None) for v in self.variants}) > 1:
                    words.append(f"{name} {getattr(algorithm, name):g}")
        return ", ".join(words)


def adam(rate: float) -> dure.FedOpt:
    return dure.FedOpt(dure.Optimizer(optax.adam, {"learning_rate": rate, "eps": 1e-3}))


def entries(clients: int, classes: int = 10) -> list[Entry]:
    """All rows; `clients` is for the edges of HierFAVG."""
    edges = tuple(k % max(clients // 20, 2) for k in range(clients))
    return [
        Entry("FedAvg", (dure.FedAvg(),)),
        Entry("FedSGD", (dure.FedSGD(),), (0.1, 0.3, 1.0)),
        Entry("FedAvgM", (dure.FedAvgM(server_lr=1.0), dure.FedAvgM(server_lr=0.3))),
        Entry("FedOpt (Adam)", (adam(0.003), adam(0.01))),
        Entry("FedAdagrad", (dure.FedAdagrad(server_lr=0.03), dure.FedAdagrad(server_lr=0.1))),
        Entry("FedAdam", (dure.FedAdam(server_lr=0.01), dure.FedAdam(server_lr=0.03))),
        Entry("FedYogi", (dure.FedYogi(server_lr=0.01), dure.FedYogi(server_lr=0.03))),
        Entry("FedExP", (dure.FedExP(),)),
        Entry("FedProx", (dure.FedProx(mu=0.01), dure.FedProx(mu=0.1))),
        Entry("SCAFFOLD", (dure.Scaffold(),)),
        Entry("FedNova", (dure.FedNova(),)),
        Entry("FedDyn", (dure.FedDyn(alpha=0.03), dure.FedDyn(alpha=0.1))),
        Entry("FedDC", (dure.FedDC(alpha=0.01), dure.FedDC(alpha=0.1))),
        Entry("Mime", (dure.Mime(beta=0.9), dure.Mime(beta=0.0))),
        Entry("MimeLite", (dure.MimeLite(beta=0.9),)),
        Entry("FedLin", (dure.FedLin(),), (0.3, 1.0, 3.0)),
        Entry("FedSAM", (dure.FedSAM(rho=0.02), dure.FedSAM(rho=0.1))),
        Entry("MoFedSAM", (dure.MoFedSAM(rho=0.02, beta=0.1), dure.MoFedSAM(rho=0.02, beta=0.5))),
        Entry("MOON", (dure.Moon(mu=0.1), dure.Moon(mu=1.0))),
        Entry("FedLC", (dure.FedLC(classes, tau=0.1), dure.FedLC(classes, tau=1.0))),
        Entry("FedADMM", (dure.FedADMM(rho=0.03), dure.FedADMM(rho=0.1))),
        Entry("HierFAVG", (dure.HierFAVG(edges, cloud_every=2),)),
        Entry("cyclic", (dure.FedAvg(),), (0.01, 0.03, 0.1), "one"),
        Entry("FedAvg (everyone)", (dure.FedAvg(),), cohort="all"),
        Entry("ADMM (everyone)", (dure.ConsensusADMM(rho=0.03), dure.ConsensusADMM(rho=0.1)), cohort="all"),
        Entry("FedPD (everyone)", (dure.FedPD(eta=10.0), dure.FedPD(eta=30.0)), cohort="all"),
    ]


#: Local momentum 0.9, on the split where published rows collapse.
MOMENTUM = [
    Entry(f"{name} (momentum 0.9)", (algorithm,), (0.01, 0.03), momentum=0.9)
    for name, algorithm in (
        ("FedAvg", dure.FedAvg()),
        ("FedProx", dure.FedProx(mu=0.01)),
        ("SCAFFOLD", dure.Scaffold()),
        ("FedNova", dure.FedNova()),
    )
]
