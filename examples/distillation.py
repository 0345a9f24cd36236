"""Clients with two architectures learn from each other's predictions on images that nobody has labelled."""

import numpy as np

import dure
from dure.distillation import DSFL, FedDF, FedMD

digits = dure.data.digits()
data = digits.select(np.arange(10))  # ten writers
public = digits.select(np.arange(10, 14)).columns["x"]  # what four others wrote, without labels
tasks = [
    dure.classification(dure.models.softmax_regression(64, 10)),
    dure.classification(dure.models.mlp(64, (16,), 10)),
]

for name, method, optimizer in (
    ("each one alone", FedMD(), 1e-30),  # a lesson that moves nothing
    ("FedMD", FedMD(), None),
    ("DS-FL", DSFL(), None),
    ("FedDF", FedDF(), None),
):
    run = dure.distillation.simulate(
        method,
        tasks,
        data,
        public,
        assignment=np.arange(10) % 2,
        rounds=10,
        epochs=2,
        optimizer=0.2,
        public_optimizer=optimizer,
        evaluate_every=10,
    )
    last = run.final
    first, second = (last[f"test_accuracy_architecture{a}"] for a in range(2))
    print(f"{name}: {first:.3f} and {second:.3f}, uplink {last['cumulative_uplink_bytes']:,} bytes")
