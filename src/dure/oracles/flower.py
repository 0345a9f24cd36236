"""Clients written for Flower, asked to train, to evaluate and for a first model as Flower asks them.

flwr is imported only where its own classes are needed: a `NumPyClient` is asked by the names of its methods.
"""

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from dure.errors import ConfigError, RunError

EXAMPLES = "num-examples"  # Flower's key for the weight in the replies of its message API
_LIFETIME = 12 * 3600.0  # Flower's default, in seconds


class Reply(NamedTuple):
    """What a client said.

    Attributes:
        arrays: the parameters, in the order in which they were sent; none from an evaluation.
        examples: how many examples it says that it worked on.
        metrics: name → number, or what else Flower lets a client report; an evaluation's "loss" is among them.
    """

    arrays: list[np.ndarray]
    examples: Any
    metrics: dict[str, Any]


@runtime_checkable
class Asked(Protocol):
    """One client, whatever its form."""

    def start(self) -> list[np.ndarray]:
        """Its own parameters; none if it doesn't give any."""

    def fit(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        """Train from these parameters."""

    def evaluate(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        """Evaluate these parameters."""


def context(node: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
    """Flower's `Context` of a client, with an empty state; without flwr an object with the same attributes."""
    fields = {
        "run_id": 0,
        "node_id": int(node["partition-id"]),
        "node_config": dict(node),
        "run_config": dict(run),
    }
    try:
        from flwr.app import Context, RecordDict
    except ImportError:
        return SimpleNamespace(**fields, state={})
    return Context(**fields, state=RecordDict())


def asked(client: Any, context: Any) -> Asked:
    """The client that belongs to this context.

    Args:
        client: a `ClientApp`, or a function context → `NumPyClient` or `Client`.
        context: see `context`.

    Raises:
        ConfigError: the function made something else.
    """
    if is_app(client):
        legacy = getattr(client, "_call", None) is not None
        return (_LegacyApp if legacy else _MessageApp)(client, context)
    made = client(context)
    made = getattr(made, "numpy_client", made)  # what NumPyClient.to_client() wraps
    if not callable(getattr(made, "fit", None)):
        raise ConfigError(f"client_fn returned {made!r}: a NumPyClient or a Client of Flower's is wanted.")
    return _Typed(made) if _of_flower(made, "Client") else _NumPy(made)


def is_app(client: Any) -> bool:
    """Whether it is a `ClientApp`."""
    return _of_flower(client, "ClientApp")


def check_client(client: Any) -> None:
    """It must be something that makes every client.

    Raises:
        ConfigError: saying what was given and what is wanted.
    """
    wanted = (
        "give a ClientApp, or a function client_fn(context) that makes a client (a NumPyClient or a Client)"
    )
    if is_app(client):
        return
    if inspect.isclass(client) or hasattr(client, "fit"):
        what = "a class" if inspect.isclass(client) else "one client"
        raise ConfigError(
            f"{client!r} is {what}, and every client has its own: {wanted}, such as "
            "lambda context: MyClient(context.node_config['partition-id'])."
        )
    if not callable(client):
        raise ConfigError(f"client={client!r} is not a client: {wanted}.")
    try:
        parameters = list(inspect.signature(client).parameters.values())
    except (TypeError, ValueError):
        return
    spread = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    names = [p.name for p in parameters if p.default is p.empty and p.kind not in spread]
    if len(names) > 1 or names == ["cid"] or not parameters:
        raise ConfigError(
            f"{getattr(client, '__name__', client)}({', '.join(names)}) is not called as Flower calls it today: "
            f"{wanted}. The number of the client is context.node_config['partition-id']."
        )


def _of_flower(thing: Any, name: str) -> bool:
    """Whether a class of flwr with this name is among the ancestors, without importing it."""
    return any(c.__name__ == name and c.__module__.startswith("flwr.") for c in type(thing).__mro__)


@dataclass(frozen=True)
class _NumPy:
    """A `NumPyClient`, or anything with its methods."""

    client: Any

    def start(self) -> list[np.ndarray]:
        give = getattr(self.client, "get_parameters", None)
        return [] if give is None else list(give(config={}))

    def fit(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        found = self.client.fit(list(arrays.values()), dict(config))
        new, examples, metrics = _three(found, "fit", "parameters")
        if isinstance(new, np.ndarray) or not isinstance(new, Sequence):
            raise ConfigError(
                f"fit returned its parameters as {type(new).__name__}: a list of arrays is wanted."
            )
        return Reply(list(new), examples, dict(metrics))

    def evaluate(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        found = self.client.evaluate(list(arrays.values()), dict(config))
        loss, examples, metrics = _three(found, "evaluate", "loss")
        return Reply([], examples, {**metrics, "loss": float(loss)})


def _three(found: Any, method: str, first: str) -> tuple[Any, Any, Mapping[str, Any]]:
    if not isinstance(found, tuple | list) or len(found) != 3 or not isinstance(found[2], Mapping):
        several = isinstance(found, tuple | list)
        shown = f"({', '.join(type(x).__name__ for x in found)})" if several else f"a {type(found).__name__}"
        raise ConfigError(f"{method} returned {shown}; it must return ({first}, num_examples, metrics).")
    one, examples, metrics = found
    return one, examples, metrics


@dataclass(frozen=True)
class _Typed:
    """A `Client`, which takes and gives Flower's own types."""

    client: Any

    def start(self) -> list[np.ndarray]:
        from flwr.common import GetParametersIns, parameters_to_ndarrays

        found = self.client.get_parameters(GetParametersIns(config={}))
        return list(parameters_to_ndarrays(found.parameters))

    def fit(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays

        sent = ndarrays_to_parameters(list(arrays.values()))
        found = self._well(self.client.fit(FitIns(sent, dict(config))))
        return Reply(list(parameters_to_ndarrays(found.parameters)), found.num_examples, dict(found.metrics))

    def evaluate(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        from flwr.common import EvaluateIns, ndarrays_to_parameters

        sent = ndarrays_to_parameters(list(arrays.values()))
        found = self._well(self.client.evaluate(EvaluateIns(sent, dict(config))))
        return Reply([], found.num_examples, {**found.metrics, "loss": float(found.loss)})

    def _well(self, found: Any) -> Any:
        if found.status.code.value != 0:
            raise RunError(f"The client answers {found.status.code.name}: {found.status.message}")
        return found


class _App:
    """A `ClientApp`, which takes and gives messages."""

    def __init__(self, app: Callable[..., Any], context: Any):
        self.app, self.context = app, context

    def ask(self, kind: str, records: Mapping[str, Any]) -> Any:
        """The content of the reply to a message with these records.

        Raises:
            RunError: the reply is an error.
        """
        from flwr.app import Message, Metadata, RecordDict

        # With metadata of its own: a message without is made for the run of a server, and there is none.
        metadata = Metadata(
            run_id=self.context.run_id,
            message_id="",
            src_node_id=0,
            dst_node_id=self.context.node_id,
            reply_to_message_id="",
            group_id="",
            created_at=time.time(),
            ttl=_LIFETIME,
            message_type=kind,
        )
        reply = self.app(Message(content=RecordDict(dict(records)), metadata=metadata), self.context)
        if reply.has_error():
            raise RunError(f"The ClientApp replied with an error: {reply.error.reason}")
        return reply.content


class _MessageApp(_App):
    """One with functions under `@app.train()` and `@app.evaluate()`."""

    def start(self) -> list[np.ndarray]:
        return []  # in the message API only the server makes a first model

    def fit(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        content = self._ask("train", arrays, config)
        if len(content.array_records) != 1:
            raise ConfigError(f"The reply has {len(content.array_records)} ArrayRecords: one is wanted.")
        (record,) = content.array_records.values()
        if set(record) != set(arrays):
            raise ConfigError(f"The reply has the arrays {list(record)}, it was sent {list(arrays)}.")
        return Reply([record[name].numpy() for name in arrays], *self._metrics(content))

    def evaluate(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        return Reply([], *self._metrics(self._ask("evaluate", arrays, config)))

    def _ask(self, kind: str, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Any:
        from flwr.app import ConfigRecord

        return self.ask(kind, {"arrays": _record(arrays), "config": ConfigRecord(dict(config))})

    def _metrics(self, content: Any) -> tuple[Any, dict[str, Any]]:
        if len(content.metric_records) != 1:
            raise ConfigError(f"The reply has {len(content.metric_records)} MetricRecords: one is wanted.")
        (record,) = content.metric_records.values()
        if EXAMPLES not in record:
            raise ConfigError(f"The reply's MetricRecord has {list(record)}, and no {EXAMPLES!r}.")
        return record[EXAMPLES], {name: value for name, value in record.items() if name != EXAMPLES}


class _LegacyApp(_App):
    """One around a `client_fn`; these are the records that Flower sends to such apps."""

    def start(self) -> list[np.ndarray]:
        from flwr.app import ConfigRecord

        content = self.ask("get_parameters", {"getparametersins.config": ConfigRecord({})})
        if content.config_records["getparametersres.status"]["code"] != 0:
            return []  # its client has no get_parameters
        return list(content.array_records["getparametersres.parameters"].to_numpy_ndarrays())

    def fit(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        content = self._ask("train", "fit", arrays, config)
        new = content.array_records["fitres.parameters"].to_numpy_ndarrays()
        return Reply(
            list(new), self._examples(content, "fit"), dict(content.config_records["fitres.metrics"])
        )

    def evaluate(self, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Reply:
        content = self._ask("evaluate", "evaluate", arrays, config)
        loss = float(content.metric_records["evaluateres.loss"]["loss"])
        metrics = dict(content.config_records["evaluateres.metrics"])
        return Reply([], self._examples(content, "evaluate"), {**metrics, "loss": loss})

    def _ask(self, kind: str, method: str, arrays: dict[str, np.ndarray], config: Mapping[str, Any]) -> Any:
        from flwr.app import ConfigRecord

        sent = {f"{method}ins.parameters": _record(arrays), f"{method}ins.config": ConfigRecord(dict(config))}
        content = self.ask(kind, sent)
        status = content.config_records[f"{method}res.status"]
        if status["code"] != 0:
            raise RunError(f"The client answers with code {status['code']}: {status['message']}")
        return content

    def _examples(self, content: Any, method: str) -> Any:
        return content.metric_records[f"{method}res.num_examples"]["num_examples"]


def _record(arrays: Mapping[str, np.ndarray]) -> Any:
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})
