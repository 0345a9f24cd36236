"""A rule that sees every update: what it is given, what becomes of it, and what an attacker can and can't do."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.aggregation import (
    NNM,
    FLTrust,
    Krum,
    MeaMed,
    Mean,
    Median,
    MoNNA,
    MultiKrum,
    Rule,
    TrimmedMean,
    chain,
)
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision
from dure.algorithms.base import Algorithm
from dure.attacks import Attack, Scene, Sent
from dure.errors import ConfigError, DomainError, RunError
from dure.models import softmax_regression
from dure.population.samplers import Weighted
from dure.simulation.defence import Defence
from dure.simulation.hostile import Hostile, hooks
from problems import LINEAR, Only, Probe, linear_task, make_engine, rows_data, vector

SIZES = [3, 40, 11, 1, 26, 0, 7, 15, 33, 2, 19, 8]
DATA = rows_data(SIZES, seed=5)
FULL = {"batch_size": math.inf, "steps": 1, "optimizer": 0.3}
WORKING = np.array(SIZES) > 0


def updates(w: np.ndarray, data: Any = DATA, rate: float = 0.3) -> np.ndarray:
    """(N, d) what one full-batch gradient step moves each client, in float64 linear algebra; 0 for an empty one."""
    out = np.zeros((data.clients, len(w)))
    for k in range(data.clients):
        rows = data.client(k)
        x, y = rows["x"].astype(np.float64), rows["y"].astype(np.float64)
        if len(y):
            out[k] = -rate * x.T @ (x @ w - y) / len(y)
    return out


def after(rounds: int, **keywords: Any) -> np.ndarray:
    engine = make_engine(dure.FedAvg(), LINEAR, DATA, **{**FULL, **keywords})
    for _ in range(rounds):
        engine.collect(engine.launch())
    return np.asarray(engine.vector())


@dataclass(frozen=True)
class Send(Attack):
    """Sends `what` (d,) whatever it computed."""

    what: tuple[float, ...]
    knowledge = "updates"

    def craft(self, scene: Scene) -> Sent:
        return Sent(np.broadcast_to(np.float32(self.what), scene.own.shape).copy())


# ----- the rule is given what the clients sent -------------------------------------------------------------


@pytest.mark.parametrize("place", [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 5}])
@pytest.mark.parametrize("devices", [1, 2])
def test_two_rounds_of_the_median_by_linear_algebra(place: dict[str, Any], devices: int) -> None:
    w = np.zeros(3)
    for _ in range(2):
        w = w + np.median(updates(w)[WORKING], axis=0)
    found = after(2, aggregator=Median(3), devices=devices, **place)
    np.testing.assert_allclose(found, w, rtol=2e-5, atol=1e-7)


def test_the_mean_as_a_rule_is_the_exact_mean() -> None:
    for weighting in ("examples", "uniform"):
        as_rule = after(3, aggregator=Mean(), weighting=weighting)
        np.testing.assert_allclose(as_rule, after(3, weighting=weighting), rtol=1e-6, atol=1e-8)


def test_an_infinite_cap_leaves_the_weights_as_they_are() -> None:
    free = after(1, aggregator=Mean(), weighting="examples", weight_cap=math.inf)
    assert np.array_equal(free, after(1, aggregator=Mean(), weighting="examples"))
    assert not np.array_equal(free, after(1, aggregator=Mean(), weighting="examples", weight_cap=1.0))


def test_a_robust_rule_weighs_clients_alike_unless_told_otherwise() -> None:
    own = updates(np.zeros(3))[WORKING]
    sizes = np.array(SIZES)[WORKING]
    np.testing.assert_allclose(after(1, aggregator=Median()), np.median(own, 0), rtol=1e-5, atol=1e-7)
    capped = np.minimum(sizes, 2 * np.median(sizes)).astype(int)
    by_mass = np.median(np.repeat(own, 2 * capped, axis=0), axis=0)  # twice: the median size is 11
    found = after(1, aggregator=Median(), weighting="examples", weight_cap=2.0)
    np.testing.assert_allclose(found, by_mass, rtol=1e-5, atol=1e-7)
    assert np.abs(by_mass - np.median(own, 0)).max() > 1e-3


@pytest.mark.slow
def test_eager_rounds_are_the_same() -> None:
    keywords: dict[str, Any] = {"aggregator": MultiKrum(2), "sampler": Only((0, 1, 2, 4, 6, 7, 8))}
    np.testing.assert_allclose(after(2, **keywords, eager=True), after(2, **keywords), rtol=1e-5, atol=1e-7)


class Parts(NamedTuple):
    answer: Any
    second: Any


@dataclass(frozen=True)
class TwoArrays(Probe):
    """Sends (id, −id) and, apart from it, 100 − id: each array has a median of its own."""

    def local(self, server: Any, client: Any, oracle: Any) -> tuple[Any, Any]:
        k = oracle.client.astype(jnp.float32)
        return Parts(vector(k, -k), vector(100 - k)), client

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        return server._replace(
            mean=vector(mean.answer, mean.second), accepted=round.accepted, participation=round.participation
        )


def test_every_array_of_an_update_is_aggregated_by_itself() -> None:
    method = TwoArrays(lambda w, oracle: w, 3, keep=False)
    engine = make_engine(method, LINEAR, DATA, **FULL, aggregator=Median(), sampler=Only((0, 1, 2, 8, 10)))
    engine.collect(engine.launch())
    np.testing.assert_array_equal(engine.model.server.mean, [2, -2, 98])
    assert int(engine.model.server.accepted) == 5
    assert float(engine.model.server.participation) == pytest.approx(5 / 12)


# ----- attackers -------------------------------------------------------------------------------------------


def test_attackers_send_what_the_attack_says_and_nobody_else_does() -> None:
    own = updates(np.zeros(3))
    own[[1, 4]] = [9.0, -9.0, 9.0]
    found = after(1, aggregator=TrimmedMean(1), attack=Send((9.0, -9.0, 9.0)), attackers=[4, 1])
    wanted = np.sort(own[WORKING], axis=0)[1:-1].mean(0)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


def test_an_attack_without_a_rule_meets_the_mean() -> None:
    own = updates(np.zeros(3))
    own[0] = 5.0
    wanted = np.average(own, axis=0, weights=SIZES)
    found = after(1, attack=Send((5.0, 5.0, 5.0)), attackers=[0])
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-7)


@dataclass(frozen=True)
class Spy(Attack):
    """Writes down the scene, and sends half of what the rule would make of everybody's honest updates."""

    seen: list[Scene]
    knowledge = "rule"

    def craft(self, scene: Scene) -> Sent:
        self.seen.append(scene)
        assert scene.rule is not None
        value = scene.rule(np.concatenate([scene.honest, scene.own]))
        count = 0 if scene.state is None else int(scene.state["count"])
        return Sent(np.tile(value / 2, (len(scene.own), 1)), {"count": np.array(count + 1)})


