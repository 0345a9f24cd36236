"""FoolsGold (Fung, Yoon and Beschastnikh, RAID 2020)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite, checked_state
from dure.aggregation.cosines import cosines
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule
from dure.errors import ConfigError, DataError

#: 1 − cosine below this is 0: what rounding leaves of parallel histories.
_PARALLEL = 1e-12


def foolsgold_weights(inner: np.ndarray, confidence: float) -> np.ndarray:
    """(n,) learning rates in [0, 1] from the inner products of the clients' histories; all 0 if all are parallel."""
    similar = cosines(inner)
    np.fill_diagonal(similar, 0.0)  # so the largest of a row is at least 0
    most = similar.max(1)
    with np.errstate(invalid="ignore", divide="ignore"):
        pardon = np.where(most[None] > most[:, None], most[:, None] / most[None], 1.0)
    honest = np.clip(1.0 - np.maximum((similar * pardon).max(1), 0.0), 0.0, 1.0)
    honest[honest < _PARALLEL] = 0.0
    if not honest.any():
        return np.zeros(len(honest))
    honest /= honest.max()
    honest[honest > 1.0 - _PARALLEL] = 0.99
    with np.errstate(divide="ignore"):
        return np.asarray(np.clip(confidence * (np.log(honest / (1.0 - honest)) + 0.5), 0.0, 1.0))


@dataclass(frozen=True)
class FoolsGold(Rule):
    """Σ a_i x_i / n, where a_i is small for clients whose summed updates point where another client's point.

    Against one attacker with many clients: sybils resemble each other more than honest clients do, which need
    data that differ. One hostile client on its own passes. With H_i = Σ_t x_i(t), s_ij = cos(H_i, H_j) and
    v_i = max(0, max_j s_ij), s_ij shrinks by v_i / v_j where v_j is larger; a_i = 1 − max_j s_ij is divided by the
    largest and drawn apart by confidence · (ln(a/(1 − a)) + 1/2), clipped to [0, 1]. Scores are 1 − a_i.

    State: "clients" (k,) numbers that were seen and "history" (k, columns) their summed updates, in float32 (float64
    for float64 updates): as much memory as k updates. Clients of the same call are compared with each other.

    Args:
        confidence: κ of the paper, more than 0.
        columns: (first, end) of the columns that are remembered and compared, such as the last layer; None: all.
    """

    confidence: float = 1.0
    columns: tuple[int, int] | None = None
    citation: ClassVar[str] = "Fung et al., RAID 2020"
    by_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_finite(self, "confidence", self.confidence, above=0)
        if self.columns is not None:
            first, end = self.columns
            checked_count(self, "columns", first)
            checked_count(self, "columns", end, int(first) + 1)

    def decide(self, rows: Rows, call: Call) -> Decision:
        first, end = self.columns or (0, rows.d)
        if end > rows.d:
            raise ConfigError(
                f"FoolsGold(columns={self.columns}) is beyond the {rows.d} columns of the updates."
            )
        old = checked_state(self, call.state, "clients", "history")
        state, here = _remembered(rows, call, old, first, end)
        weights = foolsgold_weights(Rows(state["history"], index=here).inner, self.confidence)
        flags = () if weights.any() else ("all histories are parallel: no update was used",)
        return Decision(coefficients=weights / rows.n, scores=1.0 - weights, state=state, flags=flags)


def _remembered(
    rows: Rows, call: Call, old: dict[str, np.ndarray], first: int, end: int
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """(the state with this round's updates added, (n,) where the rows' clients are in it)."""
    wide = np.float64 if rows.dtype == np.float64 else np.float32
    if len(np.unique(call.clients)) < rows.n:
        raise DataError("FoolsGold remembers clients by their numbers, and some of clients= are equal.")
    old = old or {"clients": np.zeros(0, np.int64), "history": np.zeros((0, end - first), wide)}
    if old["history"].shape[1] != end - first:
        raise DataError(
            f"FoolsGold's state holds {old['history'].shape[1]} columns, and {end - first} are compared now: it is "
            "the state of another run."
        )
    if not np.isfinite(old["history"]).all():
        raise DataError(
            "FoolsGold's state has a history that is not finite: it is broken, begin with state=None."
        )
    clients = np.union1d(old["clients"], call.clients).astype(np.int64)
    history = np.zeros((len(clients), end - first), wide)
    history[np.searchsorted(clients, old["clients"])] = old["history"]
    here = np.searchsorted(clients, call.clients)
    update = rows.matrix() if end - first == rows.d else rows.some_columns(np.arange(first, end))
    most = 2.0**500 if wide == np.float64 else float(np.finfo(wide).max)
    for i, row in zip(here, update, strict=True):
        total = history[i] + (row.astype(np.float64) if rows.centre is None else row - rows.centre[first:end])
        history[i] = np.clip(total, -most, most)  # huge updates must not add up to what is not finite
    return {"clients": clients, "history": history}, here
