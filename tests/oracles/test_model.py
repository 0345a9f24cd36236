"""Models from functions, flax and equinox: the same two functions, padding without influence."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dure.errors import ConfigError
from dure.models.layers import batch_norm, batch_norm_init, dense, dense_init
from dure.oracles.layout import Layout, Variables
from dure.oracles.model import Model, as_model
from dure.oracles.task import classification

KEY = jax.random.key(0)


def rows(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def close(one, two, atol=1e-6):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol, rtol=1e-5), one, two)


# Functions


def linear(params, x):
    return x @ params["w"]


def start(key):
    return {"w": jax.random.normal(key, (3, 2))}


def test_plain_functions():
    model = Model.from_functions(start, linear)
    variables = model.init(KEY)
    x = rows(4, 3)
    outputs, buffers = model.apply(variables, x, train=True, key=None, mask=jnp.ones(4))
    np.testing.assert_array_equal(outputs, x @ variables.params["w"])
    assert buffers == {}
    assert (model.name, model.needs_key, model.masked) == ("linear", False, True)


def test_keywords_are_passed_when_the_signature_has_them():
    seen = {}

    def apply(params, x, *, train, key=None, mask=None, scale=2.0):
        seen.update(train=train, key=key, mask=mask, scale=scale)
        return x

    model = Model.from_functions(start, apply, name="mine")
    assert (model.name, model.needs_key, model.masked) == ("mine", True, True)
    model.apply(model.init(KEY), rows(2, 3), train=True, key=KEY, mask=jnp.ones(2))
    assert seen["train"] is True
    assert seen["key"] is KEY
    assert seen["mask"].shape == (2,)
    assert seen["scale"] == 2.0
    model.apply(model.init(KEY), rows(2, 3), train=False, key=KEY, mask=None)
    assert seen["train"] is False
    assert seen["key"] is None
    with pytest.raises(ConfigError, match="takes a key: give key= when train=True"):
        model.apply(model.init(KEY), rows(2, 3), train=True, key=None, mask=None)


def torch_like():
    """Dense, BatchNorm with torch's statistics, dense."""

    def init(key):
        norm, buffers = batch_norm_init(4)
        one, two = jax.random.split(key)
        return Variables({"one": dense_init(one, 3, 4), "norm": norm, "two": dense_init(two, 4, 2)}, buffers)

    def apply(params, x, train, mask, buffers):
        h, buffers = batch_norm(params["norm"], buffers, dense(params["one"], x), train=train, mask=mask)
        return dense(params["two"], jax.nn.relu(h)), buffers

    return Model.from_functions(init, apply)


def test_buffers_move_in_training_only():
    model = torch_like()
    variables = model.init(KEY)
    x = rows(6, 3)
    _, after = model.apply(variables, x, train=True, key=None, mask=None)
    assert int(after["count"]) == 1
    h = np.asarray(dense(variables.params["one"], x), np.float64)
    np.testing.assert_allclose(after["mean"], 0.1 * h.mean(0), atol=1e-6)
    np.testing.assert_allclose(after["var"], 0.9 + 0.1 * h.var(0, ddof=1), atol=1e-6)
    _, same = model.apply(variables, x, train=False, key=None, mask=None)
    close(same, variables.buffers, atol=0)


def test_running_statistics_of_torch():
    """Feature [0, 2], momentum 0.1: mean 0.1, var 1.1 after a step, 0.651322 and 1.651322 after ten."""
    params, buffers = batch_norm_init(1)
    x = jnp.array([[0.0], [2.0]])
    for step in range(1, 11):
        _, buffers = batch_norm(params, buffers, x, train=True)
        expected = {1: (0.1, 1.1), 10: (0.651322, 1.651322)}.get(step)
        if expected:
            np.testing.assert_allclose((buffers["mean"][0], buffers["var"][0]), expected, atol=1e-6)
    assert int(buffers["count"]) == 10


