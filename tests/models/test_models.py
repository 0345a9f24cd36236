"""The standard models: parameter counts of the papers, and forward passes redone in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dure.errors import ConfigError
from dure.models import char_lstm, linear, logistic, mcmahan_cnn, mlp, small_cnn, softmax_regression, two_nn
from dure.models.layers import max_pool
from dure.oracles.layout import Layout, Variables


def jitter(model, seed=0, scale=0.1):
    """The model's variables with all parameters, biases too, away from zero."""
    variables = model.init(jax.random.key(seed))
    layout = Layout.of(variables)
    vector = layout.flatten_params(variables.params)
    noise = jax.random.normal(jax.random.key(seed + 1), vector.shape)
    return Variables(layout.unflatten_params(vector + scale * noise))


def rows(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def close(model, variables, x, expected, atol=1e-4):
    np.testing.assert_allclose(jax.jit(model.apply)(variables, x)[0], expected, atol=atol, rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (softmax_regression(784, 10), 7850),
        (two_nn(), 199_210),
        (mcmahan_cnn(), 1_663_370),
        (char_lstm(), 866_578),
        (small_cnn(), 1_626_442),
        (logistic(13), 14),
        (linear(3, 2), 8),
    ],
)
def test_parameter_counts(model, count):
    variables = model.init(jax.random.key(0))
    assert Layout.of(variables).size == count
    assert variables.buffers == {}
    assert model.masked
    assert not model.needs_key


def np_dense(p, x):
    return x @ np.asarray(p["weight"], np.float64) + np.asarray(p["bias"], np.float64)


def relu(x):
    return np.maximum(x, 0)


def np_conv(p, x, pad):
    """Stride 1, by summing shifted images: nothing in common with the library's convolution."""
    w = np.asarray(p["weight"], np.float64)
    k = w.shape[0]
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    h, v = x.shape[1] - k + 1, x.shape[2] - k + 1
    y = sum(x[:, i : i + h, j : j + v] @ w[i, j] for i in range(k) for j in range(k))
    return y + np.asarray(p["bias"], np.float64)


def np_pool(x):
    windows = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return np.max(windows, 0)


def test_dense_models():
    x = rows(3, 4, 5)
    flat = x.reshape(3, 20)
    model = softmax_regression(20, 7)
    v = jitter(model)
    close(model, v, x, np_dense(v.params, flat))
    model = mlp(20, (6, 5), 4)
    v = jitter(model)
    hidden = relu(np_dense(v.params["dense2"], relu(np_dense(v.params["dense1"], flat))))
    close(model, v, x, np_dense(v.params["dense3"], hidden))
    model = logistic(20)
    v = jitter(model)
    close(model, v, x, np_dense(v.params, flat))


def test_softmax_regression_starts_at_zero():
    variables = softmax_regression(4, 3).init(jax.random.key(5))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(variables.params))


def test_glorot_limits_and_zero_biases():
    params = two_nn().init(jax.random.key(0)).params
    for name, (i, o) in (("dense1", (784, 200)), ("dense2", (200, 200)), ("dense3", (200, 10))):
        weight = np.asarray(params[name]["weight"])
        limit = np.sqrt(6 / (i + o))
        assert 0.95 * limit < np.abs(weight).max() <= limit
        assert weight.std() == pytest.approx(limit / np.sqrt(3), rel=0.05)
        assert not np.any(params[name]["bias"])


def test_mcmahan_cnn():
    model = mcmahan_cnn()
    v = jitter(model, scale=0.02)
    x = rows(2, 28, 28, 1)
    p = v.params
    h = np_pool(relu(np_conv(p["conv1"], x.astype(np.float64), 2)))
    h = np_pool(relu(np_conv(p["conv2"], h, 2)))
    expected = np_dense(p["dense2"], relu(np_dense(p["dense1"], h.reshape(2, -1))))
    close(model, v, x, expected, atol=1e-3)
    close(model, v, x.reshape(2, 784), expected, atol=1e-3)
    close(model, v, x[..., 0], expected, atol=1e-3)


