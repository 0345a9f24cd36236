"""The compiled passes over the clients of one architecture: train, speak, digest, average; and the server's lesson.

A pass is the engine's own (`dure.simulation.phases.all_clients`: chunks of clients on every device, exact sums)
around a few lines for one client. Local work is `oracle.solve`, as in every federated method; a digest is the
same solver on the public inputs, with the round's targets in the place of labels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array

from dure.aggregation import mean
from dure.algorithms.base import Update
from dure.algorithms.finetuning import LocalOnly, Nothing
from dure.distillation.public import Public, Shape, join, predictions, pupil
from dure.oracles.local import JaxOracle
from dure.oracles.problem import ClientPlan, Shared
from dure.simulation import phases
from dure.simulation.packing import Kept, pack, unpack
from dure.simulation.statics import AXIS, Payload, Report, Statics
from dure.simulation.verdict import judge

#: Where the verdicts of a pass lie in a client's verdict of the round: 3 bits each, as in `judge`.
TRAINING, PREDICTIONS, DIGEST = 0, 3, 6


@dataclass(frozen=True)
class Own(LocalOnly):
    """The engine's algorithm underneath: every client has a model of its own, buffers included."""

    @property
    def private_buffers(self) -> bool:
        """Statistics of a client's model belong to it."""
        return True


class Done(NamedTuple):
    """What came of a pass: (devices, …) each; `sums` are to be added over devices (and architectures)."""

    sums: mean.Sums
    accepted: Array
    report: Report
    states: Array


@dataclass(frozen=True)
class Pass:
    """All that shapes a pass's program.

    Attributes:
        kind: "train", "mean", "digest", "average" or "teach".
        statics: the engine's.
        lesson: a `hyper.Structure`, None where nothing is learnt from the public inputs.
        shape: None where they are not read.
        uniform: every client's weight is 1.
        of: what is averaged of the logits; None: the logits.
    """

    kind: str
    statics: Statics
    lesson: Any = None
    shape: Shape | None = None
    uniform: bool = False
    of: Callable[[Array], Array] | None = None


class Stand(NamedTuple):
    """What the code for one client works with."""

    it: Pass
    shared: Shared
    lesson: Any
    public: Any
    given: Any


@lru_cache(maxsize=256)
def over_clients(it: Pass) -> Any:
    """`f(model, numbers, lesson numbers, columns, public, given, packed, states, verdict) -> Done`.

    Compiled, but in eager mode.
    """
    return _function(it) if it.statics.eager else jax.jit(_function(it))


def _function(it: Pass) -> Callable[..., Done]:
    one_client = {"train": _train, "mean": _speak, "digest": _digest, "average": _average}[it.kind]
    statics = it.statics

    def on_device(
        model: Any,
        numbers: Array,
        lesson_numbers: Any,
        columns: Any,
        public: Any,
        given: Any,
        packed: Array,
        states: Array,
        verdict: Array,
    ) -> Done:
        _, shared, _, clients = phases.begin(
            statics, numbers, model.floats, model.ints, columns, packed, states
        )
        weight = jnp.where(verdict[0] == 0, clients.weight, 0.0)
        if it.uniform:
            weight = (weight > 0).astype(jnp.float32)
        lesson = None if it.lesson is None else join(it.lesson, lesson_numbers)
        stand = Stand(it, shared, lesson, public, given)
        done = phases.all_clients(statics, shared, clients._replace(weight=weight), one_client(stand))
        found = Done(done.sums, done.accepted, done.report, done.states)
        expanded: Done = jax.tree.map(lambda x: x[None], found)
        return expanded

    if statics.mesh.size == 1:
        return on_device
    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(
        on_device,
        mesh=statics.mesh,
        in_specs=(whole,) * 6 + (split,) * 3,
        out_specs=split,
        check_vma=False,
    )


# ----- one client, in the form that `all_clients` wants ----------------------------------------------------


def _train(stand: Stand) -> Callable[..., Any]:
    """Local work on the client's own data."""
    statics = stand.it.statics

    def one(plan: ClientPlan, weight: Array, packed: Array, turns: Array, blocks: Array) -> Any:
        w, oracle = phases.client_of(statics, stand.shared, plan, packed, turns, blocks)
        y = oracle.solve(w)
        return _learnt(stand, packed, y.w, oracle, weight, jnp.bool_(True), TRAINING)

    return one


