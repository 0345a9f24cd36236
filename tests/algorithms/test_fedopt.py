"""FedOpt: optax at the server, on the pseudo-gradient; buffers never go through it."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dure
from dure.algorithms.base import Update
from dure.errors import ConfigError
from dure.models.layers import batch_norm, batch_norm_init, dense, dense_init
from dure.oracles.layout import Variables
from dure.oracles.model import Model
from dure.oracles.optimizer import Optimizer, sgd
from exact import Run, applied, begun, check_engine, check_order, limit
from problems import LINEAR, Q10, QUADRATIC, make_engine, q10, rows_data, train

FedOpt = dure.FedOpt
ADAM = Optimizer(optax.adam, {"learning_rate": 0.05, "b1": 0.9, "b2": 0.99, "eps": 1e-3})


def test_with_sgd_of_one_it_is_fedavg_bit_for_bit() -> None:
    keywords: dict[str, Any] = {"steps": 4, "batch_size": 3, "clients_per_round": 3, "seed": 2}
    data = rows_data([7, 20, 5, 9], seed=4)
    average = train(dure.FedAvg(), LINEAR, data, 3, **keywords)
    for optimizer in (sgd(1.0), optax.sgd(1.0)):
        assert train(FedOpt(optimizer), LINEAR, data, 3, **keywords).tobytes() == average.tobytes()


def test_optaxs_momentum_is_fedavgms() -> None:
    for nesterov in (False, True):
        theirs = FedOpt(sgd(0.3, momentum=0.9, nesterov=nesterov))
        ours = dure.FedAvgM(0.3, 0.9, nesterov=nesterov)
        a, b = begun(theirs, np.zeros(2)), begun(ours, np.zeros(2))
        for t, d in enumerate(np.array([[1.0, -2.0], [0.5, 0.5], [-3.0, 1.0]]), 1):
            a, b = applied(theirs, a, Update(d), number=t), applied(ours, b, Update(d), number=t)
            np.testing.assert_allclose(a.w, b.w, atol=1e-12)


def test_optaxs_adam_is_the_variant_that_is_named_torch() -> None:
    """First step η D / (|D| + ε), along the mean update and not against it."""
    d = np.array([0.3, -0.02, 1e-4])
    named = dure.FedAdam(server_lr=0.05, beta1=0.9, beta2=0.99, tau=1e-3, bias_correction="torch")
    a, b = begun(FedOpt(ADAM), np.zeros(3)), begun(named, np.zeros(3))
    for t in range(1, 4):
        a, b = (
            applied(FedOpt(ADAM), a, Update(d / t), number=t),
            applied(named, b, Update(d / t), number=t),
        )
        if t == 1:
            np.testing.assert_allclose(a.w, 0.05 * d / (np.abs(d) + 1e-3), rtol=1e-9)
        np.testing.assert_allclose(a.w, b.w, rtol=1e-9)


def test_the_servers_own_decay_counts_rounds() -> None:
    page = FedOpt(sgd(0.5, round_decay=0.5))
    server = begun(page, np.zeros(1))
    places = []
    for t in (1, 2, 3):
        server = applied(page, server, Update(np.ones(1)), number=t)
        places.append(float(server.w[0]))
    np.testing.assert_allclose(places, [0.5, 0.75, 0.875])


def test_weight_decay_of_the_server_pulls_the_model_to_zero() -> None:
    page = FedOpt(sgd(0.1, weight_decay=0.5))
    moved = applied(page, begun(page, np.array([2.0])), Update(np.array([0.0])))
    np.testing.assert_allclose(moved.w, [2.0 - 0.1 * 0.5 * 2.0])


def test_the_limit_is_fedavgs() -> None:
    run = Run(FedOpt(sgd(0.3, momentum=0.9)), steps=5, eta=0.05).rounds(600)
    np.testing.assert_allclose(run.w, limit(Q10.uniform, 5, 0.05), atol=1e-12)


def test_compiled() -> None:
    check_engine(FedOpt(ADAM))


def test_order_of_clients() -> None:
    check_order(FedOpt(ADAM))


def test_only_the_model_goes_down() -> None:
    assert len(jax.tree.leaves(FedOpt().broadcast(begun(FedOpt(), np.zeros(3))))) == 1


# ----- buffers ---------------------------------------------------------------------------------------------


def normalised() -> dure.Task:
    """Dense, batch normalisation, dense."""

    def init(key: Any) -> Variables:
        norm, buffers = batch_norm_init(4)
        one, two = jax.random.split(key)
        return Variables({"one": dense_init(one, 3, 4), "norm": norm, "two": dense_init(two, 4, 1)}, buffers)

    def apply(params: Any, x: Any, train: bool, mask: Any, buffers: Any) -> Any:
        h, buffers = batch_norm(params["norm"], buffers, dense(params["one"], x), train=train, mask=mask)
        return dense(params["two"], jnp.tanh(h))[:, 0], buffers

    return dure.Task(
        Model.from_functions(init, apply),
        lambda outputs, targets: (outputs - targets) ** 2,
        name="normalised",
    )


BUFFERED = normalised()


@pytest.mark.parametrize(
    "page",
    [FedOpt(sgd(3.0, momentum=0.9)), dure.FedAdam(), dure.FedAvgM(3.0), dure.Scaffold(server_lr=0.5)],
    ids=lambda page: type(page).__name__,
)
def test_buffers_are_averaged_and_parameters_only_are_optimised(page: Any) -> None:
    """Through an optimizer running variances become negative. Nor have buffers a control or a momentum."""
    data = rows_data([8, 12, 6], seed=3)
    keywords: dict[str, Any] = {
        "batch_size": 64,
        "steps": 1,
        "devices": 1,
        "schedule": "sequential",
        "client_state": "host",
    }
    one, average = (make_engine(p, BUFFERED, data, **keywords) for p in (page, dure.FedAvg()))
    parts = np.split(data.columns["x"], data.offsets[1:-1])
    first = one.params()["one"]
    hidden = [np.asarray(dense(first, jnp.asarray(x)), float) for x in parts]
    one.launch()
    average.launch()
    weight = np.diff(data.offsets) / data.examples
    wanted = [
        0.1 * weight @ [h.mean(0) for h in hidden],
        0.9 + 0.1 * weight @ [h.var(0, ddof=1) for h in hidden],
    ]
    np.testing.assert_allclose(one.model.floats, np.concatenate(wanted), atol=1e-5)
    assert one.model.floats.size == one.layout.buffer_size == 8
    np.testing.assert_array_equal(one.model.floats, average.model.floats)
    np.testing.assert_array_equal(one.model.ints, average.model.ints)
    assert np.abs(np.asarray(one.model.server.w) - np.asarray(average.model.server.w)).max() > 1e-3
    vectors = [x.shape for x in jax.tree.leaves(one.model.server) if x.ndim]
    assert vectors == [(one.layout.size,)] * len(vectors)
    if one.store is not None:
        assert one.store.gather(np.arange(3)).shape == (3, one.layout.size)


# ----- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", None, True])
def test_what_is_no_optimizer_is_refused(optimizer: Any) -> None:
    with pytest.raises(ConfigError, match="is not an optimizer"):
        FedOpt(optimizer)


def test_a_rate_is_plain_sgd() -> None:
    half = Run(FedOpt(0.5)).rounds(1)
    np.testing.assert_allclose(half.w, 0.5 * Run(dure.FedProx(0.0)).rounds(1).w, atol=1e-14)
    engine = make_engine(FedOpt(0.5), QUADRATIC, q10(), steps=10, batch_size=math.inf, optimizer=0.1)
    engine.launch()
    np.testing.assert_allclose(engine.model.server.w, half.w, atol=1e-6)
