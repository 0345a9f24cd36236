"""The advice: the two questions of the field, in agreement with what the engine refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dure
from dure.aggregation import Median
from dure.algorithms import ALL, Algorithm
from dure.config import tables
from dure.config.advice import advice, advise
from dure.config.catalogue import entry
from dure.config.probe import example, probe
from dure.config.rules import CHOICES, not_guarded
from dure.config.setting import alikeness, checked, known, of_file
from dure.errors import ConfigError
from dure.population import Everyone, Once, Uniform
from dure.simulation.setting import check_setting
from dure.simulation.settings import settings

TWENTY = dure.Federated({"x": np.ones((40, 1), np.float32), "y": np.arange(40) % 2}, np.arange(0, 41, 2))


def test_silos_that_stay() -> None:
    found = advise(clients=4, alike="strong")
    assert list(found.start_with)[:2] == ["FedAvg", "Scaffold"]
    assert "ConsensusADMM" not in found.out
    assert "aren't wanted" in found.out["Ditto"]
    assumed = ("kind", "participation", "keeps_state", "attackers", "links", "personal")
    assert found.setting.how == dict.fromkeys(assumed, "assumed")


def test_devices_that_come_once() -> None:
    found = advise(clients=10**6, clients_per_round=100, alike="strong", links="fast")
    assert "keeps 1 model with each client" in found.out["Scaffold"]
    assert "MimeLite" in found.start_with
    slow = advise(clients=10**6, clients_per_round=100, alike="strong")
    assert "links are slow" in slow.out["MimeLite"]
    assert "FedProx" in slow.start_with


def test_state_is_for_clients_that_come_again() -> None:
    seldom = advise(clients=10_000, clients_per_round=10, keeps_state=True)
    assert "comes back about every 1,000 rounds" in seldom.out["Scaffold"]
    short = advise(clients=100, clients_per_round=10, keeps_state=True, rounds=5)
    assert "in 5 rounds a client takes part 0.5 times" in short.out["Scaffold"]
    assert "Scaffold" not in advise(clients=100, clients_per_round=10, keeps_state=True, rounds=500).out


def test_who_needs_everyone_is_out_in_a_sample() -> None:
    found = advise(clients=20, clients_per_round=5)
    assert found.out["FedPD"] == (
        "is right only when all 20 clients take part in every round; here about 5 of 20 (25 %) do"
    )
    assert "FedPD" not in advise(clients=20).out


def test_personal_models_start_with_both_baselines() -> None:
    found = advise(clients=14, personal=True, alike="strong")
    assert list(found.start_with)[:4] == ["FedAvg", "FineTuning", "LocalOnly", "Ditto"]
    stateless = advise(clients=14, personal=True, alike="strong", keeps_state=False)
    assert "Ditto" in stateless.out
    assert {"FineTuning", "IFCA", "PerFedAvg"} <= set(stateless.start_with)
    assert any("little to gain" in note for note in advise(clients=14, personal=True, alike="iid").notes)


def test_adapters_are_averaged_where_there_are_some() -> None:
    with_some, without = advise(clients=20, adapters=True), advise(clients=20)
    assert list(with_some.start_with)[:4] == ["FFALoRA", "FedExLoRA", "FlexLoRA", "FedIT"]
    assert "low-rank adapters" in with_some.about()
    assert "the model has none" in without.out["FedExLoRA"]
    slow = advise(clients=20, adapters=True, links="slow")
    assert "receive 1 model + W" in slow.out["FedExLoRA"]
    assert "FFALoRA" not in slow.out


def test_attackers_get_an_honest_answer() -> None:
    found = advise(clients=20, attackers=True)
    (note,) = [note for note in found.notes if note.startswith("Attackers")]
    # What the note names is there.
    assert "TrimmedMean" in note
    assert "NNM" in note
    assert "TrimmedMean" in tables.aggregators()
    assert "NNM" in tables.pre_aggregators()
    assert next(iter(found.start_with)) == "WorkerMomentum"
    assert not any(note.startswith("Attackers") for note in advise(clients=20).notes)
    assert "states" in found.out["Scaffold"]
    assert "FedAvg" not in found.out


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.__name__)
def test_what_no_rule_guards_is_out_where_there_are_attackers(method: type[Algorithm]) -> None:
    made = example(method)
    chosen = settings(TWENTY, aggregator=Median(f=1))
    setting = known(checked({"clients": 20, "attackers": True}, "test", ""))
    refused = False
    try:
        check_setting(made, chosen, TWENTY, probe(made).state > 0)
    except ConfigError:
        refused = True
    assert (not_guarded(setting, entry(method.__name__)) is not None) == refused


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.__name__)
def test_what_the_engine_refuses_is_out(method: type[Algorithm]) -> None:
    made = example(method)
    state = probe(made).state > 0
    for sampler, setting in (
        (Everyone(), {"keeps_state": True}),
        (Uniform(5), {"clients_per_round": 5, "keeps_state": True}),
        (Once(5), {"clients_per_round": 5, "keeps_state": False}),
    ):
        chosen = settings(TWENTY, sampler=sampler)
        try:
            check_setting(made, chosen, TWENTY, state)
        except ConfigError:
            assert method.__name__ in advise(clients=20, personal=True, **setting).out


def test_every_choice_is_a_method_and_is_reached() -> None:
    assert {choice.method for choice in CHOICES} <= {method.__name__ for method in ALL}
    seen: set[str] = set()
    for alike in ("iid", "mild", "strong"):
        for more in (
            {},
            {"clients_per_round": 5},
            {"keeps_state": False},
            {"clients_per_round": 5, "keeps_state": False},
        ):
            for personal in (False, True):
                seen |= set(advise(clients=20, alike=alike, personal=personal, **more).start_with)
    seen |= set(advise(clients=20, adapters=True).start_with)
    seen |= set(advise(clients=20, attackers=True).start_with)
    assert seen == {choice.method for choice in CHOICES}


def test_all_methods_have_a_place_and_the_text_names_them() -> None:
    for setting in ({"clients": 20}, {"clients": 10**6}):
        found = advise(**setting)
        places = [*found.start_with, *found.out, *found.possible]
        assert sorted(places) == sorted(method.__name__ for method in ALL)
        text = str(found)
        assert all(name in text for name in places)
        assert "Can a client keep state between rounds?" in text
    assert dure.advise is advise


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"clients": 1}, "clients = 1: must be greater than or equal to 2"),
        ({"clients": 0}, "clients = 0"),
        ({"clients": 20, "kind": "crosssilo"}, "Did you mean 'cross-silo'?"),
        ({"clients": 20, "alike": "very"}, "alike = 'very': must be 'iid', 'mild' or 'strong'"),
        ({"clients": 20, "clients_per_round": 21}, "clients_per_round = 21 is more than the 20 clients"),
        ({"clients": 20, "clients_per_round": 0}, "clients_per_round = 0"),
        ({"clients": 20, "participation": 1.5}, "participation = 1.5: must be less than or equal to 1"),
        ({"clients": 20, "participation": 0.01}, "less than one client a round"),
        ({"clients": 20, "participation": 0.5, "clients_per_round": 10}, "two ways to say the same"),
    ],
)
def test_nonsense_is_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        advise(**setting)
    assert message in str(caught.value)


STUDY = """
rounds = 30
[data]
name = "digits"
[data.partition]
kind = "shards"
clients = 20
per_client = 2
[model]
name = "softmax_regression"
[algorithm]
name = "FedPD"
[clients]
per_round = 5
"""


def file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "study.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_study_says_much_of_its_setting(tmp_path: Path) -> None:
    setting, method = of_file(file(tmp_path, STUDY), {})
    assert (setting.clients, setting.participation, setting.alike, setting.rounds) == (20, 0.25, "strong", 30)
    assert setting.how["alike"] == "from the study"
    assert setting.how["kind"] == "assumed"
    assert method == "FedPD"
    assert method in advice(setting).out


def test_what_the_setting_says_goes_before_the_study_and_options_before_both(tmp_path: Path) -> None:
    more = '[setting]\nclients = 1000\nparticipation = 0.5\nalike = "mild"\n'
    path = file(tmp_path, STUDY + more)
    setting, _ = of_file(path, {"links": "slow", "clients_per_round": 10})
    assert (setting.clients, setting.participation, setting.alike, setting.links) == (
        1000,
        0.01,
        "mild",
        "slow",
    )
    assert "alike" not in setting.how


def test_a_file_with_a_setting_only(tmp_path: Path) -> None:
    path = file(tmp_path, '[setting]\nclients = 12\nkind = "cross-silo"\n')
    assert of_file(path, {})[0].clients == 12
    with pytest.raises(ConfigError, match=r"setting\.client = 12: .*Did you mean 'clients'\?"):
        of_file(file(tmp_path, "[setting]\nclient = 12\n"), {})
    with pytest.raises(ConfigError, match=r"clients: missing\. Say how many"):
        of_file(file(tmp_path, '[setting]\nlinks = "slow"\n'), {})
    with pytest.raises(ConfigError, match=r"no \[setting\] table"):
        of_file(file(tmp_path, 'name = "x"\n'), {})
    with pytest.raises(ConfigError, match="There is no file"):
        of_file(tmp_path / "nothing.toml", {})


def test_clients_of_their_own_differ_at_least_mildly(tmp_path: Path) -> None:
    natural = STUDY.replace('[data.partition]\nkind = "shards"\nclients = 20\nper_client = 2\n', "")
    assert of_file(file(tmp_path, natural), {})[0].alike == "mild"


def test_how_alike_labels_are_is_counted_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    for alpha, expected in ((1e4, "iid"), (2.0, "mild"), (0.1, "strong")):
        for size in (15, 500):
            counts = np.stack([rng.multinomial(size, rng.dirichlet(np.full(10, alpha))) for _ in range(300)])
            assert alikeness(counts) == expected, (alpha, size)
    assert alikeness(np.eye(4, dtype=np.int64)[[0, 1, 2, 3, 0]] * 50) == "strong"
    with_empty = np.array([[0, 0], [50, 50], [51, 49]])
    assert alikeness(with_empty) == "iid"
