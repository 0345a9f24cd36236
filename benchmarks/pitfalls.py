"""Where common listings go wrong: `python benchmarks/pitfalls.py [--markdown FILE]`.

Each wrong variant is the method's own page with one thing changed as it is found in the wild. Both run on the ten
heterogeneous quadratics of the tests (five dimensions, known optimum), float32, full gradients.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import dure
from dure.algorithms.admm import Consensus
from dure.algorithms.feddyn import Corrected
from dure.algorithms.hierfavg import Edges
from dure.algorithms.scaffold import Controlled, ControlledUpdate
from robust_pitfalls import ROBUST

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from problems import Q10, QUADRATIC, make_engine, q10

CYCLIC = dure.Cyclic(3)
DIVERGED = 1e6


# ----- wrong variants ----------------------------------------------------------------------------------------


class SignSwapped(dure.Scaffold):
    """The control's sign: + and − exchanged."""

    def local(self, server: Any, c_k: Any, oracle: Any) -> Any:
        y = oracle.solve(server.w, linear=c_k - server.c)
        new = c_k - server.c + (server.w - y.w) / y.gain
        return ControlledUpdate(y.w - server.w, new - c_k), new


class OverCohort(dure.Scaffold):
    """The server's control moves by the cohort's mean, not by |S|/N of it."""

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        return Controlled(server.w + mean.delta, server.c + mean.control)


class StepsTimesRate(dure.Scaffold):
    """Momentum on the gradient alone, the correction beside it, and the control normalised by K·η."""

    def local(self, server: Any, c_k: Any, oracle: Any) -> Any:
        def step(state: Any, batch: Any) -> Any:
            y, velocity = state
            velocity = 0.9 * velocity + batch.gradient(y)
            return y - 0.01 * (velocity + server.c - c_k), velocity

        y, _ = oracle.walk((server.w, jnp.zeros_like(server.w)), step)
        new = c_k - server.c + (server.w - y) / (10 * 0.01)
        return ControlledUpdate(y - server.w, new - c_k), new


class KeptAnyway(dure.Scaffold):
    """The client keeps its new control although the upload was lost."""

    own = ("*",)


class StartsAtOne(dure.Scaffold):
    """The server's control starts at something else than the mean of the clients'."""

    def init(self, w: Any) -> Any:
        return Controlled(w, jnp.ones_like(w))


class Unsquared(dure.FedDyn):
    """The proximal term is α/2 times the norm, not its square."""

    def local(self, server: Any, dual: Any, oracle: Any) -> Any:
        def direction(batch: Any, y: Any) -> Any:
            away = y - server.w
            length = jnp.sqrt(jnp.vdot(away, away) + 1e-12)
            return batch.gradient(y) - dual + self.alpha / 2 * away / length

        delta = oracle.solve(server.w, direction=direction).w - server.w
        return dure.Update(delta), dual - self.alpha * delta


class DynOverCohort(dure.FedDyn):
    """h is divided by |S| instead of N."""

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        h = server.h - self.alpha * mean.delta
        return Corrected(server.w + mean.delta - h / self.alpha, h)


class StepsAsGain(dure.FedNova):
    """The normaliser is the number of steps although there is momentum."""

    def local(self, server: Any, client: Any, oracle: Any) -> Any:
        y = oracle.solve(server.w)
        gain = y.steps.astype(jnp.float32)
        from dure.algorithms.fednova import Normalised

        return Normalised((y.w - server.w) / gain, gain), client


class Damped(dure.FedAvgM):
    """v ← β v + (1 − β) G: a step that is 1/(1 − β) times smaller."""

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        v = self.momentum * server.v - (1 - self.momentum) * mean.delta
        return type(server)(server.w - self.server_lr * v, v)


class FullStep(dure.FedADMM):
    """The sampled mean moves z by all of it, not by |S|/N."""

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        v = server.v + mean.delta
        return Consensus(v, v)


