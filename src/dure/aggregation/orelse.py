"""What to do when a cohort is too small for a rule: use another one, and say so."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dure.aggregation.chain import part_key
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule
from dure.errors import ConfigError, DomainError


@dataclass(frozen=True)
class OrElse(Rule):
    """A rule, and another one for calls in which the first one's condition on n, f and the weights' mass fails.

    A flag says when that happened and why. State holds both rules' memory, under "rule." and "fallback."; that of
    the one that wasn't asked stays as it was.

    Args:
        rule: used where it can be.
        fallback: used otherwise; where it can't be used either, DomainError.
    """

    rule: Rule
    fallback: Rule
    citation: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name in ("rule", "fallback"):
            if not isinstance(getattr(self, name), Rule):
                raise ConfigError(
                    f"OrElse({name}={getattr(self, name)!r}) is not allowed: it must be a rule, such as Median(f=1)."
                )
        both = (self.rule, self.fallback)
        object.__setattr__(self, "geometric", self.rule.geometric)
        object.__setattr__(self, "draws", any(part.draws for part in both))
        object.__setattr__(self, "by_client", any(part.by_client for part in both))
        kinds = {part.weighting for part in both}
        strictest = next(kind for kind in ("none", "selection", "mass") if kind in kinds)
        object.__setattr__(self, "weighting", strictest)

    def hostile(self, m: int) -> int:
        return max(self.rule.hostile(m), self.fallback.hostile(m))

    def needs(self, n: int, f: int) -> str | None:
        failed = [
            part.needs(n, max(part.hostile(n) + f - self.hostile(n), 0))
            for part in (self.rule, self.fallback)
        ]
        if any(one is None for one in failed):
            return None
        return " or ".join(
            f"{one} for {type(part).__name__}"
            for one, part in zip(failed, (self.rule, self.fallback), strict=True)
        )

    def kappa(self, n: int, f: int) -> float | None:
        part = self.rule if self.rule.needs(n, f) is None else self.fallback
        return part.kappa(n, f)

    def _refusal(self, n: int, call: Call) -> DomainError | None:
        try:
            self.rule._admit(n, call.of(self.rule))
        except DomainError as error:
            return error
        return None

    def _admit(self, n: int, call: Call) -> None:
        refusal = self._refusal(n, call)
        if refusal is not None:
            try:
                self.fallback._admit(n, call.of(self.fallback))
            except DomainError as error:
                raise error from refusal

    def decide(self, rows: Rows, call: Call) -> Decision:
        refusal = self._refusal(rows.n, call)
        part, name = (self.rule, "rule") if refusal is None else (self.fallback, "fallback")
        state = dict(call.state or {})
        own = {k.removeprefix(f"{name}."): v for k, v in state.items() if k.startswith(f"{name}.")}
        key = part_key(call.key, 0 if refusal is None else 1)
        found = part.decide(rows, replace(call.of(part), key=key, state=own or None))
        if found.state is not None:
            state = {k: v for k, v in state.items() if not k.startswith(f"{name}.")} | _named(
                name, found.state
            )
        flags = found.flags
        if refusal is not None:
            flags = (f"{part.title} was used, for {str(refusal).split('. ')[0]}", *flags)
        return found._replace(state=state or None, flags=flags)


def _named(name: str, state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{name}.{k}": v for k, v in state.items()}
