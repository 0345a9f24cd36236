"""What cannot be seen in the results: chunks, devices, the rest of the cohort, compilation (laws 3 and 6)."""

import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.models import mlp, softmax_regression
from problems import LINEAR, Cyclic, Only, Probe, ask, make_engine, rows_data, vector

SIZES = [3, 40, 11, 1, 26, 0, 7, 15, 33, 2, 19, 8]
RNG = np.random.default_rng(7)
DATA = dure.Federated(
    {
        "x": RNG.normal(size=(sum(SIZES), 12)).astype(np.float32),
        "y": RNG.integers(0, 4, sum(SIZES)).astype(np.int32),
    },
    np.concatenate([[0], np.cumsum(SIZES)]),
)
TASK = dure.classification(mlp(12, (9,), 4))
D = 12 * 9 + 9 + 9 * 4 + 4


def work(w: Any, oracle: Any) -> Any:
    """All that a client can be asked for."""
    y = oracle.solve(w, linear=jnp.full_like(w, 1e-3), prox=0.1, reference=(w, oracle.gradient(w)))
    return vector(y.w, y.gain, y.loss, oracle.gradient(y.w), oracle.loss(y.w))


SIZE = 2 * D + 3
#: Client 2 among others: fewer and more of them, shorter and longer than it.
COHORTS = [(2,), (0, 2, 5, 9), tuple(range(12))]
LOCAL = [
    {"epochs": 2, "batch_size": 4},
    {"epochs": 1, "batch_size": 16},
    {"steps": 3, "batch_size": 100},
    {"epochs": 2, "batch_size": math.inf},
]
PLACES = [
    {"schedule": "sequential", "devices": 1},
    {"schedule": "sequential", "devices": 2},
    {"schedule": "vectorised", "width": 3, "devices": 2},
]


@pytest.mark.parametrize(
    ("local", "place"),
    [(LOCAL[0], PLACES[1])]
    + [pytest.param(LOCAL[0], PLACES[0], marks=pytest.mark.slow)]
    + [pytest.param(LOCAL[0], PLACES[2], marks=pytest.mark.slow)]  # below, as users compile
    + [pytest.param(local, PLACES[0], marks=pytest.mark.slow) for local in LOCAL[1:]]
    + [pytest.param(LOCAL[3], PLACES[2], marks=pytest.mark.slow)],
    ids=lambda p: "-".join(str(v) for v in p.values()),
)
def test_a_client_computes_the_same_bits_whatever_the_cohort(
    local: dict[str, Any], place: dict[str, Any]
) -> None:
    answers = []
    for cohort in COHORTS:
        got = ask(work, SIZE, TASK, DATA, clients=cohort, **local, **place)
        answers.append(got[sorted(cohort).index(2)])
    for cohort, answer in zip(COHORTS, answers, strict=True):
        assert np.isfinite(answer).all()
        assert answer.tobytes() == answers[0].tobytes(), (
            f"cohort {cohort}: {np.abs(answer - answers[0]).max()}"
        )


USERS = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
import test_invariance as here
here.test_a_client_computes_the_same_bits_whatever_the_cohort(here.LOCAL[0], here.PLACES[2])
print("the same bits")
"""


def test_the_same_bits_with_the_compiler_that_users_have() -> None:
    """The other tests choose a quicker one, see conftest.py; whether bits depend on the cohort is its doing too."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    plain = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    plain["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    done = subprocess.run([sys.executable, "-c", USERS], env=plain, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the same bits\n"


@pytest.mark.parametrize(
    "local",
    [LOCAL[0], pytest.param(LOCAL[3], marks=pytest.mark.slow)],
    ids=lambda p: "-".join(str(v) for v in p.values()),
)
def test_schedules_widths_and_devices_agree_nearly(local: dict[str, Any]) -> None:
    places = [*PLACES, {"schedule": "vectorised", "width": 12, "devices": 1}]
    answers = [ask(work, SIZE, TASK, DATA, clients=range(12), **local, **place) for place in places]
    for answer in answers[1:]:
        scale = np.linalg.norm(answers[0], axis=1)
        error = np.linalg.norm(answer - answers[0], axis=1)
        sent = np.isfinite(scale)
        assert sent.sum() == 11
        assert (error[sent] <= 1e-5 * scale[sent]).all()


def test_the_aggregate_of_given_updates_is_the_same_to_the_bit() -> None:
    """Updates that don't depend on how they are computed: every schedule, width and number of devices."""

    def constant(w: Any, oracle: Any) -> Any:
        n = oracle.examples.astype(jnp.float32)
        return jnp.stack([n * 1e6, jnp.float32(1) / n, -jnp.sqrt(n) * 1e-7])

    results = []
    for width, devices in ((1, 1), (1, 2), (2, 1), (5, 2), (12, 1), (7, 2)):
        engine = make_engine(
            Probe(constant, 3, keep=False),
            LINEAR12,
            DATA,
            schedule="vectorised",
            width=width,
            devices=devices,
        )
        engine.launch()
        results.append(np.asarray(engine.model.server.mean).tobytes())
    assert len(set(results)) == 1
    n = np.array([s for s in SIZES if s], np.float32)
    updates = np.stack([n * np.float32(1e6), np.float32(1) / n, -np.sqrt(n) * np.float32(1e-7)], 1)
    weights = n.astype(np.longdouble)
    wanted = (weights[:, None] * updates).sum(0) / weights.sum()
    np.testing.assert_allclose(np.frombuffer(results[0], np.float32), wanted.astype(np.float32), rtol=1.2e-7)


LINEAR12 = dure.classification(softmax_regression(12, 4))


def run(**keywords: Any) -> Any:
    defaults = {"clients_per_round": 6, "batch_size": 4, "epochs": 2, "optimizer": 0.2, "rounds": 4}
    return dure.simulate(dure.FedAvg(), TASK, DATA, **{**defaults, **keywords})


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(params)])


