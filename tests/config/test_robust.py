"""Every rule and every attack that a file can hold is built from it, and what can't be is refused by name."""

import json
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from dure import config
from dure.aggregation import NNM, RLR, Bucketing, Chain, Krum, Mean, Median, OrElse, Rule, TrimmedMean, chain
from dure.attacks import ALIE, DBA, Attack, Backdoor, DataSizeLie, PixelTrigger, SignFlip
from dure.config import defences, robust, tables
from dure.errors import ConfigError


def study(**sections: Any) -> config.Study:
    return config.study(
        {"rounds": 2, "data": {"name": "digits"}, "model": {"name": "softmax_regression"}, **sections}
    )


def built(**sections: Any) -> config.Built:
    return config.build(study(**sections))


def again(first: config.Built) -> config.Built:
    """As `dure resume` builds: from what config.json holds."""
    return config.build(config.study(json.loads(json.dumps(first.config))))


@pytest.mark.parametrize("entry", defences.rules(), ids=lambda e: e.name)
def test_every_rule_is_built_from_the_lines_that_its_page_shows(entry: defences.RuleEntry) -> None:
    section = tomllib.loads(entry.file)["aggregator"]
    made, wrong = robust.made(Rule, {k: v for k, v in section.items() if k != "root"}, "aggregator")
    assert wrong == []
    whole = made.before[0] if isinstance(made, Chain) else made
    assert type(whole) is entry.kind
    assert robust.made(Rule, robust.as_table(made), "aggregator") == (made, [])


@pytest.mark.parametrize("entry", [e for e in defences.attacks() if e.in_file], ids=lambda e: e.name)
def test_every_attack_is_built_from_the_lines_that_its_page_shows(entry: defences.AttackEntry) -> None:
    section = tomllib.loads(entry.file)["attack"]
    assert section.pop("attackers") == 2
    made, wrong = robust.made(Attack, section, "attack")
    assert wrong == []
    assert type(made) is entry.kind
    assert robust.as_table(robust.made(Attack, robust.as_table(made), "attack")[0]) == robust.as_table(made)


def test_pre_aggregators_come_before_the_rule_in_their_order() -> None:
    before = [{"name": "bucketing", "size": 2}, {"name": "NNM", "f": 1}]
    first = built(aggregator={"name": "trimmedmean", "f": 1, "before": before})
    assert first.keywords["aggregator"] == chain(Bucketing(size=2), NNM(f=1), TrimmedMean(f=1))
    assert first.config["aggregator"] == {
        "name": "TrimmedMean",
        "f": 1,
        "before": [{"name": "Bucketing", "size": 2}, {"name": "NNM", "f": 1}],
        "too_few": "skip",
    }
    assert again(first).keywords == first.keywords


def test_rules_and_attacks_inside_others_are_tables() -> None:
    rule = {"name": "Krum", "f": 2, "before": [{"name": "NNM", "f": 2}]}
    first = built(
        aggregator={"name": "OrElse", "rule": rule, "fallback": {"name": "Median", "f": 1}},
        attack={
            "name": "DataSizeLie",
            "factor": 9,
            "attackers": [3, 0],
            "attack": {"name": "Backdoor", "data": {"name": "PixelTrigger", "target": 7, "shape": [8, 8]}},
        },
    )
    assert first.keywords["aggregator"] == OrElse(chain(NNM(f=2), Krum(f=2)), Median(f=1))
    trigger = PixelTrigger(target=7, shape=(8, 8))
    assert first.keywords["attack"] == DataSizeLie(factor=9, attack=Backdoor(trigger))
    assert first.keywords["attackers"] == [3, 0]
    assert again(first).keywords == first.keywords
    turned = built(aggregator={"name": "RLR", "threshold": 4, "inner": {"name": "Median", "f": 3}})
    assert turned.keywords["aggregator"] == RLR(threshold=4, inner=Median(f=3))


def test_lists_of_lists_are_tuples() -> None:
    made, wrong = robust.made(
        Attack, {"name": "DBA", "target": 1, "patches": [[0, 0, 1, 2], [4, 4, 1, 2]]}, "attack"
    )
    assert wrong == []
    assert made == DBA(target=1, patches=((0, 0, 1, 2), (4, 4, 1, 2)))


