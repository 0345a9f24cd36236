"""A run for a child process that will be killed: python resumable.py DIRECTORY PLACEMENT RESUME [PAUSE]."""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

import dure
from problems import LINEAR, rows_data

ROUNDS = 120


def run(
    directory: str | None, placement: str, resume: bool, pause: float = 0.0, **changed: object
) -> dure.Run:
    """SCAFFOLD with client state, sampling, own test rows and a checkpoint every seven rounds."""
    data = rows_data(np.arange(1, 31) % 9 + 2, seed=1).split(0.3, seed=0)
    keywords = {
        "rounds": ROUNDS,
        "clients_per_round": 5,
        "batch_size": 3,
        "epochs": 2,
        "optimizer": dure.sgd(0.02, momentum=0.5, round_decay=0.99),
        "seed": 4,
        "schedule": "vectorised",
        "width": 2,
        "devices": 1,
        "client_state": placement,
        "checkpoint_every": 7,
        "evaluate_every": 5,
        "evaluate_clients_every": 10,
        # The pause spreads the instants of a kill over all parts of a round.
        "on_round": lambda record: time.sleep(pause),
        **changed,
    }
    return dure.simulate(dure.Scaffold(), LINEAR, data, directory=directory, resume=resume, **keywords)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], sys.argv[3] == "resume", float(sys.argv[4]))
