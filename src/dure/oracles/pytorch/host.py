"""What a worker (or this process) answers about clients whose model is a PyTorch module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dure.oracles.host.base import Host
from dure.oracles.host.worker import failure
from dure.oracles.pytorch import solver
from dure.oracles.pytorch.chunk import Solve
from dure.oracles.pytorch.functional import Functional, as_tensor, put_buffers, seeded, take_buffers
from dure.oracles.pytorch.rules import Path, follow

Arrays = Mapping[str, np.ndarray]
_trying = Lock()  # a trial runs the module, and several devices ask


@dataclass(frozen=True)
class Pass:
    """A question: run the module on given rows.

    Attributes:
        backward: the answer is the gradient of the outputs' product with a cotangent.
        train: training mode, with dropout and batch statistics.
        features: the representation in the place of the outputs.
    """

    backward: bool
    train: bool
    features: bool


class TorchHost(Host):
    """A module, and the columns that its clients read.

    Args:
        functional: makes the module with its tensors in vectors; called where it is used.
        columns: training rows, or None where only outputs are asked for.
        names: of the input and the target column.
        loss: a name of `losses.OWN`, or `losses.Given`.
    """

    def __init__(
        self,
        functional: Callable[[], Functional],
        columns: Arrays | None = None,
        names: tuple[str, str] = ("", ""),
        loss: Any = None,
    ):
        super().__init__(columns)
        self._make, self._names, self.loss = functional, names, loss
        self._functional: Functional | None = None
        self._tensors: dict[str, Tensor] = {}
        self.known: dict[Any, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        """See `Host`; the module is made where it is used."""
        return {**super().__getstate__(), "_functional": None, "_tensors": {}, "known": {}}

    # ----- answers ------------------------------------------------------------------------------------

    @property
    def functional(self) -> Functional:
        """The module, made when first needed."""
        if self._functional is None:
            self._functional = self._make()
        return self._functional

    def column(self, which: int) -> Tensor:
        """The input (0) or target (1) column as a tensor on the module's device."""
        name = self._names[which]
        if name not in self._tensors:
            assert self.columns is not None
            tensor = as_tensor(self.columns[name])
            # Labels as PyTorch wants them, once and not at every step.
            labels = which == 1 and not tensor.is_floating_point()
            self._tensors[name] = (tensor.long() if labels else tensor).to(self.functional.options.device)
        return self._tensors[name]

    def answer(self, job: Any, given: Arrays, wanted: Arrays) -> list[Any]:
        """Answer for each row of what is given; `worker.failure` of each client that raised."""
        if isinstance(job, Pass):
            rows = next(iter(wanted.values())).shape[0]
            return [f for k in range(rows) for f in self._guarded(k, job, given, wanted)]
        if isinstance(job, Path):
            follow(job, given, wanted)
            return []
        return solver.solve(self, job, given, wanted)

    def groups(self, job: Any, given: Arrays, rows: int) -> list[np.ndarray] | None:
        """See `Host`."""
        if not isinstance(job, Solve):
            return None
        with _trying:
            if solver.together_for(self, job, rows) is None:
                return None
            return [np.arange(rows)[group] for group in solver.groups(rows, self.functional.size)]

    def _guarded(self, k: int, job: Pass, given: Arrays, wanted: Arrays) -> list[Any]:
        try:
            self._pass(
                job, {n: a[k % len(a)] for n, a in given.items()}, {n: a[k] for n, a in wanted.items()}
            )
        except Exception as error:
            for array in wanted.values():
                array[k] = np.nan if array.dtype.kind == "f" else 0
            return [failure(k, error)]
        return []

    def _pass(self, job: Pass, given: Arrays, wanted: Arrays) -> None:
        f = self.functional
        device = f.options.device
        f.module.train(job.train)
        names = [e.name for e in f.pieces]
        with torch.no_grad():
            vector = torch.cat([as_tensor(given["p:" + n]).reshape(-1).float() for n in names]).to(device)
            f.put(vector)
            put_buffers(f, given)
        there = np.flatnonzero(given["mask"]) if "mask" in given else np.arange(len(given["inputs"]))
        inputs = as_tensor(given["inputs"])[torch.from_numpy(there)].to(device)
        module = f.represent if job.features else f.forward

        def run() -> Tensor:
            if "key" in given:
                seeded(given["key"])
            return module(inputs.clone())

        if job.backward:
            cotangent = as_tensor(given["cotangent"])[torch.from_numpy(there)].to(device)

            def passes(scale: float) -> None:
                if len(there):
                    run().backward(cotangent * scale)  # type: ignore[no-untyped-call]

            f.begin()
            f.backward(passes)
            gradient = f.collect()
            for name, view in zip(names, f.views(gradient), strict=True):
                wanted["g:" + name][...] = view.cpu().numpy()
            return
        wanted["outputs"][...] = 0
        if len(there):
            with torch.no_grad():
                wanted["outputs"][there] = run().float().cpu().numpy()
        take_buffers(f, wanted)
