"""`dure.advise`: the rules of `dure.config.rules` applied to a setting."""

from collections.abc import Mapping
from dataclasses import dataclass

from dure.config.catalogue import entries
from dure.config.rules import CHOICES, MOST, NOTES, RULES, cohort
from dure.config.setting import Known, checked, known


@dataclass(frozen=True)
class Advice:
    """What to try in a setting.

    Attributes:
        setting: the answers that it rests on, and where they are from.
        start_with: method → why, in the order to try them.
        out: method → why not, in the order of the catalogue.
        possible: the methods that are neither.
        notes: what to keep in mind, sentences.
    """

    setting: Known
    start_with: Mapping[str, str]
    out: Mapping[str, str]
    possible: tuple[str, ...]
    notes: tuple[str, ...]

    def questions(self) -> tuple[str, str]:
        """The two questions of the field, answered."""
        s = self.setting
        state = "yes" if s.keeps_state else "no"
        taking = "yes" if s.everyone else f"no, {cohort(s)}"
        return (
            f"Can a client keep state between rounds? {state}{_how(s, 'keeps_state')}",
            f"Does everyone take part in each round? {taking}{_how(s, 'participation')}",
        )

    def about(self) -> str:
        """The setting in a line."""
        s = self.setting
        alike = {"iid": "data alike", "mild": "data mildly different", "strong": "data strongly different"}
        parts = [
            f"{s.clients:,} clients{_how(s, 'clients')}",
            s.kind + _how(s, "kind"),
            alike[s.alike] + _how(s, "alike"),
            f"{s.links} links" + _how(s, "links"),
            ("" if s.personal else "no ") + "personal models" + _how(s, "personal"),
            ("" if s.attackers else "no ") + "attackers" + _how(s, "attackers"),
        ]
        return ", ".join(parts + ["low-rank adapters"] * s.adapters)

    def __str__(self) -> str:
        lines = [f"Setting: {self.about()}", *self.questions(), "", "Start with"]
        lines += [f"  {name}: {why}" for name, why in self.start_with.items()]
        lines += ["", "Out"] + [f"  {name}: {why}" for name, why in self.out.items()]
        lines += ["", f"Possible too: {', '.join(self.possible)}"]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)])


def advise(
    *,
    clients: int,
    kind: str | None = None,
    clients_per_round: int | None = None,
    participation: float | None = None,
    alike: str | None = None,
    keeps_state: bool | None = None,
    attackers: bool | None = None,
    links: str | None = None,
    personal: bool | None = None,
    adapters: bool | None = None,
    rounds: int | None = None,
) -> Advice:
    """Which methods are out in a setting, and why; which to start with, and why.

    What isn't said is assumed as usual for the kind, and the advice says which answers were assumed.

    Args:
        clients: how many there are, at least 2.
        kind: "cross-silo" (a few institutions that stay) or "cross-device" (many devices that come and go).
        clients_per_round: how many take part in a round.
        participation: the share of clients that takes part in a round, in (0, 1], instead.
        alike: how much clients' data differ: "iid", "mild" or "strong".
        keeps_state: whether a client comes again and can keep something between rounds.
        attackers: whether some clients may send anything.
        links: "slow" where bytes are what a round costs, else "fast".
        personal: whether each client may end with a model of its own.
        adapters: whether what is trained are low-rank adapters (`dure.lora`).
        rounds: how long the training is.

    Raises:
        ConfigError: an impossible value, or two that contradict each other.
    """
    return advice(known(checked(dict(locals()), "advise", "")))


def advice(setting: Known) -> Advice:
    """The rules applied to a setting with every question answered."""
    out = {}
    for e in entries():
        reasons = (rule(setting, e) for rule in RULES)
        reason = next((reason for reason in reasons if reason is not None), None)
        if reason is not None:
            out[e.name] = reason
    fitting = [choice for choice in CHOICES if choice.method not in out and choice.when(setting)]
    start = {choice.method: choice.why for choice in fitting[:MOST]}
    possible = tuple(e.name for e in entries() if e.name not in out and e.name not in start)
    return Advice(setting, start, out, possible, tuple(text for when, text in NOTES if when(setting)))


def _how(s: Known, key: str) -> str:
    return f" ({s.how[key]})" if key in s.how else ""
