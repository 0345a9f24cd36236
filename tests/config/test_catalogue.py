"""The catalogue says what the classes say, and nothing twice."""

import tomllib

import pytest

from dure.algorithms import ALL, GROUPS, Algorithm
from dure.config import catalogue
from dure.config.catalogue import entries, entry, hyper_parameters, page
from dure.config.probe import example
from dure.errors import ConfigError


def test_every_method_is_in_one_group() -> None:
    assert [e.method for e in entries()] == list(ALL)
    assert len(set(ALL)) == len(ALL)
    assert {e.group for e in entries()} == set(GROUPS)


def test_facts_come_from_the_classes() -> None:
    scaffold, ditto, mime = entry("scaffold"), entry("Ditto"), entry("MIME")
    assert (scaffold.keeps, scaffold.sends, scaffold.receives) == ("1 model", "2 models", "2 models")
    assert scaffold.remarks == ["linear optimizer"]
    assert (ditto.keeps, ditto.sends, ditto.remarks) == ("1 model", "1 model", ["personal"])
    assert (mime.keeps, mime.receives, mime.remarks) == ("", "3 models", ["two exchanges"])
    assert entry("FedPer").keeps == "private part"
    assert entry("FedSGD").remarks == ["own steps"]
    assert entry("ConsensusADMM").remarks == ["everyone"]
    assert entry("LocalOnly").sends == "nothing"


def test_facts_follow_a_method_that_is_changed() -> None:
    from dataclasses import dataclass
    from typing import Any

    from dure.config.probe import probe

    @dataclass(frozen=True)
    class Chatty(entry("FedAvg").method):  # type: ignore[misc]
        def init_client(self, w: Any) -> Any:
            return {"a": w, "b": w}

        def local(self, server: Any, client: Any, oracle: Any) -> Any:
            return {"delta": server.w, "twice": oracle.gradient(server.w)}, client

    found = probe(Chatty())
    assert (found.up, found.down, found.state, found.asks) == (2.0, 1.0, 2.0, {"gradient"})


@pytest.mark.parametrize("method", ALL, ids=lambda m: m.__name__)
def test_every_method_has_a_line_a_page_and_its_parameters(method: type[Algorithm]) -> None:
    found = entry(method.__name__)
    assert 3 <= len(found.does.split()) <= 30, found.does
    assert found.does[0] not in " :."
    assert page(method)
    for parameter in hyper_parameters(method):
        if parameter.default not in (None, "none"):
            assert tomllib.loads(f"x = {parameter.default}")
        assert hasattr(example(method), parameter.name)
    assert found.facts()["name"] == method.__name__


def test_values_are_written_as_toml() -> None:
    values = {"a": 0.5, "b": [1, 2], "c": True, "d": "text", "e": {"f": 1}}
    assert tomllib.loads(f"x = {catalogue.toml(values)}")["x"] == values


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"method = 'Scafold'.*Did you mean 'Scaffold'\?"):
        entry("Scafold")
