"""Pre-aggregators before a rule, as one rule."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dure.aggregation.preaggregator import PreAggregator
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Conditioned, Decision, Rule
from dure.errors import ConfigError
from dure.keys import number


def part_key(key: int | None, part: int) -> int | None:
    """The key of a part of a composed rule: different parts draw different numbers."""
    return None if key is None else number(key, "part of a rule", part)


@dataclass(frozen=True)
class Chain(Rule):
    """Pre-aggregators, applied from left to right, and the rule that sees what they leave (`chain` makes one).

    The updates are read for their distances and for the result, however many steps there are: a step leaves a
    small matrix that says how it mixes the rows. `weights_used` of the result refers to the updates as given;
    `selected`, where the rule chooses, names those that count in the result; `scores` are the rule's, where its
    rows still stand for clients (else they are "row_scores" in the details). "steps" in the details holds those of
    every pre-aggregator.

    Args:
        before: the pre-aggregators, at least one.
        rule: what aggregates the mixed rows.
    """

    before: tuple[PreAggregator, ...]
    rule: Rule
    citation: ClassVar[str] = "Allouah et al., AISTATS 2023"
    weighting: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        if self.rule.by_client and not self._keeps_clients:
            raise ConfigError(
                f"{type(self.rule).__name__} tells clients apart, and behind Bucketing rows are no clients any more. "
                "Leave one of them out."
            )
        object.__setattr__(self, "geometric", any(part.geometric for part in self._parts))
        object.__setattr__(self, "draws", any(part.draws for part in self._parts))
        object.__setattr__(self, "by_client", self.rule.by_client)

    @property
    def _parts(self) -> tuple[Conditioned, ...]:
        return (*self.before, self.rule)

    @property
    def _keeps_clients(self) -> bool:
        return all(step.keeps_clients for step in self.before)

    @property
    def title(self) -> str:
        return " + ".join(part.title for part in self._parts)

    def _sizes(self, n: int) -> Iterator[tuple[Conditioned, int]]:
        """Each part with the number of rows that it meets."""
        for step in self.before:
            yield step, n
            n = step.left(n)
        yield self.rule, n

    def hostile(self, m: int) -> int:
        return max(part.hostile(m) for part in self._parts)

    def needs(self, n: int, f: int) -> str | None:
        for part, left in self._sizes(n):
            reckoned = max(part.hostile(n) + f - self.hostile(n), 0)
            failed = part.needs(left, reckoned)
            if failed is not None:
                return f"{failed} for {type(part).__name__}, which meets {left} rows of which {reckoned} are hostile"
        return None

    def kappa(self, n: int, f: int) -> float | None:
        *before, (rule, left) = self._sizes(n)
        assert isinstance(rule, Rule)
        found = rule.kappa(left, f)
        for step, left in reversed(before):
            assert isinstance(step, PreAggregator)
            found = None if found is None else step.kappa_before(found, left, f)
        return found

    def _admit(self, n: int, call: Call) -> None:
        for step in self.before:
            step.admit(n, call.of(step))
            n = step.left(n)
        self.rule._admit(n, replace(call.of(self.rule), weights=np.ones(n)))

    def decide(self, rows: Rows, call: Call) -> Decision:
        steps, whole, inner = [], np.eye(rows.n), call
        for i, step in enumerate(self.before):
            mixing, details = step.mixing(rows, replace(inner.of(step), key=part_key(call.key, i)))
            steps.append(details)
            rows, whole = rows.mixed(mixing), mixing @ whole
            inner = replace(inner, weights=np.ones(rows.n))
            if not step.keeps_clients:
                some = np.arange(rows.n)
                inner = replace(inner, clients=some, invited=some, at=some)
        found = self.rule.decide(rows, replace(inner.of(self.rule), key=part_key(call.key, len(steps))))
        coefficients = found.shares(inner.weights)
        used = None if coefficients is None else coefficients @ whole
        chosen = found.selected
        if chosen is not None:
            chosen = np.flatnonzero(whole[chosen].any(0) if used is None else used)
        more: dict[str, Any] = {"steps": tuple(steps)}
        if found.scores is not None and not self._keeps_clients:
            more["row_scores"] = found.scores
        return found._replace(
            coefficients=used,
            selected=chosen,
            scores=found.scores if self._keeps_clients else None,
            details=dict(found.details) | more,
        )


def chain(*parts: PreAggregator | Rule) -> Chain:
    """Pre-aggregators and, last, a rule: `chain(NNM(f=2), TrimmedMean(f=2))`.

    Raises:
        ConfigError: the parts are of another kind or order, or the rule can't work on what is left.
    """
    *before, rule = parts or (None,)
    steps = tuple(step for step in before if isinstance(step, PreAggregator))
    if not steps or len(steps) < len(before):
        raise ConfigError(
            f"A chain begins with pre-aggregators, such as NNM or Bucketing, and not with {(before or parts)!r}: "
            "chain(NNM(f=2), TrimmedMean(f=2))."
        )
    if not isinstance(rule, Rule):
        raise ConfigError(f"A chain ends in a rule, such as TrimmedMean, and not in {rule!r}.")
    return Chain(steps, rule)
