"""Fourteen writers without a server: who needs how many bytes, and how far apart the nodes end."""

import dure
from dure import decentralized as dd

data = dure.data.digits()
task = dure.classification(dure.models.softmax_regression(64, 10))
graph = dd.exponential(data.clients)
print(graph, f"spectral gap {dd.spectral_gap(dd.metropolis(graph)):.3f}")

for method, optimizer in (
    (dd.DPSGD(adapt_then_combine=True), 0.3),
    (dd.Extra(learning_rate=0.4), None),  # one gradient step a round, where the others do an epoch
    (dd.Choco(dd.TopK(65), gamma=0.4), 0.3),
):
    run = dd.simulate(method, task, data, graph, rounds=20, optimizer=optimizer, evaluate_every=20)
    last = run.final
    print(
        f"{type(method).__name__:16} mean model {last['test_accuracy']:.3f}, worst node "
        f"{last['test_accuracy_worst']:.3f}, apart {last['consensus']:.2f}, {last['uplink_bytes']} bytes a round"
    )
