"""One cell of `robust.py`: a training under an attack, and what defends it. Runs in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

import dure
from dure import aggregation as agg
from dure import attacks
from dure.attacks.around import Around
from dure.data import partition
from dure.errors import ConfigError

Maker = Callable[[int, int, float], Any]  # (n, f, length of an update) → rule

#: Rules by name. τ and norms follow the length of the honest updates of the first round, which the command measures.
RULES: dict[str, Maker] = {
    "Mean": lambda n, f, size: agg.Mean(),
    "Median": lambda n, f, size: agg.Median(f),
    "TrimmedMean": lambda n, f, size: agg.TrimmedMean(f),
    "MeaMed": lambda n, f, size: agg.MeaMed(f),
    "Krum": lambda n, f, size: agg.Krum(f),
    "MultiKrum": lambda n, f, size: agg.MultiKrum(f),
    "Bulyan": lambda n, f, size: agg.Bulyan(f),
    "GeometricMedian": lambda n, f, size: agg.GeometricMedian(f),
    "RFA": lambda n, f, size: agg.RFA(f, steps=8, smoothing=size / 200, start="center"),
    "CenteredClipping": lambda n, f, size: agg.CenteredClipping(size / 2, 3, f),
    "MDA": lambda n, f, size: agg.MDA(f),
    "SMEA": lambda n, f, size: agg.SMEA(f),
    "CGE": lambda n, f, size: agg.CGE(f),
    "CAF": lambda n, f, size: agg.CAF(f),
    "DnC": lambda n, f, size: agg.DnC(f),
    "FoolsGold": lambda n, f, size: agg.FoolsGold(),
    "FLAME": lambda n, f, size: agg.FLAME(f),
    "SignGuard": lambda n, f, size: agg.SignGuard(f),
    "RLR": lambda n, f, size: agg.RLR(f + 1, f=f),
    "NormClipping": lambda n, f, size: agg.NormClipping(size / 2),
    "FLTrust": lambda n, f, size: agg.FLTrust(),
}
#: What may come before a rule, and the rules that it is tried with.
BEFORE: dict[str, Callable[[int], Any]] = {
    "NNM": lambda f: agg.NNM(f),
    "Bucketing": lambda f: agg.Bucketing(2),
    "ARC": lambda f: agg.ARC(f),
}
BEHIND = ("Median", "TrimmedMean", "Krum", "GeometricMedian", "CenteredClipping", "CAF")

ATTACKS: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "sign flip": lambda: attacks.SignFlip(of="own"),
    "IPM 0.1": lambda: attacks.IPM(0.1),
    "IPM 6": lambda: attacks.IPM(6.0),
    "ALIE": lambda: attacks.ALIE(),
    "Min-Max": lambda: attacks.MinMax(),
    "Min-Sum": lambda: attacks.MinSum(),
    "mimic": lambda: attacks.Mimic(),
    "label flip": lambda: attacks.LabelFlip(),
    "Fang": lambda: attacks.FangTrimmedMean(),
    "RoP": lambda: attacks.RoP(),
    # The size that hurts this defence most, of some: a search by steps misses it behind rules that choose rows.
    "best IPM": lambda: attacks.OptimizedIPM(evaluations=1, candidates=(0.1, 0.5, 1.0, 2.0, 5.0)),
    "best ALIE": lambda: attacks.OptimizedALIE(evaluations=1, candidates=(0.5, 1.0, 1.5, 2.0, 3.0, 5.0)),
    "NaN": lambda: attacks.NotFinite("nan"),
}


@dataclass(frozen=True)
class Cell:
    """One training.

    Attributes:
        data: "digits" or "fashion".
        similarity: γ in [0, 1]: this share of a client's examples is drawn from all, the rest lies sorted by label.
        n, f: clients, and how many of them are hostile.
        defence: such as "Median" or "NNM + Median".
        attack: a key of ATTACKS.
        rounds: of training.
        momentum: of the workers; 0 is FedAvg.
        size: length of an honest update, for rules with a radius.
        seed: everything random follows from it.
        study: "bucketing" is the set-up of Karimireddy et al. (ICLR 2022).
    """

    data: str
    similarity: float
    n: int
    f: int
    defence: str
    attack: str
    rounds: int
    momentum: float = 0.0
    size: float = 1.0
    seed: int = 0
    study: str = ""


def defence(cell: Cell) -> Any:
    """The rule of a cell, or None where it can't serve so few clients, or takes seconds for so many (SMEA)."""
    *before, name = cell.defence.split(" + ")
    if name == "SMEA" and cell.n > 20:
        return None
    try:
        rule = RULES[name](cell.n, cell.f, cell.size)
        whole = agg.chain(*(BEFORE[b](cell.f) for b in before), rule) if before else rule
        whole.check(cell.n)
    except ConfigError:
        return None
    return whole


def defences() -> list[str]:
    """All rules, and some behind each pre-aggregator."""
    alone = [name for name in RULES if name != "RFA"]
    return [*alone, *(f"{before} + {name}" for before in BEFORE for name in BEHIND)]