class PlainEdges(dure.HierFAVG):
    """The cloud takes the plain mean over the edges, whatever weight reported to each."""

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        new = super().apply(server, mean, round)
        models = server.models + mean.delta / jnp.where(mean.mass > 0, mean.mass, 1)[:, None]
        w = models.mean(0)
        cloud = round.number % self.cloud_every == 0
        return Edges(
            jnp.where(cloud, w, new.w),
            jnp.where(cloud, jnp.tile(w, (models.shape[0], 1)), new.models),
            new.mass,
        )


for variant in list(globals().values()):
    if isinstance(variant, type) and issubclass(variant, dure.Algorithm):
        dataclass(frozen=True)(variant)


# ----- measurements ------------------------------------------------------------------------------------------


def loss20(seed: int, round: int, ids: np.ndarray) -> np.ndarray:
    """Exactly 20 % of the uploads, without random numbers."""
    return (2 * (round - 1) + 3 * ids) % 5 == 0


def engine_after(algorithm: Any, rounds: int, weighted: bool, **keywords: Any) -> Any:
    """The engine after so many rounds."""
    given = {"steps": 10, "batch_size": float("inf"), "optimizer": 0.1, **keywords}
    engine = make_engine(algorithm, QUADRATIC, q10(weighted=weighted), **given)
    for _ in range(rounds):
        engine.launch()
    return engine


def distance(algorithm: Any, rounds: int, *, weighted: bool = False, **keywords: Any) -> float:
    """Distance from the optimum after so many rounds."""
    w = np.asarray(engine_after(algorithm, rounds, weighted, **keywords).vector(), np.float64)
    return float(np.linalg.norm(w - Q10.optimum(Q10.weighted if weighted else Q10.uniform)))


