"""The driver: what a run records, what it costs in bytes, that it is right to do it, and what is refused."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import dure
from dure.channel import wire
from dure.distillation import DSFL, FedDF, FedMD, Method, simulate
from dure.distillation.setting import check_method
from dure.models import mlp, softmax_regression

WRITERS = dure.data.digits()
DATA = WRITERS.select(np.arange(10))
PUBLIC = WRITERS.select(np.arange(10, 14)).columns["x"]
TASKS = [dure.classification(softmax_regression(64, 10)), dure.classification(mlp(64, (16,), 10))]
ASSIGNMENT = np.arange(10) % 2
KEYWORDS: dict[str, Any] = {"epochs": 1, "optimizer": 0.2, "devices": 1, "schedule": "vectorised", "width": 5}
#: A digest that moves nothing in float32: what is left is local training.
NOTHING = {"public_optimizer": 1e-30}


def run(method: Method, rounds: int = 2, **keywords: Any) -> dure.Run:
    given = {"data": DATA, "public": PUBLIC, "tasks": TASKS, "assignment": ASSIGNMENT, **KEYWORDS, **keywords}
    return simulate(
        method, given.pop("tasks"), given.pop("data"), given.pop("public"), rounds=rounds, **given
    )


def flat(params: Any) -> bytes:
    return b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(params))


# ----- resumed, eager --------------------------------------------------------------------------------------


def records(directory: Path) -> list[bytes]:
    names = ("rounds.jsonl", "participation.jsonl", "clients.jsonl", "model.safetensors")
    return [(directory / name).read_bytes() for name in names]


def stopping(after: int) -> Callable[[dict[str, Any]], None]:
    def stop(record: dict[str, Any]) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize(
    "method", [FedMD(), pytest.param(FedDF(), marks=pytest.mark.slow)], ids=["own models", "prototypes"]
)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(method: Method, tmp_path: Path) -> None:
    """Cohorts of four, so that some clients come for the first time after the checkpoint and some before."""
    keywords = {"clients_per_round": 4, "public_per_round": 40, "checkpoint_every": 2, "seed": 3}
    keywords |= {"optimizer": dure.sgd(0.1, momentum=0.5), "evaluate_clients_every": 2}
    run(method, 5, directory=tmp_path / "whole", **keywords)
    for name, after in (("cut", 3), ("early", 0)):
        with pytest.raises(KeyboardInterrupt):
            run(method, 5, directory=tmp_path / name, on_round=stopping(after), **keywords)
        assert dure.Run.open(tmp_path / name).state == "interrupted"
        run(method, 5, directory=tmp_path / name, resume=True, **keywords)
        assert records(tmp_path / name) == records(tmp_path / "whole")
    with pytest.raises(dure.ConfigError, match="not the same experiment: seed was 3 and is 4"):
        run(method, 5, directory=tmp_path / "cut", resume=True, **keywords | {"seed": 4})
    with pytest.raises(dure.ConfigError, match=r"not the same experiment: public.assignment"):
        run(method, 5, directory=tmp_path / "cut", resume=True, assignment=1 - ASSIGNMENT, **keywords)
    with pytest.raises(dure.RunError, match="has done 5 rounds already"):
        run(method, 4, directory=tmp_path / "cut", resume=True, **keywords)
    with pytest.raises(dure.ConfigError, match="needs the directory"):
        run(method, 5, resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("method", [DSFL(), FedMD(), FedDF()], ids=["DS-FL", "FedMD", "FedDF"])
def test_eager_rounds_are_the_compiled_ones(method: Method) -> None:
    """Without compilation the same numbers come out, but for how single operations round."""
    few = {"data": DATA.select(np.arange(4)), "assignment": ASSIGNMENT[:4], "public": PUBLIC[:20]}
    few |= {"steps": 2, "epochs": None, "clients_per_round": 2, "public_batch_size": 20}
    eager, compiled = (run(method, 1, eager=e, **few) for e in (True, False))
    for a, b in zip(jax.tree.leaves(eager.model), jax.tree.leaves(compiled.model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# ----- it helps --------------------------------------------------------------------------------------------


def test_clients_of_two_architectures_learn_from_each_other() -> None:
    """Against the same local work alone: every architecture gains, on all writers' test rows and at its worst."""
    each = {"rounds": 12, "epochs": 2, "evaluate_every": 12}
    alone = run(FedMD(), **each, **NOTHING).final
    for method in (FedMD(), DSFL(), FedDF()):
        final = run(method, **each).final
        for a in range(2):
            gain = final[f"test_accuracy_architecture{a}"] - alone[f"test_accuracy_architecture{a}"]
            assert gain > 0.03, (method, a, gain)