def test_what_an_attacker_sees() -> None:
    seen: list[Scene] = []
    own = updates(np.zeros(3))
    engine = make_engine(
        dure.FedAvg(), LINEAR, DATA, **FULL, aggregator=Median(2), attack=Spy(seen), attackers=[2, 8]
    )
    first = engine.collect(engine.launch())
    engine.collect(engine.launch())
    honest = np.setdiff1d(np.flatnonzero(WORKING), [2, 8])
    np.testing.assert_allclose(seen[0].honest, own[honest], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(seen[0].own, own[[2, 8]], rtol=1e-5, atol=1e-7)
    assert seen[0].share == pytest.approx(1 / 11)
    assert not seen[0].previous.any()
    changed = own.copy()
    changed[[2, 8]] = np.median(own[WORKING], axis=0) / 2
    aggregate = np.median(changed[WORKING], axis=0)
    np.testing.assert_allclose(seen[1].previous, aggregate, rtol=1e-5, atol=1e-7)
    assert seen[1].state is not None
    assert (seen[0].round, seen[1].round, int(seen[1].state["count"])) == (1, 2, 1)
    assert seen[0].key != seen[1].key
    account = first.account
    assert account is not None
    np.testing.assert_array_equal(np.flatnonzero(account.attacker), [2, 8])
    gap = ((aggregate - own[honest].mean(0)) ** 2).sum()
    variance = ((own[honest] - own[honest].mean(0)) ** 2).sum(1).mean()
    assert account.kappa == pytest.approx(gap / variance, rel=1e-4)
    assert account.bound == pytest.approx(4 * (1 + 2 / 7) ** 2)


def test_what_one_update_counts_for_is_its_share_of_the_weights() -> None:
    seen: list[Scene] = []
    keywords = {**FULL, "attack": Spy(seen), "attackers": [4], "aggregator": Mean(), "weighting": "examples"}
    engine = make_engine(dure.FedAvg(), LINEAR, DATA, **keywords)
    engine.collect(engine.launch())
    assert seen[0].share == pytest.approx(SIZES[4] / sum(SIZES))


def test_a_scaled_update_of_one_client_replaces_a_weighted_mean() -> None:
    """Where the others send nothing the mean becomes the attackers' own model, whatever its client weighs."""
    still = dure.Federated(
        {
            "x": np.concatenate([np.ones((4, 1)), np.zeros((16, 1))]).astype(np.float32),
            "y": np.ones(20, np.float32),
        },
        np.array([0, 4, 10, 20]),
    )
    alone = make_engine(dure.FedAvg(), linear_task(1), still, **FULL, sampler=Only((0,)))
    alone.collect(alone.launch())

    @dataclass(frozen=True)
    class Nothing(Attack):
        poisons = True

    attack = dure.attacks.ModelReplacement(Nothing())
    together = make_engine(dure.FedAvg(), linear_task(1), still, **FULL, attack=attack, attackers=[0])
    together.collect(together.launch())
    np.testing.assert_allclose(together.vector(), alone.vector(), rtol=1e-6)
    assert abs(float(alone.vector()[0])) > 0.1


def test_training_is_only_touched_by_attacks_that_touch_it() -> None:
    flip = dure.attacks.LabelFlip()
    for attack, touched in (
        (flip, False),
        (dure.attacks.ModelReplacement(flip), False),
        (dure.attacks.DataSizeLie(2.0, flip), False),
        (dure.attacks.PGD(flip), True),
        (dure.attacks.DataSizeLie(2.0, dure.attacks.Neurotoxin(flip)), True),
    ):
        assert bool(hooks(Hostile(attack, (1,)), None, 3)) == touched, attack


def test_a_function_as_a_client_can_be_the_attackers() -> None:
    """What only scales the result asks for no gradients, which a function doesn't have."""

    def train(params: Any, data: Any, config: Any) -> Any:
        return {"w": params["w"] + 1}, len(data["y"])

    task = dure.oracle(train, init={"w": np.zeros(3, np.float32)})

    @dataclass(frozen=True)
    class Nothing(Attack):
        poisons = True

    attack = dure.attacks.Backdoor(Nothing(), scale=-4.0)
    engine = make_engine(
        dure.FedAvg(), task, DATA, attack=attack, attackers=[0], aggregator=Mean(), eager=True
    )
    engine.collect(engine.launch())
    np.testing.assert_allclose(engine.vector(), np.full(3, (162 - 4 * 3) / 165), rtol=1e-6)


class Ignorant(Attack):
    def craft(self, scene: Scene) -> Sent:
        assert scene.honest.shape == (0, 3)
        assert scene.rule is None
        return Sent(np.zeros_like(scene.own))


def test_a_pytorch_module_meets_the_same_rule() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    columns = {"x": rng.normal(size=(60, 4)).astype(np.float32), "y": rng.integers(0, 3, 60).astype(np.int32)}
    data = dure.Federated(columns, np.arange(0, 61, 12))
    seen: list[Scene] = []
    task = dure.classification(dure.Model.from_torch(lambda: torch.nn.Linear(4, 3)))
    engine = make_engine(
        dure.FedAvg(),
        task,
        data,
        aggregator=Median(1),
        attack=Spy(seen),
        attackers=[2],
        batch_size=5,
        optimizer=0.3,
    )
    start = np.asarray(engine.vector())
    engine.collect(engine.launch())
    everybody = np.concatenate([seen[0].honest, seen[0].own])
    sent = np.concatenate([seen[0].honest, [np.median(everybody, 0) / 2]])
    np.testing.assert_allclose(np.asarray(engine.vector()) - start, np.median(sent, 0), rtol=1e-4, atol=1e-6)
    assert len(everybody) == 5


@pytest.mark.parametrize("rule", [Mean(), Krum(1), Median(1)])
def test_buffers_are_not_taken_from_a_client_that_was_chosen(rule: Rule) -> None:
    """A chosen update may still lie in its statistics: they are a median, and of all that were not broken."""
    rows = np.float32([[1, 0], [2, 0], [3, 0], [1e6, 0], [4, 0], [np.nan, 0]])
    made = Defence(rule, None, 0, "skip", None, False)._buffers(rows, np.arange(5), np.ones(6))
    assert made.tolist() == ([np.float32(rows[:5, 0].mean()), 0] if rule == Mean() else [3, 0])


def test_an_attacker_that_knows_its_own_data_sees_no_other() -> None:
    after(1, aggregator=Median(2), attack=Ignorant(), attackers=2)


@dataclass(frozen=True)
class Claims(Attack):
    factor: float

    def weights(self, weights: np.ndarray) -> np.ndarray:
        return weights * self.factor


def test_a_client_that_lies_about_its_examples_is_capped() -> None:
    own = updates(np.zeros(3))
    lying = {"attack": Claims(1e6), "attackers": [9], "aggregator": Mean(), "weighting": "examples"}
    np.testing.assert_allclose(after(1, **lying), own[9], rtol=1e-3)
    capped = after(1, **lying, weight_cap=1.0)
    claimed = np.where(np.arange(12) == 9, 2e6, SIZES)[WORKING]
    claimed = np.minimum(claimed, np.median(claimed))
    np.testing.assert_allclose(capped, np.average(own[WORKING], axis=0, weights=claimed), rtol=1e-5)


@dataclass(frozen=True)
class Trains(Attack):
    """Attackers that may only move the first coordinate, and not farther than `radius`."""

    radius: float = 0.05
    poisons = True

    def mask(self, previous: np.ndarray) -> np.ndarray:
        return np.arange(len(previous)) == 0

    def poison(self, inputs: Any, targets: Any, client_key: int, classes: Any, attacker: Any = None) -> Any:
        return inputs, targets + 1000


def test_attackers_train_on_their_own_data_within_their_bounds() -> None:
    seen: list[Scene] = []

    class Looks(Trains):
        knowledge = "updates"

        def craft(self, scene: Scene) -> Sent:
            seen.append(scene)
            return Sent(scene.own.copy())

    after(1, aggregator=Median(2), attack=Looks(), attackers=[1, 4], steps=3)
    plain: list[Scene] = []

    @dataclass(frozen=True)
    class Plain(Attack):
        knowledge = "updates"

        def craft(self, scene: Scene) -> Sent:
            plain.append(scene)
            return Sent(scene.own.copy())

    after(1, aggregator=Median(2), attack=Plain(), attackers=[1, 4], steps=3)
    np.testing.assert_allclose(np.abs(seen[0].own), [[0.05, 0, 0]] * 2, rtol=1e-6)
    np.testing.assert_allclose(seen[0].honest, plain[0].honest, rtol=1e-6, atol=1e-8)
    assert np.abs(plain[0].own).min() > 1e-4


def test_poisoned_data_is_not_shared_with_replicas() -> None:
    many = DATA.replicate(100)
    with pytest.raises(ConfigError, match="before it is replicated"):
        make_engine(
            dure.FedAvg(), LINEAR, many, **FULL, attack=Trains(), attackers=[50], sampler=Only((1, 2))
        )


class Stamp(Attack):
    """A backdoor that needs no training: success is every test row being called class 0."""

    def trigger(self, inputs: np.ndarray, targets: np.ndarray, classes: Any) -> Any:
        return inputs * 0, np.zeros_like(targets), targets != 0


def test_the_record_says_how_often_a_backdoor_works() -> None:
    data = dure.data.digits()
    task = dure.classification(softmax_regression(64, 10))
    run = dure.simulate(dure.FedAvg(), task, data, rounds=1, attack=Stamp(), attackers=3, steps=1)
    assert run.rounds[0]["backdoor_accuracy"] == 1.0  # an untrained model calls everything class 0
    assert 0 <= run.rounds[1]["backdoor_accuracy"] <= 1
    assert run.rounds[1]["attackers"] == 3


def test_a_backdoor_that_nobody_can_see_and_parts_that_nobody_does_are_warned_of() -> None:
    task = dure.classification(softmax_regression(64, 10))
    unseen = replace(dure.data.digits(), test=None, client_test=None, client_test_offsets=None)
    keywords: dict[str, Any] = {"rounds": 1, "steps": 1}
    with pytest.warns(UserWarning, match="has no central test rows"):
        dure.simulate(dure.FedAvg(), task, unseen, attack=Stamp(), attackers=3, **keywords)
    dure.simulate(dure.FedAvg(), task, unseen, attack=Stamp(), attackers=0, **keywords)
    dure.simulate(dure.FedAvg(), task, unseen, attack=Stamp(), attackers=3, evaluate_every=None, **keywords)
    dba = dure.attacks.ModelReplacement(
        dure.attacks.DBA(target=7, shape=(8, 8), patches=((0, 0, 1, 2), (3, 3, 2, 1)))
    )
    with pytest.warns(UserWarning, match="2 parts, and there are 1 attackers"):
        dure.simulate(dure.FedAvg(), task, dure.data.digits(), attack=dba, attackers=1, **keywords)
    for attackers in (0, 2):
        dure.simulate(dure.FedAvg(), task, dure.data.digits(), attack=dba, attackers=attackers, **keywords)


def test_a_trigger_that_follows_the_model(tmp_path: Path) -> None:
    data = dure.data.digits()
    task = dure.classification(softmax_regression(64, 10))
    start = np.full((3, 3), 0.5)
    attack = dure.attacks.A3FL(target=7, pattern=start, shape=(8, 8), steps=3, step_size=0.1)
    keywords: dict[str, Any] = {"attack": attack, "attackers": [3, 9], "steps": 2, "checkpoint_every": 1}
    engine = make_engine(dure.FedAvg(), task, data, attack=attack, attackers=[3, 9], steps=2)
    for _ in range(2):  # an untrained softmax regression has no slope yet
        engine.collect(engine.launch())
    assert engine.defence is not None
    assert engine.defence.enemy is not None
    pattern = engine.defence.enemy.attack.pattern
    assert set(np.round(np.abs(pattern - start).ravel(), 6)) == {0.3}  # three sign steps, all the same way
    poisoned = np.asarray(engine.columns["x"])
    offsets, clean = data.offsets, np.asarray(data.columns["x"])
    changed = {k for k in range(data.clients) if (poisoned != clean)[offsets[k] : offsets[k + 1]].any()}
    assert changed == {3, 9}
    stamped = (poisoned != clean).any(1)
    images = poisoned[stamped].reshape(-1, 8, 8)[:, 2:5, 2:5]
    np.testing.assert_allclose(images, np.broadcast_to(pattern, images.shape), rtol=1e-6)
    whole = dure.simulate(dure.FedAvg(), task, data, rounds=3, **keywords)
    dure.simulate(dure.FedAvg(), task, data, rounds=2, directory=tmp_path, **keywords)
    again = dure.simulate(dure.FedAvg(), task, data, rounds=3, directory=tmp_path, resume=True, **keywords)
    assert again.rounds[3] == whole.rounds[3]
    assert whole.rounds[3]["backdoor_accuracy"] > whole.rounds[0]["backdoor_accuracy"]


# ----- what isn't finite, cohorts that are too small -------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rule", [Mean(), Median(1), TrimmedMean(1), MeaMed(1), Krum(1), MultiKrum(1)])
def test_an_update_that_is_not_finite_is_dropped_by_name(rule: Rule, value: float) -> None:
    run = dure.simulate(
        dure.FedAvg(),
        LINEAR,
        DATA,
        rounds=2,
        aggregator=rule,
        attack=Send((1.0, value, 1.0)),
        attackers=[7],
        **FULL,
    )
    last = run.rounds[-1]
    assert last["status"] == "ok"
    assert last["rule_dropped"] == 1
    assert any("client 7" in said and "not finite" in said for said in last["rejections"])
    assert np.isfinite(np.asarray(run.model["w"])).all()
    assert not run.participation.query("client == 7 and selected").size


def test_a_huge_update_does_not_break_a_rule() -> None:
    own = updates(np.zeros(3))
    own[7] = 1e38
    found = after(1, aggregator=Median(1), attack=Send((1e38, 1e38, 1e38)), attackers=[7])
    np.testing.assert_allclose(found, np.median(own[WORKING], axis=0), rtol=1e-5, atol=1e-7)


@dataclass(frozen=True)
class Varies:
    """Three clients in odd rounds, eight in even ones."""

    def sample(self, seed: int, round: int, population: Any) -> Any:
        return Only(tuple(range(3)) if round % 2 else tuple(range(9))).sample(seed, round, population)

    def expected_size(self, population: Any) -> float:
        return 8.0

    def describe(self) -> str:
        return "three or eight"


def test_a_cohort_that_is_too_small_is_skipped_and_said_so() -> None:
    keywords: dict[str, Any] = {**FULL, "aggregator": Krum(2), "sampler": Varies()}
    run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=2, **keywords)
    first, second = run.rounds[1:]
    assert first["status"].startswith("skipped: Krum needs n ≥ 2f + 3")
    assert (first["accepted"], first["update_norm"], first["uplink_bytes"]) == (0, 0, 0)
    assert second["status"] == "ok"
    assert second["update_norm"] > 0
    with pytest.raises(RunError, match="Krum needs n ≥ 2f"):
        dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=2, too_few="raise", **keywords)


