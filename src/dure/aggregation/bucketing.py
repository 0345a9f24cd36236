"""Bucketing (Karimireddy, He and Jaggi, ICLR 2022)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dure.aggregation.checking import checked_count
from dure.aggregation.preaggregator import PreAggregator
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call
from dure.errors import ConfigError
from dure.keys import generator


@dataclass(frozen=True)
class Bucketing(PreAggregator):
    """Means of `size` updates each, which are dealt out at random; the last one is over those that are left.

    A rule behind it meets ⌈n/size⌉ rows that differ less, of which f may still be hostile. 2 is the usual size.
    What was drawn stands in the details as "permutation".

    Args:
        size: updates in a bucket, at least 1.
        permutation: the order in which they are dealt out; None: drawn from the key.
    """

    size: int = 2
    permutation: tuple[int, ...] | None = None
    citation: ClassVar[str] = "Karimireddy et al., ICLR 2022"
    draws: ClassVar[bool] = True
    keeps_clients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        checked_count(self, "size", self.size, 1)
        if self.permutation is not None:
            object.__setattr__(self, "permutation", tuple(int(i) for i in self.permutation))
            if sorted(self.permutation) != list(range(len(self.permutation))):
                raise ConfigError(
                    f"Bucketing(permutation={self.permutation}) is not allowed: it must hold every number from 0 "
                    "once."
                )

    def left(self, n: int) -> int:
        return -(-n // self.size)

    def mixing(self, rows: Rows, call: Call) -> tuple[np.ndarray, dict[str, Any]]:
        if self.permutation is None:
            order = generator(call.seed(self), "bucketing").permutation(rows.n)
        elif len(self.permutation) != rows.n:
            raise ConfigError(
                f"Bucketing has a permutation of {len(self.permutation)} updates, and {rows.n} can be used: leave "
                "it out, and one is drawn in every round."
            )
        else:
            order = np.array(self.permutation)
        mixing = np.zeros((self.left(rows.n), rows.n))
        mixing[np.arange(rows.n) // self.size, order] = 1.0
        return mixing / mixing.sum(1, keepdims=True), {"permutation": call.at[order]}