# ----- one path --------------------------------------------------------------------------------------------


def test_without_a_lesson_feddf_is_fedavg_to_the_bit() -> None:
    """One architecture, and a lesson that moves nothing: the same local work, the same exact mean."""
    fused = run(FedDF(), tasks=TASKS[1:], assignment=ASSIGNMENT * 0, **NOTHING)
    averaged = dure.simulate(dure.FedAvg(), TASKS[1], DATA, rounds=2, **KEYWORDS)
    assert flat(fused.model) == flat(averaged.model)
    for key in ("uplink_bytes", "downlink_bytes", "train_loss", "steps", "test_accuracy"):
        assert fused.final[key] == pytest.approx(averaged.final[key], rel=1e-6), key


def test_equal_runs_have_equal_bits_and_other_seeds_do_not() -> None:
    first, second, other = (run(DSFL(), public_per_round=50, seed=s) for s in (1, 1, 2))
    assert flat(first.model) == flat(second.model) != flat(other.model)
    assert first.rounds == second.rounds


def test_the_number_of_devices_hardly_changes_the_models() -> None:
    one, two = (run(DSFL(), tasks=TASKS[1:], assignment=ASSIGNMENT * 0, devices=d) for d in (1, 2))
    for a, b in zip(jax.tree.leaves(one.model), jax.tree.leaves(two.model), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)


def test_the_order_of_architectures_does_not_change_the_models() -> None:
    one = run(FedMD())
    two = run(FedMD(), tasks=TASKS[::-1], assignment=1 - ASSIGNMENT)
    assert flat(one.model) == flat(two.model)


# ----- records ---------------------------------------------------------------------------------------------


def encoded(**tensors: np.ndarray) -> int:
    return len(wire.encode(wire.Message(1, 2, 1.0, tensors)))


@pytest.mark.parametrize("part", [None, 50])
def test_bytes_are_lengths_of_encoded_messages(part: int | None) -> None:
    final = run(DSFL(), rounds=1, public_per_round=part).final
    scores = np.zeros((part or len(PUBLIC), 10), np.float32)
    assert final["uplink_bytes"] == 10 * encoded(predictions=scores)
    down = encoded(targets=scores)
    if part is not None:
        down += encoded(rows=np.zeros(part, np.int32))
    assert final["downlink_bytes"] == 10 * down


def test_parameters_travel_in_feddf_whatever_the_public_set_is() -> None:
    final = run(FedDF(), rounds=1).final
    sizes = [sum(np.size(x) for x in jax.tree.leaves(t.model.init(jax.random.key(0)))) for t in TASKS]
    assert final["uplink_bytes"] == sum(5 * encoded(delta=np.zeros(d, np.float32)) for d in sizes)
    assert final["downlink_bytes"] == sum(5 * encoded(w=np.zeros(d, np.float32)) for d in sizes)


def test_a_run_says_who_did_what_and_how_well_each_client_does(tmp_path: Any) -> None:
    made = run(FedMD(), clients_per_round=4, evaluate_clients_every=1, directory=tmp_path / "run")
    found = dure.Run.open(tmp_path / "run")
    assert found.state == "complete"
    assert found.rounds == made.rounds
    assert found.config["model"]["name"] == "softmax_regression(64, 10) + mlp(64-16-10)"
    assert (found.participation["architecture"] == found.participation["client"] % 2).all()
    assert len(found.participation) == 8
    last = found.clients[found.clients["round"] == 2]
    assert last["client"].tolist() == list(range(10))
    for a in range(2):
        mine = last[last["architecture"] == a]
        assert mine["test_accuracy"].mean() == pytest.approx(found.final[f"test_accuracy_architecture{a}"])
    assert last["accuracy"].min() == pytest.approx(found.final["client_accuracy_worst"])
    assert "FedMD" in found.summary()
    # Clients that never came have the model that they began with, and it is in the files.
    absent = sorted(set(range(10)) - set(found.participation["client"]))
    initial = TASKS[absent[0] % 2].model.init(dure.keys.jax_key(0, "init")).params
    assert flat(made.model[absent[0]]) == flat(initial)
    assert any(name.startswith(f"client{absent[0]}/") for name in found.state_dict())


