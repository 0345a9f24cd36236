"""A task's loss is the mean over the examples that are there, whatever stands in the padding."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dure.errors import ConfigError
from dure.models import linear, logistic, mlp, softmax_regression
from dure.oracles.layout import Layout, Variables
from dure.oracles.metrics import Metric, accuracy, balanced_accuracy
from dure.oracles.model import Model
from dure.oracles.task import Task, binary, classification, regression


def batch(rows, inputs=4, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "x": jnp.asarray(rng.normal(size=(rows, inputs)), jnp.float32),
        "y": jnp.asarray(rng.integers(0, classes, rows), jnp.int32),
    }


def padded(data, rows, mask=None):
    """`data` in a batch of `rows`, padded with large numbers and another label."""
    extra = rows - data["x"].shape[0]
    x = jnp.concatenate([data["x"], jnp.full((extra, *data["x"].shape[1:]), 1e6, jnp.float32)])
    y = jnp.concatenate([data["y"], jnp.zeros(extra, data["y"].dtype)])
    return {"x": x, "y": y}, jnp.asarray([1.0] * (rows - extra) + [0.0] * extra)


TASK = classification(mlp(4, (5,), 3))
VARIABLES = TASK.model.init(jax.random.key(1))


def loss(variables, data, mask):
    return TASK.batch_loss(variables, data, mask, train=True, key=None)[0]


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_mean_over_present_examples_and_its_gradient(rows):
    data = batch(rows)
    full, mask = padded(data, 8)
    rows_loss = np.asarray(TASK.loss(TASK.model.apply(VARIABLES, data["x"])[0], data["y"]))
    np.testing.assert_allclose(loss(VARIABLES, full, mask), rows_loss.mean(), rtol=1e-6)
    alone = jax.grad(loss)(VARIABLES, data, jnp.ones(rows))
    with_padding = jax.jit(jax.grad(loss))(VARIABLES, full, mask)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), alone, with_padding)


def test_an_empty_batch_has_loss_and_gradient_zero():
    value, gradient = jax.value_and_grad(loss)(VARIABLES, batch(4), jnp.zeros(4))
    assert value == 0
    assert all(not np.any(g) for g in jax.tree.leaves(gradient))


def test_a_padded_row_whose_loss_is_not_a_number_is_not_seen():
    task = Task(TASK.model, lambda outputs, targets: jnp.where(targets == 2, jnp.nan, 1.0))
    data = {"x": batch(3)["x"], "y": jnp.array([0, 1, 2])}
    assert task.batch_loss(VARIABLES, data, jnp.array([1.0, 1.0, 0.0]))[0] == 1.0


def test_flat_vectors_under_jit_vmap_and_grad():
    """As the engine uses it: a cohort of parameter vectors, each with its own batch."""
    layout = Layout.of(VARIABLES)
    vectors = jnp.stack([layout.flatten_params(VARIABLES.params)] * 2)
    data = [batch(5, seed=s) for s in (1, 2)]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *data)

    def one(vector, data):
        return loss(Variables(layout.unflatten_params(vector, dtype=jnp.float32)), data, jnp.ones(5))

    gradients = jax.jit(jax.vmap(jax.grad(one)))(vectors, stacked)
    for row, d in zip(gradients, data, strict=True):
        alone = jax.grad(loss)(VARIABLES, d, jnp.ones(5))
        np.testing.assert_allclose(row, layout.flatten_params(alone.params), atol=1e-6)


def test_row_sums_add_up_to_the_measures_of_all_rows():
    data = batch(11)
    task = classification(mlp(4, (5,), 3), metrics=(accuracy, balanced_accuracy(3)))
    sums = jax.jit(task.row_sums)(VARIABLES, data)
    assert {name: rows.shape for name, rows in sums.items()} == {
        "loss": (11, 2),
        "accuracy": (11, 2),
        "balanced_accuracy": (11, 6),
    }
    values = task.values({name: np.asarray(rows).sum(0) for name, rows in sums.items()})
    np.testing.assert_allclose(values["loss"], loss(VARIABLES, data, jnp.ones(11)), rtol=1e-6)
    logits = TASK.model.apply(VARIABLES, data["x"])[0]
    np.testing.assert_allclose(values["accuracy"], np.mean(np.argmax(logits, 1) == data["y"]))
    groups = np.stack([np.asarray(sums["loss"])[:4].sum(0), np.asarray(sums["loss"])[4:].sum(0)])
    assert task.values({"loss": groups})["loss"].shape == (2,)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_half_precision_model_trains_on_float32_master_values(dtype):
    """Gradients of the float32 vector; steps far below half precision's resolution still add up."""

    def init(key):
        return {"w": jnp.ones((4, 3), dtype), "b": jnp.zeros(3, dtype)}

    def apply(params, x):
        return x.astype(dtype) @ params["w"] + params["b"]

    task = classification((init, apply))
    variables = task.model.init(jax.random.key(0))
    layout = Layout.of(variables)
    start = layout.flatten_params(variables.params)

    def objective(vector):
        return task.batch_loss(Variables(layout.unflatten_params(vector)), batch(6), jnp.ones(6))[0]

    value, gradient = jax.jit(jax.value_and_grad(objective))(start)
    assert value.dtype == gradient.dtype == jnp.float32
    assert np.all(np.isfinite(gradient))
    assert np.any(gradient != 0)
    moved = start
    for _ in range(64):  # a master value moves where 1 + 1e-5 rounds to 1 in half precision
        moved = moved + 1e-5
    assert np.all(moved > start)
    assert layout.unflatten_params(moved)["w"].dtype == dtype