def test_lost_updates_can_make_a_cohort_too_small() -> None:
    def lost(seed: int, round: int, ids: np.ndarray) -> np.ndarray:
        return np.isin(ids, [0, 1, 2]) & (round == 1)

    keywords: dict[str, Any] = {**FULL, "aggregator": Krum(2), "sampler": Only((0, 1, 2, 3, 4, 6, 7, 8))}
    run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=2, lost_uploads=lost, **keywords)
    assert run.rounds[1]["status"].startswith("skipped")
    assert run.rounds[2]["status"] == "ok"


@pytest.mark.parametrize("attack", [{}, {"attack": Send((1.0, 2.0, 3.0)), "attackers": [0]}])
def test_a_round_that_nobody_comes_back_from_is_skipped(attack: dict[str, Any]) -> None:
    def lost(seed: int, round: int, ids: np.ndarray) -> np.ndarray:
        return np.full(len(ids), round == 1)

    keywords: dict[str, Any] = {**FULL, **attack, "aggregator": Mean()}  # the rule that needs nobody
    run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=2, lost_uploads=lost, **keywords)
    assert run.rounds[1]["status"].startswith("skipped: There are no updates")
    assert run.rounds[2]["status"] == "ok"


def test_attackers_whose_own_training_breaks_are_judged_by_what_they_send() -> None:
    keywords: dict[str, Any] = {**FULL, "steps": 3, "optimizer": 1e30, "aggregator": Mean()}
    attack = {"attack": Send((1.0, 2.0, 3.0)), "attackers": [0, 3]}
    run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, **keywords, **attack)
    last, rows = run.rounds[-1], run.participation
    assert (last["accepted"], last["rejected"]) == (2, WORKING.sum() - 2)
    np.testing.assert_array_equal(rows.status == "ok", rows.attacker)


