"""pfl-research: FederatedAveraging on its simulated backend with its PyTorch bridge.

`processes` > 1 runs pfl's own distributed simulation, one process a core. pfl reads a client's rows in
order; here they are shuffled when a client's data set is made, so that every epoch order is fresh as for
the others. Clients are dealt so that the processes' shares are even (what pfl's `user_id_to_weight` does).
pfl evaluates every client of its iteration 0 before and after training, which cannot be turned off: that
is in its first-round figure, not in the others.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from _protocol import Clock, Data, Job, main
from _torch import from_torch, module, tensors

RANK = int(os.environ.get("PFL_WORKER_RANK", "0"))


def start_workers(count: int) -> None:
    """Make this process rank 0 of `count` on this machine."""
    ports = []
    for _ in range(count):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join(f"127.0.0.1:{port}" for port in ports)
    for rank in range(1, count):
        subprocess.Popen([sys.executable, *sys.argv], env={**os.environ, "PFL_WORKER_RANK": str(rank)})
    os.environ["PFL_WORKER_RANK"] = "0"


def spread(ids: np.ndarray, sizes: np.ndarray, workers: int) -> np.ndarray:
    """Order in which dealing the ids out one after another gives every worker about the same examples."""
    order = ids[np.argsort(-sizes[ids % len(sizes)], kind="stable")]
    for start in range(workers, len(order), 2 * workers):
        order[start : start + workers] = order[start : start + workers][::-1]
    return order


def run(job: Job, data: Data, weights: list[np.ndarray], clock: Clock) -> list[np.ndarray]:
    torch.set_num_threads(job.threads)
    torch.manual_seed(RANK)
    np.random.seed(0)  # noqa: NPY002  (pfl draws its seeds from there)
    if job.processes > 1 and RANK == 0:
        start_workers(job.processes)
    # Importing pfl's PyTorch operations joins the group of processes, so it comes last.
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    work = job.workload
    x, y = tensors(work.model, data.x, data.y)
    starts, sizes = data.offsets[:-1], np.diff(data.offsets)
    net = module(work.model, weights)
    net.loss = lambda x, y: F.cross_entropy(net(x), y)
    net.metrics = lambda x, y: {"loss": Weighted(float(F.cross_entropy(net(x), y)) * len(y), len(y))}
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))

    def users() -> Iterator[int]:
        round = 0
        while True:
            yield from spread(job.cohort(round), sizes, job.processes).tolist()
            round += 1

    def dataset(k: int) -> PyTorchTensorDataset:
        k %= len(sizes)
        order = torch.randperm(int(sizes[k])).add_(int(starts[k]))
        return PyTorchTensorDataset((x[order], y[order]), user_id=str(k))

    def agreed(go: bool) -> bool:
        """Rank 0 decides for everyone when to stop."""
        if job.processes > 1:
            flag = torch.tensor(int(go))
            torch.distributed.broadcast(flag, 0)
            go = bool(flag)
            clock.restart()
        return go

    class Timer(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            if RANK == 0:
                took = sizes[job.cohort(central_iteration) % len(sizes)]
                clock.done(
                    1, int(np.sum(-(-took // work.batch))) * work.epochs, int(took.sum()) * work.epochs
                )
            return not agreed(clock.more() if RANK == 0 else True), Metrics()

    sampler = users()
    train_data = FederatedDataset(dataset, lambda: next(sampler))
    params = NNAlgorithmParams(
        central_num_iterations=10**9,
        evaluation_frequency=10**9,
        train_cohort_size=work.cohort,
        val_cohort_size=None,
    )
    local = NNTrainHyperParams(
        local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
    )
    backend = SimulatedBackend(train_data, train_data, postprocessors=[WeightByDatapoints()])
    agreed(clock.more() if RANK == 0 else True)
    FederatedAveraging().run(params, backend, model, local, NNEvalHyperParams(None), [Timer()])
    if RANK > 0:
        raise SystemExit(0)
    return from_torch(work.model, list(net.parameters()))


if __name__ == "__main__":
    from importlib.metadata import version

    main(run, {"pfl": version("pfl"), "torch": torch.__version__})
