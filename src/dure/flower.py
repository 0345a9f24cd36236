"""Clients written for Flower (flower.ai), trained by dure: a `client_fn` or a `ClientApp` as it is.

    task = dure.flower.task(client_fn, partitions=10)
    data = dure.data.counts([120, 80, …])               # the clients read their rows themselves
    run = dure.simulate(dure.FedAvg(), task, data, rounds=3)
    dure.flower.evaluate(task, run.state_dict()).mean   # every client's evaluate

flwr itself is only needed for its own classes: `pip install "dure[flower]"`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dure.errors import ConfigError, DataError, RunError, sentence
from dure.oracles import flower as clients
from dure.oracles import flower_checks as checks
from dure.oracles import metrics as m
from dure.oracles.function import FunctionOutside, oracle
from dure.oracles.metrics import Metric
from dure.oracles.task import Task

__all__ = ["Evaluation", "evaluate", "task"]

Config = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]


class Evaluation(NamedTuple):
    """What clients' own evaluations say.

    Attributes:
        mean: measure → mean over clients, weighted by their numbers of examples; measures that are single numbers
            and that every client reports. "loss" is what a NumPyClient's or Client's `evaluate` returns as such.
        clients: a dict for each client, with "client", "examples" and all that it reports.
    """

    mean: dict[str, float]
    clients: list[dict[str, Any]]


def task(
    client: Any,
    *,
    partitions: int,
    initial: Any = None,
    config: Any = None,
    node_config: Any = None,
    run_config: Any = None,
    train_loss: str = "train_loss",
    predict: Callable[..., Any] | None = None,
    loss: Callable[[Any, Any], Any] = m.softmax_cross_entropy,
    metrics: tuple[Metric, ...] = (m.accuracy,),
    input: str = "x",
    target: str = "y",
    name: str | None = None,
) -> Task:
    """A task whose local work is a Flower client's `fit`, for methods that take what a client returns.

    Client k of the data is partition k. It is made anew in a worker process for every round it takes part in, as
    Flower does. It reads its rows itself, or from a dure data set that it closes over; the data that are given to
    `simulate` say how many examples it has, which is its weight, and `fit` must return that number. Of the metrics
    that `fit` returns `train_loss` is recorded, the others are not.

    Args:
        client: `client_fn(context)` → a NumPyClient or a Client, or a ClientApp: one around a `client_fn`, or one
            with `@app.train()` and `@app.evaluate()`. Its state is empty in every round: one that writes into
            `context.state` is refused.
        partitions: number of clients, `num-partitions` in their `node_config`; the data must have as many.
        initial: the parameters at the start: a list of float arrays, or name → array (a state dict), or an
            ArrayRecord. None: what partition 0 gives (`get_parameters`), which only a `client_fn` can.
        config: what `fit` is given as its `config` (the message API: the ConfigRecord "config"), or a function of the
            round (1, 2, …); dure adds "server-round" and "seed", an integer for this client and round.
        node_config: more of `context.node_config`, the same for all.
        run_config: `context.run_config`.
        train_loss: name of the metric of `fit` that is recorded as the training loss: the mean over the clients that
            report it, None where nobody does.
        predict: `predict(params, inputs)` → outputs (B, …), for evaluation in dure on the data's test rows; `params` as
            in `initial`. None: nothing is evaluated in the rounds; see `evaluate` for the clients' own.
        loss: (outputs, targets) → (B,), for evaluation with `predict`.
        metrics: for evaluation with `predict`; see `dure.oracles.metrics`.
        input: column of inputs.
        target: column of targets.
        name: for records; by default the function's name.

    Raises:
        ConfigError: not a client; no parameters to start from, or parameters that are not finite float arrays; a
            configuration that is not a dict.
        RunError: partition 0 failed when it was asked for its parameters.
    """
    clients.check_client(client)
    if isinstance(partitions, bool) or not isinstance(partitions, int | np.integer) or partitions < 1:
        raise ConfigError(
            f"partitions={partitions!r} is not allowed: it is the number of clients, at least 1."
        )
    nodes, runs = checks.config_dict("node_config", node_config), checks.config_dict("run_config", run_config)
    if not callable(config):
        checks.fit_config(config)
    start = (
        _start(Clients(client, int(partitions), nodes, runs))
        if initial is None
        else checks.initial_arrays(initial)
    )
    names = tuple(start) if isinstance(start, dict) else None
    made = Clients(client, int(partitions), nodes, runs, config or {}, names, train_loss)
    found = oracle(
        made,
        init=start,
        predict=predict,
        loss=loss,
        metrics=metrics,
        input=input,
        target=target,
        name=name or str(getattr(client, "__name__", type(client).__name__)),
    )
    assert isinstance(found.model.outside, FunctionOutside)
    outside = replace(found.model.outside, clients=int(partitions))
    return replace(found, model=replace(found.model, outside=outside))


def evaluate(task: Task, params: Any, *, ids: Any = None, config: Any = None) -> Evaluation:
    """Ask clients to evaluate parameters on what they hold: Flower's federated evaluation.

    They are asked in this process, one after another.

    Args:
        task: what `flower.task` made.
        params: `run.state_dict()`, or parameters as `initial` had them.
        ids: which clients, a list of their numbers; None: all.
        config: what `evaluate` is given as its `config`, a dict.

    Raises:
        ConfigError: another task, parameters that aren't the task's, a client that isn't there.
        RunError: a client raised an error, which is its cause, or says that it evaluated on an impossible number of
            examples; the client is named.
        DataError: no client has evaluated on any example.
    """
    host = getattr(task.model.outside, "host", None)
    made = getattr(host, "train", None)
    if host is None or not isinstance(made, Clients):
        raise ConfigError(
            f"Task {task.name!r} has no Flower clients to ask: give what dure.flower.task made."
        )
    arrays = checks.fitting(made.named(checks.arrays_of("params", params)), host.shape)
    told = checks.config_dict("config", config)
    rows = []
    for k in checks.ids_of(ids, made.partitions):
        try:
            reply = made.ask(k, "evaluate", arrays, dict(told))
        except Exception as error:
            raise RunError(f"Client {k} failed (evaluate): {type(error).__name__}: {error}") from error
        n = reply.examples
        if not checks.is_number(n) or not 0 <= n < np.inf or n != int(n):
            raise RunError(
                f"Client {k} failed (evaluate): it says that it evaluated on n={n!r} examples, by which its measures "
                "would be weighted. Let it return their number, 0 or more."
            )
        rows.append({"client": k, "examples": n, **reply.metrics})
    weights = np.array([row["examples"] for row in rows], float)
    if not weights.sum() > 0:
        raise DataError("No client has evaluated on any example: there is no mean.")
    mean = {
        key: float(np.average([row[key] for row in rows], weights=weights))
        for key in rows[0]
        if key not in ("client", "examples") and all(checks.is_number(row.get(key)) for row in rows)
    }
    return Evaluation(mean, rows)


@dataclass(frozen=True)
class Clients:
    """Flower clients as a function that trains, (params, data, config) → (params, n, loss)."""

    client: Any
    partitions: int
    node_config: Mapping[str, Any]
    run_config: Mapping[str, Any]
    config: Config | None = None
    names: tuple[str, ...] | None = None
    train_loss: str = ""

    __name__ = "fit"  # which errors about what it returned begin with

    def __call__(self, params: Any, data: Any, config: Mapping[str, Any]) -> Any:
        """Let the client that is named in `config` train; its rows are not given to it."""
        k, round = config["client"], config["round"]
        if k >= self.partitions:
            raise ConfigError(
                f"Client {k} takes part, and clients are told that there are {self.partitions}: give "
                "flower.task(…, partitions=) the data's number of clients."
            )
        own = checks.fit_config(self.config(round) if callable(self.config) else self.config)
        arrays = self.named(params)
        reply = self.ask(k, "fit", arrays, {**own, "server-round": round, "seed": config["seed"]})
        if len(reply.arrays) != len(arrays):
            raise ConfigError(f"fit returned {len(reply.arrays)} arrays, it was given {len(arrays)}.")
        loss = reply.metrics.get(self.train_loss)
        known = () if loss is None else (loss,)
        new = reply.arrays if self.names is None else dict(zip(self.names, reply.arrays, strict=True))
        return new, reply.examples, *known

    def ask(
        self, k: int, method: str, arrays: dict[str, np.ndarray], config: dict[str, Any]
    ) -> clients.Reply:
        """Client k's answer.

        Raises:
            ConfigError: it keeps something in its state.
        """
        context = self.context(k)
        reply: clients.Reply = getattr(clients.asked(self.client, context), method)(arrays, config)
        if len(context.state):
            raise ConfigError(
                f"The client wrote {', '.join(map(repr, context.state))} into context.state, to find it there in its "
                "next round. dure does not keep it: clients work in different processes, and what they keep may only "
                "change when their update was used. Use a method with client state, such as dure.Scaffold or "
                "dure.Ditto, on a dure or PyTorch model."
            )
        return reply

    def context(self, k: int) -> Any:
        """Flower's context of client k."""
        node = {**self.node_config, "partition-id": k, "num-partitions": self.partitions}
        return clients.context(node, self.run_config)

    def named(self, params: Any) -> dict[str, np.ndarray]:
        """Parameters in the order of `initial`, under the names that Flower sends them with.

        Raises:
            ConfigError: another number of them, or other names.
        """
        if isinstance(params, Mapping):
            # A list's tensors have numbers of equal width for names in a state dict.
            order = sorted(params) if self.names is None else self.names
            if self.names is None and [str(name).lstrip("0") or "0" for name in order] != [
                str(i) for i in range(len(order))
            ]:
                raise ConfigError(
                    f"params has {order}, and the clients' parameters have no names: give a list of arrays."
                )
            if set(order) != set(params):
                raise ConfigError(
                    f"params has {sorted(params)}, the clients' parameters are {sorted(order)}."
                )
            params = [params[name] for name in order]
        names = self.names or tuple(map(str, range(len(params))))
        if len(params) != len(names):
            raise ConfigError(f"params has {len(params)} arrays, the clients' parameters are {len(names)}.")
        return {name: np.asarray(array) for name, array in zip(names, params, strict=True)}


def _start(made: Clients) -> list[np.ndarray]:
    try:
        found = clients.asked(made.client, made.context(0)).start()
    except Exception as error:
        raise RunError(
            "Client 0 failed when it was asked for its parameters: "
            f"{sentence(f'{type(error).__name__}: {error}')} Mend it, or give initial=."
        ) from error
    if not found:
        raise ConfigError(
            "There are no parameters to start from: give initial=, a list of arrays or a state dict, or let the client "
            "have get_parameters."
        )
    return [checks.finite(f"Parameter {i} that client 0 gives to start from", a) for i, a in enumerate(found)]
