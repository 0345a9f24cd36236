"""FedAdagrad, FedAdam, FedYogi: closed forms of their first steps, in every variant, and their limits."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import dure
from dure.algorithms.base import Update
from dure.errors import ConfigError
from exact import Run, applied, begun, check_engine, check_order, limit
from problems import Q10, QUADRATIC, make_engine, q10

# The update of the first round for K = 5 and η = 0.05, and the numbers of the reference's table.
D = np.array([0.0153511, -0.4081083, 0.1492711, -0.0698696, -0.0730569])
ETA, TAU, B1, B2 = 0.05, 1e-3, 0.9, 0.99
NUMBERS = {"server_lr": ETA, "beta1": B1, "beta2": B2, "tau": TAU}


def first(variant: str, d: np.ndarray) -> np.ndarray:
    """FedAdam's first step, as the table has it."""
    if variant == "none":
        return ETA * (1 - B1) * d / (np.sqrt(B2 * TAU**2 + (1 - B2) * d**2) + TAU)
    if variant == "kingma":
        return ETA * np.sqrt(1 - B2) * d / (np.sqrt(1 - B2) * np.abs(d) + TAU)
    return ETA * d / (np.abs(d) + TAU)


@pytest.mark.parametrize(("variant", "size"), [("none", 0.0419), ("kingma", 0.0427), ("torch", 0.0490)])
def test_first_step_of_the_table(variant: str, size: float) -> None:
    """The exponent t + 1 of a public listing gives 0.0317 in the row "kingma"."""
    run = Run(dure.FedAdam(**NUMBERS, bias_correction=variant), steps=5, eta=0.05).rounds(1)
    np.testing.assert_allclose(run.w, first(variant, D), rtol=1e-5)
    assert np.abs(run.w).mean() == pytest.approx(size, abs=5e-5)


def second_moment(name: str, v: np.ndarray, d: np.ndarray) -> np.ndarray:
    if name == "FedAdagrad":
        return v + d**2
    if name == "FedYogi":
        return np.where(v > d**2, v - (1 - B2) * d**2, v + (1 - B2) * d**2)
    return B2 * v + (1 - B2) * d**2


@pytest.mark.parametrize(
    ("page", "variant"),
    [
        (dure.FedAdagrad, "none"),
        (dure.FedAdam, "none"),
        (dure.FedAdam, "kingma"),
        (dure.FedAdam, "torch"),
        (dure.FedYogi, "none"),
        (dure.FedYogi, "kingma"),
        (dure.FedYogi, "torch"),
    ],
)
def test_three_steps_by_hand(page: Callable[..., Any], variant: str) -> None:
    """v takes Δ² and not m²; τ is outside the root; corrections count steps from 1."""
    name = page.__name__
    numbers = {**NUMBERS, "beta1": 0.0} if name == "FedAdagrad" else {**NUMBERS, "bias_correction": variant}
    method = page(**numbers)
    b1 = numbers["beta1"]
    w, m = np.zeros(5), np.zeros(5)
    v = np.full(5, TAU**2 if variant == "none" else 0.0)
    server = begun(method, w)
    for t, d in enumerate([D, np.array([0.3, 0.2, -1e-4, 0.0, 0.01]), -0.1 * D], 1):
        m = b1 * m + (1 - b1) * d
        v = second_moment(name, v, d)
        if variant == "none":
            w = w + ETA * m / (np.sqrt(v) + TAU)
        elif variant == "kingma":
            w = w + ETA * np.sqrt(1 - B2**t) / (1 - B1**t) * m / (np.sqrt(v) + TAU)
        else:
            w = w + ETA * (m / (1 - B1**t)) / (np.sqrt(v / (1 - B2**t)) + TAU)
        server = applied(method, server, Update(d), number=t)
        np.testing.assert_allclose(server.w, w, rtol=1e-12)
        np.testing.assert_allclose(server.m, m, rtol=1e-12)
        np.testing.assert_allclose(server.v, v, rtol=1e-12)


