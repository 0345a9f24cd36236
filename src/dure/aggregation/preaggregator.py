"""What a pre-aggregator is: a frozen dataclass that mixes the updates of a round before a rule sees them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dure.aggregation.kernels.threads import one_blas_thread
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Conditioned, received
from dure.errors import ConfigError


class Mixed(NamedTuple):
    """What a pre-aggregator makes of the updates of a round.

    Attributes:
        matrix: (k, d) the mixed updates, in the dtype of the given ones.
        weights_used: (k, m) float64: matrix = weights_used · updates, the rest up to 1 of a row's sum times the
            centre.
        dropped: which updates were not finite or malformed.
        flags: what a careful reader must know.
        details: further numbers, by name.
    """

    matrix: np.ndarray
    weights_used: np.ndarray
    dropped: np.ndarray
    flags: tuple[str, ...] = ()
    details: Mapping[str, Any] = {}


@dataclass(frozen=True)
class PreAggregator(Conditioned):
    """Defaults of a pre-aggregator: a matrix (k, n) says how its rows are mixed of those it is given.

    `chain` puts pre-aggregators before a rule; called on its own, one shows its mixed rows.

    Class attributes, beside those of `Conditioned`:
        keeps_clients: row i of the result still stands for client i.
    """

    keeps_clients: ClassVar[bool] = True

    def mixing(self, rows: Rows, call: Call) -> tuple[np.ndarray, dict[str, Any]]:
        """((k, n) how the rows are mixed, details). What is missing in the sum of a row is taken of the centre."""
        raise NotImplementedError(f"{type(self).__name__} has no mixing")

    def left(self, n: int) -> int:
        """How many rows become of n."""
        return n

    def kappa_before(self, kappa: float, n: int, f: int) -> float | None:
        """κ (`Rule.kappa`) of a rule behind it, which has `kappa` on its own; None where none is known."""
        return None

    def admit(self, n: int, call: Call) -> None:
        """Refuse rows that it can't serve.

        Raises:
            DomainError: too few of them for f.
            ConfigError: unequal weights.
        """
        self.check(n, call.f)
        if not call.equal:
            raise ConfigError(
                f"{type(self).__name__} has no meaning for unequal weights (from {call.weights.min():g} to "
                f"{call.weights.max():g}): leave them out, or use a rule that honours them on its own."
            )

    def __call__(
        self, updates: Any, weights: Any = None, *, center: Any = None, key: int | None = None
    ) -> Mixed:
        """The mixed updates, as a matrix. In a `chain` no such matrix is made.

        Arguments and errors are those of `Rule.__call__`.
        """
        sound = received(self, updates, weights, center, None, key, None, None)
        self.admit(sound.rows.n, sound.call)
        with one_blas_thread():
            mixing, details = self.mixing(sound.rows, sound.call)
        return Mixed(
            sound.rows.mixed(mixing).matrix(),
            sound.call.at_given(mixing, 0.0),
            sound.dropped,
            sound.flags,
            details,
        )
