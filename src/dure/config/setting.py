"""What `dure advise` must know of a setting: said, derived from a study, or assumed (and then called so)."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from dure.config import tables
from dure.config.build import load_data
from dure.config.load import load, problems
from dure.config.messages import explain
from dure.config.study import Setting, Study, without_none
from dure.errors import ConfigError

#: More clients than this are taken for devices where nothing is said.
SILOS = 1000
#: Devices that are asked in a round where nothing is said.
DEVICES_A_ROUND = 100
#: Total variation between a client's labels and everyone's, beyond chance: from here on it is mild, strong.
MILD, STRONG = 0.1, 0.4


@dataclass(frozen=True)
class Known:
    """A setting with every question answered; `how` says of each answer that wasn't given where it is from."""

    kind: str
    clients: int
    participation: float
    alike: str
    keeps_state: bool
    attackers: bool
    links: str
    personal: bool
    adapters: bool
    rounds: int | None
    how: Mapping[str, str]

    @property
    def everyone(self) -> bool:
        """Whether every client takes part in every round."""
        return self.participation == 1

    @property
    def per_round(self) -> float:
        """How many clients take part in a round, on average."""
        return self.participation * self.clients


def checked(given: Mapping[str, Any], source: str, prefix: str) -> Setting:
    """A setting from loose values.

    Raises:
        ConfigError: an unknown key, a wrong type, an impossible or contradictory value.
    """
    try:
        return Setting.model_validate(without_none(given))
    except ValidationError as error:
        raise problems(source, explain(error, Setting, prefix)) from None


def known(said: Setting, derived: Mapping[str, Any] | None = None, source: str = "The setting") -> Known:
    """Answer every question: what was said counts first, then what was derived, then what is usual.

    Raises:
        ConfigError: nobody said how many clients there are, or the answers contradict each other.
    """
    given = without_none(said.model_dump())
    if {"clients_per_round", "participation"} & set(given):
        derived = {k: v for k, v in (derived or {}).items() if k != "participation"}
    how = {key: "from the study" for key in derived or {} if key not in given}
    answers: dict[str, Any] = {**(derived or {}), **given}
    if "clients" not in answers:
        raise ConfigError(f"{source}: clients: missing. Say how many there are, such as clients = 20.")
    clients = answers["clients"]
    if "clients_per_round" in answers:
        if answers["clients_per_round"] > clients:
            raise ConfigError(
                f"{source}: clients_per_round = {answers['clients_per_round']} is more than the {clients} clients."
            )
        answers["participation"] = answers.pop("clients_per_round") / clients
    silo = answers.get("kind", "cross-silo" if clients <= SILOS else "cross-device") == "cross-silo"
    usual = {
        "kind": "cross-silo" if silo else "cross-device",
        "participation": 1.0 if silo else min(1.0, DEVICES_A_ROUND / clients),
        "alike": "mild",
        "keeps_state": silo,
        "attackers": False,
        "links": "fast" if silo else "slow",
        "personal": False,
        "adapters": False,
        "rounds": None,
    }
    how |= {key: "assumed" for key in usual if key not in (*answers, "rounds", "adapters")}
    return Known(**{**usual, **answers}, how=how)


def of_file(path: Path, given: Mapping[str, Any]) -> tuple[Known, str | None]:
    """(the setting of a TOML file, the method it uses if it is a study); `given` goes before the file.

    The file may have a [setting] table only, or be a whole study: then the number of clients, who takes part,
    how alike the labels are, the rounds and whether models are personal follow from it.

    Raises:
        ConfigError: the file is wrong, or says too little.
        DataError: the study's data can't be loaded.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raw = {"rounds": None}  # `load` says what is wrong with the file
    if not set(raw) - {"setting", "name"}:
        table = raw.get("setting")
        if not isinstance(table, Mapping):
            raise ConfigError(f"{path}: there's no [setting] table, and no study.")
        checked(table, str(path), "setting")
        return known(checked(_over(table, given), str(path), "setting"), source=str(path)), None
    plan = load(path)
    said = {} if plan.setting is None else plan.setting.model_dump()
    setting = checked(_over(said, given), str(path), "setting")
    method, _ = tables.find("algorithm.name", tables.algorithms(), plan.algorithm.name)
    return known(setting, derive(plan, str(path)), str(path)), method


def _over(table: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Options go before the file; one of two ways to say how many take part replaces the other."""
    options, below = without_none(given), without_none(table)
    ways = {"clients_per_round", "participation"}
    if ways & set(options):
        below = {key: value for key, value in below.items() if key not in ways}
    return {**below, **options}


def derive(plan: Study, source: str) -> dict[str, Any]:
    """What a study says of its setting without saying so."""
    data, _ = load_data(plan, source)
    clients, chosen = data.clients, plan.clients
    found: dict[str, Any] = {"clients": clients, "rounds": plan.rounds, "participation": 1.0}
    if chosen.fraction is not None:
        found["participation"] = max(int(chosen.fraction * clients), 1) / clients
    elif chosen.per_round is not None or chosen.sampler == "cyclic":
        found["participation"] = min(1.0, (chosen.per_round or 1) / clients)
    found["participation"] *= 1 - chosen.lost_uploads  # whose update is lost didn't take part
    if chosen.sampler == "once":
        found["keeps_state"] = False
    if plan.model.lora is not None:
        found["adapters"] = True
    if tables.algorithms()[_name(plan)].needs.personal:
        found["personal"] = True
    alike = None if data.classes is None else alikeness(data.class_counts())
    if alike is not None:
        # Clients of their own differ in more than their labels, which is all that was counted.
        natural = plan.data.partition is None
        found["alike"] = "mild" if natural and alike == "iid" else alike
    return found


def _name(plan: Study) -> str:
    return tables.find("algorithm.name", tables.algorithms(), plan.algorithm.name)[0]


def alikeness(counts: np.ndarray) -> str:
    """How alike clients' labels are: "iid", "mild" or "strong" differences.

    For each label the standard deviation of its share over the clients, without what chance makes of a client's
    few examples; their sum as a total variation distance, which is 0 for equal shares and at most 1.

    Args:
        counts: (clients, classes) examples.
    """
    counts = counts[counts.sum(axis=1) > 1]  # fewer say nothing
    if not len(counts):
        return "mild"
    sizes = counts.sum(axis=1, keepdims=True)
    shares, all_shares = counts / sizes, counts.sum(axis=0) / counts.sum()
    variance = ((shares - all_shares) ** 2 - shares * (1 - shares) / (sizes - 1)).mean(axis=0)
    # A mean absolute deviation is √(2/π) standard deviations for a normal distribution.
    apart = 0.5 * float(np.sqrt(2 / np.pi * variance.clip(0)).sum())
    return "iid" if apart < MILD else "mild" if apart < STRONG else "strong"
