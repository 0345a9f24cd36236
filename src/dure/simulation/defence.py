"""From what the clients of a round sent to the aggregate, by a rule that sees every update.

Between the clients' and the server's compiled parts: attackers put their updates in the place of what their
clients computed, the rule is called for each array of the update, and it is written down what it did with whom.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from dure import keys
from dure.aggregation import Aggregate, Mean, Median, Rule, capped
from dure.aggregation.rows import Rows
from dure.attacks.base import Attack
from dure.attacks.measure import honest_distance
from dure.errors import ConfigError, DataError, DomainError, RunError
from dure.simulation.cohort import Facts
from dure.simulation.hostile import Hostile, scene
from dure.simulation.settings import Settings
from dure.simulation.statics import Payload, Report
from dure.simulation.verdict import LOSS_NOT_FINITE, NOT_FINITE

Memory = dict[str, np.ndarray]


class Account(NamedTuple):
    """What the rule did with whom; arrays (m,) have one entry per client that was asked.

    Attributes:
        weight: what the update counted for in the aggregate; NaN where the aggregate is no combination of updates.
        score: the rule's measure of suspicion, larger is worse; NaN for a rule without.
        distance: 2-norm of the update's difference from the aggregate.
        selected: whether the rule kept it.
        attacker: whether the client is the attacker's.
        accepted: updates that the rule could use.
        dropped: updates that were not finite.
        flags: what the rule found worth saying.
        skipped: why the round was skipped, or None.
        kappa: squared distance of the aggregate from the mean of the honest clients' finite updates, over their
            variance; NaN where no attack is simulated, so that nobody knows who is honest.
        bound: the κ that the rule promises for this n and f, or None: none is known, or weights are unequal.
    """

    weight: np.ndarray
    score: np.ndarray
    distance: np.ndarray
    selected: np.ndarray
    attacker: np.ndarray
    accepted: int
    dropped: int
    flags: tuple[str, ...]
    skipped: str | None
    kappa: float
    bound: float | None


class Aggregated(NamedTuple):
    """The aggregate of a round (None: skipped), the mass of the updates in it, and what was done with whom."""

    average: Payload | None
    mass: float
    verdict: np.ndarray
    account: Account


@dataclass
class Defence:
    """The rule of a run, with what it and the attack remember from round to round.

    Args:
        rule: the aggregation rule.
        enemy: the attack and its clients, or None.
        seed: everything random follows from it.
        too_few: "skip" or "raise".
        cap: a client's weight counts at most this many times the median of the cohort's; None: as it is.
        claims: weights are what clients say of themselves.
        root: the client whose update is the server's own, or None.
    """

    rule: Rule
    enemy: Hostile | None
    seed: int
    too_few: str
    cap: float | None
    claims: bool
    root: int | None = None
    memory: dict[str, Memory] = field(default_factory=dict)

    # ----- memory -------------------------------------------------------------------------------------

    def snapshot(self) -> Memory:
        """All that is remembered, by name, for a checkpoint."""
        return {f"{part}/{name}": x for part, found in self.memory.items() for name, x in found.items()}

    def restore(self, snapshot: Memory) -> None:
        """Take back what `snapshot` gave."""
        self.memory = {}
        for name, x in snapshot.items():
            part, rest = name.split("/", 1)
            self.memory.setdefault(part, {})[rest] = x
        if self.enemy is not None and "trigger" in self.memory:
            self.enemy = replace(self.enemy, attack=self.enemy.attack.restored(self.memory["trigger"]))

    @property
    def last(self) -> np.ndarray | None:
        """The aggregate of the last round that had one: all arrays of the update, one behind the other."""
        return self.memory.get("last", {}).get("aggregate")

    # ----- a round ------------------------------------------------------------------------------------

    def __call__(self, number: int, facts: Facts, sent: Payload, report: Report) -> Aggregated:
        """Aggregate what was sent in round `number`."""
        verdict, steps = (np.asarray(x)[facts.seats] for x in (report.verdict, report.steps))
        at = np.flatnonzero((facts.weights > 0) & (steps > 0))
        seats = tuple(s[at] for s in facts.seats)
        leaves, structure = jax.tree.flatten(sent.update)
        rows = [_rows(leaf, seats) for leaf in leaves]
        bad = np.zeros(len(at), bool) if self.enemy is None else self.enemy.among(facts.ids[at])
        weights = self._weights(facts, at, bad)
        key = keys.number(self.seed, "aggregation", number)
        # An honest client's training can break too: what it sent then is no update, and says so everywhere.
        broken = (verdict[at] & (NOT_FINITE | LOSS_NOT_FINITE)) != 0
        rows = [_spoil(x, broken) for x in rows]
        clients = facts.ids[at]
        if bad.any():
            rows = self._attacked(rows, bad, weights, clients, number, key)
            # It is what they sent that counts, not how their own training went.
            verdict[at[bad]] &= ~np.array(NOT_FINITE | LOSS_NOT_FINITE, verdict.dtype)
        try:
            found = [self._one(i, x, weights, clients, key) for i, x in enumerate(rows)]
        except (DomainError, DataError) as error:
            if self.too_few == "raise":
                raise RunError(f"Round {number}: {error}") from error
            return Aggregated(None, 0.0, verdict, self._nothing(facts, at, bad, str(error)))
        for i, one in enumerate(found):
            if one.state is not None:
                self.memory[f"rule{i}"] = one.state
        self.memory["last"] = {"aggregate": np.concatenate([one.vector for one in found])}
        dropped = np.unique(np.concatenate([one.dropped for one in found])).astype(np.int64)
        verdict[at[dropped]] |= NOT_FINITE
        used = np.setdiff1d(np.flatnonzero(clients != self.root), dropped)
        vectors = [one.vector.reshape(leaf.shape[3:]) for one, leaf in zip(found, leaves, strict=True)]
        update: PyTree = jax.tree.unflatten(structure, vectors)
        floats: Any = None if sent.floats is None else self._buffers(_rows(sent.floats, seats), used, weights)
        account = self._account(facts, at, bad, rows[0], found[0], used, weights[used])
        return Aggregated(Payload(update, floats), float(weights[used].sum()), verdict, account)

    def refusal(self, number: int, facts: Facts) -> str | None:
        """Why round `number` with these clients can't be aggregated, known before it begins; None: it can.

        Raises:
            RunError: it can't, and `too_few` is "raise".
        """
        try:
            self.rule.check(int(((facts.weights > 0) & (facts.ids != self.root)).sum()))
        except DomainError as error:
            if self.too_few == "raise":
                raise RunError(f"Before round {number}: {error}") from error
            return str(error)
        return None

    def skipped(self, facts: Facts, why: str) -> Account:
        """The account of a round that was not begun."""
        nobody = np.zeros(0, np.int64)
        return self._nothing(facts, nobody, np.zeros(0, bool), why)

    def _one(self, i: int, rows: Any, weights: np.ndarray, clients: np.ndarray, key: int) -> Aggregate:
        """The aggregate of one array; the client with the root data stands apart, as one that weighs nothing."""
        state, server = self.memory.get(f"rule{i}"), None
        if self.root is not None:
            own = clients == self.root
            if not own.any():
                raise DataError(f"The update of client {self.root}, which has the root data, did not arrive.")
            server, weights = np.asarray(rows[int(np.flatnonzero(own)[0])]), np.where(own, 0.0, weights)
        return self.rule(rows, weights, state=state, key=key, clients=clients, server=server)

    def _weights(self, facts: Facts, at: np.ndarray, bad: np.ndarray) -> np.ndarray:
        weights = facts.weights[at].astype(np.float64)
        if self.enemy is not None and self.claims and bad.any():
            weights[bad] = self.enemy.attack.weights(weights[bad])
        return weights if self.cap is None or not len(weights) else capped(weights, self.cap)

    def _attacked(
        self,
        rows: list[Any],
        bad: np.ndarray,
        weights: np.ndarray,
        clients: np.ndarray,
        number: int,
        key: int,
    ) -> list[Any]:
        """The rows with the attackers' own in them. A message is all of a client's arrays, one behind the other."""
        assert self.enemy is not None
        attack: Attack = self.enemy.attack
        widths = [x.shape[1] for x in rows]
        ends = np.cumsum(widths)[:-1]
        whole = np.asarray(rows[0]) if len(rows) == 1 else np.hstack([np.asarray(x) for x in rows])
        order = np.concatenate([np.flatnonzero(~bad), np.flatnonzero(bad)])
        back = np.argsort(order)

        def rule(messages: np.ndarray) -> np.ndarray:
            parts = np.split(np.asarray(messages)[back], ends, axis=1)
            return np.concatenate(
                [self._one(i, x, weights, clients, key).vector for i, x in enumerate(parts)]
            )

        seen = scene(
            whole,
            bad,
            attack,
            self.last,
            rule,
            number,
            keys.number(self.seed, "attack", number),
            self.memory.get("attack"),
            np.where(clients == self.root, 0.0, weights),
        )
        made = attack.updates(seen)
        if np.shape(made.rows) != seen.own.shape:
            raise ConfigError(
                f"Round {number}: {type(attack).__name__} sends rows of shape {np.shape(made.rows)}, and "
                f"{seen.own.shape} are needed: one row for each of its clients in the round."
            )
        if made.state is not None:
            self.memory["attack"] = made.state
        return [
            _replaced(x, bad, part) for x, part in zip(rows, np.split(made.rows, ends, axis=1), strict=True)
        ]

    def _buffers(self, rows: Any, used: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Statistics such as BatchNorm's: in the median, as a chosen update may still lie in its buffers."""
        if isinstance(self.rule, Mean):
            return Mean()(rows[used], weights[used]).vector
        return Median()(rows[used]).vector

    # ----- what is written down -----------------------------------------------------------------------

    def _account(
        self,
        facts: Facts,
        at: np.ndarray,
        bad: np.ndarray,
        rows: Any,
        found: Aggregate,
        used: np.ndarray,
        weights: np.ndarray,
    ) -> Account:
        """`used`: which of the rows the rule could use; `weights`: theirs."""
        m, n, dropped = len(facts.ids), len(used), len(found.dropped)
        gaps = np.sqrt(Rows(rows).squared_to(found.vector.astype(np.float64)))
        selected = np.zeros(len(at), bool)
        selected[used if found.selected is None else found.selected] = True
        kappa, honest = np.nan, used[~bad[used]]  # what broke at an honest client is no update to be near to
        if self.enemy is not None and len(honest):
            kappa = honest_distance(found.vector, np.asarray(rows)[honest])
        f = max(self.rule.hostile(n + dropped) - dropped, 0)
        bound = self.rule.kappa(n, f) if (weights == weights[0]).all() else None
        return Account(
            _spread(m, at, found.weights_used),
            _spread(m, at, found.scores),
            _spread(m, at, gaps),
            _spread(m, at, selected, False),
            _spread(m, at, bad, False),
            n,
            dropped,
            found.flags,
            None,
            float(kappa),
            bound,
        )

    def _nothing(self, facts: Facts, at: np.ndarray, bad: np.ndarray, why: str) -> Account:
        m = len(facts.ids)
        unknown = np.full(m, np.nan)
        nobody = np.zeros(m, bool)
        attacker = _spread(m, at, bad, False)
        return Account(unknown, unknown, unknown, nobody, attacker, 0, 0, (), why, np.nan, None)


