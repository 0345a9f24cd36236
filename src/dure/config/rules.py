"""Which methods suit a setting: the rules of `dure advise`, to be read from top to bottom.

Two questions of the field decide most: can a client keep state between rounds, and does everyone take part in
each round? What a method needs is asked of the method (`Needs`, and what the catalogue saw it do); here is only
what follows from it.
"""

from collections.abc import Callable
from typing import NamedTuple

from dure.algorithms import Algorithm
from dure.config.catalogue import Entry
from dure.config.setting import Known

#: State is out of date when a client comes back more seldom than once in so many rounds.
SELDOM = 100

# ----- what is out --------------------------------------------------------------------------------------------


def keeps_nothing(s: Known, e: Entry) -> str | None:
    """Can a client keep state?"""
    if e.found.state and not s.keeps_state:
        return f"keeps {the(e.keeps)} with each client between rounds, and clients here keep nothing"
    return None


def comes_seldom(s: Known, e: Entry) -> str | None:
    """State is for clients that come again."""
    if not e.found.state or s.everyone:
        return None
    visits = None if s.rounds is None else s.rounds * s.participation
    if visits is not None and visits < 2:
        return (
            f"keeps {the(e.keeps)} with each client, and in {s.rounds:,} rounds a client takes part "
            f"{visits:.2g} times: hardly anything that was kept is used"
        )
    if s.participation * SELDOM < 1:
        return (
            f"keeps {the(e.keeps)} with each client, and a client comes back about every "
            f"{1 / s.participation:,.0f} rounds: what it kept is out of date"
        )
    return None


def needs_everyone(s: Known, e: Entry) -> str | None:
    """Does everyone take part in each round?"""
    if e.needs.everyone and not s.everyone:
        return f"is right only when all {s.clients:,} clients take part in every round; here {cohort(s)} do"
    return None


def no_adapters(s: Known, e: Entry) -> str | None:
    """Is there anything that the method averages?"""
    if e.needs.adapters and not s.adapters:
        return "averages low-rank adapters, and the model has none (dure.lora makes some)"
    return None


def costs_too_much(s: Known, e: Entry) -> str | None:
    """More than FedAvg's traffic, or a second exchange, over slow links."""
    if s.links == "fast" or e.private or e.found.up + e.found.down <= 2:
        return None
    twice = " in two exchanges" if e.survey else ""
    return (
        f"has a client send {e.sends} and receive {e.receives} a round{twice}, where FedAvg has it send and "
        "receive 1, and links are slow"
    )


def not_wanted(s: Known, e: Entry) -> str | None:
    """Personal models cost work and state."""
    if e.needs.personal and not s.personal:
        return "gives clients models of their own, which aren't wanted"
    return None


def not_guarded(s: Known, e: Entry) -> str | None:
    """Does a rule that leaves hostile updates out guard all that the server takes of the clients?"""
    if not s.attackers:
        return None
    if e.survey:
        return "first takes the mean of what clients say, which no aggregation rule guards"
    if e.needs.everyone or e.needs.mean_of_states:
        return "keeps a mean over all clients' states, which is wrong as soon as a rule leaves an update out"
    if e.method.receive is not Algorithm.receive:
        return "makes what it averages of the updates on the server, and robust rules are about the updates themselves"
    return None


RULES: tuple[Callable[[Known, Entry], str | None], ...] = (
    keeps_nothing,
    comes_seldom,
    needs_everyone,
    not_wanted,
    no_adapters,
    costs_too_much,
    not_guarded,
)

# ----- what to start with -------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """A method to start with, in which settings, and why."""

    method: str
    when: Callable[[Known], bool]
    why: str


def _drift(s: Known) -> bool:
    return s.alike != "iid" and not s.personal


