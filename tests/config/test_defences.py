"""The catalogue of rules and attacks says what they are and do."""

import numpy as np
import pytest

from dure.aggregation import Rule
from dure.attacks import Attack
from dure.config import defences, described
from dure.errors import ConfigError, DomainError

RULES = {entry.name: entry for entry in defences.rules()}
ATTACKS = {entry.name: entry for entry in defences.attacks()}


def test_conditions_are_those_of_the_papers() -> None:
    known = {
        "Krum": "n ≥ 2f + 3",
        "MultiKrum": "n ≥ 2f + 3",
        "Bulyan": "n ≥ 4f + 3",
        "TrimmedMean": "2f < n",
        "NNM": "2f < n",
        "Mean": "",
        "CGE": "f < n",
        "RLR": "f + 1 ≤ threshold ≤ n − f",
    }
    assert {name: RULES[name].needs for name in known} == known


@pytest.mark.parametrize(
    "entry", [e for e in RULES.values() if issubclass(e.kind, Rule)], ids=lambda e: e.name
)
def test_what_the_catalogue_says_of_weights_and_memory_is_what_a_call_does(entry: defences.RuleEntry) -> None:
    rule = described.example(entry.kind)
    rows = np.random.default_rng(5).normal(size=(11, 3)).astype(np.float32)
    server = rows[0] if defences.SERVER in entry.remarks else None
    found = rule(rows, key=1, server=server)
    assert (found.state is not None) == ("remembers rounds" in entry.remarks)
    unequal = np.linspace(1.0, 1.3, 11)
    if entry.weights == "must be equal":
        with pytest.raises(ConfigError, match="unequal weights"):
            rule(rows, unequal, key=1, server=server)
    else:
        rule(rows, unequal, key=1, server=server)
    if defences.SERVER in entry.remarks:
        with pytest.raises(ConfigError, match="server"):
            rule(rows, key=1)


def test_what_is_read_of_the_updates() -> None:
    known = {
        "Mean": "n d",
        "CGE": "n d",
        "Median": "sort columns",
        "TrimmedMean": "sort columns",
        "MeaMed": "sort columns",
        "Krum": "n² d",
        "MDA": "n² d",
        "NNM": "n² d",
        "Bulyan": "n² d + sort columns",
    }
    assert {name: RULES[name].cost for name in known} == known


def test_remarks() -> None:
    assert "draws at random" in RULES["DnC"].remarks
    assert "draws at random" not in RULES["Krum"].remarks
    assert RULES["FoolsGold"].remarks[:2] == ("remembers rounds", "tells clients apart")
    assert "mixes clients" in RULES["Bucketing"].remarks
    assert "mixes clients" not in RULES["NNM"].remarks
    assert [e.name for e in RULES.values() if defences.SERVER in e.remarks] == ["FLTrust"]
    # κ = 6f/(n − 2f)·(1 + f/(n − 2f)) of the trimmed mean (Allouah et al., 2023); the mean has none for f > 0
    assert "bound κ known" in RULES["TrimmedMean"].remarks
    assert "bound κ known" not in RULES["Mean"].remarks


def test_what_attacks_know_and_where_they_act() -> None:
    known = {
        "ALIE": ("all honest updates", ("update",)),
        "SignFlip": ("all honest updates", ("update",)),
        "LabelFlip": ("its own clients", ("data",)),
        "OptimizedALIE": ("the server's rule too", ("update",)),
        "DataSizeLie": ("its own clients", ("update", "weight")),
        "PGD": ("its own clients", ("update", "data", "training")),
        "Neurotoxin": ("its own clients", ("update", "data", "training")),
        "PixelTrigger": ("its own clients", ("data",)),
    }
    assert {name: (ATTACKS[name].knows, ATTACKS[name].acts) for name in known} == known
    assert [e.name for e in ATTACKS.values() if not e.in_file] == ["A3FL", "AdaptiveTrigger", "EdgeCase"]
    assert [e.name for e in ATTACKS.values() if "trigger" in e.acts] == ["A3FL"]
    assert ATTACKS["PixelTrigger"].backdoor
    assert not ATTACKS["ALIE"].backdoor
    assert not ATTACKS["DataSizeLie"].backdoor


@pytest.mark.parametrize("entry", [*RULES.values(), *ATTACKS.values()], ids=lambda e: e.name)
def test_every_entry_says_what_it_does_and_what_its_arguments_are(entry: object) -> None:
    assert isinstance(entry, defences.RuleEntry | defences.AttackEntry)
    assert len(entry.does) > 15
    assert "\n" not in entry.does
    assert "Args:" not in described.page(entry.kind)
    for p in described.parameters(entry.kind):
        assert p.means, p.name
        assert p.type not in ("NoneType", "UnionType")
    assert issubclass(entry.kind, Attack) or entry.kind.citation or entry.name in ("OrElse", "Clipping")


def test_the_condition_that_is_shown_is_the_one_that_is_checked() -> None:
    made = described.example(RULES["Krum"].kind)
    with pytest.raises(DomainError, match="n ≥ 2f"):
        made(np.zeros((4, 2), np.float32))
    made(np.zeros((5, 2), np.float32))


def test_unknown_names_have_a_neighbour() -> None:
    assert defences.find("rule", defences.rules(), "trimmedmean").name == "TrimmedMean"
    with pytest.raises(ConfigError, match="Did you mean 'Bulyan'"):
        defences.find("rule", defences.rules(), "Bulian")
    with pytest.raises(ConfigError, match="Did you mean 'ALIE'"):
        defences.find("attack", defences.attacks(), "ALI")
