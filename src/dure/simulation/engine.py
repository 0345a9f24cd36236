"""The engine: rounds of a federated training, one XLA program each, planned ahead on the host."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dure import devices, keys
from dure.algorithms.base import Algorithm
from dure.channel import wire
from dure.errors import ConfigError, DataError
from dure.oracles.layout import Layout, Variables
from dure.oracles.local import ClientPlan
from dure.oracles.task import Task
from dure.simulation import hyper, schedule
from dure.simulation import plan as planning
from dure.simulation.program import (
    AXIS,
    REASONS,
    Clients,
    Model,
    Outcome,
    Places,
    Report,
    Statics,
    client_state_shape,
    compiled_round,
    measured_round,
    pack_initial,
    round_function,
    state_size,
    update_shape,
)
from dure.simulation.settings import Settings
from dure.simulation.store import ClientStore

#: Client state beyond this many bytes for the whole population goes to disk unless told otherwise.
HOST_STATE_LIMIT = 4 * 2**30


class Launched(NamedTuple):
    """A round on its way: host facts at once, device results when they are there."""

    round: int
    ids: np.ndarray
    sizes: np.ndarray
    weights: np.ndarray
    inclusion: np.ndarray
    planned: np.ndarray
    places: tuple[np.ndarray, np.ndarray, np.ndarray]
    report: Report
    outcome: Outcome


class RoundResult(NamedTuple):
    """What happened in a round; arrays have one entry per client that was asked."""

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


class Engine:
    """A federated training in simulation: `launch` rounds, `collect` what happened.

    Args:
        algorithm: the method.
        task: model, loss and measures.
        data: the federated data set.
        settings: see `settings`.
        variables: where to start; None: the model's `init` with the seed's key.
        width: the chunk width of a run that is resumed; None: chosen.
        directory: where client state goes if it is kept on disk.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: Task,
        data: Any,
        settings: Settings,
        *,
        variables: Variables | None = None,
        width: int | None = None,
        directory: Any = None,
    ):
        self.algorithm, self.task, self.data, self.settings = algorithm, task, data, settings
        if settings.eager:
            self.mesh = devices.mesh(1)
        else:
            self.mesh = devices.mesh(settings.devices)
        self.round = 0
        self._whole = NamedSharding(self.mesh, PartitionSpec())
        self._split = NamedSharding(self.mesh, PartitionSpec(AXIS))
        start = variables or task.model.init(keys.jax_key(settings.seed, "init"))
        self.layout = Layout.of(start)
        if self.layout.shared_size != self.layout.size:
            raise ConfigError("Private parameters need a personalised method; this one sends all of them.")
        self._columns = self._put_columns()
        self._check_batches()
        w = self.layout.flatten_params(start.params)
        floats, ints = self.layout.flatten_buffers(start.buffers)
        self.model: Model = jax.device_put(Model(algorithm.init(w), floats, ints), self._whole)
        self._structures, self._numbers = self._take_numbers()
        self._client_state = client_state_shape(algorithm, w)
        self.store = self._make_store(w, directory)
        self._planned: Any = None
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
        )
        self.schedule = schedule.of_width(width) if width else self._choose(options)
        self._message_sizes()
        self.compilations = 0
        self._seen: set[Statics] = set()

    # ----- rounds -------------------------------------------------------------------------------------

    def launch(self) -> Launched:
        """Start the next round; returns before the devices are done. The next one's plan can be made now."""
        number = self.round + 1
        inputs = self._planned or self.plan(number)
        self._planned = None
        statics, order, clients, facts = inputs
        if statics not in self._seen:
            self._seen.add(statics)
            self.compilations += 1
        with self._mode():
            function = round_function(statics) if self.settings.eager else compiled_round(statics)
            self.model, states, report, outcome = function(
                self.model, self._numbers, self._columns, *self._put(statics, number, order, clients, facts)
            )
        self.round = number
        launched = Launched(number, **facts, report=report, outcome=outcome)
        if self.store is not None:
            self._commit(launched, states)
        return launched

    def plan_ahead(self) -> None:
        """Build the next round's plan while the devices compute this one."""
        self._planned = self.plan(self.round + 1)

    def collect(self, launched: Launched) -> RoundResult:
        """Wait for a round and say what happened in it."""
        report, outcome = jax.device_get((launched.report, launched.outcome))
        verdict, loss, steps, norm = (np.asarray(x)[launched.places] for x in report)
        senders = (launched.sizes > 0) & (steps > 0)
        return RoundResult(
            launched.round,
            launched.ids,
            launched.sizes,
            launched.weights,
            launched.inclusion,
            np.where(launched.sizes > 0, steps, 0),
            np.where(senders, loss, np.nan),
            np.where(senders, norm, np.nan),
            _statuses(launched.sizes, steps, verdict),
            int(outcome.accepted),
            int(senders.sum()),
            float(outcome.move),
        )

    def block(self) -> None:
        """Wait until all launched rounds are done."""
        jax.block_until_ready(self.model)

    def restore(self, model: Model, round: int, client_state: dict[str, np.ndarray]) -> None:
        """Go back to a checkpoint's state."""
        self.model = jax.device_put(model, self._whole)
        self.round = round
        self._planned = None
        if self.store is not None:
            self.store.restore(client_state, round)

    def params(self) -> Any:
        """The model's parameters now, as the pytree that its `init` makes."""
        return self.layout.unflatten_params(np.asarray(self.model.server.w))

    def variables(self) -> Variables:
        """Parameters and buffers now."""
        model = jax.device_get(self.model)
        return Variables(self.params(), self.layout.unflatten_buffers(model.floats, model.ints))

    def state_dict(self) -> dict[str, np.ndarray]:
        """Parameters and buffers by name, in the model's own dtypes."""
        model = jax.device_get(self.model)
        return self.layout.to_state_dict(model.server.w, model.floats, model.ints)

    # ----- planning -----------------------------------------------------------------------------------

    def like(self, seed: int) -> "Engine":
        """This engine for another seed: same data on the devices, its own start and plans."""
        other = copy(self)
        other.settings = replace(self.settings, seed=seed)
        start = self.task.model.init(keys.jax_key(seed, "init"))
        floats, ints = self.layout.flatten_buffers(start.buffers)
        server = self.algorithm.init(self.layout.flatten_params(start.params))
        other.model = jax.device_put(Model(server, floats, ints), self._whole)
        other._planned = None
        return other

    def plan(self, number: int) -> tuple[Statics, np.ndarray, Clients, dict[str, Any]]:
        """Cohort, work and weights of a round, and the places of its clients on the devices."""
        settings = self.settings
        cohort = settings.sampler.sample(settings.seed, number, self.data)
        ids = cohort.ids
        starts, sizes = self.data.rows(ids)
        largest = int(sizes.max(initial=1))
        batch = settings.work.batch_size or planning.bucket(max(largest, 1))
        rows = planning.build(settings.work, settings.seed, number, ids, starts, sizes, batch)
        steps = rows.steps
        if settings.work_limit is not None:
            steps = _limited(settings.work_limit, settings.seed, number, ids, steps)
        weights = self._weights(sizes, cohort.inclusion, cohort.multiplicity) * (steps > 0)
        block = min(planning.bucket(max(largest, 1)), 128)
        turns = np.maximum(steps, -(-sizes // block))
        places, shape = self._places(turns)
        words = keys.words(settings.seed, "local", number, ids, np.zeros(1, np.int64))
        first, done, start, size = (
            _placed(x, places, shape, np.int32) for x in (rows.first, steps, starts, sizes)
        )
        key = _placed(words.view(np.uint32).reshape(-1, 2), places, shape, np.uint32)
        client_plan = ClientPlan(first, done, start, size, key)
        clients = Clients(
            client_plan,
            _placed(weights, places, shape, np.float32),
            done.max(2),
            -(-size.max(2) // block).astype(np.int32),
            _chunks_in_use(places, shape),
        )
        order = np.full(planning.bucket(max(len(rows.order), batch)), -1, np.int32)
        order[: len(rows.order)] = rows.order
        facts = {
            "ids": ids,
            "sizes": sizes,
            "weights": weights,
            "inclusion": cohort.inclusion,
            "planned": steps,
            "places": places,
        }
        longest = planning.bucket(int(rows.steps.max(initial=1)))
        return self._statics(batch, longest, block, Places(len(order), *shape[1:])), order, clients, facts

    def _statics(self, batch: int, max_steps: int, block: int, places: Places) -> Statics:
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
            block,
            self.data.clients,
            places,
            self.settings.estimator == "ratio",
            self._cpu,
            self.settings.eager,
        )

    def _weights(self, sizes: np.ndarray, inclusion: np.ndarray, multiplicity: np.ndarray) -> np.ndarray:
        """w_k, rounded to float32 so that w_k times a float32 is exact in float64."""
        share = sizes.astype(np.float64) if self.settings.weighting == "examples" else np.ones(len(sizes))
        share = np.where(sizes > 0, share, 0.0) * multiplicity
        if self.settings.estimator == "horvitz-thompson":
            whole = self.data.examples if self.settings.weighting == "examples" else self.data.clients
            share = share / whole / inclusion
        return np.asarray(share, np.float32)

    def _places(
        self, turns: np.ndarray
    ) -> tuple[tuple[np.ndarray, np.ndarray, np.ndarray], tuple[int, int, int]]:
        """Clients of similar length share a chunk; chunks are dealt to the devices there and back again."""
        width, count = self.schedule.width, self.mesh.size
        rank = np.empty(len(turns), np.int64)
        rank[np.argsort(-turns, kind="stable")] = np.arange(len(turns))
        chunk, lane = rank // width, rank % width
        row, seat = chunk // count, chunk % count
        device = np.where(row % 2 == 0, seat, count - 1 - seat)
        chunks = -(-max(len(turns), 1) // width)
        return (device, row, lane), (count, planning.bucket(-(-chunks // count)), width)

    def _put(
        self, statics: Statics, number: int, order: np.ndarray, clients: Clients, facts: dict[str, Any]
    ) -> tuple[Any, Any]:
        """What the host sends for a round, on the devices."""
        packed = statics.places.pack(number, order, clients)
        state = None
        if self.store is not None:
            state = np.zeros((*clients.weight.shape, state_size(self._client_state)), np.float32)
            state[facts["places"]] = self.store.gather(facts["ids"])
        if self.mesh.size == 1:
            return packed, state
        placed: tuple[Any, Any] = jax.device_put((packed, state), self._split)
        return placed

    # ----- client state -------------------------------------------------------------------------------

    def _commit(self, launched: Launched, states: Any) -> None:
        """Client states take their proposed values where the server used the update (law 5)."""
        verdict, steps = jax.device_get((launched.report.verdict, launched.report.steps))
        used = (verdict[launched.places] == 0) & (steps[launched.places] > 0) & (launched.weights > 0)
        rows = np.asarray(states)[launched.places]
        self.store.scatter(launched.ids[used], rows[used])

    def _make_store(self, w: Any, directory: Any) -> Any:
        if self._client_state is None:
            return None
        placement = self.settings.client_state
        if placement == "auto":
            whole = 4 * state_size(self._client_state) * self.data.clients
            placement = "host" if whole <= HOST_STATE_LIMIT or directory is None else "disk"
        if placement == "disk" and directory is None:
            raise ConfigError("client_state='disk' needs a directory for the run: give directory=.")
        initial = pack_initial(self.algorithm, w)
        return ClientStore(self.data.clients, initial, placement, directory)

    # ----- set-up -------------------------------------------------------------------------------------

    def _put_columns(self) -> dict[str, Any]:
        columns = {}
        for name in (self.task.input, self.task.target):
            if name not in self.data.columns:
                raise DataError(
                    f"The task reads column {name!r}, but the data have {', '.join(sorted(self.data.columns))}."
                )
            columns[name] = jax.device_put(self.data.columns[name], self._whole)
        if len(self.data.columns[self.task.input]) >= 2**31:
            raise DataError("More than 2³¹ − 1 rows in one data set are not supported.")
        return columns

    def _check_batches(self) -> None:
        """A model whose batch statistics would see padding can't have short batches."""
        if self.task.model.masked:
            return
        size = self.settings.work.batch_size
        sizes = np.unique(self.data.sizes)
        short = sizes[sizes % size != 0] if size else sizes[sizes != sizes[-1]]
        if len(short):
            raise ConfigError(
                f"Model {self.task.model.name!r} has batch statistics and does not take `mask`, and a client with "
                f"{short[0]} examples would give it a short batch at batch_size={size or 'inf'}. Give its apply "
                "a `mask` parameter, or a batch size that divides every client's number of examples."
            )

    def _take_numbers(self) -> tuple[tuple[Any, Any], Any]:
        algorithm, first = hyper.split(self.algorithm)
        optimizer, second = hyper.split(self.settings.optimizer)
        numbers = np.array([*first, *second], np.float32)
        return (algorithm, optimizer), jax.device_put(numbers, self._whole)

    def _message_sizes(self) -> None:
        """Bytes of one client's messages, as the wire encoding would make them."""

        def both(model: Model) -> Any:
            return self.algorithm.broadcast(model.server), model.floats, model.ints

        broadcast, floats, ints = jax.eval_shape(both, self.model)
        update = update_shape(
            self._statics(1, 1, 1, Places(1, 1, 1)), self.model, self._numbers, self._columns
        )
        buffers = {n: x for n, x in (("buffers", floats), ("counters", ints)) if x.size}
        self.downlink_message = wire.size(_named(broadcast) | buffers)
        self.uplink_message = wire.size(_named(update) | buffers)

    def _choose(self, options: list[schedule.Schedule]) -> schedule.Schedule:
        self.schedule = options[0]
        if len(options) == 1:
            return options[0]

        def run(option: schedule.Schedule) -> Any:
            self.schedule = option
            statics, order, clients, facts = self.plan(1)
            inputs = self._put(statics, 1, order, clients, facts)
            return measured_round(statics)(self.model, self._numbers, self._columns, *inputs)

        key = (self.task, self.layout, self._structures, self.settings.work, self.mesh, tuple(options))
        return schedule.choose(options, key, run)

    def _mode(self) -> AbstractContextManager[Any]:
        return jax.disable_jit() if self.settings.eager else nullcontext()


def _placed(values: np.ndarray, places: Any, shape: tuple[int, int, int], dtype: Any) -> np.ndarray:
    out = np.zeros((*shape, *values.shape[1:]), dtype)
    out[places] = values
    return out


def _chunks_in_use(places: Any, shape: tuple[int, int, int]) -> np.ndarray:
    used = np.zeros(shape[0], np.int32)
    np.maximum.at(used, places[0], places[1].astype(np.int32) + 1)
    return used


def _limited(
    limit: Callable[..., Any], seed: int, number: int, ids: np.ndarray, steps: np.ndarray
) -> np.ndarray:
    done = np.asarray(limit(seed, number, ids, steps.copy()))
    if done.shape != steps.shape or not np.issubdtype(done.dtype, np.integer):
        raise ConfigError(
            f"work_limit returned {done.dtype} of shape {done.shape} in round {number}; it must return one "
            f"integer per client, shape {steps.shape}."
        )
    return np.asarray(np.clip(done, 0, steps), np.int32)


def _statuses(sizes: np.ndarray, steps: np.ndarray, verdict: np.ndarray) -> list[str]:
    statuses = ["ok"] * len(sizes)
    for k in np.flatnonzero((sizes == 0) | (steps == 0) | (verdict != 0)):
        if sizes[k] == 0:
            statuses[k] = "no examples"
        elif steps[k] == 0:
            statuses[k] = "no steps"
        else:
            statuses[k] = "; ".join(text for bit, text in REASONS.items() if verdict[k] & bit)
    return statuses


def _named(tree: Any) -> dict[str, Any]:
    flat = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path).lstrip("."): leaf for path, leaf in flat}
