"""Cyclic weight transfer: the order is a hyper-parameter, and the last client visited pulls most."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

import dure
from problems import Q10, QUADRATIC, make_engine, q10

UP, DOWN = tuple(range(10)), tuple(range(9, -1, -1))


def limit(order: Sequence[int], steps: int, eta: float) -> np.ndarray:
    """Where the model is after each whole cycle, at last: the fixed point of ten affine maps in a row."""
    M, c = np.eye(5), np.zeros(5)
    for k in order:
        own = np.linalg.matrix_power(np.eye(5) - eta * Q10.A[k], steps)
        M, c = own @ M, own @ c + (np.eye(5) - own) @ Q10.b[k]
    return np.linalg.solve(np.eye(5) - M, c)


@pytest.mark.parametrize(
    ("order", "steps", "eta", "error"),
    [
        (UP, 1, 0.1, 0.4692),
        (DOWN, 1, 0.1, 0.4651),
        (UP, 1, 0.01, 0.0451),
        (DOWN, 1, 0.01, 0.0462),
        (UP, 10, 0.1, 3.8248),
        (DOWN, 10, 0.1, 2.8546),
    ],
)
def test_ascending_and_descending(order: tuple[int, ...], steps: int, eta: float, error: float) -> None:
    wanted = limit(order, steps, eta)
    assert np.linalg.norm(wanted - Q10.optimum(Q10.uniform)) == pytest.approx(error, abs=5e-5)
    # One cycle from there leads back to there; the way from 0 would be long when the rate is small.
    keywords = {"steps": steps, "batch_size": math.inf, "optimizer": eta, "sampler": dure.Cyclic(order=order)}
    engine = make_engine(dure.FedAvg(), QUADRATIC, q10(), start=wanted, **keywords)
    path = [np.linalg.norm(np.asarray(engine.model.server.w) - wanted) for _ in range(10) if engine.launch()]
    assert max(path) > 2 * eta, "it did go round"
    assert path[-1] < 1e-5


def test_it_gets_there_from_zero() -> None:
    keywords = {"steps": 10, "batch_size": math.inf, "optimizer": 0.1, "sampler": dure.Cyclic(order=DOWN)}
    engine = make_engine(dure.FedAvg(), QUADRATIC, q10(), **keywords)
    for _ in range(30):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, limit(DOWN, 10, 0.1), atol=1e-5)


def test_weights_play_no_part_where_one_client_comes_at_a_time() -> None:
    keywords = {"steps": 2, "batch_size": math.inf, "optimizer": 0.3, "sampler": dure.Cyclic()}
    models = []
    for weighted in (False, True):
        engine = make_engine(dure.FedAvg(), QUADRATIC, q10(weighted=weighted), **keywords)
        for _ in range(20):
            engine.launch()
        models.append(np.asarray(engine.model.server.w))
    np.testing.assert_allclose(models[0], models[1], atol=1e-5)
