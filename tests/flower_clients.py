"""A logistic regression as people write it for Flower, and FedAvg of it by hand. Found through `conftest.py`."""

from collections.abc import Callable
from typing import Any

import numpy as np

import dure
from dure.oracles.host.function import Train
from dure.oracles.layout import Layout

DATA = dure.data.heart()
PARTITIONS = DATA.clients
START = [np.full(13, 0.01, np.float32), np.zeros((), np.float32)]


def gradient(x: np.ndarray, y: np.ndarray, w: np.ndarray, b: Any) -> tuple[np.ndarray, Any]:
    p = 1 / (1 + np.exp(-(x @ w + b)))
    return x.T @ (p - y) / len(y), (p - y).mean()


def loss(x: np.ndarray, y: np.ndarray, w: np.ndarray, b: Any) -> float:
    z = x @ w + b
    return float(np.mean(np.logaddexp(0, z) - y * z))


def descend(k: int, parameters: list[np.ndarray], epochs: int, seed: Any) -> list[np.ndarray]:
    """Minibatch SGD on client k's rows: B = 10, rate 0.1."""
    rows, rng = DATA.client(k), np.random.default_rng(seed)
    w, b = (p.astype(np.float64) for p in parameters)
    for _ in range(epochs):
        order = rng.permutation(len(rows["y"]))
        for at in range(0, len(order), 10):
            batch = order[at : at + 10]
            gw, gb = gradient(rows["x"][batch], rows["y"][batch], w, b)
            w, b = w - 0.1 * gw, b - 0.1 * gb
    return [w.astype(np.float32), np.asarray(b, np.float32)]


def numpy_client(base: Any) -> Any:
    """The class, with `flwr.client.NumPyClient` or any other class as its base."""

    class Logistic(base):
        def __init__(self, k: int, epochs: int):
            self.k, self.epochs = k, epochs

        def get_parameters(self, config: Any) -> Any:
            return START

        def fit(self, parameters: Any, config: Any) -> Any:
            rows = DATA.client(self.k)
            new = descend(self.k, parameters, self.epochs, (self.k, config["server-round"]))
            return new, len(rows["y"]), {"train_loss": loss(rows["x"], rows["y"], *parameters)}

        def evaluate(self, parameters: Any, config: Any) -> Any:
            rows = DATA.client_test_rows(self.k)
            right = ((rows["x"] @ parameters[0] + parameters[1]) > 0) == rows["y"]
            return loss(rows["x"], rows["y"], *parameters), len(rows["y"]), {"accuracy": float(right.mean())}

    return Logistic


def by_hand(fit: Callable[[int, int, list[np.ndarray]], Any], rounds: int, weighted: bool = True) -> Any:
    """FedAvg in a few lines: `fit(k, round, parameters)` → (parameters, n), weighted mean, all clients."""
    parameters = START
    for round in range(1, rounds + 1):
        found = [fit(k, round, parameters) for k in range(PARTITIONS)]
        n = np.array([count if weighted else 1 for _, count in found], float)
        parameters = [
            np.asarray(
                sum(c * new[i].astype(float) for c, (new, _) in zip(n, found, strict=True)) / n.sum(),
                np.float32,
            )
            for i in range(len(START))
        ]
    return parameters


def expected(rounds: int, epochs: int = 2, weighted: bool = True) -> Any:
    """What FedAvg of these clients gives."""

    def fit(k: int, round: int, parameters: list[np.ndarray]) -> Any:
        return descend(k, parameters, epochs, (k, round)), len(DATA.client(k)["y"])

    return by_hand(fit, rounds, weighted)


def pooled(parameters: Any) -> tuple[float, float]:
    """Loss and accuracy over the test rows of all clients together: what weighting by examples must give."""
    rows = DATA.client_test
    assert rows is not None
    right = ((rows["x"] @ parameters[0] + parameters[1]) > 0) == rows["y"]
    return loss(rows["x"], rows["y"], *parameters), float(right.mean())


def trained(task: Any, k: int, round: int = 1) -> tuple[np.ndarray, str]:
    """(the vector that client k comes to from `START`, what went wrong), asked as a worker process is, without XLA."""
    variables = task.model.init(None)
    layout = Layout.of(variables)
    host = task.model.outside.bind(task, dure.data.counts(DATA.sizes).columns, layout, "local").host
    given = {
        "start": np.asarray(layout.flatten_params(variables.params))[None],
        "row": DATA.offsets[[k]],
        "size": DATA.sizes[[k]],
        "key": np.array([[1, 2]], np.uint32),
        "client": np.array([k]),
        "round": np.array([round]),
    }
    wanted = {"w": np.zeros((1, layout.size), np.float32), "loss": np.zeros(1, np.float32)}
    failures = host.answer(Train(), given, wanted)
    return wanted["w"][0], failures[0][1] if failures else ""
