"""Flower's client side: runs in Ray's workers, which keep the data between messages."""

from __future__ import annotations

import functools

import torch
from _protocol import Job
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch_loop import Trainer

from workloads import load

app = ClientApp()


@functools.cache
def trainer(job_file: str) -> Trainer:
    import numpy as np

    torch.set_num_threads(1)
    job = Job.load(job_file)
    with np.load(job.weights) as file:
        weights = [file[f"arr_{i}"] for i in range(len(file.files))]
    return Trainer(job, load(job.data), weights)


@app.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    local = trainer(config["job"])
    start = torch.from_numpy(message.content["arrays"].to_numpy_ndarrays()[0].copy())
    n = local.client(config["client"], start)
    content = RecordDict(
        {
            "arrays": ArrayRecord([local.flat.numpy()]),
            "metrics": MetricRecord({"num-examples": n}),
        }
    )
    return Message(content=content, reply_to=message)