def long_run_mean(algorithm: Any, rounds: int, **keywords: Any) -> float:
    """Distance of the mean of the iterates from the weighted optimum, after the first tenth."""
    engine = make_engine(algorithm, QUADRATIC, q10(weighted=True), **keywords)
    total = np.zeros(5)
    for number in range(rounds):
        engine.launch()
        if number >= rounds // 10:
            total += np.asarray(engine.vector(), np.float64)
    return float(np.linalg.norm(total / (rounds - rounds // 10) - Q10.optimum(Q10.weighted)))


def control_gap(algorithm: Any, rounds: int, **keywords: Any) -> float:
    """Largest ‖c − mean of c_k‖ over the rounds (for FedDyn: of h and λ_k)."""
    engine = engine_after(algorithm, 0, False, **keywords)
    worst = 0.0
    for _ in range(rounds):
        engine.launch()
        server = engine.model.server
        kept = np.asarray(server.c if hasattr(server, "c") else server.h, np.float64)
        worst = max(worst, float(np.linalg.norm(kept - engine.store.gather(np.arange(10)).mean(0))))
    return worst


class Pitfall(NamedTuple):
    """One line of the table."""

    what: str
    setting: str
    measured: str
    wrong: Callable[[], float]
    right: Callable[[], float]


MOMENTUM = {"optimizer": dure.sgd(0.01, momentum=0.9)}
UNEQUAL = (1, 2, 4, 8, 16, 1, 3, 5, 9, 20)
NOVA = {
    "weighted": True,
    "steps": 20,
    "work_limit": lambda seed, round, ids, steps: np.asarray(UNEQUAL, np.int32)[ids],
    "optimizer": dure.sgd(0.05 / 3, momentum=0.9),
}
EDGES = (0, 0, 0, 1, 1, 1, 2, 2, 2, 2)


def after(algorithm: Any, rounds: int, **keywords: Any) -> Callable[[], float]:
    """`distance`, when it is asked for."""
    return lambda: distance(algorithm, rounds, **keywords)


def gap(algorithm: Any, rounds: int, **keywords: Any) -> Callable[[], float]:
    """`control_gap`, when it is asked for."""
    return lambda: control_gap(algorithm, rounds, **keywords)


ERROR = "distance from the optimum"
PITFALLS = (
    Pitfall(
        "n_k / Σ_cohort n_j as if it were unbiased",
        "FedSGD, cohorts of 2, examples as weights; against Horvitz–Thompson",
        "distance of the long-run mean",
        lambda: long_run_mean(dure.FedSGD(0.05), 8000, clients_per_round=2),
        lambda: long_run_mean(dure.FedSGD(0.05), 8000, clients_per_round=2, estimator="horvitz-thompson"),
    ),
    Pitfall(
        "SCAFFOLD: control's sign swapped",
        "everyone, K = 10",
        ERROR,
        after(SignSwapped(), 40),
        after(dure.Scaffold(), 40),
    ),
    Pitfall(
        "SCAFFOLD: c moves by the cohort's mean",
        "3 of 10 clients",
        "‖c − mean c_k‖, largest",
        gap(OverCohort(), 60, sampler=CYCLIC),
        gap(dure.Scaffold(), 60, sampler=CYCLIC),
    ),
    Pitfall(
        "SCAFFOLD: normalised by K·η under momentum",
        "momentum 0.9, η = 0.01",
        ERROR,
        after(StepsTimesRate(), 400, **MOMENTUM),
        after(dure.Scaffold(), 400, **MOMENTUM),
    ),
    Pitfall(
        "SCAFFOLD: state kept though the upload was lost",
        "20 % of the uploads lost",
        ERROR,
        after(KeptAnyway(), 200, lost_uploads=loss20),
        after(dure.Scaffold(), 200, lost_uploads=loss20),
    ),
    Pitfall(
        "SCAFFOLD: controls don't start at zero",
        "c = 1, c_k = 0",
        ERROR,
        after(StartsAtOne(), 200),
        after(dure.Scaffold(), 200),
    ),
    Pitfall(
        "FedNova: number of steps as the normaliser",
        "momentum 0.9, 1 to 20 steps",
        ERROR,
        after(StepsAsGain(), 300, **NOVA),
        after(dure.FedNova(), 300, **NOVA),
    ),
    Pitfall(
        "FedDyn: norm not squared",
        "α = 0.5, K = 20",
        ERROR,
        after(Unsquared(0.5), 300, steps=20),
        after(dure.FedDyn(0.5), 300, steps=20),
    ),
    Pitfall(
        "FedDyn: h divided by |S|",
        "3 of 10 clients",
        "‖h − mean λ_k‖, largest",
        gap(DynOverCohort(0.5), 60, steps=20, sampler=CYCLIC),
        gap(dure.FedDyn(0.5), 60, steps=20, sampler=CYCLIC),
    ),
    Pitfall(
        "FedAvgM: (1 − β) G in the velocity",
        "β = 0.9, after 10 rounds of one step",
        ERROR,
        after(Damped(0.5), 10, steps=1),
        after(dure.FedAvgM(0.5), 10, steps=1),
    ),
    Pitfall(
        "FedADMM: z moves by the cohort's mean",
        "3 of 10 clients",
        ERROR,
        after(FullStep(), 60, steps=60, sampler=CYCLIC),
        after(dure.FedADMM(), 120, steps=60, sampler=CYCLIC),
    ),
    Pitfall(
        "HierFAVG: plain mean over edges",
        "edges of 3, 3 and 4 clients, cloud every 10",
        ERROR,
        after(PlainEdges(EDGES, 10), 400, weighted=True, steps=1),
        after(dure.HierFAVG(EDGES, 10), 400, weighted=True, steps=1),
    ),
)


def shown(value: float) -> str:
    """A figure, or that there is none."""
    return "diverges" if not np.isfinite(value) or value > DIVERGED else f"{value:.2g}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    asked = parser.parse_args()
    pitfalls = (*PITFALLS, *(Pitfall(*line) for line in ROBUST))
    rows = [(p.what, p.setting, p.measured, shown(p.wrong()), shown(p.right())) for p in pitfalls]
    table = Table("what", "setting", "measured", "wrong", "here", title="Where common listings go wrong")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if asked.markdown:
        head = "| what | setting | measured | wrong | here |\n|---|---|---|---|---|\n"
        asked.markdown.write_text(head + "".join("| " + " | ".join(row) + " |\n" for row in rows))


if __name__ == "__main__":
    main()