def test_batch_norm_is_torchs():
    torch = pytest.importorskip("torch")
    x = rows(5, 4, 4, 3)
    params, buffers = batch_norm_init(3)
    params = {"scale": jnp.array([1.0, 2.0, -1.0]), "shift": jnp.array([0.5, 0.0, 1.0])}
    net = torch.nn.BatchNorm2d(3)
    with torch.no_grad():
        net.weight.copy_(torch.tensor(np.asarray(params["scale"])))
        net.bias.copy_(torch.tensor(np.asarray(params["shift"])))
    y, buffers = batch_norm(params, buffers, x, train=True)
    expected = net(torch.tensor(np.asarray(x)).permute(0, 3, 1, 2)).permute(0, 2, 3, 1).detach().numpy()
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(buffers["mean"], net.running_mean.numpy(), atol=1e-6)
    np.testing.assert_allclose(buffers["var"], net.running_var.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("init", "apply", "message"),
    [
        (start, lambda params: params, r"must take \(params, inputs\)"),
        (start, lambda params, rng, x: x, "has a required parameter 'x' that dure can't fill"),
        (start, lambda params, x, *, training: x, "has a required parameter 'training'"),
        (lambda: {}, linear, "init must take one argument, a key"),
        (lambda key, shape: {}, linear, "init must take one argument, a key"),
    ],
)
def test_signatures_that_do_not_fit(init, apply, message):
    with pytest.raises(ConfigError, match=message):
        Model.from_functions(init, apply)


def test_buffers_must_be_taken_and_returned():
    model = Model.from_functions(lambda key: Variables({}, {"n": jnp.zeros(())}), linear)
    with pytest.raises(ConfigError, match="has no parameter `buffers`"):
        model.init(KEY)
    stateful = lambda key: Variables({"w": jnp.ones((3, 2))}, {"n": jnp.zeros(())})  # noqa: E731
    model = Model.from_functions(stateful, lambda params, x, buffers: x)
    with pytest.raises(ConfigError, match=r"must return \(outputs, new_buffers\)"):
        model.apply(model.init(KEY), rows(2, 3), train=True, key=None, mask=None)
    model = Model.from_functions(stateful, lambda params, x, buffers, mask: (x, {}))
    with pytest.raises(ConfigError, match="buffers of another structure"):
        model.apply(model.init(KEY), rows(2, 3), train=True, key=None, mask=jnp.ones(2))


def test_statistics_that_do_not_know_the_mask_are_not_masked():
    assert not Model.from_functions(start, lambda params, x, buffers: (x, buffers)).masked


# Padding: for every framework, a padded batch is the batch


class Tower(nn.Module):
    """Convolution, BatchNorm, BatchNorm after flattening; the module says nothing about the mode."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.BatchNorm(momentum=0.9)(nn.Conv(4, (3, 3))(x)))
        x = nn.BatchNorm(momentum=0.8)(nn.Dense(5)(x.reshape(x.shape[0], -1)))
        return nn.Dense(3)(x)


class Switched(nn.Module):
    """The same with an explicit switch."""

    @nn.compact
    def __call__(self, x, train: bool):
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9)(nn.Conv(4, (3, 3))(x)))
        return nn.Dense(3)(x.reshape(x.shape[0], -1))


class Told(nn.Module):
    """Positional mode, and flax's other word for it."""

    @nn.compact
    def __call__(self, x, deterministic=True):
        x = nn.BatchNorm()(nn.Dense(5)(x.reshape(x.shape[0], -1)), deterministic)
        return nn.Dense(3)(x)


class Net(eqx.Module):
    """Convolution, BatchNorm, dense on one example."""

    conv: eqx.nn.Conv2d
    norm: eqx.nn.BatchNorm
    out: eqx.nn.Linear

    def __init__(self, mode, key):
        one, two = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 4, 3, key=one)
        self.norm = eqx.nn.BatchNorm(4, "batch", momentum=0.9, mode=mode)
        self.out = eqx.nn.Linear(64, 3, key=two)

    def __call__(self, x, state):
        x, state = self.norm(self.conv(jnp.moveaxis(x, -1, 0)), state)
        return self.out(jax.nn.relu(x).reshape(-1)), state


def equinox(mode):
    return Model.from_equinox(lambda key: eqx.nn.make_with_state(Net)(mode, key))


def functions():
    inner = torch_like()
    flat = lambda x: x.reshape(x.shape[0], -1)[:, :3]  # noqa: E731
    return Model(inner.init, lambda v, x, **given: inner.apply(v, flat(x), **given))


STATEFUL = {
    "functions": functions,
    "flax": lambda: Model.from_flax(Tower(), rows(2, 6, 6, 1)),
    "flax switched": lambda: Model.from_flax(Switched(), rows(2, 6, 6, 1)),
    "flax told": lambda: Model.from_flax(Told(), rows(2, 6, 6, 1)),
    "equinox batch": lambda: equinox("batch"),
    "equinox ema": lambda: equinox("ema"),
}


@pytest.fixture(params=STATEFUL)
def stateful(request):
    return STATEFUL[request.param]()


