"""Ditto: where the personal models end, and that the global path does not notice them."""

import math
from typing import Any

import numpy as np
import pytest

import dure
from dure.errors import ConfigError
from exact import Run
from problems import Q10, QUADRATIC, Cyclic, make_engine, q10

LOCAL = {"steps": 10, "batch_size": math.inf, "optimizer": 0.1}


def fedavg_limit(p: np.ndarray, steps: int = 10, eta: float = 0.1) -> np.ndarray:
    """x̂ of section 3: Σ p_i C_i (b_i − x) = 0 with C_i = I − (I − η A_i)^K."""
    C = np.stack([np.eye(5) - np.linalg.matrix_power(np.eye(5) - eta * a, steps) for a in Q10.A])
    return np.linalg.solve(np.einsum("i,ijk->jk", p, C), np.einsum("i,ijk,ik->j", p, C, Q10.b))


def closed_form(lam: float, w: np.ndarray) -> np.ndarray:
    """v_i = (A_i + λI)⁻¹ (A_i b_i + λ w)."""
    return np.stack(
        [np.linalg.solve(Q10.A[i] + lam * np.eye(5), Q10.A[i] @ Q10.b[i] + lam * w) for i in range(10)]
    )


@pytest.mark.parametrize(("lam", "distance"), [(0.0, 5.7967), (0.1, 4.8276), (1.0, 2.0877), (2.0, 1.3036)])
def test_the_closed_form_and_the_figures_of_the_reference(lam: float, distance: float) -> None:
    x = fedavg_limit(Q10.uniform)
    v = closed_form(lam, x)
    assert np.linalg.norm(v - x, axis=1).mean() == pytest.approx(distance, abs=5e-5)
    if lam == 0:
        np.testing.assert_allclose(v, Q10.b, atol=1e-12)
    engine = make_engine(dure.Ditto(lam), QUADRATIC, q10(), **LOCAL)
    for _ in range(120):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, x, atol=1e-5)
    np.testing.assert_allclose(engine.store.gather(np.arange(10)), v, atol=3e-5)


def test_in_float64() -> None:
    run = Run(dure.Ditto(1.0), steps=10, eta=0.3).rounds(60)
    x = fedavg_limit(Q10.uniform, eta=0.3)
    np.testing.assert_allclose(run.w, x, atol=1e-12)
    np.testing.assert_allclose(run.clients, closed_form(1.0, x), atol=1e-12)


@pytest.mark.parametrize(
    "keywords",
    [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 4}, {"sampler": Cyclic(3)}],
    ids=["sequential", "vectorised", "cyclic"],
)
def test_the_global_path_is_the_same_bits_as_fedavg(keywords: dict[str, Any]) -> None:
    paths = []
    for algorithm in (dure.FedAvg(), dure.Ditto(0.7)):
        engine = make_engine(algorithm, QUADRATIC, q10(weighted=True), **LOCAL, **keywords)
        path = []
        for _ in range(8):
            engine.launch()
            path.append(np.asarray(engine.model.server.w).tobytes())
        paths.append(path)
    assert paths[0] == paths[1]


def test_the_personal_model_moves_whether_or_not_the_upload_arrives() -> None:
    """And is pulled to w as received, not to the client's own y."""
    lost = {"lost_uploads": lambda seed, round, ids: ids % 2 == 0}
    engine = make_engine(dure.Ditto(2.0), QUADRATIC, q10(), start=np.ones(5), **{**LOCAL, "steps": 1}, **lost)
    engine.launch()
    one = np.ones(5)
    wanted = one - 0.1 * np.einsum("ijk,ik->ij", Q10.A, one - Q10.b)
    np.testing.assert_allclose(engine.store.gather(np.arange(10)), wanted, atol=1e-6)
    w = np.asarray(engine.model.server.w, np.float64)
    engine.launch()
    gradient = np.einsum("ijk,ik->ij", Q10.A, wanted - Q10.b) + 2.0 * (wanted - w)
    np.testing.assert_allclose(engine.store.gather(np.arange(10)), wanted - 0.1 * gradient, atol=1e-6)


def test_a_personal_model_that_breaks_is_not_kept() -> None:
    """λ η > 2 throws v out of the world while the update is as good as ever: the old v stays."""
    keywords = {**LOCAL, "steps": 100, "optimizer": 0.5}
    engine = make_engine(dure.Ditto(1000.0), QUADRATIC, q10(), **keywords)
    for _ in range(2):
        result = engine.collect(engine.launch())
        assert result.status == ["ok"] * 10
    np.testing.assert_array_equal(engine.store.gather(np.arange(10)), np.zeros((10, 5)))


def test_impossible_numbers() -> None:
    with pytest.raises(ConfigError, match=r"Ditto\(lam=-1.0\)"):
        dure.Ditto(-1.0)