def defence(settings: Settings) -> Defence | None:
    """What makes the aggregate of the single updates; None: the compiled round's own exact mean."""
    if settings.aggregator is None:
        return None
    claims = settings.weighting == "examples"
    chosen = settings.aggregator, settings.enemy, settings.seed, settings.too_few, settings.weight_cap
    return Defence(*chosen, claims, settings.root)


def _rows(leaf: Any, seats: tuple[np.ndarray, ...]) -> Any:
    """(n, size) of a (devices, chunks, width, …) array, in the order of the clients, where the array lies."""
    on_host = not isinstance(leaf, jax.Array) or all(d.platform == "cpu" for d in leaf.devices())
    found = (np.asarray(leaf) if on_host else leaf)[seats]
    return found.reshape(len(seats[0]), math.prod(leaf.shape[3:]))


def _spoil(rows: Any, broken: np.ndarray) -> Any:
    if not broken.any() or not rows.shape[1]:
        return rows
    if isinstance(rows, jax.Array):
        return rows.at[np.flatnonzero(broken)].set(np.nan)
    rows[broken] = np.nan  # the rows were copied out of the device's memory
    return rows


def _replaced(rows: Any, bad: np.ndarray, part: np.ndarray) -> Any:
    if isinstance(rows, jax.Array):
        return rows.at[np.flatnonzero(bad)].set(part)
    rows[bad] = part
    return rows


def _spread(m: int, at: np.ndarray, values: np.ndarray | None, rest: float | bool = np.nan) -> np.ndarray:
    """(m,) the values at their places, `rest` elsewhere."""
    whole = np.full(m, rest)
    if values is not None:
        whole[at] = values
    return whole