def test_what_clients_say_of_themselves_weighs_in_a_mean_only() -> None:
    def weighting(**sections: Any) -> str:
        first = built(**sections)
        assert first.config["clients"]["weighting"] == first.keywords["weighting"]
        assert again(first).keywords["weighting"] == first.keywords["weighting"]
        return str(first.keywords["weighting"])

    assert weighting() == "examples"
    assert weighting(aggregator={"name": "Mean"}) == "examples"
    assert weighting(attack={"name": "ALIE", "attackers": 2}) == "examples"
    assert weighting(aggregator={"name": "Median"}) == "uniform"
    own = {"aggregator": {"name": "Median", "weight_cap": 2}, "clients": {"weighting": "examples"}}
    assert weighting(**own) == "examples"


def test_the_sections_own_keys_are_keywords() -> None:
    first = built(aggregator={"name": "FLTrust", "too_few": "raise", "root": 3, "weight_cap": float("inf")})
    assert {k: first.keywords[k] for k in ("too_few", "root", "weight_cap")} == {
        "too_few": "raise",
        "root": 3,
        "weight_cap": float("inf"),
    }
    assert first.config["aggregator"]["weight_cap"] == "inf"  # JSON has no number for it
    assert again(first).keywords == first.keywords
    assert "aggregator" not in built().keywords
    attacked = built(attack={"name": "SignFlip", "of": "own", "attackers": 0})
    assert attacked.keywords["attack"] == SignFlip(of="own")
    assert "aggregator" not in attacked.config


def test_one_value_can_be_set_from_outside(tmp_path: Path) -> None:
    path = tmp_path / "study.toml"
    path.write_text(
        'rounds = 2\n[data]\nname = "digits"\n[model]\nname = "softmax_regression"\n'
        '[aggregator]\nname = "Krum"\nf = 1\n[attack]\nname = "ALIE"\nattackers = 1\n'
    )
    changes = ["aggregator.f=3", "attack.z=1.5", "attack.attackers=[2, 5]"]
    changed = config.build(config.load(path, changes)).keywords
    assert (changed["aggregator"], changed["attack"], changed["attackers"]) == (
        Krum(f=3),
        ALIE(z=1.5),
        [2, 5],
    )
    other = config.build(config.load(path, ["aggregator={name='Mean'}"]))
    assert other.keywords["aggregator"] == Mean()


def test_what_new_studies_say_in_comments_is_right(tmp_path: Path) -> None:
    template = files("dure.cli").joinpath("templates", "study.toml").read_text(encoding="utf-8")
    start, end = template.index("# [aggregator]"), template.index("[optimizer]")
    lines = [line.removeprefix("# ") for line in template[start:end].splitlines()]
    path = tmp_path / "study.toml"
    path.write_text(template[:start] + "\n".join(lines) + "\n" + template[end:], encoding="utf-8")
    words = config.build(config.load(path, ["clients.weighting=uniform"])).keywords
    assert words["aggregator"] == chain(NNM(f=2), TrimmedMean(f=2))
    assert (words["attack"], words["attackers"]) == (ALIE(), 2)


