"""The losses between predictions against closed forms: direction of KL, factor T², what the ensemble teaches."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dure.distillation.losses import kl, kl_to_probabilities, l1, sharpened

RNG = np.random.default_rng(3)
STUDENT, TEACHER = RNG.normal(size=(2, 6, 5)) * 2
TEMPERATURES = [0.5, 1.0, 4.0]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def entropy(p: np.ndarray) -> np.ndarray:
    p = np.asarray(p, np.float64)
    return -np.where(p > 0, p * np.log(np.where(p > 0, p, 1.0)), 0.0).sum(-1)


# ----- gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", TEMPERATURES)
def test_kl_is_of_the_teacher_from_the_student_times_t_squared(t: float) -> None:
    p, q = softmax(TEACHER / t), softmax(STUDENT / t)
    forward = t**2 * (p * np.log(p / q)).sum(-1)
    backward = t**2 * (q * np.log(q / p)).sum(-1)
    with jax.enable_x64(True):
        got = np.asarray(kl(STUDENT, TEACHER, t))
    np.testing.assert_allclose(got, forward, rtol=1e-12)
    assert (np.abs(got - backward) > 1e-3).all()


@pytest.mark.parametrize("t", TEMPERATURES)
def test_gradient_of_kl_is_t_times_the_difference_of_softmaxes(t: float) -> None:
    with jax.enable_x64(True):
        g = np.asarray(jax.grad(lambda f: kl(f, TEACHER, t).sum())(jnp.asarray(STUDENT)))
    np.testing.assert_allclose(g, t * (softmax(STUDENT / t) - softmax(TEACHER / t)), atol=1e-14)


def test_the_factor_keeps_the_gradient_as_the_temperature_grows() -> None:
    """T → ∞: (f − t)/C of logits that are centred over the classes, neither 0 nor infinite."""
    with jax.enable_x64(True):
        g = np.asarray(jax.grad(lambda f: kl(f, TEACHER, 1e5).sum())(jnp.asarray(STUDENT)))
    difference = STUDENT - TEACHER
    np.testing.assert_allclose(g, (difference - difference.mean(-1, keepdims=True)) / 5, atol=1e-4)


def test_gradient_towards_probabilities_is_their_difference() -> None:
    p = softmax(TEACHER)
    p[0] = [0, 0, 1, 0, 0]
    with jax.enable_x64(True):
        value, g = jax.value_and_grad(lambda f: kl_to_probabilities(f, p).sum())(jnp.asarray(STUDENT))
    assert np.isfinite(value)
    np.testing.assert_allclose(g, softmax(STUDENT) - p, atol=1e-14)


def test_l1_is_the_mean_over_classes() -> None:
    g = jax.grad(lambda f: l1(f, TEACHER.astype(np.float32)).sum())(jnp.asarray(STUDENT, jnp.float32))
    np.testing.assert_allclose(g, np.sign(STUDENT - TEACHER) / 5, atol=1e-7)
    np.testing.assert_allclose(l1(STUDENT, TEACHER), np.abs(STUDENT - TEACHER).mean(-1), rtol=1e-6)


def test_identical_students_have_zero_gradient() -> None:
    """Also when their logits differ by a constant, which no probability shows."""
    with jax.enable_x64(True):
        for t in TEMPERATURES:
            g = jax.grad(lambda f, t=t: kl(f, TEACHER, t).sum())(jnp.asarray(TEACHER + 7.0))
            assert np.abs(g).max() < 1e-14
            assert np.abs(kl(TEACHER + 7.0, TEACHER, t)).max() < 1e-13


# ----- linear softmax models on full-rank public inputs ----------------------------------------------------

_r, _c, _k = np.arange(8)[:, None], np.arange(4)[None], np.arange(3)[:, None, None]
PUBLIC = np.cos(1.0 + _r * (_c + 1))
CLIENTS = np.sin(1.0 + _k + 2 * np.arange(4)[None, :, None] + 3 * np.arange(3)[None, None])


def centred(w: np.ndarray) -> np.ndarray:
    return w - w.mean(1, keepdims=True)


def minimiser(loss: object, start: np.ndarray) -> np.ndarray:
    """Newton's method with the pseudo-inverse: the constant over classes is free."""
    with jax.enable_x64(True):
        objective = jax.jit(lambda w: loss(PUBLIC @ w.reshape(4, 3)).mean())  # type: ignore[operator]
        g, h = jax.jit(jax.grad(objective)), jax.jit(jax.hessian(objective))
        w = start.reshape(-1)
        for _ in range(30):
            w = w - np.linalg.pinv(np.asarray(h(w)), rcond=1e-8) @ np.asarray(g(w))
        assert np.abs(g(w)).max() < 1e-14
    return w.reshape(4, 3)


