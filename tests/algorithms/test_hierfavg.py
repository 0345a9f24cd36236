"""HierFAVG: the table of the reference, and subtrees that count by what reported in them."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import Run, cyc3
from problems import Q10, QUADRATIC, make_engine, q10

EDGES = (0, 0, 0, 1, 1, 1, 2, 2, 2, 2)
OPTIMUM = Q10.optimum(Q10.weighted)


def contraction(i: int, steps: int, eta: float = 0.1) -> np.ndarray:
    """C with Δ_i(x) = C (b_i − x) after so many local steps."""
    return np.eye(5) - np.linalg.matrix_power(np.eye(5) - eta * Q10.A[i], steps)


def limit(steps: int, cloud_every: int, weights: Sequence[float] | None = None) -> np.ndarray:
    """The fixed point of a cloud round, κ₁ = `steps`, κ₂ = `cloud_every`; `weights` of the edges at the cloud."""
    whole, shift = np.zeros((5, 5)), np.zeros(5)
    for e in range(3):
        own = [i for i in range(10) if EDGES[i] == e]
        share = Q10.weighted[own].sum()
        step = sum(Q10.weighted[i] / share * contraction(i, steps) for i in own)
        target = sum(Q10.weighted[i] / share * contraction(i, steps) @ Q10.b[i] for i in own)
        M, c = np.eye(5), np.zeros(5)
        for _ in range(cloud_every):
            M, c = (np.eye(5) - step) @ M, (np.eye(5) - step) @ c + target
        weight = share if weights is None else weights[e]
        whole, shift = whole + weight * M, shift + weight * c
    return np.linalg.solve(np.eye(5) - whole, shift)


#: (κ₁, κ₂) and the distance of the limit from the optimum.
TABLE = [(1, 1, 0.0), (10, 1, 0.30449), (1, 10, 0.1771), (10, 5, 0.6693), (50, 1, 0.9767)]


@pytest.mark.parametrize(("steps", "cloud_every", "error"), TABLE)
def test_the_table(steps: int, cloud_every: int, error: float) -> None:
    wanted = limit(steps, cloud_every)
    assert np.linalg.norm(wanted - OPTIMUM) == pytest.approx(error, abs=5e-5)
    method = dure.HierFAVG(EDGES, cloud_every)
    engine = make_engine(
        method, QUADRATIC, q10(weighted=True), steps=steps, batch_size=math.inf, optimizer=0.1
    )
    cloud_rounds = math.ceil(20 / (0.4 * min(steps * cloud_every * 0.1, 2.5)))
    for _ in range(cloud_rounds * cloud_every):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, wanted, atol=1e-5)


def test_a_plain_mean_over_edges_is_another_problem() -> None:
    wrong = limit(1, 1, [1 / 3] * 3)
    assert np.linalg.norm(wrong - OPTIMUM) == pytest.approx(2.0762, abs=5e-5)
    run = Run(dure.HierFAVG(EDGES), steps=1, eta=1.0, p=Q10.weighted).rounds(60)
    assert run.error() < 1e-9


@pytest.mark.parametrize("sampler", [{}, {"sampler": dure.Cyclic(3)}], ids=["everyone", "cyclic"])
def test_every_round_at_the_cloud_is_fedavg(sampler: dict[str, Any]) -> None:
    """Σ_e m_e (mean of e) / Σ_e m_e is the mean of all, whoever reported."""
    keywords = {"steps": 5, "batch_size": math.inf, "optimizer": 0.1, **sampler}
    hier, flat = (
        make_engine(method, QUADRATIC, q10(weighted=True), **keywords)
        for method in (dure.HierFAVG(EDGES), dure.FedAvg())
    )
    for _ in range(12):
        hier.launch()
        flat.launch()
        np.testing.assert_allclose(hier.model.server.w, flat.model.server.w, atol=3e-6)


def test_between_cloud_rounds_edges_are_federations_of_their_own() -> None:
    run = Run(dure.HierFAVG(EDGES, 100), steps=1, eta=1.0, p=Q10.weighted).rounds(60)
    for e in range(3):
        p = np.where(np.array(EDGES) == e, Q10.weighted, 0)
        np.testing.assert_allclose(run.server.models[e], Q10.optimum(p / p.sum()), atol=1e-9)
    np.testing.assert_array_equal(run.w, np.zeros(5))


def test_a_subtree_counts_by_what_reported_in_it() -> None:
    """Three of ten a round, a cloud round every second time; edges that nobody reported to count nothing."""
    p, eta = Q10.weighted, 0.3
    run = Run(dure.HierFAVG(EDGES, 2), steps=1, eta=eta, p=p, sampler=cyc3)
    models, mass = np.zeros((3, 5)), np.zeros(3)
    for t in range(12):
        run.round()
        cohort = cyc3(t)
        new = models.copy()
        for e in range(3):
            own = [i for i in cohort if EDGES[i] == e]
            if own:
                y = [models[e] - eta * Q10.A[i] @ (models[e] - Q10.b[i]) for i in own]
                new[e] = sum(p[i] * yi for i, yi in zip(own, y, strict=True)) / p[own].sum()
                mass[e] += p[own].sum()
        models = new
        if t % 2:
            models, mass = np.tile(mass @ models / mass.sum(), (3, 1)), np.zeros(3)
            np.testing.assert_allclose(run.w, models[0], atol=1e-12)
        np.testing.assert_allclose(run.server.models, models, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dure.HierFAVG(()), "one edge number for each client"),
        (lambda: dure.HierFAVG((0, 2)), "every number from 0"),
        (lambda: dure.HierFAVG((0, -1)), "every number from 0"),
        (lambda: dure.HierFAVG((0, 1), 0), "cloud_every=0"),
        (
            lambda: make_engine(dure.HierFAVG((0, 1)), QUADRATIC, q10()),
            "edges for 2 clients.*the data have 10",
        ),
        (
            lambda: make_engine(
                dure.HierFAVG(EDGES), QUADRATIC, q10(), sampler=dure.Weighted(3), weighting="uniform"
            ),
            "sampling by weight hides it",
        ),
    ],
)
def test_impossible_trees(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make()