def test_a_client_that_diverges_is_named_and_the_others_go_on() -> None:
    columns = {name: x.copy() for name, x in DATA.columns.items()}
    columns["x"][DATA.offsets[3] : DATA.offsets[4]] *= 1e30
    found = run(DSFL(), data=dure.Federated(columns, DATA.offsets, classes=10), rounds=1)
    assert found.final["accepted"] == 9
    assert len(found.final["rejections"]) == 1
    assert re.match("client 3: (loss|update) not finite", found.final["rejections"][0])
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found.model))


@dataclass(frozen=True)
class Silent(Method):
    """A method of one's own: local training, and nothing is said."""

    def round(self, models: Any, clients: Any) -> Any:
        return clients.train(models)


def test_a_method_of_ones_own_is_a_few_lines() -> None:
    found = run(Silent(), rounds=1)
    assert found.final["accepted"] == 10
    assert "digest_loss" not in found.final


# ----- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"public": np.zeros((5, 8, 8), np.float32)}, dure.DataError, r"\(5, 8, 8\).*\(P, 64\)"),
        ({"public": np.zeros((0, 64), np.float32)}, dure.DataError, "empty"),
        ({"public": np.full((2, 64), np.nan, np.float32)}, dure.DataError, "Public input 0"),
        ({"public": np.full((2, 64), "a")}, dure.DataError, "Convert"),
        (
            {"tasks": [TASKS[0], dure.classification(mlp(64, (4,), 11))]},
            dure.ConfigError,
            "different numbers of classes.*10.*11.*same number of outputs",
        ),
        ({"tasks": [dure.classification(softmax_regression(64, 4))] * 2}, dure.ConfigError, "4 outputs"),
        ({"tasks": []}, dure.ConfigError, "one task for each architecture"),
        ({"assignment": ASSIGNMENT[:-1]}, dure.ConfigError, r"\(9,\).*each of the 10 clients"),
        ({"assignment": ASSIGNMENT * 0.5}, dure.ConfigError, "float64"),
        ({"assignment": ASSIGNMENT + 1}, dure.ConfigError, r"assignment\[1\]=2.*2 tasks"),
        ({"assignment": ASSIGNMENT * 0}, dure.ConfigError, "Architecture 1 has no client"),
        ({"public_per_round": 10_000}, dure.ConfigError, "public_per_round=10000"),
        ({"public_batch_size": 0}, dure.ConfigError, "public_batch_size=0"),
        ({"rounds": 0}, dure.ConfigError, "rounds=0"),
        ({"evaluate_every": 0}, dure.ConfigError, "evaluate_every=0"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        run(FedMD(), **wrong)


def test_methods_that_exchange_parameters_are_sent_elsewhere() -> None:
    with pytest.raises(dure.ConfigError, match=r"FedAvg is no method.*dure\.simulate"):
        check_method(dure.FedAvg())


def test_clients_that_come_once_can_keep_no_model() -> None:
    with pytest.raises(dure.ConfigError, match=r"DSFL keeps a model with each client.*Use FedDF"):
        run(DSFL(), sampler=dure.Once(2))
    assert run(FedDF(), rounds=1, sampler=dure.Once(2)).final["clients"] == 2


@pytest.mark.parametrize("method", [FedMD, DSFL, FedDF])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True])
def test_a_temperature_must_be_positive(method: Any, value: Any) -> None:
    with pytest.raises(dure.ConfigError, match=r"temperature must be a number in \(0"):
        method(temperature=value)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        (FedMD, {"loss": "mse"}),
        (DSFL, {"reduction": "none"}),
        (FedDF, {"weighting": "clients"}),
        (FedDF, {"public_epochs": 0}),
    ],
)
def test_other_fields_are_checked_too(method: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(dure.ConfigError, match=next(iter(wrong))):
        method(**wrong)
