"""FedLC: the calibrated loss by its formula, and in training only."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.algorithms.fedlc import calibrated_loss
from dure.errors import ConfigError
from dure.models import softmax_regression
from dure.oracles.metrics import softmax_cross_entropy
from problems import make_engine, train

FedLC = dure.FedLC
LOGITS = jnp.asarray(np.sin(np.arange(12.0)).reshape(4, 3), jnp.float32)
LABELS = jnp.array([0, 2, 1, 0])


def of(counts: Any, tau: float, logits: Any = LOGITS, labels: Any = LABELS) -> np.ndarray:
    return np.asarray(calibrated_loss(jnp.asarray(counts, jnp.float32), tau)(logits, labels))


def literal(counts: np.ndarray, tau: float, logits: Any, labels: Any) -> np.ndarray:
    """−log(e^{f_y − τ n_y^(−1/4)} / Σ_c e^{f_c − τ n_c^(−1/4)}), the sum over labels that are there."""
    found = []
    for f, y in zip(np.asarray(logits, float), np.asarray(labels), strict=True):
        terms = {c: np.exp(f[c] - tau * counts[c] ** -0.25) for c in range(len(counts)) if counts[c]}
        found.append(-np.log(terms[int(y)] / sum(terms.values())))
    return np.array(found)


@pytest.mark.parametrize("tau", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("counts", [[1, 16, 81], [5, 1, 400], [7, 7, 7]])
def test_it_is_the_papers_formula(counts: list[int], tau: float) -> None:
    np.testing.assert_allclose(of(counts, tau), literal(np.array(counts), tau, LOGITS, LABELS), rtol=1e-5)


def test_equal_counts_are_cross_entropy() -> None:
    np.testing.assert_allclose(of([9, 9, 9], 1.0), softmax_cross_entropy(LOGITS, LABELS), rtol=1e-5)


def test_margins_of_the_reference() -> None:
    """n = (16, 1), τ = 1: ½ and 1. The rare label must win by more, whatever the example's label is."""
    zero = jnp.zeros((2, 2))
    both = of([16, 1], 1.0, zero, jnp.array([0, 1]))
    np.testing.assert_allclose(both, [np.log(1 + np.exp(-0.5)), np.log(1 + np.exp(0.5))], rtol=1e-5)
    balanced_softmax = np.log(17 / np.array([16.0, 1.0]))
    assert np.abs(both - balanced_softmax).min() > 0.3


def test_labels_that_a_client_does_not_have_are_left_out() -> None:
    """Whatever their logits are, and without a gradient for them; nothing is 0^(−1/4) = ∞."""
    labels = jnp.array([0, 2, 2, 0])
    wanted = literal(np.array([4, 0, 2]), 1.0, LOGITS, labels)
    np.testing.assert_allclose(of([4, 0, 2], 1.0, labels=labels), wanted, rtol=1e-5)
    np.testing.assert_allclose(of([4, 0, 2], 1.0, LOGITS.at[:, 1].set(80.0), labels), wanted, rtol=1e-5)
    loss = calibrated_loss(jnp.array([4.0, 0.0, 2.0]), 1.0)
    gradient = np.asarray(jax.grad(lambda f: loss(f, labels).sum())(LOGITS))
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[:, 1], 0)
    np.testing.assert_allclose(gradient.sum(1), 0, atol=1e-6)


# ----- in a training ---------------------------------------------------------------------------------------


def labelled(labels: list[list[int]]) -> dure.Federated:
    """One client for each list of labels."""
    sizes = [len(y) for y in labels]
    x = np.cos(np.arange(2.0 * sum(sizes))).reshape(-1, 2).astype(np.float32)
    y = np.concatenate(labels).astype(np.int32)
    return dure.Federated({"x": x, "y": y}, np.concatenate([[0], np.cumsum(sizes)]))


TASK = dure.classification(softmax_regression(2, 3))
ONCE: dict[str, Any] = {
    "steps": 1,
    "batch_size": np.inf,
    "optimizer": 0.5,
    "devices": 1,
    "schedule": "sequential",
}


def test_clients_with_as_many_of_each_label_train_as_in_fedavg() -> None:
    data = labelled([[0, 1, 2], [2, 0, 1, 2, 0, 1]])
    calibrated, average = (train(page, TASK, data, 2, **ONCE) for page in (FedLC(3), dure.FedAvg()))
    np.testing.assert_allclose(calibrated, average, atol=1e-6)


def test_a_client_trains_with_its_own_counts() -> None:
    """One full step of each of two clients, by the formula's gradient."""
    labels = [[0, 0, 0, 0, 1], [1, 1, 2]]
    data = labelled(labels)
    engine = make_engine(FedLC(3, tau=2.0), TASK, data, **ONCE)
    before = np.asarray(engine.model.server.w)
    layers = engine.params()
    engine.launch()

    def loss(params: Any, k: int) -> Any:
        rows = slice(*data.offsets[k : k + 2])
        outputs, _ = TASK.model.apply(
            engine.variables()._replace(params=params),
            jnp.asarray(data.columns["x"][rows]),
            train=False,
            key=None,
            mask=None,
        )
        counts = np.bincount(labels[k], minlength=3)
        there = counts > 0
        margin = 2.0 * np.where(there, np.maximum(counts, 1) ** -0.25, np.inf)
        chosen = outputs[jnp.arange(len(labels[k])), jnp.array(labels[k])] - margin[np.array(labels[k])]
        return (jax.nn.logsumexp(outputs[:, there] - margin[there], -1) - chosen).mean()

    moves = [jax.grad(loss)(layers, k) for k in (0, 1)]
    flat = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(g)]) for g in moves]
    wanted = before - 0.5 * (5 * flat[0] + 3 * flat[1]) / 8
    np.testing.assert_allclose(engine.model.server.w, wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("keywords", "named"),
    [
        ({"classes": 0}, "classes=0"),
        ({"classes": -2}, "classes=-2"),
        ({"classes": 3, "tau": -1.0}, r"tau=-1\.0"),
    ],
)
def test_impossible_numbers_are_refused(keywords: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FedLC(**keywords)