def test_the_measured_kappa_leaves_out_what_broke_at_an_honest_client() -> None:
    columns = {name: np.array(x) for name, x in DATA.columns.items()}
    for x in columns.values():
        x[DATA.offsets[4] : DATA.offsets[5]] = 1e30
    broken = replace(DATA, columns=columns)
    attack: dict[str, Any] = {"attack": Send((1.0, 2.0, 3.0)), "attackers": [0]}
    keywords: dict[str, Any] = {**FULL, **attack, "aggregator": Median(2)}
    run = dure.simulate(dure.FedAvg(), LINEAR, broken, rounds=1, **keywords)
    own = updates(np.zeros(3))
    honest = own[WORKING & ~np.isin(np.arange(len(SIZES)), [0, 4])]
    aggregate = np.median(np.vstack([honest, [1.0, 2.0, 3.0]]), axis=0)
    gap = ((aggregate - honest.mean(0)) ** 2).sum()
    assert run.rounds[-1]["rule_dropped"] == 1
    assert run.rounds[-1]["kappa"] == pytest.approx(
        gap / ((honest - honest.mean(0)) ** 2).sum(1).mean(), rel=1e-4
    )


@pytest.mark.parametrize(
    ("weights", "bound"), [({}, 4.0), ({"weighting": "examples", "weight_cap": 2.0}, None)]
)
def test_a_constant_is_promised_for_equal_weights_alone(weights: dict[str, Any], bound: float | None) -> None:
    run = dure.simulate(dure.FedAvg(), LINEAR, DATA, rounds=1, **FULL, **weights, aggregator=Median(0))
    assert run.rounds[-1]["kappa_bound"] == bound