@lru_cache(maxsize=8)
def federated(data: str, similarity: float, n: int, seed: int) -> dure.Federated:
    """The data of n clients, and the root data of the server as one client more."""
    pool = dure.data.fashion_mnist() if data == "fashion" else None
    if pool is None:
        whole = dure.data.digits()
        train, test = dict(whole.columns), dict(whole.central_test or {})
    else:
        train, test = dict(pool.train), dict(pool.test or {})
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(train["y"]))
    root = order[:100]
    rest = np.sort(order[100:])
    labels = train["y"][rest]
    client = partition.similarity(labels, n, similarity, seed).client
    at = np.concatenate([rest, root])
    columns = {name: _flat(values[at]) for name, values in train.items()}
    owner = np.concatenate([client, np.full(len(root), n)])
    return dure.Federated.from_arrays(
        columns,
        client=owner,
        test={name: _flat(values) for name, values in test.items()},
        classes=10,
        name=data,
    )


def _flat(values: np.ndarray) -> np.ndarray:
    return values.reshape(len(values), -1).astype(np.float32) if values.ndim > 1 else values


@lru_cache(maxsize=2)
def bucketing_data(seed: int) -> dure.Federated:
    """Fashion-MNIST ordered by label in equal shards over 20 honest clients; 5 hostile ones hold iid shards."""
    pool = dure.data.fashion_mnist()
    x, y = _flat(pool.train["x"]), pool.train["y"]
    order = np.argsort(y, kind="stable")
    each = len(y) // 20
    rng = np.random.default_rng(seed)
    rows = np.concatenate([order[: 20 * each], *(rng.choice(len(y), each, replace=False) for _ in range(5))])
    owner = np.repeat(np.arange(25), each)
    assert pool.test is not None
    test = {"x": _flat(pool.test["x"]), "y": pool.test["y"]}
    columns = {"x": x[rows], "y": y[rows]}
    return dure.Federated.from_arrays(columns, client=owner, test=test, classes=10, name="fashion by label")


@dataclass(frozen=True)
class Raw(Around):
    """Attackers that leave momentum m ← βm + g out: what they would send becomes g. They are in every round."""

    attack: attacks.Attack
    beta: float
    within = "attack"

    @property
    def poisons(self) -> bool:  # type: ignore[override]
        return self.attack.poisons

    def craft(self, scene: attacks.Scene) -> attacks.Sent:
        before = 0.0 if scene.state is None else scene.state["own"]
        own = scene.own.astype(np.float64)
        made = self.attack.updates(
            scene._replace(own=(own - self.beta * before).astype(np.float32), state=None)
        )
        return made._replace(state={"own": own})


@lru_cache(maxsize=4)
def task(name: str) -> Any:
    made = {
        "digits": lambda: dure.models.softmax_regression(64, 10),
        "fashion": lambda: dure.models.softmax_regression(784, 10),
        "bucketing": lambda: dure.models.mlp(784, (100,), 10),
    }
    return dure.classification(made[name]())


def _as_there(cell: Cell) -> Any:
    """The bucketing study's attack: m − zσ of gradients is m + zσ of updates, which point downhill."""
    attack = attacks.ALIE(sign=1) if cell.attack == "ALIE" else ATTACKS[cell.attack]()
    return (
        Raw(attack, cell.momentum) if cell.attack in ("sign flip", "label flip") and cell.momentum else attack
    )


def run(cell: Cell) -> float:
    """Test accuracy in [0, 1] at the end, in the bucketing study the last five evaluations' mean; NaN: no such rule."""
    rule = defence(cell)
    if rule is None:
        return float("nan")
    attack = _as_there(cell) if cell.study == "bucketing" else ATTACKS[cell.attack]()
    keywords: dict[str, Any] = (
        {} if attack is None else {"attack": attack, "attackers": range(cell.n - cell.f, cell.n)}
    )
    method = dure.WorkerMomentum(cell.momentum) if cell.momentum else dure.FedAvg()
    if cell.study == "bucketing":
        found = dure.simulate(
            method, task("bucketing"), bucketing_data(cell.seed), rounds=cell.rounds, steps=1, batch_size=32,
            optimizer=0.01, aggregator=rule, evaluate_every=30, seed=cell.seed, devices=1, **keywords,
        )  # fmt: skip
        seen = [r["test_accuracy"] for r in found.rounds if r.get("test_accuracy") is not None]
        return float(np.mean(seen[-5:]))
    data = federated(cell.data, cell.similarity, cell.n, 0)
    found = dure.simulate(
        method, task(cell.data), data, rounds=cell.rounds, steps=5, batch_size=20, optimizer=0.2, aggregator=rule,
        evaluate_every=cell.rounds, seed=cell.seed, devices=1, sampler=Fleet(cell.n),
        root=cell.n if "FLTrust" in cell.defence else None, **keywords,
    )  # fmt: skip
    return float(found.final["test_accuracy"])


@dataclass(frozen=True)
class Fleet:
    """The first n clients in every round: the last one has the server's root data and joins where a rule asks."""

    n: int

    def sample(self, seed: int, round: int, population: Any) -> Any:
        return dure.Cohort(np.arange(self.n), np.ones(self.n), np.ones(self.n, np.int64))

    def expected_size(self, population: Any) -> float:
        return float(self.n)

    def describe(self) -> str:
        return f"the first {self.n}"


def start(core: Any) -> None:
    """A worker has one core to itself."""
    number = core.get()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[number % os.cpu_count()]})
