"""FLDetector (Zhang, Cao, Jia and Gong, KDD 2022)."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from ml_dtypes import finfo

from dure.aggregation.checking import checked_count, checked_state
from dure.aggregation.gap import upper_group
from dure.aggregation.rows import Rows
from dure.aggregation.rule import Call, Decision, Rule
from dure.errors import DataError
from dure.keys import generator


def curvature_times(steps: np.ndarray, changes: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """B v for the L-BFGS matrix B of the pairs (s_i, y_i), in its compact form (Byrd, Nocedal and Schnabel, 1994).

    B s = y holds for the last pair. B starts from σ 1 with σ = (y·s)/(s·s) of the last pair.

    Args:
        steps: (p, d) s_i, oldest first, none of them 0.
        changes: (p, d) y_i.
        vector: (d,) v.
    """
    scale = np.array([[_length(step)] for step in steps])
    s, y = steps / scale, changes / scale  # B is the same, and numbers of like size meet
    products = s @ y.T
    sigma = products[-1, -1]
    middle = np.block(
        [
            [sigma * (s @ s.T), np.tril(products, -1)],
            [np.tril(products, -1).T, -np.diag(np.diag(products))],
        ]
    )
    sides = np.vstack([sigma * s, y])
    return np.asarray(sigma * vector - np.linalg.lstsq(middle, sides @ vector)[0] @ sides)


@dataclass(frozen=True)
class FLDetector(Rule):
    """The mean of clients whose updates follow from their last ones.

    An honest update changes as the model moves: g_i(t) ≈ g_i(t−1) + B (w(t) − w(t−1)), with B by L-BFGS from the
    last `window` steps of the model and changes of the aggregate. A client's score is its distance from that,
    divided by the sum of all clients' distances and averaged over `window` rounds. Where the gap statistic sees
    two groups of scores, the upper one is left out of this and, as long as it stays so, of later rounds. (The
    paper then also starts anew without these clients: that is for whoever runs the training.)

    The same clients must be in every round. One whose update was dropped gets the largest distance of the round.
    The first window + 1 rounds average all updates, with a flag: the first two to know how the model and the updates
    change, the others until there are `window` distances. The model's step is the change of `center`; without
    center= it is the last aggregate, which the server is then taken to have added as it was.

    State: "clients" (k,), "known" (k,) whether a sound update is in "updates" (k, d), "scores" (k, ≤ window), "steps"
    and "changes" (≤ window, d), "vector" (d,) and "center" (d,). Updates are kept in float32 (float64 for float64
    ones), the others in float64: as much memory as k + 4 · window + 4 float32 updates.

    Args:
        window: rounds and pairs that are remembered, at least 1.
    """

    window: int = 10
    citation: ClassVar[str] = "Zhang et al., KDD 2022"
    weighting: ClassVar[str] = "selection"
    draws: ClassVar[bool] = True
    by_client: ClassVar[bool] = True

    def __post_init__(self) -> None:
        checked_count(self, "window", self.window, 1)

    def needs(self, n: int, f: int) -> str | None:
        return None if n >= 3 else "n ≥ 3"

    def decide(self, rows: Rows, call: Call) -> Decision:
        old = _nothing_known(np.unique(call.invited).astype(np.int64), rows)
        old |= checked_state(self, call.state, *old)
        clients = _same_clients(call, rows, old)
        here = np.searchsorted(clients, call.clients)
        centre = np.zeros(rows.d) if rows.centre is None else rows.centre
        sent = rows.matrix().astype(np.float64) - centre
        step = old["vector"] if rows.centre is None else centre - old["center"]
        scores = old["scores"]
        if len(old["steps"]):
            turn = curvature_times(old["steps"], old["changes"], step)
            rounding = float(finfo(rows.dtype).eps)  # type: ignore[no-untyped-call]
            errors = _errors(old, turn, sent, here, rounding)
            scores = np.column_stack([scores, errors])[:, -self.window :]

        guilty, flags = self._guilty(scores, call)
        chosen = np.flatnonzero(~guilty[here])
        if not len(chosen):
            chosen, flags = np.arange(rows.n), ("all that sent something are suspicious: all were averaged",)
        shares = np.zeros(rows.n)
        shares[chosen] = call.weights[chosen] / call.weights[chosen].sum()

        moved, more = shares @ sent, int(call.state is not None and step.any())
        state = {
            "clients": clients,
            "known": old["known"].copy(),
            "updates": old["updates"].copy(),
            "scores": scores,
            "steps": np.concatenate([old["steps"], step[None][:more]])[-self.window :],
            "changes": np.concatenate([old["changes"], (moved - old["vector"])[None][:more]])[-self.window :],
            "vector": moved,
            "center": centre,
        }
        state["known"][here], state["updates"][here] = True, sent
        return Decision(
            coefficients=shares,
            selected=chosen,
            scores=scores.mean(1)[here] if scores.shape[1] else None,
            state=state,
            flags=flags,
            details={"suspicious": clients[guilty]},
        )

    def _guilty(self, scores: np.ndarray, call: Call) -> tuple[np.ndarray, tuple[str, ...]]:
        """((k,) bool, flags) by the scores (k, rounds)."""
        if scores.shape[1] < self.window:
            flag = f"too early to judge: {scores.shape[1]} of {self.window} rounds of scores"
            return np.zeros(len(scores), bool), (flag,)
        return upper_group(scores.mean(1), generator(call.seed(self), "gap statistic")), ()


def _same_clients(call: Call, rows: Rows, old: dict[str, np.ndarray]) -> np.ndarray:
    """(k,) the clients' numbers, ascending."""
    clients = np.unique(call.invited).astype(np.int64)
    if len(clients) < len(call.invited):
        raise DataError("FLDetector remembers clients by their numbers, and some of clients= are equal.")
    if old["updates"].shape[1] != rows.d:
        raise DataError(
            f"FLDetector's state holds updates of length {old['updates'].shape[1]}, and these have {rows.d}: it is "
            "the state of another run."
        )
    if not np.array_equal(old["clients"], clients):
        other = np.setxor1d(old["clients"], clients)
        raise DataError(
            f"FLDetector compares each client with its own last update and needs the same clients in every round: "
            f"{len(other)} are new or missing, such as {other[:5].tolist()}. Take all clients in every round, or "
            "another rule."
        )
    return clients


