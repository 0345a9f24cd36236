"""Rules that keep the n − f updates nearest one point: CGE and MoNNA."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule, half
from dure.errors import DataError


@dataclass(frozen=True)
class CGE(Rule):
    """Comparative gradient elimination: the mean of the n − f updates of smallest norm, measured from `center`.

    It stops large updates only; one that is small and points the wrong way passes. Equal norms go to the first.

    Args:
        f: hostile updates to reckon with, f < n.
    """

    f: int
    citation: ClassVar[str] = "Gupta, Liu and Vaidya, arXiv:2008.04699"
    weighting: ClassVar[str] = "selection"

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)

    def needs(self, n: int, f: int) -> str | None:
        return None if f < n else "f < n"

    def decide(self, rows: Rows, call: Call) -> Decision:
        centre = np.zeros(rows.d) if rows.centre is None else rows.centre
        norms = np.sqrt(rows.squared_to(centre))
        return Decision(selected=np.argsort(norms, kind="stable")[: rows.n - call.f], scores=norms)


@dataclass(frozen=True)
class MoNNA(Rule):
    """The mean of the n − f updates nearest a trusted one, which is among them.

    It is for a client whose honesty is known, such as the server's own or the node itself where everybody
    aggregates for themselves. Equal distances go to the first.

    Args:
        f: hostile updates to reckon with, 2f < n.
        trusted: the client's number, as in `clients` of the call; where the call gives no numbers, the row's index.
            A call without a usable update of that client raises a `DataError`.
    """

    f: int
    trusted: int
    citation: ClassVar[str] = "Farhadkhani et al., ICML 2023"
    weighting: ClassVar[str] = "selection"
    by_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "f", self.f)
        checked_count(self, "trusted", self.trusted)

    def needs(self, n: int, f: int) -> str | None:
        return half(n, f)

    def decide(self, rows: Rows, call: Call) -> Decision:
        found = np.flatnonzero(call.clients == self.trusted)
        if len(found) != 1:
            what = "no usable update" if not len(found) else f"{len(found)} updates"
            raise DataError(
                f"MoNNA trusts client {self.trusted}, and this call has {what} of that client: it must take part "
                "once, with a finite update of the right shape and a positive weight."
            )
        trusted = int(found[0])
        away = np.sqrt(rows.squared_to(rows.combine(np.eye(1, rows.n, trusted)[0])))
        away[trusted] = 0.0
        order = np.lexsort((np.arange(rows.n), np.arange(rows.n) != trusted, away))
        return Decision(selected=order[: rows.n - call.f], scores=away)
