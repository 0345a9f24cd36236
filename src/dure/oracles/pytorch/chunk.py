"""A chunk of clients solved together: the longest come first, so that the others drop off at the end."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dure.oracles.pytorch.functional import as_tensor
from dure.oracles.pytorch.rules import Rule
from dure.oracles.pytorch.together import Together

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Solve:
    """A question: solve clients' local problems.

    Attributes:
        batch: B; 0: every step reads all of the client's rows.
        repeats: how many times a client's plan is gone through.
        rule: the local optimizer.
        span: the part of the vector that moves.
        prox: there is a proximal term.
        changing: frozen parameters are other ones in each round, and can't be part of a graph.
    """

    batch: int
    repeats: int
    rule: Rule
    span: tuple[int, int]
    prox: bool
    changing: bool = False


def solve_together(
    column: Callable[[int], Tensor], together: Together, job: Solve, given: Arrays, wanted: Arrays
) -> None:
    """Solve the local problems of all clients; see `dure.oracles.pytorch.solver`."""
    with torch.no_grad():
        chunk = _Chunk(column, together, job, given, len(wanted["w"]))
        chunk.run()
        wanted["w"][chunk.order] = chunk.y.cpu().numpy()
        wanted["loss"][chunk.order] = chunk.loss().cpu().numpy()


class _Chunk:
    """What the clients share and what is their own, in the order of their steps."""

    def __init__(
        self, column: Callable[[int], Tensor], together: Together, job: Solve, given: Arrays, clients: int
    ):
        steps = np.broadcast_to(given["steps"], clients)
        self.order = np.argsort(-steps, kind="stable")
        self._clients, self._together, self._job = clients, together, job
        self._f = f = together.functional
        device = f.options.device
        self._columns = [column(0), column(1)]

        def rows(name: str) -> Tensor:
            """(m, …) in this order, or (1, …) where the clients share it."""
            array = given[name]
            own = len(array) == clients and clients > 1
            return as_tensor(array[self.order] if own else array).to(device)

        self.y = rows("start").expand(clients, -1).clone()
        self._v = rows("linear") if "linear" in given else None
        self._a = rows("anchor") if "anchor" in given else self.y.clone()
        self._reference = (rows("x").expand(clients, -1), rows("gx")) if "x" in given else None
        self._mu, self._factor = rows("prox").reshape(-1, 1), rows("factor").reshape(-1, 1)
        self._numbers = given["numbers"][0].tolist()[: len(job.rule.numbers)]
        self._rates = given["rates"][0].tolist() if "rates" in given else None
        self._plan(given, steps[self.order], device)

    def _plan(self, given: Arrays, steps: np.ndarray, device: str) -> None:
        """Rows of every step and client (steps, m, B), their weights in the batch's mean, and who is at work."""
        size, longest = self._job.batch, int(steps.max(initial=0))
        first, own = (np.broadcast_to(given[n], self._clients)[self.order] for n in ("first", "row"))
        turn = np.arange(longest)[:, None]
        there = turn < steps
        places = np.where(there, first + turn * size, 0)[:, :, None] + np.arange(size)
        index = np.where(there[:, :, None], given["order"][0][places], -1).astype(np.int64)
        mask = index >= 0
        self._counts = mask.sum(2)
        weights = mask / np.maximum(self._counts, 1)[:, :, None]
        self._index = torch.from_numpy(np.where(mask, index, own[:, None])).to(device)
        self._weights = torch.from_numpy(weights.astype(np.float32)).to(device)
        self._steps = steps
        self._losses = torch.zeros(longest * self._job.repeats, self._clients, device=device)

    def run(self) -> None:
        """All local steps."""
        job, f, y = self._job, self._f, self.y
        lo, hi = job.span
        step = job.rule.start(y[:, lo:hi], self._numbers)
        scaled = bool((self._factor != 1).any())
        terms = scaled or job.prox or self._v is not None or self._reference is not None
        simple = job.rule.plain and not terms and (lo, hi) == (0, f.size)
        everyone = np.arange(self._clients)
        for s in range(len(self._losses)):
            active = int((self._steps * job.repeats > s).sum())
            room = self._together.room(active, self._clients)
            turn = s % np.maximum(self._steps[:room], 1) if job.repeats > 1 else s
            index, weights = (
                t[turn, :room] if job.repeats == 1 else t[turn, everyone[:room]]
                for t in (self._index, self._weights)
            )
            flat = index.reshape(-1)
            batch = [c.index_select(0, flat).view(*index.shape, *c.shape[1:]) for c in self._columns]
            again = None if self._reference is None else [c.clone() for c in batch]  # forward may change them
            parts, loss = self._together.gradients(y[:room], batch, weights)
            self._losses[s, :room] = loss
            if simple:  # no gradient in one piece is needed
                for view, part in zip(f.views(y[:active]), parts, strict=True):
                    view.add_(part[:active], alpha=-self._numbers[0])
                continue
            g = self._together.joined(parts)
            if self._reference is not None:
                x, gx = self._reference
                g = (
                    g
                    - self._together.joined(self._together.gradients(x[:room], again or batch, weights)[0])
                    + gx[:room]
                )
            now, g = y[:active], g[:active]
            if self._v is not None:
                g = g + self._v[:active]
            if job.prox:
                g = g + self._mu[:active] * (now - self._a[:active])
            rate = None if self._rates is None else self._rates[s]
            step(now[:, lo:hi], g[:, lo:hi], rate, self._factor[:active] if scaled else 1.0)

    def loss(self) -> Tensor:
        """Each client's mean loss over the rows of its steps."""
        job, counts = self._job, torch.from_numpy(self._counts).to(self._losses)
        if job.repeats == 1:
            return (self._losses * counts).sum(0) / counts.sum(0).clamp(min=1)
        turns = torch.arange(len(self._losses))[:, None]
        steps = torch.from_numpy(np.maximum(self._steps, 1).astype(np.int64))
        there = (turns < steps * job.repeats).to(counts)
        rows = counts.gather(0, turns % steps) * there if len(counts) else counts
        return (self._losses * rows).sum(0) / rows.sum(0).clamp(min=1)
