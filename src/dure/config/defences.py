"""The catalogue of aggregation rules and attacks, read off their classes and off what they do when they are called."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from dure.aggregation import PreAggregator, Rule
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call
from dure.attacks import Attack
from dure.config import tables
from dure.config.described import F, as_file, does, example, shared
from dure.config.robust import unwritable
from dure.errors import ConfigError

SERVER = "needs the server's own update"
RULES, BEFORE = "Rules", "Pre-aggregators, before a rule"
#: Updates of the call that shows what a rule does, and their length.
N, D = 12, 4
WEIGHTS: Mapping[str, str] = {
    "mass": "count as that many updates",
    "selection": "weigh the updates that the rule keeps",
    "none": "must be equal",
}
KNOWLEDGE: Mapping[str, str] = {
    "own": "its own clients",
    "updates": "all honest updates",
    "rule": "the server's rule too",
}


@dataclass(frozen=True)
class RuleEntry:
    """One rule or pre-aggregator.

    Attributes:
        kind: the class.
        does: one line.
        needs: the condition on n updates with f hostile ones among them; empty for none.
        weights: what unequal weights do.
        cost: what it reads of n updates of d numbers.
        remarks: what else a reader must know before choosing it, a few words each.
        in_file: whether a TOML file can hold its arguments.
    """

    kind: type[Any]
    does: str
    needs: str
    weights: str
    cost: str
    remarks: tuple[str, ...]
    in_file: bool

    @property
    def name(self) -> str:
        """As in a file and in Python."""
        return self.kind.__name__

    @property
    def group(self) -> str:
        """Rules, or pre-aggregators."""
        return RULES if issubclass(self.kind, Rule) else BEFORE

    @property
    def file(self) -> str:
        """The lines of a TOML file that ask for it; empty where no file can."""
        return as_file(self.kind) + ("\nroot = 0" if SERVER in self.remarks else "")

    def facts(self) -> dict[str, Any]:
        """All of it for scripts."""
        return {
            "name": self.name,
            "group": self.group,
            "does": self.does,
            "needs": self.needs or None,
            "weights": self.weights,
            "cost": self.cost,
            "remarks": list(self.remarks),
            "in_file": self.in_file,
            **shared(self.kind),
        }


@dataclass(frozen=True)
class AttackEntry:
    """One attack.

    Attributes:
        kind: the class.
        does: one line.
        knows: what the attacker must know.
        acts: where it acts: "update", "data", "training", "weight"; "trigger": found anew for every round's model.
        backdoor: whether how often the backdoor works is measured.
        in_file: whether a TOML file can hold its arguments.
    """

    kind: type[Any]
    does: str
    knows: str
    acts: tuple[str, ...]
    backdoor: bool
    in_file: bool

    @property
    def name(self) -> str:
        """As in a file and in Python."""
        return self.kind.__name__

    @property
    def file(self) -> str:
        """The lines of a TOML file that ask for it; empty where no file can."""
        return as_file(self.kind)

    def facts(self) -> dict[str, Any]:
        """All of it for scripts."""
        return {
            "name": self.name,
            "does": self.does,
            "knows": self.knows,
            "acts_on": list(self.acts),
            "backdoor": self.backdoor,
            "in_file": self.in_file,
            **shared(self.kind),
        }


@cache
def rules() -> tuple[RuleEntry, ...]:
    """All rules, then all pre-aggregators, in the order of their names."""
    return tuple(_rule(kind) for kind in [*_sorted(tables.aggregators()), *_sorted(tables.pre_aggregators())])


@cache
def attacks() -> tuple[AttackEntry, ...]:
    """All attacks, in the order of their names."""
    return tuple(_attack(kind) for kind in _sorted(tables.attacks()))


def find(what: str, known: tuple[Any, ...], name: str) -> Any:
    """The entry of this name, in any case.

    Raises:
        ConfigError: there's none; the nearest one is named.
    """
    return tables.find(what, {entry.name: entry for entry in known}, name)[1]


def _sorted(known: Mapping[str, type[Any]]) -> list[type[Any]]:
    return [known[name] for name in sorted(known, key=str.lower)]


# --- rules -----------------------------------------------------------------------------------------------


def _rule(kind: type[Any]) -> RuleEntry:
    made = example(kind)
    seen = _Seen(np.random.default_rng(0).normal(size=(N, D)))
    places = np.arange(N)
    call = Call(F, np.ones(N), key=1, clients=places, m=N, invited=places, at=places)
    remarks = {"draws at random": bool(made.draws)}
    if isinstance(made, PreAggregator):
        made.mixing(seen, call)
        weights = "none"
        remarks["mixes clients"] = not made.keeps_clients
    else:
        try:
            found = made.decide(seen, call)
        except ConfigError:  # one that can't do with the clients' updates alone
            remarks[SERVER] = True
            found = made.decide(seen, replace(call, server=np.ones(D)))
        weights = str(made.weighting)
        remarks["remembers rounds"] = found.state is not None
        remarks["tells clients apart"] = bool(made.by_client)
        remarks["bound κ known"] = bool(made.kappa(N, F))
    needs = tuple(dict.fromkeys(filter(None, (_condition(made, n) for n in range(1, N)))))
    return RuleEntry(
        kind,
        does(kind),
        " and ".join(needs),
        WEIGHTS[weights],
        seen.cost,
        tuple(text for text, true in remarks.items() if true),
        not unwritable(kind),
    )


def _condition(made: Any, n: int) -> str | None:
    failed = made.needs(n, F)
    # The numbers of the example say nothing about the rule.
    return None if failed is None else re.sub(r" \(\w+=[^)]*\)", "", failed)


class _Seen(Rows):
    """Rows that write down in which ways they are read; what is computed of them is only right in shape."""

    _PAIRS: ClassVar[frozenset[str]] = frozenset({"inner", "distances", "products", "about", "_points"})
    _SORTED: ClassVar[frozenset[str]] = frozenset({"median", "trimmed_mean", "ranks", "around_median"})

    def __init__(self, source: Any):
        self.asked: set[str] = set()
        super().__init__(source)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("__") and name != "asked":
            self.asked.add(name)
        return super().__getattribute__(name)

    @property
    def cost(self) -> str:
        """What was read, by order of magnitude."""
        parts = ["n² d"] * bool(self.asked & self._PAIRS) + ["sort columns"] * bool(self.asked & self._SORTED)
        return " + ".join(parts) or "n d"

    def mixed(self, mixing: np.ndarray) -> "_Seen":
        other = _Seen(mixing @ self.source)
        other.asked = self.asked
        return other

    def take(self, chosen: np.ndarray) -> "_Seen":
        other = _Seen(self.source[chosen])
        other.asked = self.asked
        return other

    # Without the compiled kernels, whose first call costs seconds.

    def _sum(self, total: np.ndarray, work: Any) -> np.ndarray:
        return np.asarray(total + (np.eye(len(total)) if total.ndim == 2 else 1.0))

    def _assemble(self, on_host: Any, on_device: Any) -> np.ndarray:
        return np.asarray(self.source.mean(0))

    def _columns(self, kernel: Any, on_device: Any) -> np.ndarray:
        return np.asarray(self.source.mean(0))

    def _weighted(self, weights: np.ndarray, trim: float) -> np.ndarray:
        return np.asarray(self.source.mean(0))

    def ranks(self, first: int, last: int) -> np.ndarray:
        return np.asarray(self.source.mean(0))

    def around_median(self, keep: int) -> np.ndarray:
        return np.asarray(self.source.mean(0))

    def matrix(self) -> np.ndarray:
        return np.array(self.source)


# --- attacks ---------------------------------------------------------------------------------------------


def _attack(kind: type[Any]) -> AttackEntry:
    made = example(kind)
    acts = {
        "update": kind.craft is not Attack.craft,
        "data": made.poisons,
        "training": made.radius is not None or made.mask(np.zeros(D)) is not None,
        "weight": not np.array_equal(made.weights(np.ones(1)), np.ones(1)),
        "trigger": made.adapts,
    }
    return AttackEntry(
        kind,
        does(kind),
        KNOWLEDGE[made.knowledge],
        tuple(text for text, true in acts.items() if true),
        type(getattr(made, "attack", made)).trigger
        is not Attack.trigger,  # its own, not that of what it is put around
        not unwritable(kind),
    )
