"""FedAvg over 14 writers: how many of them take part in a round, and what that costs."""

import dure

data = dure.data.digits()
task = dure.classification(dure.models.softmax_regression(64, 10))

for fraction in (0.2, 0.5, 1.0):
    run = dure.simulate(
        dure.FedAvg(),
        task,
        data,
        rounds=20,
        fraction=fraction,
        epochs=2,
        batch_size=10,
        optimizer=0.5,
        seed=0,
    )
    last = run.final
    print(
        f"C = {fraction}: accuracy {last['test_accuracy']:.3f}, uplink {last['cumulative_uplink_bytes']:,} bytes"
    )
