"""Losses against independent formulas; metrics of pooled examples against scikit-learn."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.errors import ConfigError
from dure.oracles import metrics as m


def rng(seed=0):
    return np.random.default_rng(seed)


def total(metric, outputs, targets):
    return np.asarray(metric.sums(jnp.asarray(outputs), jnp.asarray(targets)), np.float64).sum(0)


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 8), st.integers(2, 6), st.sampled_from([1e-3, 1.0, 50.0, 1e4]), st.integers(0, 99))
def test_softmax_cross_entropy_is_minus_log_probability(rows, classes, scale, seed):
    logits = (rng(seed).normal(size=(rows, classes)) * scale).astype(np.float32)
    labels = rng(seed + 1).integers(0, classes, rows).astype(np.int32)
    z = logits.astype(np.float64)
    expected = np.logaddexp.reduce(z, 1) - z[np.arange(rows), labels]
    np.testing.assert_allclose(
        m.softmax_cross_entropy(logits, labels), expected, rtol=2e-6, atol=2e-6 * scale
    )


def test_gradient_is_softmax_minus_one_hot():
    logits = rng().normal(size=(5, 4)).astype(np.float32)
    labels = np.array([0, 3, 1, 1, 2], np.int32)
    gradient = jax.grad(lambda z: m.softmax_cross_entropy(z, labels).sum())(logits)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(gradient, p - np.eye(4)[labels], atol=1e-6)


def test_half_precision_logits_are_read_in_float32():
    logits = jnp.asarray(rng().normal(size=(4, 3)) * 20, jnp.float16)
    labels = jnp.array([0, 1, 2, 0])
    loss = m.softmax_cross_entropy(logits, labels)
    assert loss.dtype == jnp.float32
    np.testing.assert_array_equal(loss, m.softmax_cross_entropy(logits.astype(jnp.float32), labels))


def test_extreme_logits_stay_finite():
    logits = np.array([[1e30, 0.0], [0.0, -1e30]], np.float32)
    np.testing.assert_array_equal(m.softmax_cross_entropy(logits, np.array([0, 0], np.int32)), [0, 0])
    gradient = jax.grad(lambda z: m.sigmoid_cross_entropy(z, np.array([0.0, 1.0])).sum())(
        jnp.array([1e30, -1e30])
    )
    np.testing.assert_array_equal(gradient, [1, -1])


def test_sequences_are_means_over_present_positions():
    logits = rng().normal(size=(3, 4, 5)).astype(np.float32)
    labels = np.array([[0, 1, 2, 3], [4, -1, 0, -1], [-1, -1, -1, -1]], np.int32)
    flat = np.asarray(m.softmax_cross_entropy(logits.reshape(-1, 5), np.maximum(labels, 0).reshape(-1)))
    flat = flat.reshape(3, 4)
    expected = [flat[0].mean(), flat[1, [0, 2]].mean(), 0.0]
    np.testing.assert_allclose(m.softmax_cross_entropy(logits, labels), expected, rtol=1e-6)
    hits = (logits.argmax(-1) == labels)[labels >= 0]
    np.testing.assert_array_equal(total(m.accuracy, logits, labels), [hits.sum(), 6])
    sums = total(m.cross_entropy, logits, labels)
    np.testing.assert_allclose(m.cross_entropy.value(sums), flat[labels >= 0].mean(), rtol=1e-6)


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 20), st.integers(0, 99))
def test_binary_losses_and_metrics(rows, seed):
    logits = rng(seed).normal(size=rows).astype(np.float32)
    truth = rng(seed + 1).integers(0, 2, rows).astype(np.int32)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = -np.where(truth == 1, np.log(p), np.log1p(-p))
    for shape in ((rows,), (rows, 1)):
        np.testing.assert_allclose(
            m.sigmoid_cross_entropy(logits.reshape(shape), truth), expected, rtol=1e-5, atol=1e-6
        )
    guess = logits > 0
    assert m.binary_accuracy.value(total(m.binary_accuracy, logits, truth)) == sk.accuracy_score(truth, guess)
    if truth.any() or guess.any():
        value = m.f1.value(total(m.f1, logits, truth))
        np.testing.assert_allclose(value, sk.f1_score(truth, guess, zero_division=0.0))
    two = np.stack([np.zeros(rows), logits], 1)
    np.testing.assert_array_equal(total(m.f1, two, truth), total(m.f1, logits, truth))


def test_f1_of_a_cohort_is_pooled():
    """Two clients of ten examples (tp 9, fp 0, fn 1) and (tp 0, fp 1, fn 1): 18/21, not the mean 0.474."""

    def client(tp, fp, fn):
        truth = [1] * tp + [0] * fp + [1] * fn + [0] * (10 - tp - fp - fn)
        guess = [1.0] * (tp + fp) + [-1.0] * (10 - tp - fp)
        return total(m.f1, np.array(guess, np.float32), np.array(truth, np.int32))

    one, two = client(9, 0, 1), client(0, 1, 1)
    assert (m.f1.value(one) + m.f1.value(two)) / 2 == pytest.approx(0.474, abs=5e-4)
    assert m.f1.value(one + two) == pytest.approx(18 / 21)
    np.testing.assert_allclose(m.f1.value(np.stack([one, two])), [18 / 19, 0.0])


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 30), st.integers(0, 99))
def test_balanced_accuracy_is_mean_recall_over_classes_that_occur(rows, seed):
    logits = rng(seed).normal(size=(rows, 4)).astype(np.float32)
    labels = rng(seed + 1).integers(0, 4, rows).astype(np.int32)
    metric = m.balanced_accuracy(4)
    recalls = [(logits.argmax(1)[labels == c] == c).mean() for c in np.unique(labels)]
    np.testing.assert_allclose(metric.value(total(metric, logits, labels)), np.mean(recalls))


def test_squared_error_is_the_mean_over_outputs_without_a_half():
    out, y = rng().normal(size=(5, 3)).astype(np.float32), rng(1).normal(size=(5, 3)).astype(np.float32)
    np.testing.assert_allclose(m.squared_error(out, y), ((out - y) ** 2).mean(1), rtol=1e-6)
    np.testing.assert_allclose(
        m.mean_squared_error.value(total(m.mean_squared_error, out, y)),
        sk.mean_squared_error(y, out),
        rtol=1e-6,
    )
    np.testing.assert_array_equal(m.squared_error(out[:, :1], y[:, 0]), m.squared_error(out[:, 0], y[:, :1]))


def test_nothing_is_undefined_not_zero():
    for metric, width in ((m.accuracy, 2), (m.f1, 3), (m.balanced_accuracy(3), 6), (m.cross_entropy, 2)):
        assert np.isnan(metric.value(np.zeros(width)))


def test_logits_that_are_not_numbers_are_wrong():
    logits = np.array([[np.nan, np.nan], [np.nan, 1.0]], np.float32)
    np.testing.assert_array_equal(total(m.accuracy, logits, np.array([0, 0], np.int32)), [0, 2])
    assert total(m.binary_accuracy, np.array([np.nan], np.float32), np.array([0]))[0] == 0


@pytest.mark.parametrize(
    ("function", "outputs", "targets", "message"),
    [
        (m.softmax_cross_entropy, np.zeros((3, 2)), np.zeros(3), "labels have dtype float"),
        (
            m.softmax_cross_entropy,
            np.zeros((3, 2)),
            np.zeros((3, 1), np.int32),
            r"\(3, 2\) and labels \(3, 1\)",
        ),
        (m.accuracy.sums, np.zeros((3, 4, 2)), np.zeros(3, np.int32), r"\(3, 4, 2\) and labels \(3,\)"),
        (
            m.squared_error,
            np.zeros((3, 2)),
            np.zeros(3),
            r"outputs have shape \(3, 2\) and the targets \(3,\)",
        ),
        (m.sigmoid_cross_entropy, np.zeros((3, 2)), np.zeros(3), r"\(3, 2\) and the targets \(3,\)"),
        (m.f1.sums, np.zeros((3, 4)), np.zeros(3), r"\(B, 2\), not \(3, 4\)"),
    ],
)
def test_misfits_are_named(function, outputs, targets, message):
    with pytest.raises(ConfigError, match=message):
        function(jnp.asarray(outputs, jnp.float32), jnp.asarray(targets))


def test_balanced_accuracy_needs_classes():
    with pytest.raises(ConfigError, match=r"balanced_accuracy\(classes=1\)"):
        m.balanced_accuracy(1)
