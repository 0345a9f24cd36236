"""A training for one of several processes: python together.py PORT PROCESSES RANK DIRECTORY WHAT."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import numpy as np

import dure
from dure.errors import ConfigError
from problems import LINEAR, rows_data

#: Without client state, with it, and with it and models of the clients' own; and their rounds.
METHODS = {"FedAvg": (dure.FedAvg(), 2), "Scaffold": (dure.Scaffold(), 3), "Ditto": (dure.Ditto(lam=0.5), 4)}


def run(name: str, directory: Path | None, rounds: int | None = None, **changed: object) -> dure.Run:
    """A few rounds on two devices, with central and clients' own test rows and a checkpoint every second round."""
    method, most = METHODS[name]
    data = rows_data(np.arange(1, 21) % 9 + 2, seed=1).split(0.3, seed=0)
    data = dure.Federated(
        data.columns,
        data.offsets,
        test={name: column[:7] for name, column in data.columns.items()},
        client_test=data.client_test,
        client_test_offsets=data.client_test_offsets,
    )
    keywords = {
        "clients_per_round": 7,
        "batch_size": 3,
        "epochs": 2,
        "optimizer": dure.sgd(0.02, momentum=0.5),
        "seed": 4,
        "schedule": "vectorised",
        "width": 2,
        "checkpoint_every": 2,
        "evaluate_clients_every": 2,
        **changed,
    }
    return dure.simulate(method, LINEAR, data, rounds=rounds or most, directory=directory, **keywords)


def refusals(directory: Path) -> None:
    """What several processes can't do, or don't agree on, is an error in each of them."""
    data = rows_data([3, 4, 5, 6])
    first = jax.process_index() == 0

    def train(params: object, data: dict[str, np.ndarray], config: object) -> object:
        return params, len(data["y"])

    for what, message in (
        (lambda: run("FedAvg", None, seed=4 + jax.process_index()), "another experiment"),
        (lambda: run("FedAvg", None, devices=1), "devices=1 is not possible: 2 processes"),
        (lambda: run("Scaffold", directory / "disk", client_state="disk"), "client_state='disk'"),
        (lambda: dure.simulate(dure.FedAvg(), dure.oracle(train, init=np.zeros(3)), data, rounds=1), "executor='ray'"),
        (lambda: dure.sweep(dure.FedAvg(), LINEAR, data, rounds=1), "runs in one process"),
    ):  # fmt: skip
        try:
            what()
        except ConfigError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"{message}: nothing was raised")
    (directory / "taken").mkdir(exist_ok=True)
    if first:
        (directory / "taken" / "config.json").write_text("{}")
    try:
        run("FedAvg", directory / "taken")
    except dure.RunError as error:
        assert ("already holds a run" if first else "Process 0 of 2 failed") in str(error), error
    else:
        raise AssertionError("the directory was taken")


if __name__ == "__main__":
    port, processes, rank, folder, what = sys.argv[1:]
    jax.config.update("jax_disable_most_optimizations", True)  # most of the time goes into compiling
    jax.config.update("jax_num_cpu_devices", 2 // int(processes))
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", int(processes), int(rank))
    assert len(jax.devices()) == 2
    directory = Path(folder)
    if what == "begin":
        seen: list[int] = []
        for name in METHODS:
            rounds = 2 if name == "Ditto" else None  # half of them
            found = run(name, directory / name, rounds, on_round=lambda record: seen.append(record["round"]))
            np.savez(directory / f"{name}-{rank}.npz", **found.state_dict())
            assert (found.directory is None) == (rank != "0")
        assert bool(seen) == (rank == "0")
    else:
        run("Ditto", directory / "Ditto", resume=True)
        refusals(directory)
    print("finished", what)
