"""What methods keep, at the server and with clients, is in the checkpoint: the same bits after an interruption."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dure
from dure.oracles.optimizer import sgd
from problems import LINEAR, rows_data

PAGES = [
    dure.FedAdam(bias_correction="kingma"),
    dure.FedOpt(sgd(0.5, momentum=0.9)),
    dure.FedExP(),
    dure.FedDC(),
    dure.Mime(0.5),
    dure.MoFedSAM(),
]
FILES = ("rounds.jsonl", "participation.jsonl", "model.safetensors")


class Stop(Exception):
    pass


@pytest.mark.parametrize("page", PAGES, ids=lambda page: type(page).__name__)
def test_resumed_in_the_middle(page: Any, tmp_path: Path) -> None:
    """Round 5 was recorded, the last checkpoint is of round 3: rounds 4 and 5 are done again."""
    data = rows_data(np.arange(1, 9) % 5 + 2, seed=1)

    def run(name: str, **changed: Any) -> None:
        dure.simulate(
            page,
            LINEAR,
            data,
            directory=tmp_path / name,
            **{
                "rounds": 8,
                "clients_per_round": 3,
                "batch_size": 2,
                "optimizer": sgd(0.05, momentum=0.5, round_decay=0.9),
                "lost_uploads": 0.2,
                "schedule": "sequential",
                "devices": 1,
                "checkpoint_every": 3,
                **changed,
            },
        )

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 5:
            raise Stop

    run("whole")
    with pytest.raises(Stop):
        run("parts", on_round=stop)
    run("parts", resume=True)
    for name in FILES:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
