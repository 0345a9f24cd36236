"""One architecture: its clients, their models, and its part of each round's plan."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool

from dure.distillation.passes import Own
from dure.errors import ConfigError
from dure.oracles.task import Task
from dure.population.samplers import Cohort, Sampler
from dure.simulation.cohort import Facts, RoundInputs
from dure.simulation.engine import Engine
from dure.simulation.settings import Settings
from dure.simulation.statics import Statics


@dataclass(frozen=True, eq=False)
class Among:
    """The members of a cohort that have one architecture. The cohort does not depend on architectures."""

    sampler: Sampler
    members: Bool[np.ndarray, " N"]

    def sample(self, seed: int, round: int, population: Any) -> Cohort:
        """Those of the round's cohort that are members."""
        cohort = self.sampler.sample(seed, round, population)
        mine = self.members[cohort.ids]
        return Cohort(cohort.ids[mine], cohort.inclusion[mine], cohort.multiplicity[mine])

    def expected_size(self, population: Any) -> float:
        """The cohort's share of members."""
        return self.sampler.expected_size(population) * float(self.members.mean())

    def describe(self) -> str:
        """One line for the record."""
        return f"{self.sampler.describe()}, of one architecture"


class Visit(NamedTuple):
    """A round's plan for one architecture. `packed` is on the devices."""

    statics: Statics
    inputs: RoundInputs
    packed: Any

    @property
    def facts(self) -> Facts:
        """Who was asked, and where they sit."""
        return self.inputs.facts

    @property
    def seats(self) -> tuple[int, ...]:
        """(devices, chunks, width)."""
        return tuple(self.inputs.clients.weight.shape)


class Group:
    """The clients of one architecture.

    Args:
        task: model, loss and measures.
        data: the federated data set of all clients.
        members: (N,) bool, whose architecture this is.
        settings: see `dure.simulation.settings`.
        columns: the training rows on the devices, if another architecture has put them there.
        width: how many clients run together, if that was chosen before.
    """

    def __init__(
        self,
        task: Task,
        data: Any,
        members: np.ndarray,
        settings: Settings,
        columns: Any = None,
        width: int | None = None,
    ):
        if task.model.frozen:
            raise ConfigError(
                f"Model {task.model.name!r} has frozen parameters, which distillation would send. Give it the model "
                "without adapters."
            )
        self.task = task
        self.ids = np.flatnonzero(members)
        mine = replace(settings, sampler=Among(settings.sampler, members))
        self.engine = Engine(Own(), task, data, mine, width=width)
        if columns is not None and set(columns) == set(self.engine.columns):
            self.engine.columns = columns
        self.layout = self.engine.layout
        self.prototype = self.engine.store.gather(self.ids[:1])[0]
        self._met = np.zeros(data.clients, bool)

    def visit(self, number: int) -> Visit:
        """The plan of round `number`."""
        statics, inputs = self.engine.plan(number)
        packed = inputs.places.pack(number, inputs.unit, inputs.order, inputs.clients)
        return Visit(statics, inputs, self.engine.split(packed))

    def newcomers(self, number: int, visit: Visit) -> Any:
        """The plan in which only those work that never came before; None if there are none."""
        new = ~self._met[visit.facts.ids]
        if not new.any():
            return None
        inputs = visit.inputs
        theirs = np.zeros(visit.seats, bool)
        theirs[visit.facts.seats] = new
        plan = inputs.clients.plan
        plan = plan._replace(steps=np.where(theirs, plan.steps, 0).astype(np.int32))
        clients = inputs.clients._replace(plan=plan, turns=plan.steps.max(2))
        return self.engine.split(inputs.places.pack(number, inputs.unit, inputs.order, clients))

    def models(self, visit: Visit) -> Any:
        """The models of the round's clients in their seats, on the devices: (devices, chunks, width, s)."""
        states = np.zeros((*visit.seats, self.size), np.float32)
        states[visit.facts.seats] = self.engine.store.gather(visit.facts.ids)
        return self.engine.split(states)

    def copies(self, visit: Visit, prototype: Any) -> Any:
        """The prototype (s,) in every seat."""
        return self.engine.split(np.broadcast_to(np.asarray(prototype), (*visit.seats, self.size)).copy())

    def keep(self, visit: Visit, states: Any) -> None:
        """The clients keep these models."""
        self.engine.store.scatter(visit.facts.ids, np.asarray(jax.device_get(states))[visit.facts.seats])
        self._met[visit.facts.ids] = True

    def state(self) -> dict[str, np.ndarray]:
        """What the clients keep between rounds, for `restore`."""
        return {"met": self._met, **self.engine.store.snapshot()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go back to such a state."""
        self._met = state["met"].copy()
        self.engine.store.restore(state, 0)

    @property
    def size(self) -> int:
        """s, numbers of a packed model: parameters and float buffers."""
        return len(self.prototype)

    def rows(self) -> np.ndarray:
        """The models of all members (N_a, s)."""
        rows: np.ndarray = self.engine.store.gather(self.ids)
        return rows

    def params(self, row: np.ndarray) -> Any:
        """A packed model's parameters, as the pytree that the model's `init` makes."""
        return self.layout.unflatten_params(row[: self.layout.size])

    def tensors(self, row: np.ndarray, prefix: str) -> dict[str, np.ndarray]:
        """A packed model's tensors by name."""
        ints = np.asarray(self.engine.model.ints)
        size = self.layout.size
        named = self.layout.to_state_dict(row[:size], row[size:], ints)
        return {f"{prefix}/{name}": x for name, x in named.items()}