def test_padded_rows_touch_neither_loss_nor_gradient_nor_statistics(stateful):
    assert stateful.masked
    task = classification(stateful)
    variables = stateful.init(KEY)
    layout = Layout.of(variables)
    x, y = rows(5, 6, 6, 1), jnp.array([0, 1, 1, 0, 1])
    alone = {"x": x, "y": y}
    filled = {
        "x": jnp.concatenate([x, 100 * rows(3, 6, 6, 1, seed=1)]),
        "y": jnp.concatenate([y, jnp.zeros(3, y.dtype)]),
    }

    def loss(vector, buffers, data, mask):
        params = layout.unflatten_params(vector)
        return task.batch_loss(Variables(params, buffers), data, mask, train=True, key=None)

    step = jax.jit(jax.value_and_grad(loss, has_aux=True))
    vector, buffers, padded_buffers = (
        layout.flatten_params(variables.params),
        variables.buffers,
        variables.buffers,
    )
    for _ in range(3):
        (one, buffers), gradient = step(vector, buffers, alone, jnp.ones(5))
        (two, padded_buffers), padded = step(vector, padded_buffers, filled, jnp.array([1.0] * 5 + [0.0] * 3))
        np.testing.assert_allclose(one, two, rtol=1e-5)
        np.testing.assert_allclose(gradient, padded, atol=2e-6)
        close(buffers, padded_buffers, atol=1e-6)
    assert not np.allclose(layout.flatten_buffers(buffers)[0], layout.flatten_buffers(variables.buffers)[0])


def test_a_batch_without_rows_changes_nothing(stateful):
    variables = stateful.init(KEY)
    outputs, buffers = stateful.apply(variables, rows(4, 6, 6, 1), train=True, key=None, mask=jnp.zeros(4))
    assert np.all(np.isfinite(outputs))
    close(buffers, variables.buffers, atol=0)


def test_evaluation_uses_and_keeps_the_statistics(stateful):
    variables = stateful.init(KEY)
    x = rows(4, 6, 6, 1)
    _, buffers = stateful.apply(variables, x, train=True, key=None, mask=None)
    trained = Variables(variables.params, buffers)
    all_rows, same = stateful.apply(trained, x, train=False, key=None, mask=None)
    close(same, buffers, atol=0)
    one_row, _ = stateful.apply(trained, x[:1], train=False, key=None, mask=None)
    np.testing.assert_allclose(all_rows[:1], one_row, atol=1e-5)


def test_stateful_models_work_on_a_cohort_of_flat_vectors(stateful):
    task = classification(stateful)
    variables = stateful.init(KEY)
    layout = Layout.of(variables)
    vector, (floats, ints) = (
        layout.flatten_params(variables.params),
        layout.flatten_buffers(variables.buffers),
    )
    data = {"x": rows(2, 5, 6, 6, 1), "y": jnp.array([[0, 1, 1, 0, 1]] * 2)}

    def one(vector, data):
        v = Variables(layout.unflatten_params(vector, jnp.float32), layout.unflatten_buffers(floats, ints))
        loss, buffers = task.batch_loss(v, data, jnp.ones(5), train=True, key=None)
        return loss, layout.flatten_buffers(buffers)

    losses, (means, counters) = jax.jit(jax.vmap(one))(jnp.stack([vector, vector]), data)
    assert losses.shape == (2,)
    assert means.shape == (2, layout.buffer_size)
    assert counters.shape == (2, layout.counter_size)


# flax


def test_flax_keeps_its_own_conventions():
    """momentum 0.9 is torch's 0.1, and the variance is the biased one: 1 where torch has 2."""
    model = Model.from_flax(nn.BatchNorm(momentum=0.9, use_scale=False, use_bias=False), jnp.ones((1, 1)))
    variables = model.init(KEY)
    for _ in range(10):
        _, buffers = model.apply(variables, jnp.array([[0.0], [2.0]]), train=True, key=None, mask=None)
        variables = Variables(variables.params, buffers)
    np.testing.assert_allclose(buffers["batch_stats"]["mean"], 0.651322, atol=1e-6)
    np.testing.assert_allclose(buffers["batch_stats"]["var"], 1.0, atol=1e-6)


def test_flax_names_and_buffers():
    model = Model.from_flax(Tower(), jax.ShapeDtypeStruct((2, 6, 6, 1), jnp.float32))
    layout = Layout.of(model.init(KEY))
    names = [e.name for e in layout.entries]
    assert model.name == "Tower"
    assert "Conv_0/kernel" in names
    assert "batch_stats/BatchNorm_0/mean" in names
    assert layout.buffer_size == 2 * (4 + 5)