def test_an_attack_that_sends_other_rows_than_its_own_is_an_error() -> None:
    @dataclass(frozen=True)
    class One(Attack):
        def craft(self, scene: Scene) -> Sent:
            return Sent(scene.own[:1].copy())  # numpy would make it the row of both

    with pytest.raises(ConfigError, match=r"One sends rows of shape \(1, 3\), and \(2, 3\) are needed"):
        after(1, aggregator=Median(2), attack=One(), attackers=[0, 1])


def test_drawing_with_replacement_makes_weights() -> None:
    with pytest.raises(ConfigError, match="drawn twice weighs twice"):
        after(1, aggregator=MeaMed(1), sampler=Weighted(8))
    assert np.isfinite(after(1, aggregator=Median(1), sampler=Weighted(8))).all()


# ----- memory ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remembers(Rule):
    """The mean of this round's mean and all those before, so that its memory can be seen in the model."""

    geometric: ClassVar[bool] = False

    def decide(self, rows: Rows, call: Call) -> Decision:
        own = rows.combine(np.full(rows.n, 1 / rows.n)).astype(np.float64)
        past = call.state or {"sum": np.zeros(rows.d), "count": np.zeros(())}
        state = {"sum": past["sum"] + own, "count": past["count"] + 1}
        return Decision(vector=(state["sum"] / state["count"]).astype(np.float32), state=state)


