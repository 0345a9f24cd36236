"""What happened in a round: launched on the devices, then collected on the host."""

from typing import NamedTuple

import jax
import numpy as np

from dure.oracles.host.base import NOT_REPORTED
from dure.simulation.cohort import Facts
from dure.simulation.defence import Account
from dure.simulation.statics import Outcome, Report
from dure.simulation.verdict import statuses


class Launched(NamedTuple):
    """A round on its way: host facts at once, device results when they are there.

    `account`: what an aggregation rule did with whom; None for the exact mean.
    """

    round: int
    facts: Facts
    report: Report
    outcome: Outcome
    account: Account | None = None


class RoundResult(NamedTuple):
    """What happened in a round; arrays have one entry per client that was asked.

    `loss` is NaN for a client that doesn't work or that reports none.
    """

    round: int
    ids: np.ndarray
    examples: np.ndarray
    weights: np.ndarray
    inclusion: np.ndarray
    steps: np.ndarray
    loss: np.ndarray
    norm: np.ndarray
    status: list[str]
    accepted: int
    senders: int
    move: float
    finite: bool
    account: Account | None = None


def result_of(launched: Launched) -> RoundResult:
    """Wait for a round and say what happened in it."""
    report, outcome = jax.device_get((launched.report, launched.outcome))
    facts = launched.facts
    verdict, loss, steps, norm = (np.asarray(x)[facts.seats] for x in report)
    steps = np.where(facts.planned > 0, steps, 0)  # FedSGD's one gradient too needs a client that works
    senders = (facts.sizes > 0) & (steps > 0)
    return RoundResult(
        launched.round,
        facts.ids,
        facts.sizes,
        facts.weights,
        facts.inclusion,
        np.where(facts.sizes > 0, steps, 0),
        np.where(senders & (loss != NOT_REPORTED), loss, np.nan),
        np.where(senders, norm, np.nan),
        statuses(facts.sizes, steps, facts.lost, verdict),
        int(outcome.accepted),
        int(senders.sum()),
        float(outcome.move),
        bool(outcome.finite),
        launched.account,
    )
