"""What an aggregation rule is: a frozen dataclass, called with the updates of a round, that says what it did.

A call goes the same way for every rule: malformed and non-finite updates are set aside and counted against f,
the weights are checked, the condition that the rule's guarantee needs is checked, and only then the rule decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dure.aggregation.checking import as_rows, checked_clients, checked_vector, checked_weights
from dure.aggregation.kernels.threads import one_blas_thread
from dure.aggregation.rows import Rows
from dure.errors import ConfigError, DataError, DomainError


class Aggregate(NamedTuple):
    """What came of one call of a rule. Indices refer to the updates as they were given, from 0, ascending.

    Attributes:
        vector: (d,) the aggregate, in the dtype of the updates.
        weights_used: (m,) float64: the aggregate is Σ weights_used[i] · updates[i], the rest up to 1 times the
            centre (and noise, where a rule adds some). None where it is no combination of the rows (a median of
            columns).
        selected: which updates the rule kept; None where it doesn't choose among them.
        dropped: which updates were not finite or malformed.
        scores: (m,) float64, the rule's own measure of suspicion, larger is worse; NaN for those set aside; or None.
        state: the rule's memory for the next call; None for a rule without.
        flags: what a careful reader must know, such as "more updates dropped than f".
        details: further numbers of the rule, by name.
    """

    vector: np.ndarray
    weights_used: np.ndarray | None
    selected: np.ndarray | None
    dropped: np.ndarray
    scores: np.ndarray | None
    state: dict[str, np.ndarray] | None = None
    flags: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}


class Decision(NamedTuple):
    """What a rule makes of n sound rows: a vector (d,), coefficients (n,), or rows to average.

    `scores` (n,) and `selected` refer to the rows that the rule was given. Coefficients beside a vector say of which
    rows it is made; a vector alone is no combination of them.
    """

    vector: np.ndarray | None = None
    coefficients: np.ndarray | None = None
    selected: np.ndarray | None = None
    scores: np.ndarray | None = None
    state: dict[str, np.ndarray] | None = None
    flags: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}

    def shares(self, weights: np.ndarray) -> np.ndarray | None:
        """(n,) the coefficients, of rows to average by their weights; None for a vector alone."""
        if self.coefficients is not None or self.vector is not None or self.selected is None:
            return self.coefficients
        found = np.zeros(len(weights))
        found[self.selected] = weights[self.selected] / weights[self.selected].sum()
        return found


@dataclass(frozen=True)
class Call:
    """What a rule may know beside the rows.

    Attributes:
        f: hostile rows that are left to reckon with, after dropped ones were counted.
        weights: (n,) float64 weights of the rows; all 1 where none were given.
        key: an integer that everything random follows from, or None.
        state: the rule's memory, as its last `Aggregate` returned it.
        clients: (n,) client numbers.
        server: (d,) the server's own update, or None.
        m: updates that were given, usable or not.
        dropped: how many of them were not finite or malformed.
        invited: the client numbers of all that were given.
        at: (n,) where the rows are among these.
    """

    f: int
    weights: np.ndarray
    key: int | None = None
    state: dict[str, np.ndarray] | None = None
    clients: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    server: np.ndarray | None = None
    m: int = 0
    dropped: int = 0
    invited: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    at: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def at_given(self, values: np.ndarray, rest: float = np.nan) -> np.ndarray:
        """Values (…, n) of the rows at their places among all that were given, `rest` elsewhere."""
        whole = np.full((*values.shape[:-1], len(self.invited)), rest)
        whole[..., self.at] = values
        return whole

    @property
    def equal(self) -> bool:
        """Whether all weights are the same."""
        return bool((self.weights == self.weights[0]).all())

    def of(self, part: "Conditioned") -> "Call":
        """The call as a part of a composed rule gets it: with the hostile rows that the part reckons with."""
        return replace(self, f=max(part.hostile(self.m) - self.dropped, 0))

    def seed(self, rule: object) -> int:
        """The key, for a rule that draws.

        Raises:
            ConfigError: there is none.
        """
        if self.key is None:
            raise ConfigError(
                f"{type(rule).__name__} draws at random: give key=, an integer that the draw follows from."
            )
        return self.key


@dataclass(frozen=True)
class Conditioned:
    """What rules and pre-aggregators have in common: they reckon with f hostile updates and have a condition.

    Class attributes:
        citation: the paper.
        geometric: it asks for distances first (non-finite rows then show in the same pass).
        draws: it needs a key.
    """

    citation: ClassVar[str] = ""
    geometric: ClassVar[bool] = False
    draws: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """Its name, of a chain the names of its parts."""
        return type(self).__name__

    def hostile(self, m: int) -> int:
        """f, the number of hostile ones among m updates that it reckons with; 0 where it has none."""
        return int(getattr(self, "f", 0))

    def needs(self, n: int, f: int) -> str | None:
        """The condition that fails for n updates with f hostile ones among them, or None."""
        return None

    def check(self, n: int, f: int | None = None) -> None:
        """Refuse n updates that it can't serve.

        Raises:
            DomainError: naming the rule, n, f and the condition.
        """
        f = self.hostile(n) if f is None else f
        failed = self.needs(n, f)
        if failed is not None:
            raise DomainError(type(self).__name__, n, f, failed)


@dataclass(frozen=True)
class Rule(Conditioned):
    """Defaults of an aggregation rule.

    A rule says what it needs (`needs`) and what it makes of sound rows (`decide`).

    Class attributes, beside those of `Conditioned`:
        weighting: "mass": weights count as that many updates, and f means the mass of the f heaviest;
            "selection": they only weight the average over those that the rule chose;
            "none": the rule has no meaning for unequal weights, which raise.
        by_client: it tells clients apart by their numbers.
    """

    weighting: ClassVar[str] = "none"
    by_client: ClassVar[bool] = False

    def decide(self, rows: Rows, call: Call) -> Decision:
        """What the rule makes of sound rows."""
        raise NotImplementedError(f"{type(self).__name__} has no decide")

    def kappa(self, n: int, f: int) -> float | None:
        """κ such that ‖aggregate − honest mean‖² ≤ κ · (mean squared distance of honest updates from their mean).

        For every choice of f hostile ones among n of equal weight (Allouah et al., AISTATS 2023); None where none is
        known, and where the rule's condition on n and f fails.
        """
        return None

    def __call__(
        self,
        updates: Any,
        weights: Any = None,
        *,
        center: Any = None,
        state: dict[str, np.ndarray] | None = None,
        key: int | None = None,
        clients: Any = None,
        server: Any = None,
    ) -> Aggregate:
        """Aggregate the updates of a round.

        Args:
            updates: (m, d) floating-point array, numpy or JAX; `Blocks`; or m vectors (d,), of which those that
                don't fit (by shape or dtype) are dropped. Differences y − w, not models, unless `center` is given.
            weights: (m,) nonnegative; None: all equal. A client with weight 0 is left out.
            center: (d,) where the updates are measured from, such as the previous model; None: 0.
            state: what the last call returned as `state`; None at first.
            key: an integer in [0, 2⁶³) that everything random follows from.
            clients: (m,) client numbers, for rules that remember clients; None: 0 … m − 1. The result doesn't depend
                on the order in which clients come: of equal scores the lowest number counts first.
            server: (d,) the server's own update, for rules that compare with one (FLTrust).

        Raises:
            DataError: updates, weights or center can't be used: shape, dtype, values, or nothing is left.
            ConfigError: unequal weights for a rule that has no meaning for them, or no key for one that draws.
            DomainError: too few updates for f.
        """
        sound = received(self, updates, weights, center, state, key, clients, server)
        self._admit(sound.rows.n, sound.call)
        with one_blas_thread():
            decision = self.decide(sound.rows, sound.call)
        return _aggregate(sound, decision)

    def _admit(self, n: int, call: Call) -> None:
        self.check(n, call.f)
        if self.weighting == "none" and not call.equal:
            raise ConfigError(
                f"{type(self).__name__} has no meaning for unequal weights (from {call.weights.min():g} to "
                f"{call.weights.max():g}): leave them out, or choose a rule that honours them, such as Median, "
                "TrimmedMean or GeometricMedian."
            )
        if self.weighting == "mass" and call.f and not call.equal:
            heaviest, whole = float(np.sort(call.weights)[-call.f :].sum()), float(call.weights.sum())
            if 2 * heaviest >= whole:
                raise DomainError(
                    type(self).__name__,
                    n,
                    call.f,
                    f"2F < W, the {call.f} largest weights to be less than half (F={heaviest:g}, W={whole:g})",
                    "Cap the weights (dure.aggregation.capped, weight_cap= of simulate), or leave them out.",
                )


class Received(NamedTuple):
    """The sound rows of a call, what a rule may know beside them, and what was set aside."""

    rows: Rows
    call: Call
    dropped: np.ndarray
    flags: tuple[str, ...]


def received(
    rule: Conditioned,
    updates: Any,
    weights: Any,
    center: Any,
    state: Any,
    key: int | None,
    clients: Any,
    server: Any,
) -> Received:
    """Set aside what can't be used, and count it against the rule's f; arguments and errors as in `Rule.__call__`."""
    rows, malformed = as_rows(updates)
    m = malformed.shape[0]
    weights = checked_weights(weights, m)
    if state is not None and not isinstance(state, dict):
        raise DataError(
            f"state={state!r} is not allowed: give what the last call returned as `state`, or None at first."
        )
    rows.centre = checked_vector("center", center, rows.d)
    server = checked_vector("server", server, rows.d)
    clients = checked_clients(clients, m)
    used = np.flatnonzero(~malformed & (weights > 0))
    used = used[np.argsort(clients[used], kind="stable")]  # not in the order in which they came
    rows = rows.take(np.searchsorted(np.flatnonzero(~malformed), used))
    bad = rows.broken_rows(rule.geometric)
    dropped = np.flatnonzero(malformed)
    if bad.any():
        dropped = np.sort(np.concatenate([dropped, used[bad]]))
        rows, used = rows.take(np.flatnonzero(~bad)), used[~bad]
    if not len(used):
        raise DataError(
            f"None of the {m} updates can be used: {len(dropped)} are malformed or not finite, the others have "
            "weight 0."
        )
    f = rule.hostile(m)
    flags = ("more updates dropped than f",) if len(dropped) > f > 0 else ()
    call = Call(
        f=max(f - len(dropped), 0),
        weights=weights[used],
        key=key,
        state=state,
        clients=clients[used],
        server=server,
        m=m,
        dropped=len(dropped),
        invited=clients,
        at=used,
    )
    return Received(rows, call, dropped, flags)


def _aggregate(sound: Received, decision: Decision) -> Aggregate:
    rows, call = sound.rows, sound.call
    coefficients = decision.shares(call.weights)
    vector = decision.vector
    if vector is None:
        if coefficients is None:
            raise ConfigError(
                "A rule's `decide` returned neither a vector, nor coefficients, nor selected rows."
            )
        vector = rows.combine(coefficients)
    if vector.shape != (rows.d,):
        raise ConfigError(
            f"A rule's `decide` returned a vector of shape {vector.shape}: it must be ({rows.d},)."
        )

    selected = None if decision.selected is None else np.sort(call.at[decision.selected])
    return Aggregate(
        vector,
        None if coefficients is None else call.at_given(coefficients, 0.0),
        selected,
        sound.dropped,
        None if decision.scores is None else call.at_given(decision.scores),
        decision.state,
        sound.flags + decision.flags,
        decision.details,
    )


def half(n: int, f: int) -> str | None:
    """The condition 2f < n of most rules."""
    return None if 2 * f < n else "2f < n"