@dataclass(frozen=True)
class Halves(Attack):
    """Sends ever smaller parts of what the rule would make of everybody's honest updates."""

    knowledge = "rule"

    def craft(self, scene: Scene) -> Sent:
        assert scene.rule is not None
        count = 1 if scene.state is None else int(scene.state["count"]) + 1
        value = scene.rule(np.concatenate([scene.honest, scene.own])) / 2**count
        return Sent(np.tile(value, (len(scene.own), 1)), {"count": np.array(count)})


def test_a_resumed_run_remembers_all_that_the_rule_and_the_attack_did(tmp_path: Path) -> None:
    keywords: dict[str, Any] = {
        "aggregator": Remembers(),
        "attack": Halves(),
        "attackers": 2,
        "epochs": 2,
        "batch_size": 3,
        "optimizer": 0.05,
        "clients_per_round": 6,
        "checkpoint_every": 2,
    }
    whole = dure.simulate(dure.WorkerMomentum(), LINEAR, DATA, rounds=7, **keywords)
    dure.simulate(dure.WorkerMomentum(), LINEAR, DATA, rounds=3, directory=tmp_path, **keywords)
    again = dure.simulate(
        dure.WorkerMomentum(), LINEAR, DATA, rounds=7, directory=tmp_path, resume=True, **keywords
    )
    assert np.asarray(again.model["w"]).tobytes() == np.asarray(whole.model["w"]).tobytes()
    first = [r for r in whole.rounds if r["round"] > 3]
    assert [r for r in again.rounds if r["round"] > 3] == first
    with pytest.raises(ConfigError, match="aggregator"):
        dure.simulate(
            dure.WorkerMomentum(),
            LINEAR,
            DATA,
            rounds=8,
            directory=tmp_path,
            resume=True,
            **{**keywords, "aggregator": Median(1)},
        )