def test_small_cnn():
    model = small_cnn()
    v = jitter(model, scale=0.02)
    x = rows(2, 32, 32, 3)
    p = v.params
    h = np_pool(relu(np_conv(p["conv2"], relu(np_conv(p["conv1"], x.astype(np.float64), 0)), 0)))
    close(model, v, x, np_dense(p["dense2"], relu(np_dense(p["dense1"], h.reshape(2, -1)))), atol=1e-3)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def np_lstm(p, x):
    """(B, T, I) → (B, T, H), a position after the other, gates i, f, g, o."""
    p = {k: np.asarray(v, np.float64) for k, v in p.items()}
    hidden = p["recurrent"].shape[0]
    h = c = np.zeros((len(x), hidden))
    peep = p.get("peephole", np.zeros((3, hidden)))
    out = []
    for t in range(x.shape[1]):
        z = x[:, t] @ p["input"] + h @ p["recurrent"] + p["bias"]
        i, f, g, o = (z[:, n * hidden : (n + 1) * hidden] for n in range(4))
        new = sigmoid(f + peep[1] * c) * c + sigmoid(i + peep[0] * c) * np.tanh(g)
        h, c = sigmoid(o + peep[2] * new) * np.tanh(new), new
        out.append(h)
    return np.stack(out, 1)


@pytest.mark.parametrize("peepholes", [True, False])
def test_char_lstm(peepholes):
    model = char_lstm(vocabulary=11, embedding=3, hidden=6, peepholes=peepholes)
    v = jitter(model, scale=0.3)
    x = np.random.default_rng(0).integers(0, 11, (2, 9)).astype(np.int32)
    h = np.asarray(v.params["embedding"], np.float64)[x]
    for name in ("lstm1", "lstm2"):
        h = np_lstm(v.params[name], h)
    close(model, v, x, np_dense(v.params["output"], h))


def test_lstm_layers_are_torch_layers_without_peepholes():
    torch = pytest.importorskip("torch")
    model = char_lstm(vocabulary=7, embedding=3, hidden=5, layers=1, peepholes=False)
    v = jitter(model, scale=0.3)
    p = {k: torch.tensor(np.asarray(a)) for k, a in v.params["lstm1"].items()}
    net = torch.nn.LSTM(3, 5, batch_first=True)
    with torch.no_grad():
        net.weight_ih_l0.copy_(p["input"].T)
        net.weight_hh_l0.copy_(p["recurrent"].T)
        net.bias_ih_l0.copy_(p["bias"])
        net.bias_hh_l0.zero_()
        x = np.random.default_rng(0).integers(0, 7, (2, 6))
        out, _ = net(torch.tensor(np.asarray(v.params["embedding"])[x]))
        expected = np_dense(v.params["output"], out.numpy())
    close(model, v, x.astype(np.int32), expected)


def test_lstm_forgets_little_at_first():
    bias = np.asarray(char_lstm(hidden=4).init(jax.random.key(0)).params["lstm1"]["bias"])
    np.testing.assert_array_equal(bias, np.repeat([0, 1, 0, 0], 4))


def test_a_symbol_outside_the_vocabulary_is_not_silently_another():
    model = char_lstm(vocabulary=5, hidden=4)
    out = model.apply(model.init(jax.random.key(0)), jnp.array([[0, 5]]))[0]
    assert np.all(np.isfinite(out[0, 0]))
    assert np.all(np.isnan(out[0, 1]))


def test_max_pool_against_xlas_windowed_reduction():
    x = jnp.asarray(rows(2, 6, 4, 3))

    def windowed(x):
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    np.testing.assert_array_equal(max_pool(x), windowed(x))
    weights = jnp.asarray(rows(2, 3, 2, 3, seed=1))
    gradients = [jax.grad(lambda x, f=f: jnp.sum(weights * f(x)))(x) for f in (max_pool, windowed)]
    np.testing.assert_array_equal(*gradients)


def test_integer_pixels_are_numbers():
    model = two_nn()
    v = model.init(jax.random.key(0))
    pixels = np.random.default_rng(0).integers(0, 256, (2, 28, 28)).astype(np.uint8)
    close(model, v, pixels, model.apply(v, pixels.astype(np.float32))[0])


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        (two_nn(), (2, 27, 28), r"takes 784 inputs an example and got \(27, 28\) \(756\)"),
        (mcmahan_cnn(), (2, 28, 27, 1), r"takes images \(28, 28, 1\) .* and got \(28, 27, 1\)"),
        (small_cnn(), (2, 3, 32, 32), r"takes images \(32, 32, 3\) .* and got \(3, 32, 32\)"),
    ],
)
def test_inputs_of_another_size(model, shape, message):
    with pytest.raises(ConfigError, match=message):
        model.apply(model.init(jax.random.key(0)), jnp.zeros(shape))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: softmax_regression(0, 3), "inputs=0"),
        (lambda: mlp(4, (5, 0), 2), r"hidden\[1\]=0"),
        (lambda: mcmahan_cnn((30, 28, 1)), "multiples of 4"),
        (lambda: small_cnn((31, 32, 3)), "even"),
        (lambda: char_lstm(hidden=0), "hidden=0"),
    ],
)
def test_impossible_sizes(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
