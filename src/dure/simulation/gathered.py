"""A round whose updates are seen one by one: the clients' program, the aggregation rule, the server's program."""

from typing import Any

import jax
import numpy as np

from dure.simulation.adapting import adapted
from dure.simulation.cohort import RoundInputs
from dure.simulation.defence import Defence
from dure.simulation.hostile import hooks
from dure.simulation.program import apply_function, compiled_apply, compiled_work, work_function
from dure.simulation.results import Launched
from dure.simulation.statics import Outcome, Report, Statics


def gathered_round(
    engine: Any, defence: Defence, number: int, statics: Statics, inputs: RoundInputs
) -> tuple[Launched, Any]:
    """Run the engine's round `number`: (what is known of it, proposed client states).

    A cohort that is too small for the rule isn't asked for anything; the model stays.
    """
    facts, why = inputs.facts, defence.refusal(number, inputs.facts)
    if why is not None:
        return Launched(number, facts, *_nothing(inputs), defence.skipped(facts, why)), None
    work, apply = (
        (work_function(statics), apply_function(statics))
        if engine.settings.eager
        else (compiled_work(statics), compiled_apply(statics))
    )
    adapted(engine, defence, number)
    given = hooks(defence.enemy, defence.last, engine.layout.size)
    columns = {**engine.columns, **engine.whole(given)}
    worked = work(engine.model, engine.numbers, columns, *engine.put(number, inputs))
    made = defence(number, facts, worked.sent, worked.report)
    verdict: Any = np.zeros(worked.report.verdict.shape, np.int32)
    verdict[facts.seats] = made.verdict
    average = made.average or jax.tree.map(lambda x: np.zeros(x.shape[3:], np.float32), worked.sent)
    accepted = np.int32(made.account.accepted)
    average, share, accepted = engine.whole((average, np.float32(made.mass * inputs.unit), accepted))
    rest = worked._replace(sums=None, sent=None, state=None, report=None, accepted=accepted)
    engine.model, outcome = apply(engine.model, engine.numbers, average, share, rest)
    report = worked.report._replace(verdict=verdict)
    return Launched(number, facts, report, outcome, made.account), worked.state


def _nothing(inputs: RoundInputs) -> tuple[Report, Outcome]:
    """Nobody did anything."""
    shape = inputs.clients.weight.shape
    idle: Any = np.zeros(shape, np.int32)
    unknown: Any = np.zeros(shape, np.float32)
    still: Any = (np.int32(0), np.float32(0), np.bool_(True))
    return Report(idle, unknown, idle, unknown), Outcome(*still)