def _digest(stand: Stand) -> Callable[..., Any]:
    """The lesson on the public inputs."""

    def one(plan: ClientPlan, weight: Array, packed: Array, turns: Array, blocks: Array) -> Any:
        kept = unpack(stand.it.statics.client_state, packed)
        oracle = _pupil(stand, kept.floats, plan.key, plan.client)
        y = oracle.solve(kept.state, loss=stand.lesson.method.lesson)
        return _learnt(stand, packed, y.w, oracle, weight, stand.public.usable, DIGEST)

    return one


def _speak(stand: Stand) -> Callable[..., Any]:
    """Predictions for the public inputs."""
    it, inputs = stand.it, stand.public.inputs
    assert it.shape is not None
    block = it.shape.block

    def one(plan: ClientPlan, weight: Array, packed: Array, turns: Array, blocks: Array) -> Any:
        w, oracle = phases.client_of(it.statics, stand.shared, plan, packed, turns, blocks)
        said = predictions(oracle, w, inputs, block)
        said = said if it.of is None else it.of(said)
        norm, verdict = judge(Payload(said, None), jnp.float32(0), weight)
        used = (verdict == 0) & (weight > 0)
        report = Report(verdict << PREDICTIONS, jnp.float32(0), jnp.int32(0), norm)
        return said, jnp.where(used, weight, 0.0), stand.shared.ints, used.astype(jnp.int32), report, packed

    return one


def _average(stand: Stand) -> Callable[..., Any]:
    """Updates for the prototype `given` (s,); what is no parameter (buffers) is averaged as it is."""
    size = stand.it.statics.layout.size

    def one(plan: ClientPlan, weight: Array, packed: Array, turns: Array, blocks: Array) -> Any:
        payload = (packed[:size] - stand.given[:size], packed[size:])
        norm, verdict = judge(Payload(payload, None), jnp.float32(0), weight)
        used = (verdict == 0) & (weight > 0)
        report = Report(verdict << TRAINING, jnp.float32(0), jnp.int32(0), norm)
        return (
            payload,
            jnp.where(used, weight, 0.0),
            stand.shared.ints,
            used.astype(jnp.int32),
            report,
            packed,
        )

    return one


def _learnt(
    stand: Stand, packed: Array, w: Array, oracle: JaxOracle, weight: Array, wanted: Array, place: int
) -> Any:
    """The new model if it is one; otherwise the client keeps its last one, and the verdict says why."""
    seen = oracle.observed
    new = pack(Kept(w, seen.floats))
    norm, verdict = judge(Payload(Update(new - packed), None), seen.loss, weight)
    worked = (seen.steps > 0) & wanted
    verdict = jnp.where(worked, verdict, 0)
    kept = jnp.where(worked & (verdict == 0), new, packed)
    report = Report(verdict << place, seen.loss, seen.steps, norm)
    return Nothing(), jnp.float32(0), stand.shared.ints, jnp.int32(0), report, kept


def _pupil(stand: Stand, floats: Array, key: Array, client: Any) -> JaxOracle:
    assert stand.it.shape is not None
    return pupil(stand.shared, stand.lesson, stand.public, stand.it.shape, floats, key, client)


# ----- the server --------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def lesson_on_server(it: Pass) -> Any:
    """`f(model, lesson numbers, public, packed prototype, key, round) -> (packed prototype, loss)`.

    The lesson on the server, on one device. A prototype that would not be finite stays as it was.
    """
    statics, shape = it.statics, it.shape
    assert shape is not None

    def function(
        model: Any, lesson_numbers: Array, public: Public, packed: Array, key: Array, round: Array
    ) -> tuple[Array, Array]:
        lesson = join(it.lesson, lesson_numbers)
        kept = unpack(statics.client_state, packed)
        shared = Shared(
            statics.task,
            statics.layout,
            lesson.optimizer,
            {},
            public.order,
            kept.floats,
            model.ints,
            round,
            shape.batch,
            shape.steps,
            statics.block,
            False,
            statics.cpu,
        )
        stand = Stand(it, shared, lesson, public, None)
        oracle = _pupil(stand, kept.floats, key, jnp.int32(-1))
        y = oracle.solve(kept.state, loss=lesson.method.lesson)
        *_, report, new = _learnt(stand, packed, y.w, oracle, jnp.float32(1), public.usable, DIGEST)
        return new, report.loss

    return function if statics.eager else jax.jit(function)