def test_the_number_of_devices_changes_no_cohort_and_hardly_the_model() -> None:
    one, two = run(devices=1), run(devices=2)
    for a, b in zip(one.rounds, two.rounds, strict=True):
        for key in ("clients", "accepted", "examples", "steps", "uplink_bytes"):
            assert a.get(key) == b.get(key)
    pd_one, pd_two = one.participation, two.participation
    assert pd_one["client"].tolist() == pd_two["client"].tolist()
    w = flat(one.model)
    assert np.linalg.norm(flat(two.model) - w) <= 1e-5 * np.linalg.norm(w)


@pytest.mark.slow
@pytest.mark.parametrize("local", [{}, {"epochs": 1, "batch_size": math.inf}])
def test_eager_is_the_same_code(local: dict[str, Any]) -> None:
    keywords = {
        "rounds": 1, "clients_per_round": None, "sampler": Only((0, 2)), "schedule": "sequential", "devices": 1,
        "epochs": 1, **local,
    }  # fmt: skip
    compiled, eager = run(**keywords), run(**keywords, eager=True)
    np.testing.assert_allclose(flat(eager.model), flat(compiled.model), atol=1e-6)
    assert [r.get("steps") for r in eager.rounds] == [r.get("steps") for r in compiled.rounds]


def test_eager_prints_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """What eager mode is for: Python code in the algorithm sees values, once for every client."""

    def question(w: Any, oracle: Any) -> Any:
        print(f"n = {int(oracle.examples)}")
        return vector(oracle.gradient(w).sum())

    ask(question, 1, LINEAR, rows_data([3, 11, 26]), clients=(0, 1, 2), eager=True)
    lines = capsys.readouterr().out.split()
    assert {"3", "11", "26"} <= set(lines)
    assert not any("Traced" in line for line in lines)


def test_equal_seeds_give_equal_bytes_and_other_seeds_other_ones(tmp_path: Any) -> None:
    records = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        run(directory=tmp_path / name, seed=seed)
        files = ("rounds.jsonl", "participation.jsonl", "model.safetensors")
        records.append([(tmp_path / name / file).read_bytes() for file in files])
    assert records[0] == records[1]
    assert all(a != c for a, c in zip(records[0], records[2], strict=True))


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    short, long = run(rounds=2), run(rounds=4)
    assert [r["update_norm"] for r in short.rounds[1:]] == [r["update_norm"] for r in long.rounds[1:3]]


def test_padding_places_hold_nothing_defect_a14() -> None:
    """Three clients in chunks of four on two devices: five empty places, and the mean of three."""
    wide = make_engine(
        dure.FedAvg(), TASK, DATA, sampler=Only((0, 1, 2)), schedule="vectorised", width=4, devices=2
    )
    result = wide.collect(wide.launch())
    assert result.accepted == 3
    narrow = make_engine(dure.FedAvg(), TASK, DATA, sampler=Only((0, 1, 2)), schedule="sequential", devices=1)
    narrow.launch()
    np.testing.assert_allclose(wide.model.server.w, narrow.model.server.w, atol=1e-6)


def test_stepping_by_hand_is_the_same_training() -> None:
    keywords = {"sampler": Cyclic(4), "batch_size": 4, "seed": 2}
    simulation = dure.Simulation(dure.FedAvg(), TASK, DATA, **keywords)
    for _ in range(3):
        assert simulation.step() is None
    last = simulation.step(wait=True)
    assert last is not None
    assert last.round == 4
    simulation.block()
    whole = dure.simulate(dure.FedAvg(), TASK, DATA, rounds=4, **keywords)
    assert flat(simulation.params()).tobytes() == flat(whole.model).tobytes()


def test_small_rows_data_is_not_trivial() -> None:
    """The answers compared above move with the data, or equality would mean nothing."""
    a = ask(work, 9, LINEAR, rows_data([4, 9]), clients=(0, 1), epochs=1, batch_size=2)
    assert not np.allclose(a[0], a[1])