#: In the order in which to try them; what is out is passed over, and the first `MOST` remain.
CHOICES: tuple[Choice, ...] = (
    Choice(
        "WorkerMomentum",
        lambda s: s.attackers and not s.adapters and not s.personal,
        "averages a client's updates over rounds, so that attackers have less noise to hide in",
    ),
    Choice(
        "FFALoRA",
        lambda s: s.adapters,
        "exact, and only B is sent; A stays as it began, which costs capacity",
    ),
    Choice(
        "FedExLoRA",
        lambda s: s.adapters,
        "exact with both factors; the adapted weights come down whole",
    ),
    Choice(
        "FlexLoRA",
        lambda s: s.adapters,
        "both factors at FedIT's traffic: not exact, but the nearest average of their rank",
    ),
    Choice(
        "FedIT",
        lambda s: s.adapters,
        "the baseline of adapters: both factors averaged by themselves, which is not the average of their products",
    ),
    Choice(
        "FedAvg",
        lambda s: not s.adapters,
        "the baseline: no state, one model up and down; the others must beat it",
    ),
    Choice(
        "FineTuning",
        lambda s: s.personal,
        "the baseline of personal models: each client trains the global one once more before using it",
    ),
    Choice(
        "LocalOnly",
        lambda s: s.personal,
        "the other baseline: what each client reaches alone; who doesn't beat it needs no federation",
    ),
    Choice(
        "Ditto",
        lambda s: s.personal,
        "a personal model beside FedAvg's; one number, λ, says how far apart they may be",
    ),
    Choice(
        "FedRep",
        lambda s: s.personal and s.alike != "iid",
        "a shared representation under heads of the clients' own; sends less than a model",
    ),
    Choice(
        "IFCA",
        lambda s: s.personal and s.alike == "strong",
        "when clients fall into a few kinds: one model for each kind, and no state",
    ),
    Choice(
        "PerFedAvg",
        lambda s: s.personal,
        "a global model made to be good after one step at the client; no state",
    ),
    Choice(
        "Scaffold",
        _drift,
        "takes the drift of local steps away exactly, also when only some take part; try this first where data differ",
    ),
    Choice(
        "FedDyn",
        _drift,
        "exact like SCAFFOLD with FedAvg's traffic; its alpha needs a search",
    ),
    Choice(
        "FedLin",
        lambda s: _drift(s) and s.everyone,
        "exact without client state, for a second exchange a round",
    ),
    Choice(
        "MimeLite",
        lambda s: _drift(s) and not s.everyone,
        "carries the server's momentum into the local steps: less drift without client state",
    ),
    Choice(
        "FedProx",
        _drift,
        "keeps local work near the model and uses what slow clients got done; less drift, not none",
    ),
    Choice(
        "FedAdam",
        lambda s: not s.everyone and not s.personal,
        "adaptive server steps: steadier where every round has other clients; no cost to clients",
    ),
    Choice(
        "FedAvgM", lambda s: not s.personal, "server momentum: often the cheapest gain; no cost to clients"
    ),
    Choice(
        "FedExP",
        lambda s: s.alike == "iid" and not s.personal,
        "longer server steps where updates point apart, and nothing to tune",
    ),
)
MOST = 5

# ----- what to keep in mind -----------------------------------------------------------------------------------

NOTES: tuple[tuple[Callable[[Known], bool], str], ...] = (
    (
        lambda s: s.attackers,
        "Attackers: the mean withstands nobody, whatever the method. Give an aggregation rule too, [aggregator] in a "
        "file, and reckon with f, the most clients of a round that may be hostile: TrimmedMean with NNM before it "
        "is a good start (dure aggregators lists all). Then attack it in a simulation (dure attacks) and look whom it "
        "suspects. Where honest clients differ much, no rule can tell them from careful attackers.",
    ),
    (
        lambda s: s.alike == "strong" and not s.personal,
        "Data this different: one model may serve some clients badly. Look at the worst clients in the report, and "
        "ask again with personal models.",
    ),
    (lambda s: s.alike == "iid" and s.personal, "Data this alike: personal models have little to gain."),
    (
        lambda s: s.alike == "iid" and not s.personal,
        "Data this alike: there is little drift to correct. More local work and larger cohorts come first.",
    ),
    (
        lambda s: not s.everyone,
        "The usual weighting of a sample by examples is biased towards small clients; the record of a run says so, "
        'and estimator = "horvitz-thompson" removes it.',
    ),
)


def the(keeps: str) -> str:
    """Its private part; 1 model."""
    return f"its {keeps}" if keeps.endswith("part") else keeps


def cohort(s: Known) -> str:
    """How many take part in a round, in words."""
    share = f"{100 * s.participation:.2g} %"
    return f"about {max(s.per_round, 1):,.0f} of {s.clients:,} ({share})"
