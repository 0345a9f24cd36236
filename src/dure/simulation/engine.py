"""The engine: rounds of a federated training, one XLA program each, planned ahead on the host."""

from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dure import devices, keys
from dure.algorithms.base import Algorithm
from dure.oracles.layout import Layout, Variables
from dure.oracles.problem import FROZEN
from dure.oracles.task import as_task
from dure.simulation import hyper, schedule
from dure.simulation.adapting import check_adapting
from dure.simulation.cohort import Room, RoundInputs, plan_round, sizes_of
from dure.simulation.defence import defence
from dure.simulation.gathered import gathered_round
from dure.simulation.hostile import poisoned
from dure.simulation.messages import message_bytes
from dure.simulation.outside import bound, client_error, failed, local_work, with_failures
from dure.simulation.packing import client_state_shape, own_part, state_size
from dure.simulation.places import Places
from dure.simulation.program import compiled_round, compiled_work, measured_round, round_function
from dure.simulation.results import Launched, RoundResult, result_of
from dure.simulation.setting import check_setting
from dure.simulation.settings import Settings
from dure.simulation.setup import (
    check_adapters,
    check_batches,
    check_model,
    check_parts,
    make_store,
    put_columns,
)
from dure.simulation.statics import AXIS, Model, Statics


class Engine:
    """A federated training in simulation: `launch` rounds, `collect` what happened.

    Args:
        algorithm: the method.
        task: model, loss and measures, or a scikit-learn estimator.
        data: the federated data set.
        settings: see `settings`.
        variables: where to start; None: the model's `init` with the seed's key.
        width: the chunk width of a run that is resumed; None: chosen.
        directory: where client state goes if it is kept on disk.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Any,
        data: Any,
        settings: Settings,
        *,
        variables: Variables | None = None,
        width: int | None = None,
        directory: Any = None,
    ):
        task = as_task(task, data)
        check_parts(algorithm, task)
        self.clean = data
        if settings.enemy is not None and settings.enemy.attack.adapts:
            check_adapting(task)
        data = poisoned(data, settings.enemy, settings.seed, task.input, task.target)
        settings = local_work(task, settings)
        self.task, self.data, self.settings = task, data, settings
        algorithm.check(data.clients)
        check_adapters(algorithm, task.model)
        if settings.eager:
            self.mesh = devices.mesh(1)
        else:
            self.mesh = devices.mesh(settings.devices)
        self.round = 0
        self._whole = NamedSharding(self.mesh, PartitionSpec())
        self._split = NamedSharding(self.mesh, PartitionSpec(AXIS))
        start = variables or task.model.init(keys.jax_key(settings.seed, "init"))
        frozen = (*task.model.frozen, *algorithm.frozen_patterns)
        self.layout = Layout.of(start, private=algorithm.private_patterns, frozen=frozen)
        self.algorithm = algorithm = algorithm.bind(task.model.adapters, self.layout)
        self.task = task = bound(task, data, self.layout, settings.executor)
        if task.model.outside is not None and not settings.eager:
            task.model.outside.prepare(self.mesh.size)
        self.columns = put_columns(task, data, self.mesh)
        check_batches(task, data, settings)
        if not settings.eager:
            check_model(task, data, start)
        statistics = bool(self.layout.buffer_size or self.layout.counter_size)
        self.sizes = sizes_of(data, settings, statistics, spread=task.model.outside is not None)
        self._structures, self.numbers = self._take_numbers()
        self.model, at_first = self._begin(start)
        self._client_state = client_state_shape(algorithm, *at_first)
        check_setting(algorithm, settings, data, self._client_state is not None)
        self.defence = defence(settings)
        if self.defence is not None:
            devices.only_one_process("A training with an aggregator")
        self._store = make_store(algorithm, settings, data.clients, self._client_state, at_first, directory)
        self._uncommitted: Any = None
        self._planned: Any = None
        self._room = Room()
        convolutions = schedule.uses_convolutions(task, self.layout, start, data.columns[task.input][:1])
        platform = self.mesh.devices.flat[0].platform
        self._cpu = platform == "cpu" and not settings.eager
        per_device = -(-max(round(settings.sampler.expected_size(data)), 1) // self.mesh.size)
        options = schedule.candidates(
            settings.schedule,
            width or settings.width,
            settings.eager,
            platform,
            self.layout,
            convolutions,
            per_device,
            settings.memory_budget,
            task.model.outside is not None,
        )
        outside = task.model.outside
        if outside is not None and not (outside.measured and settings.executor == "local"):
            options = options[:1]
        self.schedule = schedule.of_width(width) if width else self._choose(options)
        self._message_sizes()
        self.compilations = 0
        self._seen: set[Statics] = set()

    # ----- rounds -------------------------------------------------------------------------------------

    def launch(self) -> Launched:
        """Start the next round; returns before the devices are done. The next one's plan can be made now."""
        number = self.round + 1
        statics, inputs = self._planned or self.plan(number)
        self._planned = None
        if statics not in self._seen:
            self._seen.add(statics)
            self.compilations += 1
        with self.mode():
            launched, states = (
                self._summed(number, statics, inputs)
                if self.defence is None
                else gathered_round(self, self.defence, number, statics, inputs)
            )
        self.round = number
        if self._store is not None:
            self._uncommitted = (launched, states)
        return launched

    def _summed(self, number: int, statics: Statics, inputs: RoundInputs) -> tuple[Launched, Any]:
        """A round as one program: (what is known of it, proposed client states)."""
        function = round_function(statics) if self.settings.eager else compiled_round(statics)
        self.model, states, report, outcome = function(
            self.model, self.numbers, self.columns, *self.put(number, inputs)
        )
        return Launched(number, inputs.facts, report, outcome), states

    def plan_ahead(self) -> None:
        """Build the next round's plan while the devices compute this one."""
        self._planned = self.plan(self.round + 1)

    def collect(self, launched: Launched) -> RoundResult:
        """Wait for a round and say what happened in it.

        Raises:
            RunError: a client's work outside JAX raised an error, and errors are not set aside.
        """
        result = result_of(launched)
        failures = failed(self.task)
        if failures and self.settings.client_errors == "raise":
            raise client_error(failures, launched.round, self.data)
        return with_failures(result, failures)

    def block(self) -> None:
        """Wait until all launched rounds are done."""
        jax.block_until_ready(self.model)

    def restore(
        self,
        model: Model,
        round: int,
        client_state: dict[str, np.ndarray],
        memory: dict[str, np.ndarray] | None = None,
    ) -> None:
        """Go back to a checkpoint's state; `memory` is the aggregation rule's and the attack's."""
        if self.defence is not None:
            self.defence.restore(memory or {})
        self.model = devices.put(model, self._whole)
        self.round = round
        self._planned = self._uncommitted = None
        if self._store is not None:
            self._store.restore(client_state, round)

    def vector(self) -> Any:
        """The server's model now (d + f,), with the private parameters that a client begins with."""
        found = self.algorithm.model(self.model.server)
        return found if self._rest is None else jax.numpy.concatenate([found, self._rest])

    def params(self) -> Any:
        """The model's parameters now, as the pytree that its `init` makes."""
        return self.layout.unflatten_params(np.asarray(self.vector()))

    def variables(self) -> Variables:
        """Parameters and buffers now."""
        model = jax.device_get(self.model)
        return Variables(self.params(), self.layout.unflatten_buffers(model.floats, model.ints))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Parameters and buffers by name, in the model's own dtypes."""
        model = jax.device_get(self.model)
        own = self.layout.to_state_dict(np.asarray(self.vector()), model.floats, model.ints)
        outside = self.task.model.outside
        return own if outside is None else {**own, **outside.frozen}

    # ----- planning -----------------------------------------------------------------------------------

    def like(self, seed: int) -> "Engine":
        """This engine for another seed: same data on the devices, its own start and plans."""
        other = copy(self)
        other.settings = replace(self.settings, seed=seed)
        other.model, _ = other._begin(self.task.model.init(keys.jax_key(seed, "init")))
        other._planned = None
        return other

    def plan(self, number: int) -> tuple[Statics, RoundInputs]:
        """What the host sends for a round, and the program that it is for."""
        inputs = plan_round(
            self.data, self.settings, number, self.schedule.width, self.mesh.size, self.sizes, self._room
        )
        self._room = Room(inputs.places.order, inputs.places.chunks, inputs.max_steps)
        return self.statics(inputs.batch_size, inputs.max_steps, inputs.places), inputs

    def statics(self, batch: int, max_steps: int, places: Places) -> Statics:
        """What shapes the program of a round with so many places."""
        algorithm, optimizer = self._structures
        return Statics(
            algorithm,
            optimizer,
            self.task,
            self.layout,
            self._client_state,
            self.mesh,
            self.schedule.width,
            batch,
            max_steps,
            self.sizes.block,
            self.data.clients,
            places,
            self.settings.estimator == "ratio",
            self._cpu,
            self.settings.eager,
            self.defence is not None,
        )

    def put(self, number: int, inputs: RoundInputs) -> tuple[Any, Any]:
        """What the host sends for a round, on the devices."""
        packed = inputs.places.pack(number, inputs.unit, inputs.order, inputs.clients)
        state = self.states(inputs.facts.ids, inputs.facts.seats, inputs.clients.weight.shape)
        if self.mesh.size == 1 and not self.settings.eager:  # the compiled round takes them to the device
            return packed, state
        placed: tuple[Any, Any] = self.split((packed, state))
        return placed

    def whole(self, arrays: Any) -> Any:
        """Arrays, all of them on every device."""
        return devices.put(arrays, self._whole)

    def split(self, arrays: Any) -> Any:
        """Arrays (devices, …), each device's part on it."""
        return devices.put(arrays, self._split)

    # ----- client state -------------------------------------------------------------------------------

    def states(self, ids: np.ndarray, seats: Any, shape: tuple[int, ...]) -> np.ndarray | None:
        """The clients' packed states in their seats (*shape, s); None for a method without."""
        if self.store is None:
            return None
        state = np.zeros((*shape, state_size(self._client_state)), np.float32)
        state[seats] = self.store.gather(ids)
        return state

    @property
    def store(self) -> Any:
        """Client state after the last round, or None. The round is waited for here, not when it is launched."""
        if self._uncommitted is not None:
            launched, states = self._uncommitted
            self._uncommitted = None
            self._commit(launched, states)
        return self._store

    def _commit(self, launched: Launched, states: Any) -> None:
        """Client states take their proposed values where the server used the update (law 5)."""
        report, outcome = launched.report, launched.outcome
        verdict, steps, finite = jax.device_get((report.verdict, report.steps, outcome.finite))
        facts = launched.facts
        assert self._store is not None
        taken = steps[facts.seats] > 0
        if states is None:  # a round that was not begun
            return
        rows = np.asarray(states)[facts.seats]
        if not (self.algorithm.own or self.algorithm.private_buffers):
            taken &= (verdict[facts.seats] == 0) & (facts.weights > 0) & finite
            if launched.account is not None:
                taken &= launched.account.selected & (launched.account.weight != 0)
        elif not finite:  # what belongs to the update stays as it was, what is the client's own does not
            own = own_part(self.algorithm, self._client_state)
            rows = np.where(own, rows, self._store.gather(facts.ids))
        self._store.scatter(facts.ids[taken], rows[taken])

    # ----- set-up -------------------------------------------------------------------------------------

    def _begin(self, start: Variables) -> tuple[Model, tuple[Any, ...]]:
        """The server's model before the first round, and a client's own parameters, float buffers and counters.

        Where some parameters are private the server has the shared part and a client the private one;
        otherwise both begin with all of them.
        """
        layout = self.layout
        whole = layout.flatten_params(start.params)
        floats, ints = layout.flatten_buffers(start.buffers)
        shared = own = whole[: layout.size]
        if layout.shared_size != layout.size:
            shared, own = whole[: layout.shared_size], whole[layout.shared_size : layout.size]
        if layout.frozen_size:
            self.columns = {**self.columns, FROZEN: devices.put(whole[layout.size :], self._whole)}
        # What the algorithm's model lacks of the whole vector.
        self._rest: Any = None
        if self.algorithm.changes_frozen:
            shared = whole
        elif layout.shared_size != layout.whole_size:
            self._rest = devices.put(whole[layout.shared_size :], self._whole)
        # Copies: a state that holds one array twice can't give its memory to the next round.
        server = jax.tree.map(lambda x: jax.numpy.array(x, copy=True), self.algorithm.init(shared))
        return devices.put(Model(server, floats, ints), self._whole), (own, floats, ints)

    def _take_numbers(self) -> tuple[tuple[Any, Any], Any]:
        algorithm, first = hyper.split(self.algorithm)
        optimizer, second = hyper.split(self.settings.optimizer)
        numbers = np.array([*first, *second], np.float32)
        return (algorithm, optimizer), devices.put(numbers, self._whole)

    def _message_sizes(self) -> None:
        """Bytes of one client's messages, as the wire encoding would make them."""
        order = max(self.sizes.batch, 1)
        with self.mode():
            self.downlink_message, self.uplink_message = message_bytes(
                replace(self.statics(self.sizes.batch, 1, Places(order, 1, 1)), width=1),
                self.model,
                self.numbers,
                self.columns,
                self.algorithm.private_buffers,
            )

    def _choose(self, options: list[schedule.Schedule]) -> schedule.Schedule:
        self.schedule = options[0]
        if len(options) == 1:
            return options[0]

        def run(option: schedule.Schedule) -> Any:
            self.schedule, self._room = option, Room()
            statics, inputs = self.plan(1)
            measured = compiled_work(statics) if statics.gather else measured_round(statics)
            return measured(self.model, self.numbers, self.columns, *self.put(1, inputs))

        key = (self.task, self.layout, self._structures, self.settings.work, self.mesh, tuple(options))
        chosen = schedule.choose(options, key, run)
        self._room = Room()
        return chosen

    def mode(self) -> AbstractContextManager[Any]:
        """Where rounds run: without compilation in eager mode."""
        return jax.disable_jit() if self.settings.eager else nullcontext()
