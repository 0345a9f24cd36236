"""Every method can be written in a file, is built from it, and trains."""

import json
from collections.abc import Iterator
from typing import Any

import jax
import pytest

from dure import config
from dure.algorithms import (
    ALL,
    IFCA,
    Algorithm,
    Ditto,
    FedADMM,
    FedAvg,
    FedBABU,
    FedLC,
    FedNova,
    FedOpt,
    FedRep,
    FLoRA,
    HierFAVG,
    Mime,
    Scaffold,
)
from dure.config.probe import example, probe
from dure.errors import ConfigError
from dure.simulation import simulate

#: What a file must say of a method beside its name; the other hyper-parameters have defaults.
SAID: dict[str, dict[str, Any]] = {
    "FedPer": {"private": ["dense2*"]},
    "FedRep": {"private": ["dense2*"], "head_passes": 2},
    "FedBN": {"private": ["dense1*"]},  # the shared tiny model has no batch normalisation
    "LGFedAvg": {"private": ["dense1*"]},
    "FedBABU": {"private": ["dense2*"]},
    "HierFAVG": {"edges": [0, 1] * 7, "cloud_every": 2},
    "FedOpt": {"optimizer": {"name": "yogi", "learning_rate": 0.05, "eps": 1e-3}},
    "ConsensusADMM": {"proximal": {"name": "L1", "strength": 1e-3}},
    "FedADMM": {"rho": 1, "proximal": {"name": "Box", "low": -1, "high": 1}},
}


#: For methods that average low-rank adapters: as many numbers as the adapted weight has, 32 · (64 + 64) = 64².
ADAPTED = {"name": "mlp", "hidden": [64], "lora": {"targets": ["dense1"], "rank": 32, "alpha": 32}}


