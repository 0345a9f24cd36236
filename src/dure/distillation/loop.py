"""The loop of one distillation: rounds, evaluations, records and checkpoints."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dure.distillation.base import Method
from dure.distillation.describe import record
from dure.distillation.evaluate import Evaluation
from dure.distillation.group import Group
from dure.distillation.public import PublicSet
from dure.distillation.round import Round
from dure.errors import RunError
from dure.run import Run, RunWriter, snapshot
from dure.simulation.evaluate import spread
from dure.simulation.loop import CHECKPOINT_SECONDS
from dure.simulation.outside import check
from dure.simulation.settings import Settings

OnRound = Callable[[dict[str, Any]], object]


class Loop:
    """Rounds, evaluations, records and checkpoints of one run."""

    def __init__(
        self,
        method: Method,
        groups: list[Group],
        data: Any,
        public: PublicSet,
        chosen: Settings,
        writer: RunWriter,
        every: int | None,
        clients_every: int | None,
        checkpoint_every: int | None,
        on_round: OnRound | None,
    ):
        self.method, self.groups, self.data, self.public, self.chosen = method, groups, data, public, chosen
        self.writer, self.every, self.clients_every, self.on_round = writer, every, clients_every, on_round
        self.checkpoint_every, self.saved_at = checkpoint_every, time.monotonic()
        self.prototypes: Any = tuple(group.prototype for group in groups) if method.prototypes else ()
        self.uplink = self.downlink = 0
        mesh, task = groups[0].engine.mesh, groups[0].task
        test, own = data.central_test, data.client_test
        self.central = None if test is None or every is None else Evaluation(test, mesh, task)
        self.own = None if own is None else Evaluation(own, mesh, task)
        self.better = {"loss": False, **{m.name: m.higher_is_better for m in task.metrics}}

    def run(self, rounds: int, resume: bool) -> Run:
        """All rounds that are left."""
        number = 0
        try:
            number = self._go_back(rounds) if resume else 0
            if not number:
                self._begin(rounds)
            while number < rounds:
                begin = time.perf_counter()
                number += 1
                record = self._round(number)
                self._write(record | self._evaluate(number, rounds), begin)
                if self._checkpoint_due(number, rounds):
                    self._save(number)
            models, tensors = self._final()
            self.writer.model(tensors, {"round": str(rounds), "format": "dure 1"})
            self.writer.status("complete", rounds)
        except BaseException as error:
            self.writer.fail(error, number)
            raise
        self.writer.close()
        return self.writer.run(model=models)

    def _begin(self, rounds: int) -> None:
        begin = time.perf_counter()
        start = {"round": 0, "status": "start", **self._cumulative()}
        self._write(start | self._evaluate(0, rounds), begin)
        self._save(0)

    def _round(self, number: int) -> dict[str, Any]:
        asking = Round(number, self.groups, self.method, self.public, self.chosen.seed)
        models = self.method.round(asking.begin(self.prototypes), asking)
        self.prototypes = asking.end(models)
        for group in self.groups:
            check(group.engine.task, number, self.data)
        asked = asking.asked()
        self.uplink += int(asked.uplink.sum())
        self.downlink += int(asked.downlink.sum())
        taught = [float(x) for x in asking.taught]
        columns = asked._asdict()
        for name in ("uplink", "downlink"):
            columns.pop(name)
        self.writer.participation(number, columns)
        return {**record(number, asked, self.data, taught), **self._cumulative()}

    def _cumulative(self) -> dict[str, int]:
        return {"cumulative_uplink_bytes": self.uplink, "cumulative_downlink_bytes": self.downlink}

    def _write(self, record: dict[str, Any], begin: float) -> None:
        self.writer.round(record)
        seconds = time.perf_counter() - begin
        self.writer.timing({"round": record["round"], "seconds": seconds})
        if self.on_round is not None:
            self.on_round({**record, "seconds": seconds})

    # ----- checkpoints ----------------------------------------------------------------------------------

    def _checkpoint_due(self, number: int, rounds: int) -> bool:
        if number == rounds:
            return True
        if self.checkpoint_every is not None:
            return number % self.checkpoint_every == 0
        return time.monotonic() - self.saved_at > CHECKPOINT_SECONDS

    def _state(self) -> dict[str, np.ndarray]:
        """All that the next rounds depend on, by name."""
        state = {f"prototype{a}": p for a, p in enumerate(self.prototypes)}
        for a, group in enumerate(self.groups):
            state |= {f"group{a}/{name}": x for name, x in group.state().items()}
        return state

    def _save(self, number: int) -> None:
        if self.writer.directory is None:
            return
        sent = {"uplink": self.uplink, "downlink": self.downlink}
        at = snapshot.Snapshot(number, self.writer.positions(), sent, self._state())
        snapshot.save(self.writer.directory, at)
        self.writer.status("running", number)
        self.saved_at = time.monotonic()

    def _go_back(self, rounds: int) -> int:
        """To the last checkpoint; 0 for a run that was stopped before its first one, which begins anew."""
        assert self.writer.directory is not None
        like = {name: None if "/" in name else x for name, x in self._state().items()}
        at = snapshot.load(self.writer.directory, like)
        if at is None:
            self.writer.truncate(dict.fromkeys(self.writer.positions(), 0))
            return 0
        if at.round > rounds:
            raise RunError(f"The run has done {at.round} rounds already; rounds={rounds} is less.")
        self.writer.truncate(at.positions)
        self.uplink, self.downlink = at.counters["uplink"], at.counters["downlink"]
        self.prototypes = tuple(at.tensors[f"prototype{a}"] for a in range(len(self.prototypes)))
        for a, group in enumerate(self.groups):
            mine = f"group{a}/"
            group.restore({n.removeprefix(mine): x for n, x in at.tensors.items() if n.startswith(mine)})
        self.writer.status("running", at.round)
        return at.round

    # ----- evaluation -----------------------------------------------------------------------------------

    def _evaluate(self, number: int, rounds: int) -> dict[str, float]:
        last = number == rounds
        found: dict[str, float] = {}
        central: dict[str, np.ndarray] = {}
        if self.central is not None and (last or number % (self.every or 1) == 0):
            central = self._central()
            found |= {f"test_{name}": float(np.mean(x)) for name, x in central.items()}
            for a, group in enumerate(self.groups):
                for name, x in central.items():
                    found[f"test_{name}_architecture{a}"] = float(np.mean(x[group.ids]))
        if self.own is not None and (last or (self.clients_every and number % self.clients_every == 0)):
            found |= self._clients(number, central)
        return found

    def _models(self, a: int) -> np.ndarray:
        """The models that architecture a's clients use, (1, s) where it is one and the same."""
        return self.prototypes[a][None] if self.method.prototypes else self.groups[a].rows()

    def _central(self) -> dict[str, np.ndarray]:
        """Measure → (N,), each client's model on the central test set."""
        assert self.central is not None
        found: dict[str, np.ndarray] = {}
        for a, group in enumerate(self.groups):
            models = self._models(a)
            spans = np.tile([[0, self.central.rows]], (len(models), 1))
            for name, x in self.central.measure(group, models, spans).items():
                found.setdefault(name, np.full(self.data.clients, np.nan))[group.ids] = x
        return found

    def _clients(self, number: int, central: dict[str, np.ndarray]) -> dict[str, float]:
        """Every client's model on the client's own test rows: rows for clients.jsonl, and the summary."""
        assert self.own is not None
        offsets = np.asarray(self.data.client_test_offsets)
        values: dict[str, np.ndarray] = {}
        architecture = np.zeros(self.data.clients, np.int64)
        sizes = np.zeros(self.data.clients, np.int64)
        for a, group in enumerate(self.groups):
            at = group.ids % self.data.stored
            spans = np.stack([offsets[at], offsets[at + 1] - offsets[at]], 1)
            architecture[group.ids], sizes[group.ids] = a, spans[:, 1]
            models = np.broadcast_to(self._models(a), (len(group.ids), group.size))
            for name, x in self.own.measure(group, models, spans).items():
                values.setdefault(name, np.full(self.data.clients, np.nan))[group.ids] = x
        known = np.flatnonzero(sizes)
        columns = {
            "client": known,
            "name": [self.data.client_name(int(k)) for k in known],
            "architecture": architecture[known],
            "examples": sizes[known],
            **{name: x[known] for name, x in values.items()},
            **{f"test_{name}": x[known] for name, x in central.items()},
        }
        self.writer.clients(number, columns)
        return {
            f"client_{name}_{what}": number
            for name, x in values.items()
            for what, number in spread(x, self.better[name]).items()
        }

    def _final(self) -> tuple[list[Any], dict[str, np.ndarray]]:
        """`run.model`, and the tensors by name."""
        if self.method.prototypes:
            rows = [(g, f"architecture{a}", self.prototypes[a]) for a, g in enumerate(self.groups)]
        else:
            own = {int(k): (g, row) for g in self.groups for k, row in zip(g.ids, g.rows(), strict=True)}
            rows = [(own[k][0], f"client{k}", own[k][1]) for k in sorted(own)]
        tensors: dict[str, np.ndarray] = {}
        for group, prefix, row in rows:
            tensors |= group.tensors(row, prefix)
        return [group.params(row) for group, _, row in rows], tensors