def test_steps_go_where_the_clients_went() -> None:
    """Downhill: each coordinate moves with the sign of the mean update."""
    for page in (dure.FedAdagrad(), dure.FedAdam(), dure.FedYogi()):
        np.testing.assert_array_equal(np.sign(Run(page, steps=5, eta=0.05).rounds(1).w), np.sign(D))


def test_corrections_count_the_servers_steps_and_not_the_rounds() -> None:
    """A round in which nobody answered is no step."""
    method = dure.FedAdam(**NUMBERS, bias_correction="torch")
    late = applied(method, begun(method, np.zeros(5)), Update(D), number=7)
    np.testing.assert_allclose(late.w, first("torch", D), rtol=1e-12)
    run = Run(method, steps=5, eta=0.05, lost=lambda t, k: t < 3).rounds(4)
    np.testing.assert_allclose(run.w, first("torch", D), rtol=1e-5)


def test_yogis_second_moment_falls_slowly() -> None:
    """From a large v a small Δ takes off only (1 − β₂) Δ², where Adam takes off (1 − β₂) v."""
    large = np.full(5, 4.0)
    for page, wanted in ((dure.FedYogi, 4.0 - 0.01 * 0.25), (dure.FedAdam, 4.0 * 0.99 + 0.01 * 0.25)):
        method = page(**NUMBERS)
        server = begun(method, np.zeros(5))._replace(v=large)
        np.testing.assert_allclose(applied(method, server, Update(np.full(5, 0.5))).v, wanted, rtol=1e-12)


@pytest.mark.parametrize("page", [dure.FedAdam, dure.FedYogi])
def test_the_limit_is_fedavgs(page: Callable[..., Any]) -> None:
    """An adaptive server changes the path; it removes no drift: 0.06925 from the optimum."""
    run = Run(page(**NUMBERS), steps=5, eta=0.05).rounds(600)
    np.testing.assert_allclose(run.w, limit(Q10.uniform, 5, 0.05), atol=1e-12)
    assert run.error() == pytest.approx(0.06925, abs=1e-5)


def test_fedadagrad_is_slow() -> None:
    run = Run(dure.FedAdagrad(server_lr=ETA), steps=5, eta=0.05).rounds(1500)
    assert run.error(limit(Q10.uniform, 5, 0.05)) == pytest.approx(0.30, abs=0.005)


@pytest.mark.parametrize(
    "page",
    [dure.FedAdagrad(), dure.FedAdam(bias_correction="kingma"), dure.FedYogi(bias_correction="torch")],
    ids=lambda page: type(page).__name__,
)
def test_compiled(page: Any) -> None:
    check_engine(page)


def test_float32() -> None:
    engine = make_engine(
        dure.FedAdam(**NUMBERS), QUADRATIC, q10(), steps=5, batch_size=np.inf, optimizer=0.05
    )
    for _ in range(500):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, limit(Q10.uniform, 5, 0.05), atol=1e-5)


def test_only_the_model_goes_down() -> None:
    sent = dure.FedAdam().broadcast(begun(dure.FedAdam(), np.zeros(3)))
    assert len(jax.tree.leaves(sent)) == 1


def test_order_of_clients() -> None:
    check_order(dure.FedYogi())


@pytest.mark.parametrize("page", [dure.FedAdam, dure.FedYogi, dure.FedAdagrad])
@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"server_lr": 0.0}, r"server_lr=0\.0"),
        ({"beta1": 1.0}, r"beta1=1\.0"),
        ({"beta2": -0.1}, r"beta2=-0\.1"),
        ({"tau": 0.0}, r"tau=0\.0"),
        ({"bias_correction": "adam"}, "bias_correction='adam'"),
    ],
)
def test_impossible_numbers_are_refused(page: Any, keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        page(**keywords)
