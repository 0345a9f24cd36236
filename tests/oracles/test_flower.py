"""Flower clients as dure's: what they are given, what they may answer. The package itself: test_flower_package.py."""

import re
import sys
from typing import Any

import numpy as np
import pytest

import dure
from dure import flower
from dure.simulation.outside import check
from flower_clients import DATA, PARTITIONS, START, descend, expected, loss, numpy_client, pooled, trained
from problems import make_engine

LOCAL: dict[str, Any] = {"devices": 1}
COUNTS = dure.data.counts(DATA.sizes)
Logistic = numpy_client(object)


def client_fn(context: Any) -> Any:
    return Logistic(context.node_config["partition-id"], context.run_config.get("local-epochs", 2))


def task(client: Any = client_fn, **keywords: Any) -> dure.Task:
    return flower.task(client, **{"partitions": PARTITIONS, **keywords})


def answering(fit: Any) -> Any:
    """A client_fn whose `fit` is this function of (k, parameters, config)."""

    class Answering:
        def __init__(self, k: int):
            self.k = k

        def fit(self, parameters: Any, config: Any) -> Any:
            return fit(self.k, parameters, config)

    return lambda context: Answering(context.node_config["partition-id"])


def n(k: int) -> int:
    return int(DATA.sizes[k])


def test_three_rounds_equal_fedavg_by_hand() -> None:
    run = dure.simulate(dure.FedAvg(), task(), COUNTS, rounds=3, **LOCAL)
    found = run.state_dict()
    for name, mean, unweighted in zip("01", expected(3), expected(3, weighted=False), strict=True):
        np.testing.assert_allclose(found[name], mean, rtol=2e-6, atol=1e-7)
        assert not np.allclose(found[name], unweighted, rtol=1e-3)
    # The metric of `fit` that is recorded, at the parameters of the round's beginning: weighted by examples too.
    losses = [loss(*DATA.client(k).values(), *expected(2)) for k in range(PARTITIONS)]
    np.testing.assert_allclose(run.final["train_loss"], np.average(losses, weights=DATA.sizes), rtol=1e-5)


@pytest.mark.parametrize("settings", [{"eager": True}, {"schedule": "vectorised", "devices": 2}])
def test_where_it_runs_makes_no_difference(settings: dict[str, Any]) -> None:
    engine = make_engine(dure.FedAvg(), task(run_config={"local-epochs": 1}), COUNTS, **settings)
    assert engine.collect(engine.launch()).status == ["ok"] * PARTITIONS
    np.testing.assert_allclose(engine.params()["0"], expected(1, epochs=1)[0], rtol=2e-6, atol=1e-7)


def test_eager_asks_each_client_once_a_round() -> None:
    asked = []

    def fit(k: int, parameters: Any, config: Any) -> Any:
        asked.append((config["server-round"], k))
        return parameters, n(k), {}

    engine = make_engine(dure.FedAvg(), task(answering(fit), initial=START), COUNTS, eager=True)
    for _ in range(2):
        engine.collect(engine.launch())
    assert sorted(asked) == [(round, k) for round in (1, 2) for k in range(PARTITIONS)]


def test_the_clients_own_evaluation_is_the_pooled_one() -> None:
    found = flower.evaluate(task(), START)
    mean_loss, accuracy = pooled(START)
    assert found.mean == pytest.approx({"loss": mean_loss, "accuracy": accuracy}, rel=1e-6)
    assert [row["examples"] for row in found.clients] == [104, 89, 16, 45]  # of FLamby's split
    one = flower.evaluate(task(), {"0": START[0], "1": START[1]}, ids=[2])
    assert one.clients == [found.clients[2]]


def test_dures_own_evaluation_uses_predict() -> None:
    def predict(params: Any, inputs: Any) -> Any:
        return inputs @ params["w"] + params["b"]

    def logistic(outputs: Any, targets: Any) -> Any:
        import jax.numpy as jnp

        return jnp.logaddexp(0, outputs) - targets * outputs

    t = task(initial={"w": START[0], "b": START[1]}, predict=predict, loss=logistic, metrics=())
    run = dure.simulate(dure.FedAvg(), t, DATA, rounds=1, **LOCAL)
    mean_loss, _ = pooled([run.state_dict()["w"], run.state_dict()["b"]])
    np.testing.assert_allclose(run.final["test_loss"], mean_loss, rtol=1e-5)


def test_what_a_client_is_told() -> None:
    def told(k: int, parameters: Any, config: Any) -> Any:
        assert isinstance(config["seed"], int)
        assert {key: config[key] for key in config if key != "seed"} == {"server-round": 1, "rate": 0.5}
        assert [(p.shape, p.dtype) for p in parameters] == [((2,), np.float64), ((1, 3), np.float32)]
        return parameters, n(k), {}

    def make(context: Any) -> Any:
        assert context.node_config == {
            "partition-id": context.node_id, "num-partitions": PARTITIONS, "path": "/data"
        }  # fmt: skip
        assert (context.run_config, len(context.state)) == ({"lr": 0.1}, 0)
        return answering(told)(context)

    initial = [np.ones(2), np.zeros((1, 3), np.float32)]
    t = task(
        make,
        initial=initial,
        config=lambda round: {"rate": 0.5 / round},
        node_config={"path": "/data"},
        run_config={"lr": 0.1},
    )
    assert trained(t, 3) == (pytest.approx(np.r_[1, 1, 0, 0, 0]), "")