def test_averaged_logits_are_learnt_by_the_mean_of_the_parameters() -> None:
    mean = CLIENTS.mean(0)
    logits = (PUBLIC @ CLIENTS).mean(0)
    with jax.enable_x64(True):
        g = jax.grad(lambda w: kl(PUBLIC @ w, logits, 1.0).mean())(jnp.asarray(mean))
        assert np.abs(g).max() < 1e-15
    found = minimiser(lambda f: kl(f, logits, 1.0), CLIENTS[0] * 0.5)
    assert np.abs(centred(found) - centred(mean)).max() < 5e-15


def test_averaged_probabilities_are_learnt_by_another_model() -> None:
    probabilities = softmax(PUBLIC @ CLIENTS).mean(0)
    found = minimiser(lambda f: kl_to_probabilities(f, probabilities), CLIENTS.mean(0))
    assert np.abs(centred(found) - centred(CLIENTS.mean(0))).max() == pytest.approx(0.2483, abs=5e-5)


# ----- sharpening ------------------------------------------------------------------------------------------

AVERAGED = RNG.dirichlet(np.full(10, 0.8), size=50).astype(np.float32)


@pytest.mark.parametrize("t", [0.1, 0.5, 0.9])
def test_the_power_lowers_every_entropy_below_one(t: float) -> None:
    assert (entropy(sharpened(AVERAGED, t, "power")) < entropy(AVERAGED)).all()


def test_the_power_of_one_changes_nothing() -> None:
    np.testing.assert_allclose(sharpened(AVERAGED, 1.0, "power"), AVERAGED, rtol=1e-5, atol=1e-8)
    assert sharpened(AVERAGED, 1.0, None).tobytes() == AVERAGED.tobytes()


def test_era_is_the_softmax_of_the_averaged_probabilities() -> None:
    for t in (0.05, 0.1, 1.0):
        np.testing.assert_allclose(
            sharpened(AVERAGED, t, "softmax"), softmax(AVERAGED.astype(np.float64) / t), rtol=2e-5, atol=1e-30
        )


def test_era_lowers_the_entropy_where_one_label_leads_and_less_so_as_t_grows() -> None:
    """What DS-FL is for: few of many clients know the label, and the others are spread."""
    lead = np.arange(0.15, 0.96, 0.05)[:, None]
    p = np.concatenate([lead, np.repeat((1 - lead) / 9, 9, 1)], 1).astype(np.float32)
    entropies = [entropy(sharpened(p, t, "softmax")) for t in (0.01, 0.05, 0.1, 0.3, 1.0)]
    for sharper in entropies[:3]:
        assert (sharper < entropy(p)).all()
    assert all((a <= b + 1e-6).all() for a, b in itertools.pairwise(entropies))
    # T = 1 is no identity, as it is for the power: probabilities are small logits.
    assert (entropies[-1] > entropy(p)).all()


def test_era_spreads_what_is_shared_evenly_where_the_power_does_not() -> None:
    p = np.array([[1 / 6] * 6 + [0.0] * 4], np.float32)
    assert entropy(sharpened(p, 0.1, "softmax"))[0] > entropy(p)[0] + 0.1
    assert entropy(sharpened(p, 0.1, "power"))[0] == pytest.approx(entropy(p)[0], abs=1e-5)


def test_era_between_one_hot_and_uniform() -> None:
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], np.float32)
    np.testing.assert_allclose(sharpened(p, 1e-3, "softmax"), [[1, 0, 0], [0, 0, 1]], atol=1e-30)
    np.testing.assert_allclose(sharpened(p, 1e6, "softmax"), np.full((2, 3), 1 / 3), atol=1e-6)


def test_a_probability_of_zero_stays_zero_under_the_power() -> None:
    np.testing.assert_allclose(
        sharpened(np.array([[0.0, 0.25, 0.75]], np.float32), 0.5, "power"), [[0, 0.1, 0.9]], rtol=1e-6
    )