class Drop(nn.Module):
    """Dropout that the module doesn't switch."""

    rate: float

    @nn.compact
    def __call__(self, x):
        return nn.Dropout(self.rate)(x)


def test_flax_dropout_is_keyed_and_off_in_evaluation():
    x = rows(50, 20)
    model = Model.from_flax(Drop(0.5), x)
    assert model.needs_key
    assert not Model.from_flax(Drop(0.0), x).needs_key
    call = lambda key, train: model.apply(Variables({}), x, train=train, key=key, mask=None)[0]  # noqa: E731
    one = call(jax.random.key(1), True)
    np.testing.assert_array_equal(one, call(jax.random.key(1), True))
    assert np.any(one != call(jax.random.key(2), True))
    assert 0.4 < np.mean(np.asarray(one) == 0) < 0.6
    np.testing.assert_array_equal(call(None, False), x)
    np.testing.assert_array_equal(call(jax.random.key(1), False), x)
    with pytest.raises(ConfigError, match="draws random numbers in training"):
        call(None, True)


class HomeMade(nn.Module):
    """Batch statistics that dure knows nothing about."""

    @nn.compact
    def __call__(self, x):
        mean = self.variable("batch_stats", "mean", jnp.zeros, x.shape[-1:])
        if self.is_mutable_collection("batch_stats"):
            mean.value = x.mean(0)
        return x - mean.value


class TimeFirst(nn.Module):
    """BatchNorm on rows that are not the batch's."""

    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm()(x.reshape(-1, 2))


def test_flax_statistics_that_would_see_padding_are_reported():
    assert not Model.from_flax(HomeMade(), rows(2, 3)).masked
    model = Model.from_flax(TimeFirst(), rows(2, 4))
    with pytest.raises(ConfigError, match="BatchNorm BatchNorm_0 sees 6 rows of a batch of 3"):
        model.apply(model.init(KEY), rows(3, 4), train=True, key=None, mask=jnp.ones(3))


def test_flax_half_precision_parameters_and_weights_shared_by_a_module():
    class Tied(nn.Module):
        @nn.compact
        def __call__(self, tokens):
            embed = nn.Embed(7, 4, param_dtype=jnp.bfloat16)
            return embed.attend(embed(tokens))

    model = Model.from_flax(Tied(), jnp.zeros((1, 5), jnp.int32))
    layout = Layout.of(model.init(KEY))
    assert [(e.name, e.dtype) for e in layout.entries] == [("Embed_0/embedding", "bfloat16")]
    assert model.apply(model.init(KEY), jnp.zeros((2, 5), jnp.int32), train=True, key=None, mask=None)[
        0
    ].shape == (
        2,
        5,
        7,
    )


def test_flax_modules_that_cannot_run_are_named():
    with pytest.raises(ConfigError, match=r"Conv can't be called on the example input \(\(1,\), 'float32'\)"):
        Model.from_flax(nn.Conv(3, (3, 3)), jnp.ones(1))
    with pytest.raises(ConfigError, match=r"function is not a flax\.linen module"):
        Model.from_flax(linear, jnp.ones(1))


# equinox


def test_equinox_masked_batch_norm_is_equinox_batch_norm():
    """Without padding, outputs and state are what the library's own layer gives under vmap."""
    for mode in ("batch", "ema"):
        net, state = eqx.nn.make_with_state(Net)(mode, KEY)
        model = Model.from_equinox((net, state))
        variables, x = model.init(KEY), rows(4, 6, 6, 1)
        for _ in range(2):
            expected, state = jax.vmap(net, (0, None), (0, None), axis_name="batch")(x, state)
            outputs, buffers = model.apply(variables, x, train=True, key=None, mask=None)
            np.testing.assert_allclose(outputs, expected, atol=1e-5)
            variables = Variables(variables.params, buffers)
        close(list(buffers["state"].values()), list(state.tree_flatten()[0]))
        still = eqx.nn.inference_mode(net)
        expected, _ = jax.vmap(still, (0, None), (0, None), axis_name="batch")(x, state)
        outputs, _ = model.apply(variables, x, train=False, key=None, mask=None)
        np.testing.assert_allclose(outputs, expected, atol=1e-5)


