"""What a worker answers about clients whose model is a scikit-learn estimator."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.oracles.estimators import exact
from dure.oracles.host.base import Host
from dure.oracles.host.worker import failure

Arrays = Mapping[str, np.ndarray]


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