def test_named_parameters_keep_their_order_and_their_names() -> None:
    """Names that don't sort as they are given: the client must see the given order."""

    def fit(k: int, parameters: Any, config: Any) -> Any:
        assert [p.shape for p in parameters] == [(2,), (3,)]
        return [parameters[0] + 1, parameters[1] + 2], n(k), {}

    t = task(answering(fit), initial={"z": np.zeros(2), "a": np.zeros(3)})
    found, message = trained(t, 0)
    assert not message
    np.testing.assert_array_equal(found, [2, 2, 2, 1, 1])  # the vector has the names in their sorted order


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda k, p: (p, 7, {}), "n=7 examples, and the client has 30"),
        (lambda k, p: (p[::-1], n(k), {}), r"parameter 0 in shape \(\), it was given \(13,\)"),
        (lambda k, p: ([p[0][:2], p[1]], n(k), {}), r"parameter 0 in shape \(2,\), it was given \(13,\)"),
        (lambda k, p: (p[:1], n(k), {}), "returned 1 arrays, it was given 2"),
        (lambda k, p: (p[0], n(k), {}), "as ndarray: a list of arrays"),
        (
            lambda k, p: (p, n(k)),
            r"fit returned \(list, int\); it must return \(parameters, num_examples, metrics\)",
        ),
        (lambda k, p: p, r"fit returned \(ndarray, ndarray\)"),
        (lambda k, p: None, "fit returned a NoneType"),
        (lambda k, p: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_a_wrong_answer_is_refused(answer: Any, message: str) -> None:
    def fit(k: int, parameters: Any, config: Any) -> Any:
        return answer(k, parameters) if k == 2 else (parameters, n(k), {})

    t = task(answering(fit), initial=START)
    assert trained(t, 1)[1] == ""
    assert re.search(message, trained(t, 2)[1])


def test_a_failure_names_the_client_and_the_round() -> None:
    def fit(k: int, parameters: Any, config: Any) -> Any:
        return (parameters, n(k) + (k == 2 and config["server-round"] == 2), {})

    engine = make_engine(dure.FedAvg(), task(answering(fit), initial=START), COUNTS, **LOCAL)
    engine.collect(engine.launch())
    engine.launch()
    with pytest.raises(dure.RunError, match=r"Client Switzerland failed in round 2.*n=31 examples") as caught:
        check(engine.task, 2, DATA)
    assert "Traceback" in caught.value.__notes__[0]


def test_wrong_answers_can_be_set_aside() -> None:
    def fit(k: int, parameters: Any, config: Any) -> Any:
        if k == 1:
            raise OSError("no disk")
        return descend(k, parameters, 1, k), n(k), {}

    t = task(answering(fit), initial=START)
    engine = make_engine(dure.FedAvg(), t, COUNTS, client_errors="set aside", **LOCAL)
    assert engine.collect(engine.launch()).status == ["ok", "raised OSError: no disk", "ok", "ok"]
    others = [0, 2, 3]
    mean = np.average([descend(k, START, 1, k)[0] for k in others], axis=0, weights=[n(k) for k in others])
    np.testing.assert_allclose(engine.params()["0"], mean, rtol=2e-6, atol=1e-7)


def test_state_of_a_client_is_refused_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "flwr.app", None
    )  # as if it were not installed; its own: test_flower_package.py

    def make(context: Any) -> Any:
        context.state["momentum"] = [1.0]
        return client_fn(context)

    message = trained(task(make, initial=START), 0)[1]
    assert re.search(r"'momentum' into context\.state.*dure does not keep it", message)


@pytest.mark.parametrize("partitions", [3, 10])
def test_the_data_must_have_as_many_clients_as_they_are_told(partitions: int) -> None:
    with pytest.raises(dure.ConfigError, match=rf"partitions={partitions}\), and the data have 4: give"):
        make_engine(dure.FedAvg(), task(partitions=partitions), COUNTS, **LOCAL)


def test_a_training_loss_that_nobody_reports_is_none() -> None:
    t = task(train_loss="objective")
    run = dure.simulate(dure.FedAvg(), t, COUNTS, rounds=1, **LOCAL)
    assert run.rounds[-1]["train_loss"] is None


def test_more_clients_than_they_are_told_of() -> None:
    t = task(partitions=3)
    assert trained(t, 2)[1] == ""
    assert "Client 3 takes part, and clients are told that there are 3" in trained(t, 3)[1]


