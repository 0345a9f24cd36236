"""Flower's own classes as dure's clients. Its pins exclude those of this project: `make test-flower` has both."""

import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import Client, NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import (
    Code,
    EvaluateRes,
    FitRes,
    GetParametersRes,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)

import dure
from dure import flower
from flower_clients import DATA, PARTITIONS, START, descend, expected, loss, numpy_client, pooled, trained
from problems import make_engine

LOCAL: dict[str, Any] = {"devices": 1}
COUNTS = dure.data.counts(DATA.sizes)
Logistic = numpy_client(NumPyClient)
OK = Status(Code.OK, "")


def numpy_fn(context: Context) -> NumPyClient:
    assert isinstance(context, Context)
    assert context.node_config["num-partitions"] == PARTITIONS
    return Logistic(int(context.node_config["partition-id"]), 2)


def wrapped_fn(context: Context) -> Client:
    return numpy_fn(context).to_client()


class Typed(Client):
    """The same by hand, in Flower's own types."""

    def __init__(self, k: int):
        self.inner = Logistic(k, 2)

    def get_parameters(self, ins: Any) -> Any:
        return GetParametersRes(OK, ndarrays_to_parameters(START))

    def fit(self, ins: Any) -> Any:
        new, n, metrics = self.inner.fit(parameters_to_ndarrays(ins.parameters), ins.config)
        return FitRes(OK, ndarrays_to_parameters(new), n, metrics)

    def evaluate(self, ins: Any) -> Any:
        found, n, metrics = self.inner.evaluate(parameters_to_ndarrays(ins.parameters), ins.config)
        return EvaluateRes(OK, found, n, metrics)


def typed_fn(context: Context) -> Client:
    return Typed(int(context.node_config["partition-id"]))


def message_app(answer: Any = None) -> ClientApp:
    """The message API's form; `answer(k, record, n)` → the reply's content, in the place of training."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k, config = int(context.node_config["partition-id"]), message.content["config"]
        record, rows = message.content["arrays"], DATA.client(k)
        if answer is not None:
            return Message(answer(k, record, len(rows["y"])), reply_to=message)
        old = record.to_numpy_ndarrays()
        new = descend(k, old, 2, (k, config["server-round"]))
        content = {
            "arrays": ArrayRecord({key: Array(x) for key, x in zip(record, new, strict=True)}),
            "metrics": MetricRecord(
                {"num-examples": len(rows["y"]), "train_loss": loss(rows["x"], rows["y"], *old)}
            ),
        }
        return Message(RecordDict(content), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client = Logistic(int(context.node_config["partition-id"]), 2)
        found, n, metrics = client.evaluate(message.content["arrays"].to_numpy_ndarrays(), {})
        record = MetricRecord({"num-examples": n, "eval_loss": found, **metrics})
        return Message(RecordDict({"metrics": record}), reply_to=message)

    return app


FORMS: dict[str, Any] = {
    "NumPyClient": lambda: flower.task(numpy_fn, partitions=PARTITIONS),
    "to_client": lambda: flower.task(wrapped_fn, partitions=PARTITIONS),
    "Client": lambda: flower.task(typed_fn, partitions=PARTITIONS),
    "ClientApp of a client_fn": lambda: flower.task(ClientApp(wrapped_fn), partitions=PARTITIONS),
    "message API": lambda: flower.task(message_app(), partitions=PARTITIONS, initial=START),
    # names that don't sort as they are given
    "message API, names": lambda: flower.task(
        message_app(), partitions=PARTITIONS, initial={"weight": START[0], "bias": START[1]}
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_three_rounds_equal_fedavg_by_hand(form: str) -> None:
    task = FORMS[form]()
    run = dure.simulate(dure.FedAvg(), task, COUNTS, rounds=3, **LOCAL)
    found = run.state_dict()
    names = ("weight", "bias") if "names" in form else ("0", "1")
    for name, mean, unweighted in zip(names, expected(3), expected(3, weighted=False), strict=True):
        np.testing.assert_allclose(found[name], mean, rtol=2e-6, atol=1e-7)
        assert not np.allclose(found[name], unweighted, rtol=1e-3)
    losses = [loss(*DATA.client(k).values(), *expected(2)) for k in range(PARTITIONS)]
    np.testing.assert_allclose(run.final["train_loss"], np.average(losses, weights=DATA.sizes), rtol=1e-5)
    evaluated = flower.evaluate(task, found)
    mean_loss, accuracy = pooled(expected(3))
    key = "eval_loss" if "message" in form else "loss"
    assert evaluated.mean == pytest.approx({key: mean_loss, "accuracy": accuracy}, rel=1e-5)
    assert [row["examples"] for row in evaluated.clients] == [104, 89, 16, 45]


def test_flowers_own_average_agrees() -> None:
    """Flower's FedAvg strategy, asked to aggregate the same replies."""
    from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

    replies = [
        RecordDict(
            {
                "arrays": ArrayRecord(descend(k, START, 2, (k, 1))),
                "metrics": MetricRecord({"num-examples": int(DATA.sizes[k])}),
            }
        )
        for k in range(PARTITIONS)
    ]
    theirs = aggregate_arrayrecords(replies, "num-examples").to_numpy_ndarrays()
    engine = make_engine(dure.FedAvg(), FORMS["NumPyClient"](), COUNTS, **LOCAL)
    engine.collect(engine.launch())
    for name, array in zip("01", theirs, strict=True):
        np.testing.assert_allclose(engine.params()[name], array, rtol=1e-5, atol=1e-7)