def _nothing_known(clients: np.ndarray, rows: Rows) -> dict[str, np.ndarray]:
    k = len(clients)
    wide = np.float64 if rows.dtype == np.float64 else np.float32
    return {
        "clients": clients,
        "known": np.zeros(k, bool),
        "updates": np.zeros((k, rows.d), wide),
        "scores": np.zeros((k, 0)),
        "steps": np.zeros((0, rows.d)),
        "changes": np.zeros((0, rows.d)),
        "vector": np.zeros(rows.d),
        "center": np.zeros(rows.d),
    }


def _errors(
    old: dict[str, np.ndarray], turn: np.ndarray, sent: np.ndarray, here: np.ndarray, eps: float
) -> np.ndarray:
    """(k,) distances from what was expected, as shares of their sum; the largest for who can't be compared."""
    found, compared = np.zeros(len(old["known"])), np.zeros(len(old["known"]), bool)
    for i, update in zip(here, sent, strict=True):
        gap = _length(old["updates"][i] + turn - update)
        rounding = 4.0 * eps * (_length(update) + _length(turn))
        found[i], compared[i] = 0.0 if gap <= rounding else gap, old["known"][i]
    found[~compared] = found[compared].max(initial=0.0)
    whole = found.sum()
    return found / whole if whole > 0 else np.full(len(found), 1.0 / len(found))


def _length(vector: np.ndarray) -> float:
    """‖vector‖, also where the squares would overflow."""
    most = float(np.abs(vector).max(initial=0.0))
    return most * float(np.linalg.norm(vector / most)) if most > 0 else 0.0
