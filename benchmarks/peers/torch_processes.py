"""The careful PyTorch loop with one process per core, one thread each, and parameters in shared memory.

Clients are dealt out longest first to the process with the least to do. A round is one message to each
process and one back.
"""

from __future__ import annotations

import multiprocessing

import numpy as np
import torch
from _protocol import Clock, Data, Job, main
from _torch import from_torch
from torch import Tensor
from torch_loop import Trainer


def deal(trainer: Trainer, cohort: list[int], workers: int) -> list[list[int]]:
    """Cohort to workers, balanced by local steps."""
    hands: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    for k in sorted(cohort, key=trainer.steps, reverse=True):
        least = load.index(min(load))
        hands[least].append(k)
        load[least] += trainer.steps(k)
    return hands


def work(trainer: Trainer, pipe: object, current: Tensor, mine: Tensor) -> None:
    torch.manual_seed(id(pipe) % 2**31)
    while (hand := pipe.recv()) is not None:  # type: ignore[attr-defined]
        mine.zero_()
        rows = 0
        for k in hand:
            n = trainer.client(k, current)
            mine.add_(trainer.flat, alpha=n)
            rows += n
        pipe.send(rows)  # type: ignore[attr-defined]


def run(job: Job, data: Data, weights: list[np.ndarray], clock: Clock) -> list[np.ndarray]:
    torch.set_num_threads(1)
    trainer = Trainer(job, data, weights)
    current = trainer.initial.clone().share_memory_()
    sums = torch.zeros(job.processes, len(current)).share_memory_()
    fork = multiprocessing.get_context("fork")  # the data are shared with the workers, not sent to them
    pipes = []
    for i in range(job.processes):
        here, there = fork.Pipe()
        fork.Process(target=work, args=(trainer, there, current, sums[i]), daemon=True).start()
        pipes.append(here)
    round = 0
    while clock.more():
        cohort = job.cohort(round).tolist()
        for pipe, hand in zip(pipes, deal(trainer, cohort, job.processes), strict=True):
            pipe.send(hand)
        rows = sum(pipe.recv() for pipe in pipes)
        torch.div(sums.sum(0), rows, out=current)
        clock.done(1, sum(map(trainer.steps, cohort)), rows * trainer.epochs)
        round += 1
    for pipe in pipes:
        pipe.send(None)
    return from_torch(trainer.model, trainer.views(current.clone()))


if __name__ == "__main__":
    main(run, {"torch": torch.__version__})