def test_an_array_record_can_be_the_start() -> None:
    record = ArrayRecord({"weight": Array(START[0]), "bias": Array(START[1])})
    task = flower.task(message_app(), partitions=PARTITIONS, initial=record)
    engine = make_engine(dure.FedAvg(), task, COUNTS, **LOCAL)
    engine.collect(engine.launch())
    np.testing.assert_allclose(engine.params()["weight"], expected(1)[0], rtol=2e-6, atol=1e-7)


def content(record: Any, n: Any, **more: Any) -> RecordDict:
    return RecordDict({"arrays": record, "metrics": MetricRecord({"num-examples": n}), **more})


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda k, r, n: content(r, n + 1), r"n=31 examples, and the client has 30"),
        (
            lambda k, r, n: content(ArrayRecord([*r.to_numpy_ndarrays(), START[0]]), n),
            r"arrays \['0', '1', '2'\]",
        ),
        (
            lambda k, r, n: content(ArrayRecord(r.to_numpy_ndarrays()[::-1]), n),
            r"shape \(\), it was given \(13,\)",
        ),
        (lambda k, r, n: content(r, n, again=r), "2 ArrayRecords: one is wanted"),
        (lambda k, r, n: RecordDict({"arrays": r}), "0 MetricRecords: one is wanted"),
        (
            lambda k, r, n: RecordDict({"arrays": r, "metrics": MetricRecord({"examples": n})}),
            r"has \['examples'\], and no 'num-examples'",
        ),
    ],
)
def test_a_wrong_reply_is_refused(answer: Any, message: str) -> None:
    def third(k: int, record: Any, n: int) -> RecordDict:
        return answer(k, record, n) if k == 2 else content(record, n)

    task = flower.task(message_app(third), partitions=PARTITIONS, initial=START)
    assert trained(task, 1)[1] == ""
    assert re.search(message, trained(task, 2)[1])


def test_an_arrays_order_in_the_reply_does_not_matter_its_name_does() -> None:
    def reverse(k: int, record: Any, n: int) -> RecordDict:
        return content(ArrayRecord({key: record[key] for key in reversed(list(record))}), n)

    task = flower.task(message_app(reverse), partitions=PARTITIONS, initial=START)
    found, message = trained(task, 0)
    assert not message
    np.testing.assert_array_equal(found, np.r_[START[0], START[1]])


def test_mods_and_errors_inside_an_app() -> None:
    def mod(message: Message, context: Context, call: Any) -> Message:
        if context.node_config["partition-id"] == 3:
            raise ValueError("no such bank")
        return call(message, context)

    task = flower.task(ClientApp(wrapped_fn, mods=[mod]), partitions=PARTITIONS)
    engine = make_engine(dure.FedAvg(), task, COUNTS, **LOCAL)
    with pytest.raises(dure.RunError, match=r"Client 3 failed in round 1.*no such bank"):
        engine.collect(engine.launch())


def test_state_of_a_client_is_refused_not_lost() -> None:
    def keeps(context: Context) -> Any:
        context.state["memory"] = MetricRecord({"rounds": 1})
        return numpy_fn(context)

    for client in (keeps, ClientApp(keeps)):
        task = flower.task(client, partitions=PARTITIONS, initial=START)
        assert "'memory' into context.state" in trained(task, 0)[1]


def test_what_a_client_does_not_have() -> None:
    class Untrained(NumPyClient):
        pass

    with pytest.raises(dure.ConfigError, match="no parameters to start from"):
        flower.task(lambda context: Untrained(), partitions=1)
    with pytest.raises(dure.ConfigError, match="no parameters to start from"):
        flower.task(ClientApp(lambda context: Untrained().to_client()), partitions=1)
    with pytest.raises(dure.ConfigError, match="no parameters to start from"):
        flower.task(message_app(), partitions=1)
    task = flower.task(
        ClientApp(lambda context: Untrained().to_client()), partitions=PARTITIONS, initial=START
    )
    assert "does not implement `fit`" in trained(task, 0)[1]
