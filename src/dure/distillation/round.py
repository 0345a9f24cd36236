"""One round: what a method may ask of all the clients that take part, whatever their architectures are."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, Float

from dure import devices, keys
from dure.aggregation import mean
from dure.channel import wire
from dure.distillation.base import Method
from dure.distillation.describe import Asked, messages
from dure.distillation.group import Group, Visit
from dure.distillation.passes import (
    DIGEST,
    PREDICTIONS,
    TRAINING,
    Done,
    Pass,
    lesson_on_server,
    over_clients,
)
from dure.distillation.public import BLOCK, Lesson, Public, PublicSet, Shape
from dure.simulation import hyper
from dure.simulation.verdict import LOSS_NOT_FINITE, NOT_FINITE, TOO_LARGE

REASONS = {
    NOT_FINITE << TRAINING: "update not finite",
    LOSS_NOT_FINITE << TRAINING: "loss not finite",
    TOO_LARGE << TRAINING: "update too large",
    NOT_FINITE << PREDICTIONS: "predictions not finite",
    TOO_LARGE << PREDICTIONS: "predictions too large",
    NOT_FINITE << DIGEST: "digest not finite",
    LOSS_NOT_FINITE << DIGEST: "loss of the digest not finite",
    TOO_LARGE << DIGEST: "digest too large",
}
#: Passes that learn from the public inputs.
LEARN = ("digest", "teach")


class Round:
    """Implements `dure.distillation.base.Clients` for the cohort of round `number`."""

    def __init__(self, number: int, groups: Sequence[Group], method: Method, public: PublicSet, seed: int):
        self._number, self._groups, self._method, self._set, self._seed = number, groups, method, public, seed
        self._visits = [group.visit(number) for group in groups]
        structure, numbers = hyper.split(Lesson(method, public.optimizer))
        order = public.order(seed, number, method.public_epochs)
        shape = Shape(len(order) // public.batch, public.batch, min(BLOCK, public.size))
        self._structure, self._shape = structure, shape
        self._mesh = groups[0].engine.mesh
        self._rows = public.rows(seed, number)
        inputs = public.inputs if self._rows is None else public.inputs[self._rows]
        self._numbers = self._whole(np.asarray(numbers, np.float32))
        targets = np.zeros((public.size, public.classes), np.float32)
        self._public = Public(
            devices.replicate(inputs, self._mesh),
            self._whole(order),
            self._whole(targets),
            self._whole(np.bool_(True)),
        )
        self._verdicts = [group.engine.split(np.zeros(v.seats, np.int32)) for group, v in self._pairs()]
        self._trained: list[Any] = [None] * len(groups)
        self._digested: list[Any] = [None] * len(groups)
        #: Σ w and the loss of the lesson on the server, for each prototype.
        self.taught: list[Any] = []

    # ----- what a method may ask: see `Clients` ---------------------------------------------------------

    def train(self, models: Any, *, newcomers: bool = False) -> Any:
        """Local work on the clients' own data."""
        plans = [group.newcomers(self._number, v) if newcomers else v.packed for group, v in self._pairs()]
        after = list(models)
        for i, packed in enumerate(plans):
            if packed is not None:
                done = self._run("train", i, models[i], packed)
                self._trained[i], after[i] = done.report, done.states
        return tuple(after)

    def mean(self, models: Any, of: Callable[[Array], Array] | None = None) -> Float[Array, "r c"]:
        """The weighted mean of predictions, exact and rounded once: no order of clients can be seen in it."""
        done = [self._run("mean", i, m, of=of) for i, m in enumerate(models)]
        accepted = sum(d.accepted.sum() for d in done)
        self._public = self._public._replace(usable=accepted > 0)
        targets: Array = _merged([d.sums for d in done])
        return targets

    def digest(self, models: Any, targets: Float[Array, "r c"]) -> Any:
        """The lesson, on every client that was asked; also on those without examples of their own."""
        self._public = self._public._replace(targets=self._whole(targets))
        done = [self._run("digest", i, m) for i, m in enumerate(models)]
        self._digested = [d.report for d in done]
        return tuple(d.states for d in done)

    def send(self, prototypes: Any) -> Any:
        """Each client's model is its architecture's prototype."""
        return tuple(group.copies(v, p) for (group, v), p in zip(self._pairs(), prototypes, strict=True))

    def average(self, models: Any, prototypes: Any) -> Any:
        """Each prototype with the mean update of its clients; as it was where none was usable."""
        averaged = []
        for i, (m, p) in enumerate(zip(models, prototypes, strict=True)):
            done = self._run("average", i, m, given=self._whole(np.asarray(p)))
            update, floats = _merged([done.sums])
            size = self._groups[i].layout.size
            moved = jnp.concatenate([jnp.asarray(p)[:size] + update, floats])
            averaged.append(jnp.where(done.accepted.sum() > 0, moved, p))
        return tuple(averaged)

    def teach(self, prototypes: Any, targets: Float[Array, "r c"]) -> Any:
        """The lesson on the server: prototypes side by side on the devices."""
        public = self._public._replace(targets=targets)
        taught = []
        for i, p in enumerate(prototypes):
            device = self._mesh.devices.flat[i % self._mesh.size]
            word = keys.words(self._seed, "teach", self._number, np.array([i]), np.zeros(1, np.int64))
            model, number = self._groups[i].engine.model, np.int32(self._number)
            given = (model, self._numbers, public, p, word.view(np.uint32), number)
            with self._groups[i].engine.mode():
                taught.append(lesson_on_server(self._pass("teach", i))(*jax.device_put(given, device)))
        self.taught = [loss for _, loss in taught]
        return tuple(row for row, _ in taught)

    # ----- for the driver -------------------------------------------------------------------------------

    def begin(self, prototypes: Any) -> Any:
        """What the method's round begins with: the prototypes, or the clients' own models."""
        if self._method.prototypes:
            return prototypes
        return tuple(group.models(v) for group, v in self._pairs())

    def end(self, models: Any) -> Any:
        """The prototypes after the round; clients keep their own models."""
        if self._method.prototypes:
            return tuple(np.asarray(jax.device_get(m)) for m in models)
        for (group, v), m in zip(self._pairs(), models, strict=True):
            group.keep(v, m)
        return ()

    def asked(self) -> Asked:
        """What happened; waits for the devices."""
        parts = [self._asked(i) for i in range(len(self._groups))]
        columns = [np.concatenate([np.asarray(p[c]) for p in parts]) for c in range(len(Asked._fields))]
        order = np.argsort(columns[0], kind="stable")
        sorted_columns = [c[order] for c in columns]
        asked = Asked(*sorted_columns)
        return asked._replace(status=asked.status.tolist())

    def messages(self, i: int) -> tuple[int, int]:
        """Bytes (up, down) of one client of architecture i in a round, as `dure.channel.wire` encodes them."""
        up, down = messages(self._groups[i], self._method, self._set)
        return wire.size(up), sum(wire.size(m) for m in down)

    # ----- inside ---------------------------------------------------------------------------------------

    def _pairs(self) -> list[tuple[Group, Visit]]:
        return list(zip(self._groups, self._visits, strict=True))

    def _whole(self, x: Any) -> Any:
        return jax.device_put(x, NamedSharding(self._mesh, PartitionSpec()))

    def _pass(self, kind: str, i: int, of: Any = None) -> Pass:
        """Only what shapes the program: local work is compiled once for all methods."""
        uniform = kind == "mean" and self._method.weighting == "uniform"
        lesson = self._structure if kind in LEARN else None
        shape = self._shape if kind in LEARN or kind == "mean" else None
        return Pass(kind, self._visits[i].statics, lesson, shape, uniform, of)

    def _run(
        self, kind: str, i: int, states: Any, packed: Any = None, given: Any = None, of: Any = None
    ) -> Done:
        engine, visit = self._groups[i].engine, self._visits[i]
        packed = visit.packed if packed is None else packed
        with engine.mode():
            done: Done = over_clients(self._pass(kind, i, of))(
                engine.model,
                engine.numbers,
                self._numbers if kind in LEARN else None,
                engine.columns,
                self._public if kind in LEARN or kind == "mean" else None,
                given,
                packed,
                states,
                self._verdicts[i],
            )
        self._verdicts[i] = self._verdicts[i] | done.report.verdict
        return done

    def _asked(self, i: int) -> Asked:
        facts = self._visits[i].facts
        reports = jax.device_get((self._verdicts[i], self._trained[i], self._digested[i]))
        verdict = np.asarray(reports[0])[facts.seats]
        works = (facts.sizes > 0) & (facts.planned > 0)
        losses = [
            np.full(len(facts.ids), np.nan) if r is None else np.asarray(r.loss)[facts.seats]
            for r in reports[1:]
        ]
        weight = (facts.weights > 0) if self._method.weighting == "uniform" else facts.weights
        status = [_status(*map(int, x)) for x in zip(facts.sizes, facts.planned, verdict, strict=True)]
        up, down = self.messages(i)
        return Asked(
            facts.ids,
            np.full(len(facts.ids), i),
            facts.sizes,
            weight.astype(np.float32),
            facts.inclusion,
            facts.planned,
            np.where(works, losses[0], np.nan),
            losses[1],
            np.array(status, object),
            up * works,
            np.full(len(facts.ids), down),
        )


def _status(size: int, steps: int, verdict: int) -> str:
    if size == 0:
        return "no examples"
    if steps == 0:
        return "no steps"
    return "; ".join(text for bit, text in REASONS.items() if verdict & bit) or "ok"


def _merged(sums: Sequence[mean.Sums]) -> Any:
    """The mean over the devices and architectures whose sums these are; zeros where nobody was accepted."""
    with jax.enable_x64(True):
        return _ratio(list(sums))


@jax.jit
def _ratio(sums: list[mean.Sums]) -> Any:
    return mean.ratio(jax.tree.map(lambda *parts: sum(p.sum(0) for p in parts), *sums))
