"""The local problem in PyTorch: min F_k(y) + ⟨v, y⟩ + (μ/2)‖y − a‖² from y = s, for one client or many together.

Clients whose model allows it (no buffers, no random numbers) run together: one pass of a traced graph computes
the gradients of all of them. The longest come first, so that the others drop off at the end.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dure.oracles.host.worker import failure
from dure.oracles.pytorch import losses
from dure.oracles.pytorch.chunk import Solve, solve_together
from dure.oracles.pytorch.functional import (
    as_tensor,
    foreign_states,
    put_buffers,
    seeded,
    take_buffers,
)
from dure.oracles.pytorch.together import Together

if TYPE_CHECKING:
    from dure.oracles.pytorch.host import TorchHost

Arrays = Mapping[str, np.ndarray]


#: How many clients, or numbers of theirs, one pass computes; up to twice as many. Small models share the cost of
#: starting operations; large ones gain nothing from company and leave the cache.
TOGETHER, NUMBERS = 32, 1 << 20


def solve(host: "TorchHost", job: Solve, given: Arrays, wanted: Arrays) -> list[Any]:
    """Solve for each row of what is given (one row for all where they share it)."""
    clients = wanted["w"].shape[0]
    f = host.functional
    if "frozen" in given and f.put_frozen(given["frozen"][0]):
        host.known.pop("together", None)  # its graphs may hold something computed from the old values
    together = together_for(host, job, clients)
    if together is not None:
        for rows in groups(clients, f.size):
            mine = {name: array[rows] if len(array) == clients else array for name, array in given.items()}
            into = {name: array[rows] for name, array in wanted.items()}
            solve_together(host.column, together, job, mine, into)
        return []
    failures = []
    for k in range(clients):
        mine = {name: array[k % len(array)] for name, array in given.items()}
        into = {name: array[k : k + 1] for name, array in wanted.items()}
        try:
            _One(host, job, mine).solve(into)
        except Exception as error:
            for array in into.values():
                array[...] = np.nan if array.dtype.kind == "f" else 0
            failures.append(failure(k, error))
    return failures


def together_for(host: "TorchHost", job: Solve, clients: int) -> Together | None:
    """What computes so many clients together, or None where they are solved one after another."""
    if clients < 2 or not job.batch or job.changing:
        return None
    together: Together = host.known.setdefault("together", Together(host.functional, host.loss))
    return together if together.possible(host.column(0), host.column(1), job.batch) else None


def groups(clients: int, size: int) -> list[slice]:
    """The rows of each group of clients that are computed together, for a model of so many parameters.

    The last bits of a convolution's gradient depend on how many are computed together, so that groups follow from the
    question alone and not from who answers it, and a group that is asked about by itself is one group again. None is
    of one client, which another path would solve.
    """
    count = max(clients // max(min(TOGETHER, NUMBERS // size), 2), 1)
    return [slice(k, None, count) for k in range(count)]  # the longest come first: every group has some


# ----- one client -----------------------------------------------------------------------------------------


class _One:
    """One client's local problem; the module's parameters are views of `y` while it is at work."""

    def __init__(self, host: "TorchHost", job: Solve, given: Arrays):
        self._host, self._job, self._given = host, job, given
        self._f = f = host.functional

        def vector(name: str) -> Tensor | None:
            return as_tensor(given[name]).to(f.options.device) if name in given else None

        start, anchor, x, gx = map(vector, ("start", "anchor", "x", "gx"))
        assert start is not None
        self.y = start.clone()
        self._v, self._a = vector("linear"), start if anchor is None else anchor
        self._reference = None if x is None or gx is None else (x, gx)
        self._mu, self._factor = float(given["prox"]), float(given["factor"])
        self._rates = given["rates"].tolist() if "rates" in given else None
        self._numbers = given["numbers"].tolist()[: len(job.rule.numbers)]
        self._batches = self._read()

    def _read(self) -> list[list[Tensor]]:
        """The batches of one pass: all rows of the client, or its plan's; places that are not there are left out."""
        given, size, steps = self._given, self._job.batch, int(self._given["steps"])
        columns = [self._host.column(i) for i in (0, 1)]
        if not size:
            begin = int(given["row"])
            return [[c[begin : begin + int(given["size"])] for c in columns]] * steps
        first = int(given["first"])
        plan = given["order"][first : first + steps * size].reshape(steps, size).astype(np.int64)
        mine = [c[torch.from_numpy(plan[plan >= 0])] for c in columns]
        ends = np.cumsum([0, *(plan >= 0).sum(1)])
        return [[c[a:b] for c in mine] for a, b in pairwise(ends)]

    def solve(self, wanted: Arrays) -> None:
        """All local steps."""
        f, (lo, hi), y = self._f, self._job.span, self.y
        total, seen = torch.zeros((), dtype=torch.float64), 0
        f.module.train()
        f.begin()
        if "frozen" in self._given:
            f.put_frozen(self._given["frozen"])
        with torch.no_grad():
            f.put(y)
            put_buffers(f, self._given)
            move = self._job.rule.start(y[lo:hi], self._numbers)
            simple = self._simple()
            for s in range(len(self._batches) * self._job.repeats):
                batch = self._batches[s % len(self._batches)]
                loss = self._backward(batch, s)
                total += loss.double() * len(batch[0])
                seen += len(batch[0])
                if simple:  # no gradient in one piece is needed
                    torch._foreach_add_(f.views(y), f.gradients(), alpha=-self._numbers[0] * self._factor)
                    continue
                g = self._with_terms(f.collect(), batch, s)
                move(y[lo:hi], g[lo:hi], None if self._rates is None else self._rates[s], self._factor)
                if not f.plain:
                    f.put(y)
            wanted["w"][0] = y.cpu().numpy()
            wanted["loss"][0] = float(total) / max(seen, 1)
            take_buffers(f, {name: array[0] for name, array in wanted.items()})

    def _simple(self) -> bool:
        """Whether a step is the gradient times a number."""
        job, f = self._job, self._f
        terms = job.prox or self._v is not None or self._reference is not None
        return job.rule.plain and f.plain and not terms and job.span == (0, f.size)

    def _with_terms(self, g: Tensor, batch: list[Tensor], s: int) -> Tensor:
        """The gradient of the whole local problem: variance reduced, with the linear and the proximal term."""
        f = self._f
        if self._reference is not None:
            x, gx = self._reference
            g, kept = g.clone(), f.kept_buffers()
            f.put(x)
            self._backward(batch, s)
            g += gx - f.collect()
            f.put(self.y)
            f.return_buffers(kept)
        if self._v is not None:
            g = g + self._v
        return g.add(self.y - self._a, alpha=self._mu) if self._job.prox else g

    def _backward(self, batch: list[Tensor], step: int) -> Tensor:
        """A batch's mean loss, whose gradient is left in `f`; in pieces of at most `microbatch` rows."""
        f, (inputs, targets) = self._f, batch
        most = max(f.options.microbatch or len(inputs), 1)

        def passes(scale: float) -> Tensor:
            total = torch.zeros(())
            for i in range(0, len(inputs), most):
                seeded(self._given["key"], step, i, foreign=f.foreign is not False)
                before = foreign_states() if f.foreign is None else None
                outputs = f.forward(inputs[i : i + most].clone())  # which may be changed in place
                if f.foreign is None:
                    f.foreign = foreign_states() != before
                share = len(outputs) / len(inputs)
                value = losses.mean(self._host.loss, outputs, targets[i : i + most])
                factor = share * scale
                (value * factor if factor != 1 else value).backward()  # type: ignore[no-untyped-call]
                total = total + value.detach().cpu() * share
            return total

        with torch.enable_grad():
            total: Tensor = f.backward(passes)
        return total
