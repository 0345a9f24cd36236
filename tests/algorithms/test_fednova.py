"""FedNova: unequal local work without the bias of FedAvg, normalised by exact gains."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dure
from dure.errors import ConfigError
from exact import TAU, Plan, Run, check_engine, check_order, engine, gain, limit
from problems import Q10, QUADRATIC, make_engine, q10

FedNova = dure.FedNova


def gains(eta: float, *, momentum: float = 0.0, mu: float = 0.0, steps: tuple[int, ...] = TAU) -> np.ndarray:
    """η‖a_k‖₁ from the closed forms: momentum or proximal term, not both."""
    tau = np.array(steps, float)
    if mu:
        return (1 - (1 - eta * mu) ** tau) / mu
    return eta * (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)


def nova(eta: float, *, momentum: float = 0.0, mu: float = 0.0) -> np.ndarray:
    """Where Σ p_i C_i (b_i − x) / gain_i = 0."""
    q = Q10.weighted / gains(eta, momentum=momentum, mu=mu)
    return limit(q, TAU, eta, mu, momentum)


def error(x: np.ndarray) -> float:
    return float(np.linalg.norm(x - Q10.optimum(Q10.weighted)))


def test_gains_of_the_reference() -> None:
    """τ 9, ρ 0.9 → 34.867844; τ 9, η μ 0.05 → 7.395012, in units of η."""
    assert gains(1.0, momentum=0.9, steps=(9,))[0] == pytest.approx(34.867844, abs=1e-6)
    assert gains(0.1, mu=0.5, steps=(9,))[0] / 0.1 == pytest.approx(7.395012, abs=1e-6)
    with jax.enable_x64(True):
        plan = Plan(0, None, None, 9, jnp.full(32, 0.1), 0.9)
        assert float(gain(plan)) / 0.1 == pytest.approx(34.867844, abs=1e-6)
        assert float(gain(plan._replace(momentum=0.0), 0.5)) / 0.1 == pytest.approx(7.395012, abs=1e-6)


@pytest.mark.parametrize(
    ("eta", "momentum", "mu", "away"),
    [
        (0.05, 0.0, 0.0, 0.3366),
        (0.01, 0.0, 0.0, 0.0744),
        (0.002, 0.0, 0.0, 0.0152),
        (0.05, 0.0, 0.5, 0.3142),
        (0.01, 0.0, 0.5, 0.0734),
        (0.002, 0.0, 0.5, 0.0151),
        (0.05 / 3, 0.9, 0.0, 0.3954),
        (0.01 / 3, 0.9, 0.0, 0.0833),
        (0.002 / 3, 0.9, 0.0, 0.0168),
    ],
)
def test_the_fixed_point_is_the_closed_form(eta: float, momentum: float, mu: float, away: float) -> None:
    """A round from there leads back to it; with a := τ under momentum it would be 0.57 to 0.98 away."""
    fixed = nova(eta, momentum=momentum, mu=mu)
    assert error(fixed) == pytest.approx(away, abs=6e-5)
    run = Run(FedNova(mu=mu), steps=TAU, eta=eta, momentum=momentum, p=Q10.weighted, start=fixed).rounds(1)
    np.testing.assert_allclose(run.w, fixed, atol=1e-12)


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.0, 0.5), (0.9, 0.0)])
def test_it_goes_there_and_the_error_is_proportional_to_the_rate(momentum: float, mu: float) -> None:
    errors = [error(nova(eta, momentum=momentum, mu=mu)) for eta in (0.05, 0.01, 0.002)]
    assert all(4 < large / small < 5 for large, small in itertools.pairwise(errors))
    run = Run(FedNova(mu=mu), steps=TAU, eta=0.05, momentum=momentum, p=Q10.weighted).rounds(150)
    np.testing.assert_allclose(run.w, nova(0.05, momentum=momentum, mu=mu), atol=1e-9)


@pytest.mark.parametrize(("eta", "away"), [(0.05, 1.2930), (0.01, 1.5544), (0.002, 1.6117)])
def test_fedavg_is_biased_by_the_number_of_steps(eta: float, away: float) -> None:
    """FedProx(0) is FedAvg; as η → 0 it tends to the optimum for the weights p_i τ_i, 1.6262 away."""
    fixed = limit(Q10.weighted, TAU, eta)
    assert error(fixed) == pytest.approx(away, abs=6e-5)
    run = Run(dure.FedProx(0.0), steps=TAU, eta=eta, p=Q10.weighted, start=fixed).rounds(1)
    np.testing.assert_allclose(run.w, fixed, atol=1e-12)
    q = Q10.weighted * TAU
    assert error(Q10.optimum(q / q.sum())) == pytest.approx(1.6262, abs=6e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_under_constant_gradients_a_clients_direction_is_its_gradient(momentum: float, mu: float) -> None:
    """w ← w − (Σ p_k gain_k) Σ p_k g_k whatever steps, momentum, schedule and proximal term do together."""
    flat = 1e-10
    A = np.broadcast_to(flat * np.eye(5), (10, 5, 5))
    run = Run(
        FedNova(mu=mu),
        steps=TAU,
        eta=lambda t, s: 0.1 / (1 + s),
        momentum=momentum,
        p=Q10.weighted,
        A=A,
        b=Q10.b / flat,
    ).rounds(1)
    direction = Q10.weighted @ Q10.b  # −Σ p_k g_k
    length = run.w @ direction / (direction @ direction)
    np.testing.assert_allclose(run.w, length * direction, rtol=1e-7)
    if not momentum and not mu:
        assert length == pytest.approx(Q10.weighted @ [0.1 * sum(1 / (1 + s) for s in range(k)) for k in TAU])


def test_equal_steps_are_fedavg() -> None:
    settings = {"steps": 7, "p": Q10.weighted, "momentum": 0.5}
    nova, average = (Run(page, **settings).rounds(20) for page in (FedNova(), dure.FedProx(0.0)))
    np.testing.assert_allclose(nova.w, average.w, atol=1e-12)


def test_server_rate() -> None:
    half, whole = (Run(FedNova(rate), steps=TAU).rounds(1).w for rate in (0.5, 1.0))
    np.testing.assert_allclose(half, 0.5 * whole, atol=1e-14)


def test_compiled() -> None:
    check_engine(FedNova(mu=0.5))
    # Its fixed point for the uniform mean, in float32, where every client always comes.
    fixed = limit(Q10.uniform / gains(0.1), TAU, 0.1)
    compiled = make_engine(
        FedNova(),
        QUADRATIC,
        q10(),
        steps=20,
        batch_size=math.inf,
        optimizer=0.1,
        work_limit=lambda seed, round, ids, planned: np.array(TAU)[ids],
    )
    for _ in range(80):
        compiled.launch()
    np.testing.assert_allclose(compiled.model.server.w, fixed, atol=1e-5)


def test_order_of_clients() -> None:
    check_order(FedNova())


@pytest.mark.parametrize(
    ("keywords", "named"),
    [({"server_lr": 0}, "server_lr=0"), ({"mu": -1.0}, r"mu=-1\.0")],
)
def test_impossible_numbers_are_refused(keywords: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FedNova(**keywords)


def test_an_optimizer_without_a_gain_is_refused() -> None:
    with pytest.raises(ConfigError, match="not linear in the gradients"):
        engine(FedNova(), steps=2, optimizer=optax.adam(1e-3)).launch()