def test_equinox_module_pair_and_factory():
    make = lambda key: eqx.nn.MLP(3, 2, 4, 1, key=key)  # noqa: E731
    mlp = make(KEY)
    fixed, seeded = Model.from_equinox(mlp), Model.from_equinox(make)
    x = rows(5, 3)
    for seed in (0, 1):
        key = jax.random.key(seed)
        expected = jax.vmap(make(key))(x)
        np.testing.assert_allclose(
            seeded.apply(seeded.init(key), x, train=True, key=None, mask=None)[0], expected
        )
        close(fixed.init(key).params, eqx.filter(mlp, eqx.is_inexact_array), atol=0)
    names = [e.name for e in Layout.of(fixed.init(KEY)).entries]
    assert names == ["layers/0/weight", "layers/0/bias", "layers/1/weight", "layers/1/bias"]
    assert (fixed.name, fixed.needs_key, fixed.masked) == ("MLP", False, True)
    whole = Model.from_equinox(BatchedNet(mlp), batched=True)
    np.testing.assert_allclose(
        whole.apply(whole.init(KEY), x, train=False, key=None, mask=None)[0], jax.vmap(mlp)(x), atol=1e-6
    )


class BatchedNet(eqx.Module):
    """Takes the whole batch."""

    inner: eqx.nn.MLP

    def __call__(self, x):
        return jax.vmap(self.inner)(x)


class DropNet(eqx.Module):
    """Dropout on one example."""

    drop: eqx.nn.Dropout

    def __call__(self, x, *, key=None):
        return self.drop(x, key=key)


def test_equinox_dropout_is_keyed_by_row():
    model = Model.from_equinox(DropNet(eqx.nn.Dropout(0.5)))
    assert model.needs_key
    assert not Model.from_equinox(DropNet(eqx.nn.Dropout(0.0))).needs_key
    x = rows(6, 40)
    variables = model.init(KEY)
    call = lambda x, key, train=True: model.apply(variables, x, train=train, key=key, mask=None)[0]  # noqa: E731
    one = call(x, jax.random.key(1))
    np.testing.assert_array_equal(one[:4], call(x[:4], jax.random.key(1)))
    assert np.any((one[0] == 0) != (one[1] == 0))
    assert np.any(one != call(x, jax.random.key(2)))
    np.testing.assert_array_equal(call(x, None, train=False), x)
    with pytest.raises(ConfigError, match="give key="):
        call(x, None)


def test_equinox_errors():
    net, state = eqx.nn.make_with_state(Net)("batch", KEY)
    with pytest.raises(ConfigError, match=r"has state .* and came without one"):
        Model.from_equinox(Net("batch", KEY))
    with pytest.raises(ConfigError, match="second of the pair is a dict, not an eqx"):
        Model.from_equinox((net, {}))
    with pytest.raises(ConfigError, match="dict is not an equinox module"):
        Model.from_equinox({})
    mixed = eqx.tree_at(lambda n: n.norm, net, eqx.nn.BatchNorm(4, ("a", "b"), mode="batch"))
    with pytest.raises(ConfigError, match="dure maps over one batch axis"):
        Model.from_equinox(eqx.nn.make_with_state(lambda: mixed)())
    assert not Model.from_equinox((net, state), batched=True).masked


# as_model


def test_as_model_takes_what_users_have():
    model = Model.from_functions(start, linear)
    assert as_model(model) is model
    assert as_model((start, linear)).name == "linear"
    assert as_model(nn.Dense(3), rows(2, 4)).name == "Dense"
    assert as_model(eqx.nn.Linear(3, 2, key=KEY)).name == "Linear"
    assert as_model(eqx.nn.make_with_state(Net)("batch", KEY)).name == "Net"
    with pytest.raises(ConfigError, match="Dense is a flax module and needs an example"):
        as_model(nn.Dense(3))
    for thing in (linear, "two_nn", (start, 3)):
        with pytest.raises(ConfigError, match="is not a model"):
            as_model(thing)


def test_an_nnx_module_is_told_how_to_come_in_and_does():
    nnx = pytest.importorskip("flax.nnx")
    module = nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match=r"Linear is a flax\.nnx module.*nnx\.split"):
        as_model(module)
    graph, state = nnx.split(module)
    model = as_model((lambda key: state, lambda state, x: nnx.merge(graph, state)(x)))
    variables = model.init(KEY)
    layout = Layout.of(variables)
    params = layout.unflatten_params(layout.flatten_params(variables.params))
    np.testing.assert_allclose(model.apply(Variables(params), jnp.ones((4, 3)))[0], module(jnp.ones((4, 3))))
