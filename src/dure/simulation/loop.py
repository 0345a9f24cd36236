"""The loop of one run: rounds, evaluations, records and checkpoints."""

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dure.algorithms.base import has_personal
from dure.devices import as_first, in_step, is_first
from dure.errors import RunError
from dure.run import Run, RunWriter
from dure.simulation import checkpoint
from dure.simulation.engine import Engine
from dure.simulation.evaluate import Evaluation, spread
from dure.simulation.outside import check
from dure.simulation.personal import PersonalEvaluation
from dure.simulation.records import participation, round_record
from dure.simulation.results import Launched

OnRound = Callable[[dict[str, Any]], object]
#: Seconds between checkpoints where `checkpoint_every` is not given.
CHECKPOINT_SECONDS = 10.0


class Loop:
    """Rounds, evaluations, records and checkpoints of one run."""

    def __init__(
        self,
        engine: Engine,
        writer: RunWriter,
        rounds: int,
        every: int | None,
        clients_every: int | None,
        checkpoint_every: int | None,
        on_round: OnRound | None,
    ):
        self.engine, self.writer, self.rounds = engine, writer, rounds
        self.every, self.clients_every, self.checkpoint_every = every, clients_every, checkpoint_every
        self.on_round = on_round
        self.uplink = self.downlink = 0
        data, task = engine.data, engine.task
        blind = task.model.outside is not None and not task.model.outside.predicts
        test = None if blind else data.central_test
        self.central = None if test is None or every is None else self._evaluation(test)
        self.own = None if data.client_test is None or blind else self._evaluation(data.client_test)
        self.backdoor = None if blind or every is None or test is None else self._backdoor(test)
        if test is None and every is not None and not blind:
            self._warn_of_unseen_backdoor()
        self.personal = None
        if self.own is not None and has_personal(engine.algorithm):
            self.personal = PersonalEvaluation(engine)
        self.better = {"loss": False, **{m.name: m.higher_is_better for m in task.metrics}}
        self.saved_at = time.monotonic()

    def _backdoor(self, test: Mapping[str, np.ndarray]) -> Evaluation | None:
        """The central test rows with the attack's trigger, and the attacker's labels on them."""
        engine = self.engine
        enemy, task = engine.settings.enemy if engine.defence is None else engine.defence.enemy, engine.task
        if enemy is None:
            return None
        found = enemy.attack.trigger(
            np.asarray(test[task.input]), np.asarray(test[task.target]), engine.data.classes
        )
        if found is None:
            return None
        inputs, targets, counts = found
        return self._evaluation({task.input: inputs[counts], task.target: targets[counts]})

    def _warn_of_unseen_backdoor(self) -> None:
        engine = self.engine
        enemy, task = engine.settings.enemy, engine.task
        if enemy is None or not enemy.ids:
            return
        x, y = (np.asarray(engine.data.columns[name][:1]) for name in (task.input, task.target))
        if enemy.attack.trigger(x, y, engine.data.classes) is not None:
            warnings.warn(
                f"{type(enemy.attack).__name__} plants a backdoor, and {engine.data.name!r} has no central test rows "
                "to try it on: the run won't say how often it opens. Give the data test=.",
                stacklevel=3,
            )

    def _evaluation(self, columns: Mapping[str, np.ndarray]) -> Evaluation:
        return Evaluation(self.engine.task, self.engine.layout, self.engine.mesh, columns)

    def run(self, resumed: Path | None = None) -> Run:
        """All rounds, or those that are left of the run in the directory `resumed`; returns the run."""
        with self._guarded():
            if resumed is not None and self._began(resumed):
                self._go_back(resumed)
            else:
                self._record(None, self._start_evaluation(0), time.perf_counter(), 0)
                self._save()
            self._rounds()
            self.writer.model(self.engine.state_dict(), {"round": str(self.engine.round), "format": "dure 1"})
            self.writer.status("complete", self.engine.round)
        self.writer.close()
        outside = self.engine.task.model.outside
        return self.writer.run(model=self.engine.params(), estimator=outside and outside.estimator)

    def _rounds(self) -> None:
        engine = self.engine
        while engine.round < self.rounds:
            begin, compiled = time.perf_counter(), engine.compilations
            launched = engine.launch()
            evaluations = self._start_evaluation(launched.round)
            if launched.round < self.rounds:
                engine.plan_ahead()
            self._record(launched, evaluations, begin, engine.compilations - compiled)
            if self._checkpoint_due():
                self._save()

    def _start_evaluation(self, round: int) -> tuple[Any, Any, Any]:
        """Begin the evaluations that are due; the devices do them behind the round."""
        engine, last = self.engine, round == self.rounds
        central = own = backdoor = None
        if self.central is not None and (last or round % (self.every or 1) == 0):
            central = self.central.start(engine.vector(), engine.model)
            enemy = engine.settings.enemy
            if self.backdoor is not None and enemy is not None and enemy.attack.adapts:
                self.backdoor = self._backdoor(engine.data.central_test)  # with the trigger of this round
            backdoor = None if self.backdoor is None else self.backdoor.start(engine.vector(), engine.model)
        if self.own is not None and (last or (self.clients_every and round % self.clients_every == 0)):
            own = self.own.start(engine.vector(), engine.model)
        return central, own, backdoor

    def _record(
        self, launched: Launched | None, evaluations: tuple[Any, Any, Any], begin: float, compilations: int
    ) -> None:
        engine = self.engine
        result = None if launched is None else engine.collect(launched)
        if result is not None:
            self.uplink += engine.uplink_message * result.senders
            self.downlink += engine.downlink_message * len(result.ids)
        record = round_record(engine, result, self.uplink, self.downlink)
        central, own, backdoor = evaluations
        if central is not None:
            assert self.central is not None
            record |= {f"test_{k}": v for k, v in self.central.totals(central).items()}
        if backdoor is not None:
            assert self.backdoor is not None
            record |= {f"backdoor_{k}": v for k, v in self.backdoor.totals(backdoor).items()}
        if own is not None:
            record |= self._clients(engine.round, own)
        check(engine.task, engine.round, engine.data, engine.settings.client_errors)
        if result is not None:
            self.writer.participation(result.round, participation(result))
        self.writer.round(record)
        seconds = time.perf_counter() - begin
        self.writer.timing({"round": engine.round, "seconds": seconds, "compilations": compilations})
        if self.on_round is not None:
            self.on_round({**record, "seconds": seconds})

    def _clients(self, round: int, started: Any) -> dict[str, float]:
        """Evaluate every client on its own test rows; returns the summary for the round's record."""
        assert self.own is not None
        data = self.engine.data
        offsets = data.client_test_offsets
        values = self.own.per_client(started, offsets)
        if self.personal is not None:
            values |= {f"personal_{name}": value for name, value in self.personal.measure().items()}
        known = np.flatnonzero(np.diff(offsets))
        self.writer.clients(
            round,
            {
                "client": known,
                "name": [data.client_name(int(k)) for k in known],
                "examples": np.diff(offsets)[known],
                **{name: value[known] for name, value in values.items()},
            },
        )
        return {
            f"client_{name}_{what}": number
            for name, value in values.items()
            for what, number in spread(value, self.better[name.removeprefix("personal_")]).items()
        }

    def _checkpoint_due(self) -> bool:
        if self.writer.directory is None:
            return False
        if self.engine.round == self.rounds:
            return True
        if self.checkpoint_every is not None:
            return self.engine.round % self.checkpoint_every == 0
        return time.monotonic() - self.saved_at > CHECKPOINT_SECONDS

    def _save(self) -> None:
        if self.writer.directory is None:
            return
        at = checkpoint.Checkpoint(self.engine.round, self.writer.positions(), self.uplink, self.downlink)
        checkpoint.save(self.writer.directory, self.engine, at)
        self.writer.status("running", self.engine.round)
        self.saved_at = time.monotonic()

    def _began(self, directory: Path) -> bool:
        """Whether the run came to its first checkpoint, which is before round 1; if not, it begins anew."""
        began = True
        if is_first() and not checkpoint.saved_rounds(directory) and not self.writer.run().rounds[1:]:
            self.writer.truncate(dict.fromkeys(self.writer.positions(), 0))
            began = False
        return bool(as_first(began))

    def _go_back(self, directory: Path) -> None:
        with in_step():
            at = checkpoint.load(directory, self.engine)
        if as_first(at.round) != at.round:
            raise RunError(
                f"This process reads the checkpoint of round {at.round} in {directory}, and the first one another: "
                "the run must be on a file system that all machines share."
            )
        if at.round > self.rounds:
            raise RunError(f"The run has done {at.round} rounds already; rounds={self.rounds} is less.")
        if is_first():
            self.writer.truncate(at.positions)
        self.uplink, self.downlink = at.uplink, at.downlink
        self.writer.status("running", at.round)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """A run that stops is left so that it can be resumed, and its status says why."""
        try:
            yield
        except BaseException as error:
            self.writer.fail(error, self.engine.round)
            raise
