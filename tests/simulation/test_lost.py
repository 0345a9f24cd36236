"""Uploads that are lost on their way: client state in two phases (law 5), and what is recorded."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.algorithms.base import Algorithm, Server, Update
from dure.errors import ConfigError
from exact import Run, cyc3, everyone, loss20
from problems import LINEAR, Q10, QUADRATIC, Cyclic, Only, make_engine, q10, rows_data

FULL = {"batch_size": math.inf, "weighting": "uniform"}


def reference_loss(seed: int, round: int, ids: np.ndarray) -> np.ndarray:
    """loss20 of the reference, whose rounds count from 0."""
    return (2 * (round - 1) + 3 * ids) % 5 == 0


# ----- the optimum is reached, or not ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampler", "rounds", "stuck"), [(everyone, 35, 0.528), (cyc3, 82, 0.625)], ids=["everyone", "cyclic"]
)
def test_scaffold_in_float64_with_the_figures_of_the_reference(
    sampler: Any, rounds: int, stuck: float
) -> None:
    keywords = {"sampler": sampler, "lost": loss20}
    kept = Run(dure.Scaffold(), **keywords)
    assert abs(kept.settles(rounds + 30) - rounds) <= 1
    np.testing.assert_allclose(kept.server.c, kept.mean(), atol=1e-12)
    wrong = Run(dure.Scaffold(), **keywords, commit_lost=True).rounds(400)
    assert wrong.error() == pytest.approx(stuck, abs=0.1)
    assert np.abs(np.asarray(wrong.server.c) - wrong.mean()).max() > 0.1, "c is the mean of the c_k no longer"


@pytest.mark.parametrize("sampler", [everyone, cyc3], ids=["everyone", "cyclic"])
def test_feddyn_in_float64(sampler: Any) -> None:
    keywords = {"sampler": sampler, "lost": loss20, "steps": 20}
    rounds = 120 if sampler is everyone else 320
    kept = Run(dure.FedDyn(0.5), **keywords).rounds(rounds)
    assert kept.error() < 1e-9
    np.testing.assert_allclose(kept.server.h, kept.mean(), atol=1e-10)
    assert Run(dure.FedDyn(0.5), **keywords, commit_lost=True).rounds(rounds).error() > 0.05


@pytest.mark.parametrize(
    ("algorithm", "steps", "rounds"),
    [(dure.Scaffold(), 10, 90), (dure.FedDyn(0.5), 20, 150), (dure.FedADMM(), 20, 110)],
    ids=["Scaffold", "FedDyn", "FedADMM"],
)
@pytest.mark.parametrize("lost", [reference_loss, 0.2], ids=["function", "probability"])
def test_through_the_engine(algorithm: Any, steps: int, rounds: int, lost: Any) -> None:
    keywords = {"optimizer": 0.2, "steps": steps, "lost_uploads": lost, **FULL}
    engine = make_engine(algorithm, QUADRATIC, q10(), **keywords)
    for _ in range(rounds):
        engine.launch()
    np.testing.assert_allclose(engine.model.server.w, Q10.optimum(Q10.uniform), atol=2e-5)


# ----- whose state is whose --------------------------------------------------------------------------------


class Both(NamedTuple):
    duty: Any
    own: Any


@dataclass(frozen=True)
class Counting(Algorithm):
    """Counts rounds in a part of the state that belongs to the update and in one that doesn't.

    The own part breaks where the client has seen `bad` rounds.
    """

    own: ClassVar[tuple[str, ...]] = ("own",)
    bad: float = 1e9

    def init_client(self, w: Any) -> Both:
        return Both(jnp.zeros(2), jnp.zeros(()))

    def local(self, server: Server, client: Both, oracle: Any) -> tuple[Update, Both]:
        own = jnp.where(client.own + 1 == self.bad, jnp.nan, client.own + 1)
        return Update(oracle.solve(server.w).w - server.w), Both(client.duty + 1, own)

    def apply(self, server: Server, mean: Update, round: Any) -> Server:
        return Server(server.w + mean.delta)


SCHEDULES = pytest.mark.parametrize(
    "schedule",
    [{"schedule": "sequential"}, {"schedule": "vectorised", "width": 3}],
    ids=["one by one", "vmap"],
)


@SCHEDULES
def test_the_clients_own_part_is_kept_and_the_duty_is_not(schedule: dict[str, Any]) -> None:
    def lost(seed: int, round: int, ids: np.ndarray) -> np.ndarray:
        return (ids == 1) | (round == 2)

    data = rows_data([4, 5, 0, 3])
    engine = make_engine(Counting(), LINEAR, data, lost_uploads=lost, **schedule)
    for _ in range(3):
        engine.launch()
    # (duty, duty, own): client 1 never arrived, round 2 arrived for nobody, client 2 has no rows.
    wanted = [[2, 2, 3], [0, 0, 3], [0, 0, 0], [2, 2, 3]]
    np.testing.assert_array_equal(engine.store.gather(np.arange(4)), wanted)


@SCHEDULES
def test_an_own_part_that_broke_is_not_kept_and_the_duty_is(schedule: dict[str, Any]) -> None:
    engine = make_engine(Counting(bad=2.0), LINEAR, rows_data([4, 5]), **schedule)
    for _ in range(3):
        assert engine.collect(engine.launch()).status == ["ok", "ok"]
    np.testing.assert_array_equal(engine.store.gather(np.arange(2)), [[3, 3, 1]] * 2)


# ----- the record ------------------------------------------------------------------------------------------


def test_lost_uploads_were_sent_and_are_named() -> None:
    data = rows_data([4, 5, 0, 3])
    keywords = {"lost_uploads": lambda seed, round, ids: ids == 1, "rounds": 2}
    run = dure.simulate(dure.FedAvg(), LINEAR, data, **keywords)
    engine = make_engine(dure.FedAvg(), LINEAR, data)
    for record in run.rounds[1:]:
        assert (record["clients"], record["accepted"], record["rejected"]) == (4, 2, 1)
        assert record["rejections"] == ["client 1: upload lost"]
        assert record["uplink_bytes"] == 3 * engine.uplink_message
        assert record["downlink_bytes"] == 4 * engine.downlink_message
        assert record["examples"] == 7
    first = run.participation[run.participation["round"] == 1]
    assert first["status"].tolist() == ["ok", "upload lost", "no examples", "ok"]
    assert first["weight"].tolist() == [4, 0, 0, 3]
    without = dure.simulate(dure.FedAvg(), LINEAR, data, rounds=2, sampler=Only((0, 3)))
    np.testing.assert_array_equal(run.model["w"], without.model["w"])


def test_a_round_whose_uploads_are_all_lost_changes_nothing() -> None:
    engine = make_engine(
        dure.Scaffold(), LINEAR, rows_data([4, 5]), lost_uploads=lambda *a: np.array([True, True])
    )
    result = engine.collect(engine.launch())
    assert (result.accepted, result.senders, result.move) == (0, 2, 0.0)
    assert engine.store.used == 0


def test_horvitz_thompson_divides_by_the_probability_to_arrive() -> None:
    """Asked with 3/10 and arriving with 3/4: each update counts p_k / (3/10 · 3/4), which is unbiased."""
    data, eta = q10(weighted=True), 0.1
    keywords = {"sampler": Cyclic(3), "estimator": "horvitz-thompson", "lost_uploads": 0.25, "seed": 3}
    engine = make_engine(dure.FedSGD(eta), QUADRATIC, data, start=np.ones(5), **keywords)
    gradients = np.einsum("ijk,ik->ij", Q10.A, 1 - Q10.b)
    lost = 0
    for _ in range(12):
        before = np.asarray(engine.model.server.w, np.float64)
        result = engine.collect(engine.launch())
        arrived = np.array([s == "ok" for s in result.status])
        lost += 3 - arrived.sum()
        np.testing.assert_allclose(result.inclusion, 0.3 * 0.75)
        gradients = np.einsum("ijk,ik->ij", Q10.A, before - Q10.b)
        share = (result.ids + 1) / 55 / (0.3 * 0.75) * arrived
        wanted = before - eta * share @ gradients[result.ids]
        np.testing.assert_allclose(engine.model.server.w, wanted, atol=2e-6)
    assert 3 <= lost <= 18


def test_uploads_are_lost_with_the_probability_that_was_given() -> None:
    engine = make_engine(dure.FedAvg(), LINEAR, rows_data([1, 2]), lost_uploads=0.3, seed=8)
    draws = np.array([engine.settings.lost(r, np.arange(400)) for r in range(1, 51)])
    assert abs(draws.mean() - 0.3) < 4 * math.sqrt(0.21 / draws.size)
    assert draws.mean(1).std() < 2 * math.sqrt(0.21 / 400), "independent between clients"
    assert draws.mean(0).std() < 2 * math.sqrt(0.21 / 50), "and between rounds"
    np.testing.assert_array_equal(draws[4], engine.settings.lost(5, np.arange(400)))


# ----- the share that arrived ------------------------------------------------------------------------------


class Shares(NamedTuple):
    w: Any
    share: Any
    participation: Any


@dataclass(frozen=True)
class Sharing(Algorithm):
    """Keeps what the server was told of the round."""

    def init(self, w: Any) -> Shares:
        return Shares(w, jnp.zeros(()), jnp.zeros(()))

    def local(self, server: Shares, client: Any, oracle: Any) -> tuple[Update, Any]:
        return Update(jnp.ones_like(server.w) + 0 * oracle.solve(server.w).w), client

    def apply(self, server: Shares, mean: Update, round: Any) -> Shares:
        return Shares(server.w, round.share * mean.delta[0], round.participation)


@pytest.mark.parametrize("estimator", ["ratio", "horvitz-thompson"])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("lost", [reference_loss, 0.2], ids=["function", "probability"])
def test_share_times_the_mean_is_the_sum_over_who_arrived(weighting: str, estimator: str, lost: Any) -> None:
    """Everybody sends ones: share · mean = Σ_S p_k, with p_k in the whole population."""
    keywords = {"weighting": weighting, "estimator": estimator, "sampler": Cyclic(3), "lost_uploads": lost}
    engine = make_engine(Sharing(), QUADRATIC, q10(weighted=True), **keywords)
    p = Q10.weighted if weighting == "examples" else Q10.uniform
    for _ in range(6):
        result = engine.collect(engine.launch())
        arrived = result.ids[[s == "ok" for s in result.status]]
        if len(arrived):
            assert float(engine.model.server.share) == pytest.approx(p[arrived].sum(), rel=1e-6)
            assert float(engine.model.server.participation) == pytest.approx(len(arrived) / 10)


# ----- bad input -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-0.1, 1.0, 1.5, math.nan, True])
def test_impossible_probabilities(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"lost_uploads=.*\[0, 1\)"):
        make_engine(dure.FedAvg(), LINEAR, rows_data([3]), lost_uploads=value)


@pytest.mark.parametrize("answer", [np.zeros(1, bool), np.zeros(2), [True, False, True]])
def test_functions_that_do_not_answer_for_every_client(answer: Any) -> None:
    engine = make_engine(dure.FedAvg(), LINEAR, rows_data([3, 2]), lost_uploads=lambda *a: answer)
    with pytest.raises(ConfigError, match=r"lost_uploads returned .* in round 1.*shape \(2,\)"):
        engine.launch()


def test_other_losses_are_another_experiment(tmp_path: Any) -> None:
    keywords = {"directory": tmp_path / "run"}
    dure.simulate(dure.FedAvg(), LINEAR, rows_data([3, 2]), rounds=1, lost_uploads=0.1, **keywords)
    with pytest.raises(ConfigError, match=r"not the same experiment.*lost_uploads"):
        dure.simulate(
            dure.FedAvg(), LINEAR, rows_data([3, 2]), rounds=2, lost_uploads=0.2, resume=True, **keywords
        )


def test_a_population_that_comes_once_keeps_no_state() -> None:
    sampler = dure.Once(2)
    with pytest.raises(ConfigError, match=r"Scaffold keeps state.*a client comes once.*Use a method"):
        make_engine(dure.Scaffold(), QUADRATIC, q10(), sampler=sampler)
    make_engine(dure.FedAvg(), QUADRATIC, q10(), sampler=sampler)