def study(name: str, **sections: Any) -> config.Study:
    """Two rounds over the digits' writers, with one tiny model for all methods."""
    method = {m.__name__: m for m in ALL}.get(name)
    plain = {"name": "mlp", "hidden": [4]}
    return config.study(
        {
            "rounds": 2,
            "data": {"name": "digits"},
            "model": ADAPTED if method is not None and method.needs.adapters else plain,
            "algorithm": {"name": name, **SAID.get(name, {})},
            "clients": {"steps": 1, "batch_size": 8},
            "engine": {"devices": 1, "schedule": "vectorised", "width": 14},
            **sections,
        }
    )


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    """Nearly all of the time goes into compiling 36 methods: without optimisation it is half."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.__name__)
def test_every_method_is_built_from_a_file(method: type[Algorithm]) -> None:
    built = config.build(study(method.__name__))
    assert type(built.algorithm) is method
    again = config.study(json.loads(json.dumps(built.config)))
    assert config.build(again).algorithm == built.algorithm


#: Of each kind some: with a server's optimizer, controls, a survey, private and personal models, clusters, adapters.
QUICK = (
    FedAvg,
    FedOpt,
    Scaffold,
    FedNova,
    Mime,
    FedADMM,
    Ditto,
    FedRep,
    FedBABU,
    IFCA,
    HierFAVG,
    FedLC,
    FLoRA,
)


@pytest.mark.parametrize(
    "method",
    [m if m in QUICK else pytest.param(m, marks=pytest.mark.slow) for m in ALL],
    ids=lambda m: m.__name__,
)
def test_every_method_runs_from_a_file(method: type[Algorithm]) -> None:
    built = config.build(study(method.__name__))
    run = simulate(built.algorithm, built.task, built.data, experiment=built.config, **built.keywords)
    assert run.state == "complete"
    assert ("client_personal_accuracy_mean" in run.final) == method.needs.personal
    # What the catalogue says of messages is what was counted (headers are less than a tenth of this model).
    model = 4 * run.config["model"]["parameters"]
    sent = {key: run.config["messages"][f"{key}_bytes"] / model for key in ("uplink", "downlink")}
    found = probe(example(method))
    if not built.algorithm.private_patterns:
        assert sent == pytest.approx({"uplink": found.up, "downlink": found.down}, abs=0.15)
    else:
        assert max(sent.values()) < 1


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.__name__)
def test_what_a_method_declares_is_what_it_does(method: type[Algorithm]) -> None:
    made = example(method)
    found, needs = probe(made), made.needs
    assert ("gain" in found.asks) == needs.gain
    if made.private_patterns:
        assert max(found.up, found.down, found.state) < 1
    else:
        assert (found.up, found.down) == (needs.uplink, needs.downlink)


def test_the_servers_optimizer_is_a_table() -> None:
    built = config.build(study("FedOpt"))
    assert isinstance(built.algorithm, FedOpt)
    assert built.algorithm.optimizer.arguments == {"learning_rate": 0.05, "eps": 1e-3}
    plain = config.build(study("FedOpt", algorithm={"name": "FedOpt"}))
    assert plain.config["algorithm"]["optimizer"] == {"name": "adam", "learning_rate": 0.01, "eps": 1e-3}
    assert config.build(config.study(plain.config)).algorithm == plain.algorithm


def test_classes_follow_from_the_data() -> None:
    built = config.build(study("FedLC"))
    assert built.config["algorithm"] == {"name": "FedLC", "classes": 10, "tau": 1.0}
    linear = {"data": {"name": "synthetic"}, "algorithm": {"name": "FedLC", "classes": 7}}
    assert config.build(study("FedLC", **linear)).config["algorithm"]["classes"] == 7


def test_adapters_are_a_table_of_the_model() -> None:
    built = config.build(study("FFALoRA"))
    assert [a.name for a in built.task.model.adapters] == ["dense1/weight"]
    assert built.config["model"]["lora"] == {"targets": ["dense1"], "rank": 32, "alpha": 32.0, "train": []}
    for lora, message in (
        ({"targets": ["dense9"]}, "[model.lora]: targets pattern 'dense9' matches no parameter"),
        ({"targets": ["dense1"], "rank": 99}, "[model.lora]: rank=99 is more than 'dense1/weight'"),
        ({"targets": []}, "model.lora.targets"),
        ({"target": ["dense1"]}, "Did you mean 'targets'?"),
    ):
        with pytest.raises(ConfigError) as caught:
            config.build(study("FFALoRA", model={**ADAPTED, "lora": lora}))
        assert message in str(caught.value)
    without = config.build(study("FFALoRA", model={"name": "mlp", "hidden": [4]}))
    with pytest.raises(ConfigError, match="FFALoRA averages low-rank adapters"):
        simulate(without.algorithm, without.task, without.data, **without.keywords)


def test_edges_are_one_for_each_client() -> None:
    built = config.build(study("HierFAVG"))
    assert isinstance(built.algorithm, HierFAVG)
    assert built.algorithm.edges == (0, 1) * 7


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "FedProx", "muu": 1.0}, "algorithm.muu = 1.0: there's no such key. Did you mean 'mu'?"),
        ({"name": "FedProx", "mu": "1"}, "algorithm.mu = '1': must be a number."),
        ({"name": "FedProx", "mu": True}, "algorithm.mu = True: must be a number."),
        ({"name": "FedProx", "mu": -1.0}, "FedProx(mu=-1.0) is not allowed"),
        ({"name": "Scafold"}, "Did you mean 'Scaffold'?"),
        ({"name": "Scaffold", "option": 3}, "option must be one of 1, 2"),
        ({"name": "Scaffold", "option": 2.0}, "algorithm.option = 2.0: must be an integer."),
        ({"name": "FedPer"}, "algorithm.private: missing. Add it."),
        ({"name": "FedPer", "private": "dense2"}, "algorithm.private = 'dense2': must be a list."),
        ({"name": "FedPer", "private": ["dense2", 3]}, "algorithm.private.1 = 3: must be a string."),
        ({"name": "HierFAVG", "edges": [0, 1.5]}, "algorithm.edges.1 = 1.5: must be an integer."),
        ({"name": "HierFAVG", "edges": [0, 2]}, "every number from 0 to the largest in use"),
        ({"name": "FedLC", "classes": "ten"}, "algorithm.classes = 'ten': must be an integer."),
        ({"name": "FedOpt", "optimizer": 0.1}, 'must be a table, such as {name = "adam"'),
        ({"name": "FedOpt", "optimizer": {"name": "adm"}}, "algorithm.optimizer.name = 'adm': must be"),
        (
            {"name": "FedOpt", "optimizer": {"name": "adam", "lerning_rate": 1.0}},
            "algorithm.optimizer.lerning_rate = 1.0: there's no such key. Did you mean 'learning_rate'?",
        ),
        ({"name": "FedOpt", "optimizer": {"name": "adam", "momentum": 0.9}}, "adam has no momentum"),
        ({"name": "FedADMM", "proximal": "L1"}, 'must be a table, such as {name = "L1"'),
        ({"name": "FedADMM", "proximal": {"name": "L2"}}, "Valid names: Ball, Box, L1"),
        (
            {"name": "FedADMM", "proximal": {"name": "L1", "strenth": 1.0}},
            "algorithm.proximal.strenth = 1.0: there's no such key. Did you mean 'strength'?",
        ),
        (
            {"name": "FedADMM", "proximal": {"name": "L1", "strength": -1.0}},
            "strength must be a number in [0",
        ),
    ],
)
def test_what_is_wrong_is_said_before_any_data_are_loaded(section: dict[str, Any], message: str) -> None:
    plan = study("FedAvg", algorithm=section, data={"name": "leaf_json", "path": "nowhere"})
    with pytest.raises(ConfigError) as caught:
        config.build(plan)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"sampler": "once"}, "sampler = 'once' needs per_round"),
        ({"sampler": "once", "fraction": 0.5}, "sampler = 'once' takes per_round, not fraction"),
        ({"sampler": "cyclic", "fraction": 0.5}, "sampler = 'cyclic' takes per_round, not fraction"),
        ({"order": [0, 1]}, "order is the order of sampler = 'cyclic'"),
        ({"sampler": "cyclic", "order": [0, 1, 0]}, "order names a client twice"),
        ({"sampler": "cyclic", "order": []}, "clients.order"),
        ({"sampler": "cyclic", "order": [-1]}, "clients.order.0 = -1"),
        ({"sampler": "cycle"}, "Did you mean 'cyclic'?"),
        ({"lost_uploads": 1.0}, "clients.lost_uploads = 1.0: must be less than 1"),
        ({"lost_upload": 0.1}, "Did you mean 'lost_uploads'?"),
    ],
)
def test_who_takes_part_is_checked(clients: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        study("FedAvg", clients=clients)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"sampler": "once", "per_round": 8}, "14 clients make 1 cohorts of 8: rounds = 2 is too many"),
        (
            {"sampler": "cyclic", "order": [0, 14]},
            "clients.order names client 14, and the data have 14 clients",
        ),
        ({"sampler": "cyclic", "per_round": 3, "order": [0, 1]}, "the cycle has 2 clients only"),
    ],
)
def test_the_population_is_checked_before_the_first_round(clients: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.build(study("FedAvg", clients=clients))
    assert message in str(caught.value)


def test_samplers_and_lost_uploads_reach_the_engine() -> None:
    from dure.population import Cyclic, Once

    given = {"sampler": "cyclic", "per_round": 2, "order": [3, 1, 2], "lost_uploads": 0.25}
    keywords = config.build(study("FedAvg", clients=given)).keywords
    assert keywords["sampler"] == Cyclic(2, (3, 1, 2))
    assert keywords["lost_uploads"] == 0.25
    assert config.build(study("FedAvg", clients={"sampler": "cyclic"})).keywords["sampler"] == Cyclic(1)
    once = config.build(study("FedAvg", clients={"sampler": "once", "per_round": 3}))
    assert once.keywords["sampler"] == Once(3)


@pytest.mark.parametrize(
    ("name", "unused"),
    [
        ("FedSGD", "optimizer.learning_rate, clients.batch_size"),
        ("PFedMe", "optimizer.learning_rate"),
        ("FineTuning", None),
    ],
)
def test_what_a_method_does_not_use_is_noted_and_repeats(name: str, unused: str | None) -> None:
    plan = study(name, optimizer={"learning_rate": 0.5}, clients={"batch_size": 20})
    built = config.build(plan)
    if unused is None:
        assert not built.notes
        return
    (note,) = built.notes
    assert f"{name} doesn't use {unused}; its step sizes are its own" in note
    again = config.build(config.study(built.config))
    assert again.keywords == built.keywords
    assert not again.notes