@dataclass(frozen=True)
class Counts(Algorithm):
    """Every client counts how often the server used its update; the model doesn't matter."""

    def init_client(self, w: Any) -> Any:
        return jnp.zeros(1, jnp.float32)

    def local(self, server: Any, client: Any, oracle: Any) -> tuple[Any, Any]:
        y = oracle.solve(server.w)
        return dure.Update(y.w - server.w), client + 1

    def apply(self, server: Any, mean: Any, round: Any) -> Any:
        return dure.Server(server.w + mean.delta)


def test_only_clients_whose_update_the_rule_used_take_their_new_state() -> None:
    engine = make_engine(Counts(), LINEAR, DATA, **FULL, aggregator=Krum(2))
    chosen = np.zeros(12)
    for _ in range(3):
        result = engine.collect(engine.launch())
        assert result.account is not None
        chosen += result.account.selected
    np.testing.assert_array_equal(engine.store.gather(np.arange(12)).ravel(), chosen)
    assert chosen.sum() == 3


# ----- what doesn't go together ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"aggregator": Median}, "is not a rule"),
        ({"aggregator": "median"}, "is not a rule"),
        ({"aggregator": Median(), "estimator": "horvitz-thompson"}, "no sum"),
        ({"aggregator": MeaMed(2), "weighting": "examples", "weight_cap": 2.0}, "uniform"),
        ({"aggregator": Median(2), "weighting": "examples"}, "weight_cap=2.0"),
        ({"aggregator": Median(2), "weighting": "examples", "weight_cap": 0.5}, "at least 1"),
        ({"weight_cap": 2.0}, "aggregator="),
        ({"aggregator": Median(2), "weight_cap": 2.0}, "weighting='examples'"),
        ({"aggregator": Median(2), "too_few": "later"}, "too_few"),
        ({"attack": Stamp()}, "attackers="),
        ({"attackers": 2}, "attack="),
        ({"attack": Stamp, "attackers": 2}, "brackets"),
        ({"attack": Stamp(), "attackers": 13}, "12 clients"),
        ({"attack": Stamp(), "attackers": [3, 3]}, "distinct"),
        ({"attack": Stamp(), "attackers": [12]}, "client 12"),
        ({"attack": Stamp(), "attackers": [-1]}, "client -1"),
        ({"attack": Stamp(), "attackers": 1.5}, "number of clients"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_makes_no_sense_is_refused(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_engine(dure.FedAvg(), LINEAR, DATA, **{**FULL, **keywords})


def test_a_cohort_that_can_never_be_large_enough_is_refused_at_once() -> None:
    with pytest.raises(DomainError, match="n=6"):
        make_engine(dure.FedAvg(), LINEAR, DATA, **FULL, aggregator=Krum(2), clients_per_round=6)


@pytest.mark.parametrize(
    "method",
    [dure.Scaffold(), dure.Mime(), dure.FedDyn(0.1), dure.ConsensusADMM(), dure.IFCA(2)],
    ids=lambda m: type(m).__name__,
)
def test_methods_that_count_on_every_update_are_refused(method: Algorithm) -> None:
    with pytest.raises(ConfigError, match="WorkerMomentum"):
        make_engine(method, LINEAR, DATA, **FULL, aggregator=Median(2))
    # The mean as a rule leaves nothing out: attacks on such methods can be looked at.
    make_engine(method, LINEAR, DATA, **FULL, aggregator=Mean())


def test_a_sweep_with_a_rule() -> None:
    found = dure.sweep(
        dure.FedAvg(),
        LINEAR,
        DATA,
        rounds=1,
        grid={"server_lr": [0.5, 1.0]},
        **{**FULL, "aggregator": Median(2)},
    )
    half, one = (np.asarray(p.run.model["w"]) for p in found.points)
    np.testing.assert_allclose(2 * half, one, rtol=1e-6)
    assert not found.together


# ----- clients that the rule trusts ------------------------------------------------------------------------


def test_fltrust_compares_with_the_client_that_has_the_root_data() -> None:
    own = updates(np.zeros(3))
    sampler = Only((0, 2, 4, 7))
    found = after(
        1, aggregator=FLTrust(), root=1, sampler=sampler, attack=Send((9.0, 9.0, 9.0)), attackers=[4]
    )
    own[4] = 9.0
    g, rest = own[1], own[[0, 2, 4, 7]]
    trust = np.maximum(0, rest @ g / np.linalg.norm(rest, axis=1) / np.linalg.norm(g))
    assert 0 < (trust > 0).sum() < 4
    scaled = rest * (np.linalg.norm(g) / np.linalg.norm(rest, axis=1))[:, None]
    np.testing.assert_allclose(found, trust @ scaled / trust.sum(), rtol=1e-4, atol=1e-6)


def test_root_data_are_no_update() -> None:
    keywords: dict[str, Any] = {"aggregator": chain(NNM(1), FLTrust()), "root": 1, **FULL}
    engine = make_engine(dure.FedAvg(), LINEAR, DATA, **keywords, sampler=Only((0, 2, 4, 7)))
    account = engine.collect(engine.launch()).account
    assert account is not None
    assert account.accepted == account.selected.sum() == 4
    # With root data and two clients there are two updates, too few for f = 1.
    two = make_engine(dure.FedAvg(), LINEAR, DATA, **keywords, sampler=Sometimes((0, 2)))
    account = two.collect(two.launch()).account
    assert account is not None
    assert "n=2" in str(account.skipped)


@dataclass(frozen=True)
class Sometimes(Only):
    """These clients, of more that are expected."""

    def expected_size(self, population: Any) -> float:
        return 9.0


def test_a_trusted_client_is_heard_in_every_round() -> None:
    own = updates(np.zeros(3))
    found = after(1, aggregator=MoNNA(2, trusted=8), sampler=Only((0, 2, 4, 7)))
    rows = own[[0, 2, 4, 7, 8]]
    nearest = np.argsort(((rows - own[8]) ** 2).sum(1))[:3]
    np.testing.assert_allclose(found, rows[nearest].mean(0), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"aggregator": FLTrust()}, "give root="),
        ({"aggregator": Median(2), "root": 3}, "for FLTrust"),
        ({"aggregator": FLTrust(), "root": 12}, "Client 12"),
        ({"aggregator": FLTrust(), "root": 2.0}, "client's number"),
        (
            {"aggregator": chain(NNM(2), MoNNA(2, trusted=3)), "attack": Stamp(), "attackers": [3]},
            "among the attackers",
        ),
    ],
)
def test_trust_in_the_wrong_client_is_refused(keywords: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_engine(dure.FedAvg(), LINEAR, DATA, **FULL, **keywords)
