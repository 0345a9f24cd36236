"""Flower's simulation (Ray), message API, its FedAvg strategy for aggregation.

Clients are created on demand: as many virtual nodes are registered as take part in a round, and each
message names the client whose data the node is to use. (A Flower round costs time in proportion to
*registered* nodes; registering the whole population makes W4 some twenty times slower and W5 impossible.)
The clients' local training is the careful PyTorch loop, one flat vector goes each way, the workers keep
the data: what is timed is Flower's own share.
"""

from __future__ import annotations

import os
import sys
import time
from importlib.metadata import version

import numpy as np
from _protocol import Clock, Data, Job, main

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import _flower_client
import torch
from _torch import from_torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def run(job: Job, data: Data, weights: list[np.ndarray], clock: Clock) -> list[np.ndarray]:
    trainer = _flower_client.trainer(sys.argv[1])
    sizes, failures = np.diff(data.offsets), []
    server = ServerApp()

    @server.main()
    def rounds(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0)
        arrays, round = ArrayRecord([trainer.initial.numpy()]), 0
        while len(nodes := list(grid.get_node_ids())) < job.workload.cohort:
            time.sleep(0.1)
        while clock.more():
            ids = job.cohort(round)
            messages = [
                Message(
                    content=RecordDict(
                        {
                            "arrays": arrays,
                            "config": ConfigRecord({"client": int(k), "job": sys.argv[1]}),
                        }
                    ),
                    message_type=MessageType.TRAIN,
                    dst_node_id=node,
                )
                for node, k in zip(nodes, ids, strict=True)
            ]
            replies = list(grid.send_and_receive(messages))
            if (lost := sum(reply.has_error() for reply in replies)) or len(replies) != len(ids):
                failures.append(f"{lost} of {len(replies)} replies failed")
                raise RuntimeError(failures[0])
            arrays, _ = strategy.aggregate_train(round + 1, replies)
            took = sizes[ids % len(sizes)]
            clock.done(1, sum(map(trainer.steps, ids.tolist())), int(took.sum()) * job.workload.epochs)
            round += 1
        trainer.flat.copy_(torch.from_numpy(arrays.to_numpy_ndarrays()[0].copy()))

    resources = {"num_cpus": 1, "num_gpus": 0.0}
    init = {"num_cpus": job.processes, "include_dashboard": False, "log_to_driver": False}
    backend = {"client_resources": resources, "init_args": init}
    run_simulation(server, _flower_client.app, num_supernodes=job.workload.cohort, backend_config=backend)
    if failures:
        raise RuntimeError(failures[0])
    return from_torch(trainer.model, trainer.views(trainer.flat))


if __name__ == "__main__":
    main(run, {name: version(name) for name in ("flwr", "ray", "torch")})
