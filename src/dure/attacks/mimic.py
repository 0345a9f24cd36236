"""Mimic: the attackers give one honest client a voice too many (Karimireddy, He and Jaggi, ICLR 2022)."""

from dataclasses import dataclass

import numpy as np

from dure.aggregation.checking import checked_count
from dure.attacks.base import Attack, Scene, Sent, sent
from dure.attacks.known import known, mean
from dure.keys import generator


@dataclass(frozen=True)
class Mimic(Attack):
    """All attackers copy one honest update, which no rule can tell from an honest one; it hurts where data differ.

    Without `index` the attackers learn whom to copy: the client who stands out most along the direction z in which
    the honest updates differ most. From a random z of length 1, in warm-up round t = 0, 1, …

        μ ← (t μ + mean of the honest) / (t + 1)
        z ← (t z + u) / (t + 1), at length 1,   u = Σ_i ((g_i − μ)·z)(g_i − μ), at length 1
        copied: the g_i with the largest g_i·z

    After the warm-up z stays, and so does the position of the one who is copied, as long as the cohort has the
    same number of honest clients; otherwise the largest g_i·z is copied.

    Args:
        index: which honest update of the cohort is copied, from 0, counted around where there are fewer; None: learn.
        warmup: rounds that are learnt from, at least 1.
    """

    index: int | None = None
    warmup: int = 1
    citation = (
        "S. P. Karimireddy, L. He, M. Jaggi. Byzantine-Robust Learning on Heterogeneous Datasets. ICLR 2022."
    )
    knowledge = "updates"

    def __post_init__(self) -> None:
        if self.index is not None:
            checked_count(self, "index", self.index)
        checked_count(self, "warmup", self.warmup, 1)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        rows = known(scene)
        if self.index is not None:
            return sent(scene, rows[self.index % len(rows)], scene.state)
        state = scene.state
        if state is None:
            start = generator(scene.key, "mimic attack").standard_normal((rows.shape[1],))
            state = {"seen": np.array(0), "mean": np.zeros(rows.shape[1]), "direction": _unit(start)}
        if int(state["seen"]) < self.warmup:
            state = self._learnt(rows, state)
        elif len(rows) == int(state["honest"]):
            return sent(scene, rows[int(state["copied"])], state)
        copied = int(np.argmax(rows.astype(np.float64) @ state["direction"]))
        if "copied" not in state:
            state = {**state, "copied": np.array(copied), "honest": np.array(len(rows))}
        return sent(scene, rows[copied], state)

    def _learnt(self, rows: np.ndarray, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The memory after one more round of the warm-up."""
        t = int(state["seen"])
        around = (t * state["mean"] + mean(rows)) / (t + 1)
        apart, z = rows - around, state["direction"]
        spread = np.asarray((apart @ z) @ apart)
        z = _unit(np.asarray(t * z + _unit(spread)))
        # Where nobody stands out the direction stays what it was.
        return {"seen": np.array(t + 1), "mean": around, "direction": z if z.any() else state["direction"]}


def _unit(vector: np.ndarray) -> np.ndarray:
    length = float(np.linalg.norm(vector))
    return vector / length if length else vector
