"""A careful hand-written PyTorch loop in one process (`threads` = 1 or all cores).

What a practised user would write for speed and still call PyTorch: no DataLoader, no module calls, no
.item() in the loop; one permutation and one gather per client, batches are slices of it; parameters are
views of one flat vector, so that copying the global model and accumulating the average are one call each;
gradients by autograd; one fused `_foreach` update.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from _protocol import Clock, Data, Job, main
from _torch import from_torch, logits, tensors, to_torch
from torch import Tensor


class Trainer:
    """Local SGD from a flat vector; the result is left in `self.flat`."""

    def __init__(self, job: Job, data: Data, weights: list[np.ndarray]) -> None:
        self.model, self.batch = job.workload.model, job.workload.batch
        self.epochs, self.lr = job.workload.epochs, job.workload.lr
        self.x, self.y = tensors(self.model, data.x, data.y)
        self.starts, self.sizes = data.offsets[:-1].tolist(), np.diff(data.offsets).tolist()
        initial = to_torch(self.model, weights)
        self.shapes = [t.shape for t in initial]
        self.initial = torch.cat([t.reshape(-1) for t in initial])
        self.flat = self.initial.clone()
        self.values = self.views(self.flat)
        self.leaves = [v.detach().requires_grad_() for v in self.values]

    def views(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([s.numel() for s in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def client(self, k: int, start_from: Tensor) -> int:
        """Train client k from this vector; returns its number of examples."""
        k %= len(self.sizes)
        n, start, batch = self.sizes[k], self.starts[k], self.batch
        self.flat.copy_(start_from)
        for _ in range(self.epochs):
            order = torch.randperm(n).add_(start)
            x, y = self.x[order], self.y[order]
            for xb, yb in zip(x.split(batch), y.split(batch), strict=True):
                loss = F.cross_entropy(logits(self.model, self.leaves, xb), yb)
                grads = torch.autograd.grad(loss, self.leaves)
                torch._foreach_add_(self.values, grads, alpha=-self.lr)
        return n

    def steps(self, k: int) -> int:
        return self.epochs * -(-self.sizes[k % len(self.sizes)] // self.batch)


def run(job: Job, data: Data, weights: list[np.ndarray], clock: Clock) -> list[np.ndarray]:
    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    trainer = Trainer(job, data, weights)
    current, total, round = trainer.initial.clone(), torch.zeros_like(trainer.initial), 0
    while clock.more():
        total.zero_()
        rows = steps = 0
        for k in job.cohort(round).tolist():
            n = trainer.client(k, current)
            total.add_(trainer.flat, alpha=n)
            rows += n
            steps += trainer.steps(k)
        torch.div(total, rows, out=current)
        clock.done(1, steps, rows * trainer.epochs)
        round += 1
    return from_torch(trainer.model, trainer.views(current))


if __name__ == "__main__":
    main(run, {"torch": torch.__version__})
