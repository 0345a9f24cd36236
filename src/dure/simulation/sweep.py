"""Sweeps: seeds × a grid of hyper-parameters, in one program when they fit.

Points that differ in numbers only (learning rates, μ, seeds) share one compiled round; when their models fit
into the memory budget they also run side by side, `vmap` over the points and the points dealt to the devices.
Otherwise they run one after another, still compiled once.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from dure import devices
from dure.algorithms.base import Algorithm
from dure.errors import ConfigError, did_you_mean
from dure.oracles.optimizer import Optimizer, as_optimizer
from dure.oracles.task import as_task
from dure.run import Run, RunWriter, environment
from dure.simulation import hyper
from dure.simulation.cohort import RoundInputs
from dure.simulation.engine import Engine
from dure.simulation.evaluate import Evaluation
from dure.simulation.program import round_function
from dure.simulation.records import participation, round_record
from dure.simulation.results import Launched
from dure.simulation.settings import settings
from dure.simulation.statics import AXIS, Statics
from dure.simulation.training import simulate

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Point:
    """One point of a sweep: its values by name, its seed, and its run (in memory)."""

    values: Mapping[str, float]
    seed: int
    run: Run


@dataclass(frozen=True)
class Sweep:
    """All points. `together`: they ran side by side in one program."""

    points: tuple[Point, ...]
    together: bool

    def table(self) -> "pd.DataFrame":
        """One row per point: its values, its seed, and the last record of its run."""
        import pandas as pd

        return pd.DataFrame([{**p.values, "seed": p.seed, **p.run.final} for p in self.points])

    def best(self, measure: str = "test_accuracy", *, largest: bool = True) -> Point:
        """The point whose last `measure` is best, averaged over seeds; the first of its seeds.

        Raises:
            ConfigError: no run has that measure.
        """
        known = {name for p in self.points for name in p.run.final}
        if measure not in known:
            raise ConfigError(f"measure={measure!r} is not in the records. {did_you_mean(measure, known)}")
        groups: dict[tuple[tuple[str, float], ...], list[Point]] = {}
        for p in self.points:
            groups.setdefault(tuple(p.values.items()), []).append(p)
        scores = {
            values: float(
                np.mean(
                    [np.nan if p.run.final.get(measure) is None else p.run.final[measure] for p in members]
                )
            )
            for values, members in groups.items()
        }
        usable = {values: score for values, score in scores.items() if np.isfinite(score)}
        if not usable:
            raise ConfigError(f"No point of the sweep has a finite {measure!r}.")
        chosen = (max if largest else min)(usable, key=lambda values: usable[values])
        return groups[chosen][0]


@devices.in_32_bits
def sweep(
    algorithm: Algorithm,
    task: Any,
    data: Any,
    *,
    rounds: int,
    grid: Mapping[str, Sequence[float]] | None = None,
    seeds: Iterable[int] = (0,),
    optimizer: Any = 0.1,
    evaluate_every: int = 1,
    memory_budget: float = 2**30,
    **keywords: Any,
) -> Sweep:
    """Run every combination of the grid's values with every seed.

    Args:
        algorithm: as in `simulate`.
        task: as in `simulate`.
        data: as in `simulate`.
        rounds: as in `simulate`.
        optimizer: as in `simulate`.
        evaluate_every: as in `simulate`.
        grid: name → values. A name is a field of the algorithm ("server_lr") or an argument of the local
            optimizer ("optimizer.learning_rate", "optimizer.momentum", "optimizer.round_decay").
        seeds: seeds.
        memory_budget: bytes that all points' models may take when they run together.
        keywords: the other keywords of `simulate` that shape a round, such as `clients_per_round`.

    Raises:
        ConfigError: a name that neither the algorithm nor the optimizer has, an empty grid, or what
            `simulate` raises.
    """
    devices.only_one_process("dure.sweep")
    base, task = as_optimizer(optimizer), as_task(task, data)
    grid = {name: list(values) for name, values in (grid or {}).items()}
    seeds = list(seeds)
    for name, values in {**grid, "seeds": seeds}.items():
        if not values:
            raise ConfigError(f"{name}=[] leaves nothing to run: give at least one value.")
    combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    points = [(values, seed) for values in combinations for seed in seeds]
    things = [_with_values(algorithm, base, values) for values, _ in points]
    structures = {(hyper.split(a)[0], hyper.split(o)[0]) for a, o in things}
    engine = Engine(
        things[0][0],
        task,
        data,
        settings(
            data,
            optimizer=things[0][1],
            seed=points[0][1],
            memory_budget=memory_budget,
            devices=1,
            **keywords,
        ),
    )
    per_point = 24 * engine.layout.size * engine.schedule.width
    fits = per_point * len(points) <= memory_budget and engine.store is None and not engine.settings.eager
    # Frozen parameters follow from each point's seed and lie once on the devices.
    fits = fits and task.model.outside is None and not engine.layout.frozen_size and engine.defence is None
    if len(structures) == 1 and fits and len(points) > 1:
        runs = _together(engine, things, points, rounds, evaluate_every, keywords)
        return Sweep(tuple(Point(v, s, r) for (v, s), r in zip(points, runs, strict=True)), True)
    runs = [
        simulate(
            a,
            task,
            data,
            rounds=rounds,
            optimizer=o,
            seed=seed,
            evaluate_every=evaluate_every,
            memory_budget=memory_budget,
            **keywords,
        )
        for (a, o), (_, seed) in zip(things, points, strict=True)
    ]
    return Sweep(tuple(Point(v, s, r) for (v, s), r in zip(points, runs, strict=True)), False)


def _with_values(algorithm: Algorithm, optimizer: Optimizer, values: Mapping[str, Any]) -> tuple[Any, Any]:
    assert is_dataclass(algorithm)
    of_algorithm = {f.name for f in fields(algorithm)}
    of_optimizer = {*optimizer.arguments, "round_decay"}
    for name, value in values.items():
        value = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
        key = name.removeprefix("optimizer.")
        if name in of_algorithm:
            algorithm = replace(algorithm, **{name: value})
        elif key != name and key == "round_decay":
            optimizer = replace(optimizer, round_decay=value)
        elif key != name and key in of_optimizer:
            optimizer = replace(optimizer, arguments={**optimizer.arguments, key: value})
        else:
            allowed = of_algorithm | {f"optimizer.{n}" for n in of_optimizer}
            raise ConfigError(f"grid has {name!r}, which neither has. {did_you_mean(name, allowed)}")
    return algorithm, optimizer


@lru_cache(maxsize=16)
def _program(statics: Statics, mesh: Any) -> Any:
    """The round of `statics` (one device) for many points at once, dealt to the devices of `mesh`."""
    together = jax.vmap(round_function(statics), in_axes=(0, 0, None, 0, None))
    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    return jax.jit(
        jax.shard_map(
            together,
            mesh=mesh,
            in_specs=(split, split, whole, split, whole),
            out_specs=split,
            check_vma=False,
        ),
        donate_argnums=(0,),
    )


def _together(
    engine: Engine, things: list[Any], points: list[Any], rounds: int, every: int, keywords: Mapping[str, Any]
) -> list[Run]:
    mesh = devices.mesh()
    padded = -(-len(points) // mesh.size) * mesh.size
    chosen = [min(i, len(points) - 1) for i in range(padded)]  # the last point fills up the devices
    split = NamedSharding(mesh, PartitionSpec(AXIS))
    numbers = np.array([[*hyper.split(a)[1], *hyper.split(o)[1]] for a, o in things], np.float32)[chosen]
    planners = [engine.like(seed) for _, seed in points]
    models = [planner.model for planner in planners]
    state = jax.device_put((_stack([models[i] for i in chosen]), numbers), split)
    columns = {
        name: devices.replicate(engine.data.columns[name], mesh)
        for name in (engine.task.input, engine.task.target)
    }
    test = engine.data.central_test
    central = None if test is None else Evaluation(engine.task, engine.layout, engine.mesh, test)
    writers = [
        RunWriter(
            None, config=_config(engine, thing, point, rounds), environment=environment(), rounds=rounds
        )
        for thing, point in zip(things, points, strict=True)
    ]
    uplink = [0] * len(points)
    downlink = [0] * len(points)

    def evaluated(models: Any, round: int) -> list[dict[str, float]]:
        due = central is not None and (round % every == 0 or round == rounds)
        host = jax.device_get(models) if due else None
        out: list[dict[str, float]] = []
        for i in range(len(points)):
            if not due or central is None:
                out.append({})
                continue
            model = jax.device_put(jax.tree.map(lambda x, i=i: x[i], host), engine.mesh.devices.flat[0])
            out.append(
                {
                    f"test_{k}": v
                    for k, v in central.totals(central.start(things[i][0].model(model.server), model)).items()
                }
            )
        return out

    for writer, measures in zip(writers, evaluated(state[0], 0), strict=True):
        writer.round({**round_record(engine, None, 0, 0), **measures})
    model, numbers = state
    for number in range(1, rounds + 1):
        plans = [planner.plan(number) for planner in planners]
        statics, packed = _common(plans, number)
        inputs = jax.device_put(packed[chosen], split)
        model, _, report, outcome = _program(statics, mesh)(model, numbers, columns, inputs, None)
        host_report, host_outcome = jax.device_get((report, outcome))
        for i, (writer, measures) in enumerate(zip(writers, evaluated(model, number), strict=True)):
            mine = jax.tree.map(lambda x, i=i: x[i], (host_report, host_outcome))
            result = engine.collect(Launched(number, plans[i][1].facts, *mine))
            uplink[i] += engine.uplink_message * result.senders
            downlink[i] += engine.downlink_message * len(result.ids)
            writer.participation(number, participation(result))
            writer.round({**round_record(engine, result, uplink[i], downlink[i]), **measures})
    host = jax.device_get(model)
    runs = []
    for i, writer in enumerate(writers):
        own = jax.tree.map(lambda x, i=i: x[i], host)
        w = np.asarray(things[i][0].model(jax.tree.map(jax.numpy.asarray, own.server)))
        writer.model(engine.layout.to_state_dict(w, own.floats, own.ints))
        writer.status("complete", rounds)
        runs.append(writer.run(model=engine.layout.unflatten_params(w)))
    return runs


def _common(plans: list[tuple[Statics, RoundInputs]], number: int) -> tuple[Statics, np.ndarray]:
    """Plans of different seeds in arrays of one shape, stacked; the statics cover the largest of them."""
    inputs = [p[1] for p in plans]
    chunks = max(i.places.chunks for i in inputs)
    places = replace(inputs[0].places, order=max(i.places.order for i in inputs), chunks=chunks)
    statics = replace(plans[0][0], max_steps=max(i.max_steps for i in inputs), places=places)

    def grow(x: np.ndarray) -> np.ndarray:
        out = np.zeros((x.shape[0], chunks, *x.shape[2:]), x.dtype)
        out[:, : x.shape[1]] = x
        return out

    packed = []
    for one in inputs:
        order = np.full(places.order, -1, np.int32)
        order[: len(one.order)] = one.order
        in_use = one.clients.chunks
        clients = jax.tree.map(grow, one.clients._replace(chunks=None))._replace(chunks=in_use)
        packed.append(places.pack(number, one.unit, order, clients))
    return statics, np.stack(packed)


def _stack(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *xs: np.stack([np.asarray(x) for x in xs]), *trees)


def _config(engine: Engine, thing: tuple[Any, Any], point: tuple[Any, int], rounds: int) -> dict[str, Any]:
    from dure.oracles.optimizer import response
    from dure.simulation.describe import config, plain

    shared = config(engine, rounds, None, None, None, None)
    local = {**shared["local"], "optimizer": plain(thing[1]), "optimizer_response": response(thing[1])}
    return {**shared, "algorithm": plain(thing[0]), "local": local, "seed": point[1]}
