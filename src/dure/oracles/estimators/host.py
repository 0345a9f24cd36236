"""What a worker answers about clients whose model is a scikit-learn estimator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import DataError
from dure.oracles.estimators import exact
from dure.oracles.host.base import Host
from dure.oracles.host.worker import failure

Arrays = Mapping[str, np.ndarray]


def check_columns(estimator: Any, features: int, classes: int | None, task: Any, columns: Arrays) -> None:
    """The data must be like those that the task was made for.

    Raises:
        DataError: they have other features or labels.
    """
    name, x, y = type(estimator).__name__, columns[task.input], columns[task.target]
    again = "Make it from these data: dure.scikit_learn(estimator, data)."
    if x.shape[1:] != (features,):
        raise DataError(
            f"Column {task.input!r} has rows of shape {x.shape[1:]}, and the task of {name} was made for {features} "
            f"features. {again}"
        )
    if y.ndim != 1 or (classes is not None and y.dtype.kind != "i"):
        raise DataError(
            f"Column {task.target!r} holds {y.dtype} of shape {y.shape[1:]} in each row, and the task of {name} was "
            f"made for {'one number' if classes is None else 'one label'}. {again}"
        )
    if classes is not None and len(y) and not (y.min() >= 0 and y.max() < classes):
        raise DataError(
            f"Column {task.target!r} holds labels {y.min()} … {y.max()}, and the task of {name} was made for "
            f"{classes} classes, 0 … {classes - 1}. {again}"
        )


class EstimatorHost(Host):
    """A model, and the columns that its clients read.

    Args:
        model: what the questions are about, such as `exact.Linear`.
        names: of the input and the target column.
        columns: training rows of all clients.
    """

    def __init__(self, model: Any, names: tuple[str, str], columns: Arrays):
        super().__init__(columns)
        self.model, self.names = model, names

    def answer(self, job: Any, given: Arrays, wanted: Arrays) -> list[Any]:
        """Answer for each row of what is given; `worker.failure` of each client that raised."""
        failures = []
        for k in range(len(next(iter(wanted.values())))):
            one = {name: array[k % len(array)] for name, array in given.items()}
            try:
                for name, value in job.answer(self.model, *self._rows(one), one).items():
                    wanted[name][k] = value
            except Exception as error:
                for array in wanted.values():
                    array[k] = np.nan if array.dtype.kind == "f" else 0
                failures.append(failure(k, error))
        return failures

    def _rows(self, given: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        assert self.columns is not None
        start, size = int(given["row"]), int(given["size"])
        x, y = (self.columns[name][start : start + size] for name in self.names)
        return x, y


@dataclass(frozen=True)
class Solve:
    """A question: the exact solution of a client's local problem, where the numbers in `span` move."""

    span: tuple[int, int]

    def answer(self, model: exact.Linear, x: np.ndarray, y: np.ndarray, given: Arrays) -> dict[str, Any]:
        """The solution and F_k there; a client without rows stays where it is."""
        if not len(x):
            return {"w": given["start"], "loss": 0.0}
        anchor = given.get("anchor", given["start"])
        problem = model.problem(x, y, given.get("linear"), float(given.get("prox", 0.0)), anchor)
        w = exact.solve(problem, given["start"], self.span)
        return {"w": w, "loss": problem.own(w)[0]}


@dataclass(frozen=True)
class Value:
    """A question: F_k and its gradient."""

    def answer(self, model: exact.Linear, x: np.ndarray, y: np.ndarray, given: Arrays) -> dict[str, Any]:
        """Both, 0 for a client without rows."""
        if not len(x):
            return {"loss": 0.0, "gradient": 0.0}
        value, gradient = model.problem(x, y).own(np.asarray(given["w"], np.float64))
        return {"loss": value, "gradient": gradient}
