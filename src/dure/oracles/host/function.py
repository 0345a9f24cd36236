"""What a worker answers about clients whose local work is a plain Python function."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dure.errors import ConfigError
from dure.oracles.host.base import NOT_REPORTED, Host
from dure.oracles.host.worker import failure

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Train:
    """A question: what the user's function makes of clients' models."""


@dataclass(frozen=True)
class Predict:
    """A question: what the model's outputs are for given inputs."""


@dataclass(frozen=True)
class Shape:
    """How a vector becomes the parameters: a dict or a list of arrays, or one array.

    Attributes:
        kind: "dict", "list" or "array".
        names: of the tensors, in the vector's order; for lists their numbers.
        shapes, dtypes: of the tensors.
    """

    kind: str
    names: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    def unpack(self, vector: np.ndarray) -> Any:
        """The parameters, which the user's function may write into."""
        ends = np.cumsum([0, *(int(np.prod(s, dtype=np.int64)) for s in self.shapes)])
        arrays = [
            vector[a:b].reshape(s).astype(d)
            for a, b, s, d in zip(ends[:-1], ends[1:], self.shapes, self.dtypes, strict=True)
        ]
        if self.kind == "array":
            return arrays[0]
        return list(arrays) if self.kind == "list" else dict(zip(self.names, arrays, strict=True))

    def pack(self, params: Any, who: str) -> np.ndarray:
        """The vector of the parameters.

        Raises:
            ConfigError: another structure or shape than it was given.
        """
        if self.kind == "dict":
            if not isinstance(params, Mapping) or set(params) != set(self.names):
                found = sorted(map(str, params)) if isinstance(params, Mapping) else type(params).__name__
                raise ConfigError(f"{who} returned parameters {found}, it was given {sorted(self.names)}.")
            arrays: Sequence[Any] = [params[name] for name in self.names]
        else:
            arrays = [params] if self.kind == "array" else list(params)
        if len(arrays) != len(self.shapes):
            raise ConfigError(f"{who} returned {len(arrays)} arrays, it was given {len(self.shapes)}.")
        flat = []
        for name, array, shape in zip(self.names, arrays, self.shapes, strict=True):
            array = np.asarray(array)
            if array.shape != shape:
                raise ConfigError(
                    f"{who} returned parameter {name!r} in shape {array.shape}, it was given {shape}."
                )
            flat.append(array.reshape(-1).astype(np.float32))
        return np.concatenate(flat)


class FunctionHost(Host):
    """A function that trains, and one that predicts.

    Args:
        train: (params, data, config) → (params, n) or (params, n, loss); without a loss, or with None, the answer's
            is `NOT_REPORTED`.
        predict: (params, inputs) → outputs, or None.
        shape: of the parameters.
        columns: training rows of all clients, or None where only predictions are asked for.
    """

    def __init__(
        self,
        train: Callable[..., Any],
        predict: Callable[..., Any] | None,
        shape: Shape,
        columns: Arrays | None = None,
    ):
        super().__init__(columns)
        self.train, self.predict, self.shape = train, predict, shape

    def answer(self, job: Any, given: Arrays, wanted: Arrays) -> list[Any]:
        """Answer for each row of what is given; `worker.failure` of each client that raised."""
        ask = self._one_client if isinstance(job, Train) else self._some_inputs
        failures = []
        for k in range(len(next(iter(wanted.values())))):
            try:
                ask({name: array[k % len(array)] for name, array in given.items()}, wanted, k)
            except Exception as error:
                for array in wanted.values():
                    array[k] = np.nan
                failures.append(failure(k, error))
        return failures

    def _one_client(self, given: Arrays, wanted: Arrays, k: int) -> None:
        assert self.columns is not None
        start, size = int(given["row"]), int(given["size"])
        if not size:
            wanted["w"][k], wanted["loss"][k] = given["start"], 0
            return
        data = {name: column[start : start + size] for name, column in self.columns.items()}
        for rows in data.values():  # all workers have these in memory together
            rows.flags.writeable = False
        words = given["key"].astype(np.uint64)
        config = {
            "round": int(given["round"]),
            "client": int(given["client"]),
            "seed": int(words[0] << np.uint64(31) ^ words[1]),
        }
        found = self.train(self.shape.unpack(given["start"]), data, config)
        who = getattr(self.train, "__name__", "The function")
        if not isinstance(found, tuple) or len(found) not in (2, 3):
            raise ConfigError(
                f"{who} returned a {type(found).__name__}; it must return (params, n) or (params, n, loss)."
            )
        params, n, *loss = found
        if n != size:
            raise ConfigError(
                f"{who} says that it trained on n={n!r} examples, and the client has {size}: updates are weighted by "
                "what the data say. Return the client's number of examples."
            )
        wanted["w"][k] = self.shape.pack(params, who)
        wanted["loss"][k] = NOT_REPORTED if not loss or loss[0] is None else float(loss[0])

    def _some_inputs(self, given: Arrays, wanted: Arrays, k: int) -> None:
        assert self.predict is not None
        outputs = np.asarray(self.predict(self.shape.unpack(given["w"]), given["inputs"]))
        if outputs.shape != wanted["outputs"].shape[1:]:
            raise ConfigError(f"predict returned shape {outputs.shape}, not {wanted['outputs'].shape[1:]}.")
        wanted["outputs"][k] = outputs
