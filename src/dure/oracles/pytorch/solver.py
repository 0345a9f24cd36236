"""The local problem in PyTorch: min F_k(y) + ⟨v, y⟩ + (μ/2)‖y − a‖² from y = s, for one client or many together.

Clients whose model allows it (no buffers, no random numbers) run together: one pass of a traced graph computes
the gradients of all of them. The longest come first, so that the others drop off at the end.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dure.oracles.host.worker import failure
from dure.oracles.pytorch import losses
from dure.oracles.pytorch.chunk import Solve, solve_together
from dure.oracles.pytorch.functional import (
    Functional,
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
    together = together_for(host, job, clients)
    if together is not None:
        for rows in groups(clients, host.functional.size):
            mine = {name: array[rows] if len(array) == clients else array for name, array in given.items()}
            into = {name: array[rows] for name, array in wanted.items()}
            solve_together(host.column, together, job, mine, into)
        return []
    failures = []
    for k in range(clients):
        mine = {name: array[k % len(array)] for name, array in given.items()}
        into = {name: array[k : k + 1] for name, array in wanted.items()}
        try:
            _solve_one(host, job, mine, into)
        except Exception as error:
            for array in into.values():
                array[...] = np.nan if array.dtype.kind == "f" else 0
            failures.append(failure(k, error))
    return failures


def together_for(host: "TorchHost", job: Solve, clients: int) -> Together | None:
    """What computes so many clients together, or None where they are solved one after another."""
    if clients < 2 or not job.batch:
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


def _vector(array: np.ndarray, f: Functional) -> Tensor:
    return as_tensor(array).to(f.options.device)


# ----- one client -----------------------------------------------------------------------------------------


def _solve_one(host: "TorchHost", job: Solve, given: Arrays, wanted: Arrays) -> None:
    f = host.functional
    f.module.train()
    lo, hi = job.span
    y = _vector(given["start"], f).clone()
    v = _vector(given["linear"], f) if "linear" in given else None
    a = _vector(given["anchor"], f) if "anchor" in given else y.clone()
    reference = (_vector(given["x"], f), _vector(given["gx"], f)) if "x" in given else None
    mu, factor = float(given["prox"]), float(given["factor"])
    rates = given["rates"].tolist() if "rates" in given else None
    once = int(given["steps"])
    rows = _plan(job, given, once)
    total, seen = torch.zeros((), dtype=torch.float64), 0
    with torch.no_grad():
        f.put(y)
        put_buffers(f, given)
        move = job.rule.start(y[lo:hi], given["numbers"].tolist()[: len(job.rule.numbers)])
        order = None if job.batch == 0 else np.concatenate([*rows, np.zeros(0, np.int64)])
        data = [host.column(i) for i in (0, 1)]
        mine = data if order is None else [c[torch.from_numpy(order)] for c in data]
        ends = np.cumsum([0, *map(len, rows)])
        for s in range(once * job.repeats):
            turn = s % once
            begin, end = (
                (int(given["row"]), int(given["row"] + given["size"]))
                if order is None
                else ends[turn : turn + 2]
            )
            batch = [c[begin:end] for c in mine]
            loss, g = _gradient(f, host.loss, batch, given["key"], s)
            if reference is not None:
                g = g.clone()
                kept = _kept_buffers(f)
                f.put(reference[0])
                g += reference[1] - _gradient(f, host.loss, batch, given["key"], s)[1]
                f.put(y)
                _return_buffers(f, kept)
            if v is not None:
                g = g + v
            if job.prox:
                g = g.add(y - a, alpha=mu)
            move(y[lo:hi], g[lo:hi], None if rates is None else rates[s], factor)
            if not f.plain:
                f.put(y)
            total += loss.double() * (end - begin)
            seen += end - begin
        wanted["w"][0] = y.cpu().numpy()
        wanted["loss"][0] = float(total) / max(seen, 1)
        take_buffers(f, {name: array[0] for name, array in wanted.items()})


def _plan(job: Solve, given: Arrays, steps: int) -> list[np.ndarray]:
    """The rows of each step; places of a short last batch that are not there are left out."""
    if job.batch == 0:
        return []
    first, size = int(given["first"]), job.batch
    batches = given["order"][first : first + steps * size].reshape(steps, size).astype(np.int64)
    return [batch[batch >= 0] for batch in batches]


def _gradient(
    f: Functional, loss: Any, batch: list[Tensor], key: np.ndarray, step: int
) -> tuple[Tensor, Tensor]:
    """(mean loss, gradient (d,)) of a batch, in pieces of at most `microbatch` rows."""
    inputs, targets = batch
    f.zero()
    most, total = f.options.microbatch or len(inputs), torch.zeros(())
    with torch.enable_grad():
        for i in range(0, len(inputs), max(most, 1)):
            seeded(key, step, i, foreign=f.foreign is not False)
            before = foreign_states() if f.foreign is None else None
            outputs = f.forward(inputs[i : i + most].clone())  # which may be changed in place
            if f.foreign is None:
                f.foreign = foreign_states() != before
            share = len(outputs) / len(inputs)
            value = losses.mean(loss, outputs, targets[i : i + most])
            (value * share if share != 1 else value).backward()  # type: ignore[no-untyped-call]
            total = total + value.detach().cpu() * share
    return total, f.collect()


def _kept_buffers(f: Functional) -> list[Tensor]:
    return [getattr(owner, name).clone() for _, owner, name in f.buffers]


def _return_buffers(f: Functional, kept: list[Tensor]) -> None:
    for (_, owner, name), value in zip(f.buffers, kept, strict=True):
        getattr(owner, name).copy_(value)
