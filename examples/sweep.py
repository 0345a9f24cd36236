"""Learning rates × seeds in one program."""

import dure

data = dure.data.digits()
task = dure.classification(dure.models.softmax_regression(64, 10))
result = dure.sweep(
    dure.FedAvg(),
    task,
    data,
    rounds=10,
    clients_per_round=7,
    grid={"optimizer.learning_rate": [0.05, 0.2, 0.8]},
    seeds=range(3),
)
print(result.table()[["optimizer.learning_rate", "seed", "test_accuracy"]].to_string(index=False))
print("best:", dict(result.best("test_accuracy").values))