RULE = {"name": "Krum", "f": 1}
ATTACK = {"name": "ALIE", "attackers": 1}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"aggregator": {"name": "TrimedMean", "f": 1}}, "Did you mean 'TrimmedMean'?"),
        ({"aggregator": {"f": 1}}, "aggregator.name: missing"),
        ({"aggregator": {"name": "Krum"}}, "aggregator.f: missing"),
        ({"aggregator": {"name": "Krum", "f": 1, "neighbors": "n-f-2"}}, "Did you mean 'neighbours'?"),
        ({"aggregator": {"name": "Krum", "f": 1.5}}, "aggregator.f = 1.5: must be an integer"),
        ({"aggregator": {"name": "Krum", "f": "1"}}, "aggregator.f = '1': must be an integer"),
        ({"aggregator": {"name": "Krum", "f": -1}}, "aggregator: Krum"),
        ({"aggregator": {"name": "Krum", "f": 1, "neighbours": "all"}}, "it is 'n-f-2', as in the paper"),
        ({"aggregator": {"name": "TrimmedMean"}}, "aggregator: TrimmedMean"),
        ({"aggregator": {"name": "TrimmedMean", "f": 1, "fraction": 0.1}}, "give one of them"),
        ({"aggregator": {"name": "NNM", "f": 1}}, "is a pre-aggregator, no rule. It stands before a rule"),
        ({"aggregator": {"name": "ALIE"}}, "is an attack, no rule"),
        ({"aggregator": {"name": "Chain"}}, "there's none of this name"),
        ({"aggregator": {"name": "Rule"}}, "there's none of this name"),
        ({"aggregator": {**RULE, "before": {"name": "NNM", "f": 1}}}, "aggregator.before = "),
        ({"aggregator": {**RULE, "before": ["NNM"]}}, "aggregator.before"),
        ({"aggregator": {**RULE, "before": [{"f": 1}]}}, "must be a table with the pre-aggregator's name"),
        ({"aggregator": {**RULE, "before": [{"name": "Median"}]}}, "is a rule, no pre-aggregator"),
        ({"aggregator": {**RULE, "before": [{"name": "NNM"}]}}, "aggregator.before[0].f: missing"),
        ({"aggregator": {**RULE, "too_few": "skipp"}}, "Did you mean 'skip'?"),
        ({"aggregator": {**RULE, "weight_cap": 0.5}}, "must be a number of at least 1"),
        ({"aggregator": {**RULE, "weight_cap": True}}, "must be a number of at least 1"),
        ({"aggregator": {**RULE, "weight_cap": float("nan")}}, "must be a number of at least 1"),
        ({"aggregator": {**RULE, "root": -1}}, "aggregator.root = -1"),
        ({"aggregator": "Krum"}, "aggregator = 'Krum': must be a table"),
        ({"aggregator": {"name": "OrElse", "rule": {"name": "Median"}}}, "aggregator.fallback: missing"),
        (
            {"aggregator": {"name": "RLR", "threshold": 2, "inner": "Mean"}},
            "aggregator.inner = 'Mean': must be a table",
        ),
        (
            {"aggregator": {"name": "RLR", "threshold": 2, "inner": {"name": "NNM"}}},
            "aggregator.inner.name = 'NNM' is a",
        ),
        (
            {"aggregator": {"name": "FoolsGold", "before": [{"name": "Bucketing"}]}},
            "aggregator: FoolsGold tells clients apart",
        ),
        ({"attack": {"name": "SignFlop", "attackers": 1}}, "Did you mean 'SignFlip'?"),
        ({"attack": {"name": "Attack", "attackers": 1}}, "there's none of this name"),
        ({"attack": {"name": "ALIE"}}, "attack.attackers: missing"),
        ({"attack": {"name": "ALIE", "attackers": -1}}, "a number of clients, or a list of client numbers"),
        ({"attack": {"name": "ALIE", "attackers": True}}, "a number of clients, or a list of client numbers"),
        (
            {"attack": {"name": "ALIE", "attackers": [0, 0.5]}},
            "a number of clients, or a list of client numbers",
        ),
        ({"attack": {"name": "ALIE", "attackers": [1, 1]}}, "names a client twice"),
        ({"attack": {"name": "ALIE", "attackers": 15}}, "attackers = 15 is more than the 14 clients"),
        ({"attack": {"name": "ALIE", "attackers": [2, 14]}}, "names client 14, and the data have 14 clients"),
        ({"attack": {**ATTACK, "sign": 0}}, "attack: ALIE(sign=0)"),
        ({"attack": {**ATTACK, "zz": 1}}, "attack.zz = 1: there's no such key"),
        ({"attack": {"name": "Backdoor", "attackers": 1}}, "attack.data: missing"),
        ({"attack": {"name": "Backdoor", "attackers": 1, "data": {"name": "Zero"}}}, "poisons no data"),
        (
            {"attack": {"name": "EdgeCase", "attackers": 1, "target": 1}},
            "attack.inputs: EdgeCase takes an array here",
        ),
        (
            {"attack": {"name": "AdaptiveTrigger", "attackers": 1, "target": 1, "pattern": [[1.0]]}},
            "attack.pattern: AdaptiveTrigger takes an array here, which can't be in a file",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        built(**sections)
    assert message in str(error.value)


def test_all_problems_of_both_sections_are_said_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        built(
            aggregator={"name": "Krum", "f": "x", "before": [{"name": "NNM", "f": -1}]},
            attack={"name": "ALIE", "sign": 3, "attackers": 1},
        )
    text = str(error.value)
    assert "3 problems" in text
    assert all(part in text for part in ("aggregator.f", "aggregator.before[0]: NNM", "attack: ALIE(sign=3"))


def test_all_public_rules_and_attacks_have_a_name_in_files() -> None:
    import dure.aggregation
    import dure.attacks

    public = {getattr(dure.aggregation, name) for name in dure.aggregation.__all__ if name[0].isupper()}
    known = {*tables.aggregators().values(), *tables.pre_aggregators().values()}
    bases = {Rule, dure.aggregation.PreAggregator, Chain}
    assert {x for x in public if issubclass(x, Rule | dure.aggregation.PreAggregator)} - bases == known
    attacks = [getattr(dure.attacks, name) for name in dure.attacks.__all__]
    kinds = {x for x in attacks if isinstance(x, type) and issubclass(x, Attack)}
    assert set(tables.attacks().values()) == kinds - {Attack}
