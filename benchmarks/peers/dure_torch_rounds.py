"""dure with the model as a `torch.nn.Module`, which PyTorch trains in dure's worker processes."""

from __future__ import annotations

import numpy as np
import torch
from _protocol import Clock, Data, Job, main
from _torch import from_torch, module, tensors
from dure_rounds import train

from dure import __version__, classification


def run(job: Job, data: Data, weights: list[np.ndarray], clock: Clock) -> list[np.ndarray]:
    name = job.workload.model
    net = module(name, weights)
    x = tensors(name, data.x, data.y)[0].numpy()
    simulation = train(job, x, data.y, data.offsets, clock, lambda: classification(net), None)
    trained = simulation.engine.state_dict()
    return from_torch(name, [torch.from_numpy(trained[key]) for key in net.state_dict()])


if __name__ == "__main__":
    main(run, {"dure": __version__, "torch": torch.__version__})