def test_regression_and_binary():
    data = {"x": batch(6)["x"], "y": jnp.arange(6.0)}
    task = regression(linear(4))
    value = task.batch_loss(task.model.init(jax.random.key(0)), data, jnp.ones(6))[0]
    np.testing.assert_allclose(value, np.mean(np.arange(6.0) ** 2), rtol=1e-6)
    task = binary(logistic(4))
    data["y"] = jnp.array([0, 1, 1, 0, 1, 1])
    variables = task.model.init(jax.random.key(0))
    np.testing.assert_allclose(task.batch_loss(variables, data, jnp.ones(6))[0], np.log(2), rtol=1e-6)
    assert set(task.row_sums(variables, data)) == {"loss", "accuracy", "f1"}


def test_other_columns():
    task = classification(softmax_regression(4, 3), input="pixels", target="digit")
    data = {"pixels": batch(3)["x"], "digit": batch(3)["y"]}
    value = task.batch_loss(task.model.init(jax.random.key(0)), data, jnp.ones(3))[0]
    np.testing.assert_allclose(value, np.log(3), rtol=1e-6)
    with pytest.raises(
        ConfigError, match=r"reads input='pixels', which the data lack. Did you mean 'pixel'\?"
    ):
        task.row_sums(task.model.init(jax.random.key(0)), {"pixel": data["pixels"], "digit": data["digit"]})


def test_a_loss_that_averages_is_refused():
    task = Task(TASK.model, lambda outputs, targets: jnp.mean(outputs))
    with pytest.raises(
        ConfigError, match=r"returned shape \(\) for 3 examples; it must return one number per"
    ):
        task.batch_loss(VARIABLES, batch(3), jnp.ones(3))


def test_metrics_have_different_names_and_models_are_models():
    with pytest.raises(ConfigError, match="Two metrics are named 'accuracy'"):
        classification(softmax_regression(4, 3), metrics=(accuracy, accuracy))
    mine = Metric("loss", accuracy.sums, accuracy.value)
    with pytest.raises(ConfigError, match=r"Two metrics are named 'loss' \('loss' is always there\)"):
        classification(softmax_regression(4, 3), metrics=(mine,))
    with pytest.raises(ConfigError, match="is not a model"):
        classification(lambda x: x)


def test_the_key_reaches_the_model_in_training_only():
    def apply(params, x, key):
        noise = 0.0 if key is None else jax.random.normal(key, x.shape)
        return (x + noise) @ params

    task = regression(Model.from_functions(lambda key: jnp.ones((4, 1)), apply))
    assert task.model.needs_key
    variables = task.model.init(jax.random.key(0))
    data = {"x": batch(5)["x"], "y": jnp.zeros(5)}
    losses = [
        float(task.batch_loss(variables, data, jnp.ones(5), train=t, key=k)[0])
        for t, k in (
            (True, jax.random.key(1)),
            (True, jax.random.key(1)),
            (True, jax.random.key(2)),
            (False, None),
        )
    ]
    assert losses[0] == losses[1]
    assert len(set(losses)) == 3