def test_methods_that_must_see_inside_refuse_it() -> None:
    with pytest.raises(dure.ConfigError, match=r"adds to the local problem.*client_fn"):
        make_engine(dure.FedProx(mu=0.1), task(), COUNTS, **LOCAL).launch()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"client": 3}, "client=3 is not a client"),
        ({"client": Logistic}, "is a class, and every client has its own"),
        ({"client": Logistic(0, 1)}, "is one client, and every client has its own"),
        ({"client": lambda cid: None}, r"\(cid\) is not called as Flower calls it today"),
        ({"client": lambda a, b: None}, r"\(a, b\) is not called as Flower calls it today"),
        ({"partitions": 0}, "partitions=0 is not allowed"),
        ({"initial": np.zeros(3)}, "initial is a ndarray"),
        (
            {"initial": {"w": np.zeros(2), "num_batches_tracked": np.zeros(1, int)}},
            "integers in 'num_batches_tracked'",
        ),
        ({"initial": []}, "it holds nothing"),
        ({"initial": {"w": np.array([np.nan])}}, r"initial\['w'\] has values that are NaN"),
        ({"initial": [np.zeros(1), np.array([np.inf])]}, r"initial\[1\] has values that are NaN or infinite"),
        ({"config": {"seed": 1}}, "config has 'seed', which dure fills in"),
        ({"config": [1]}, r"config=\[1\] is a list: give a dict"),
        ({"run_config": [1]}, r"run_config=\[1\] is a list: give a dict"),
        ({"client": answering(None)}, "no parameters to start from"),
    ],
)
def test_impossible_arguments(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        task(**keywords)


def test_a_client_that_is_none_fails_by_name() -> None:
    message = (
        r"Client 0 failed when it was asked.*client_fn returned 5.*is wanted\. Mend it, or give initial="
    )
    with pytest.raises(dure.RunError, match=message):
        task(lambda context: 5)


def test_impossible_evaluations() -> None:
    def none(k: int, parameters: Any, config: Any) -> Any:
        raise AssertionError

    with pytest.raises(dure.RunError, match=r"Client 0 failed \(evaluate\): AttributeError"):
        flower.evaluate(task(answering(none), initial=START), START)
    with pytest.raises(dure.ConfigError, match="Client 4 is not there"):
        flower.evaluate(task(), START, ids=[4])
    with pytest.raises(dure.ConfigError, match=r"params has \['a'\]"):
        flower.evaluate(task(initial={"w": START[0], "b": START[1]}), {"a": START[0]})
    with pytest.raises(dure.ConfigError, match="no Flower clients to ask"):
        flower.evaluate(dure.oracle(none, init=START), START)
    with pytest.raises(dure.DataError, match="No client has evaluated on any example"):
        flower.evaluate(task(), START, ids=[])


@pytest.mark.parametrize("examples", [-3, float("nan"), 2.5, None, "7", True])
def test_an_evaluations_weight_is_checked(examples: Any) -> None:
    class Evaluating:
        def __init__(self, k: int):
            self.k = k

        def fit(self, parameters: Any, config: Any) -> Any:
            raise AssertionError

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return 1.0 + self.k, examples if self.k == 2 else 5, {}

    t = task(lambda context: Evaluating(context.node_config["partition-id"]), initial=START)
    assert flower.evaluate(t, START, ids=[0, 1]).mean == {"loss": 1.5}
    with pytest.raises(dure.RunError, match=f"Client 2 failed .evaluate.: it says.*n={examples!r} examples"):
        flower.evaluate(t, START)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (START[:1], "params has 1 arrays, the clients' parameters are 2"),
        ([*START, START[0]], "params has 3 arrays, the clients' parameters are 2"),
        (START[::-1], r"params\['0'\] has shape \(\), the clients' have \(13,\)"),
        ({"0": START[0][:5], "1": START[1]}, r"params\['0'\] has shape \(5,\)"),
        ({"w": START[0], "z": START[1]}, "the clients' parameters have no names"),
        (None, "params is a NoneType"),
        (START[0], "params is a ndarray"),
    ],
)
def test_parameters_to_evaluate_are_the_tasks(params: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        flower.evaluate(task(), params)


@pytest.mark.parametrize("ids", [2, ["a"], [1.5], "12", [True]])
def test_ids_are_clients_numbers(ids: Any) -> None:
    with pytest.raises(dure.ConfigError, match=r"ids.*give .*clients' numbers"):
        flower.evaluate(task(), START, ids=ids)


def test_counts_are_a_data_set_without_values() -> None:
    data = dure.data.counts([3, 0, 2], client_names=["a", "b", "c"])
    assert (data.clients, data.examples, data.client_name(2)) == (3, 5, "c")
    np.testing.assert_array_equal(data.sizes, [3, 0, 2])
    assert sum(column.nbytes for column in data.columns.values()) == 0
    with pytest.raises(dure.ConfigError, match="fails on column 'x'"):
        make_engine(dure.FedAvg(), dure.classification(dure.models.softmax_regression(4, 2)), data, **LOCAL)
    for wrong in ([1.5], [-1, 2], [[1]], []):
        with pytest.raises(dure.DataError):
            dure.data.counts(wrong)
    with pytest.raises(dure.DataError, match="not one example"):
        dure.data.counts([0, 0])
