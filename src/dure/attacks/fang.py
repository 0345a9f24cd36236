"""Attacks made for one rule: against Krum, and against the trimmed mean and the median.

Fang, Cao, Jia and Gong: Local Model Poisoning Attacks to Byzantine-Robust Federated Learning, USENIX Security 2020.
"""

from dataclasses import dataclass

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite
from dure.aggregation.krum import krum_scores
from dure.attacks.base import Attack, Scene, Sent, sent
from dure.attacks.known import distances, known, mean, products
from dure.keys import generator

_PAPER = "M. Fang, X. Cao, J. Jia, N. Gong. Local Model Poisoning Attacks. USENIX Security 2020."


@dataclass(frozen=True)
class FangKrum(Attack):
    """−λs with the sign s of the honest mean, and λ as large as Krum can be made to choose it.

    λ starts at the paper's upper bound and is halved until Krum picks one of the attackers; below `least` the
    search gives up and that λ is sent. The other attackers stand around the first, within `epsilon` of it.

        λ ≤ √(min_i Σ_{j ∈ Γ_i} ‖x_i − x_j‖² / ((n − 2f − 1) d)) + max_i ‖x_i‖ / √d

    over honest i, Γ_i being the n − f − 2 honest ones nearest to x_i. Here d counts the coordinates with s ≠ 0, and
    n − 2f − 1 is at least 1.

    Args:
        epsilon: distance (2-norm) of the other attackers from the first, at most; at least 0.
        least: the smallest λ that is tried, above 0.
        f: the server's f; None: the number of attackers in the cohort.
    """

    epsilon: float = 0.01
    least: float = 1e-5
    f: int | None = None
    citation = _PAPER
    knowledge = "updates"

    def __post_init__(self) -> None:
        checked_finite(self, "epsilon", self.epsilon, least=0)
        checked_finite(self, "least", self.least, above=0)
        if self.f is not None:
            checked_count(self, "f", self.f)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        rows = known(scene)
        h, b, d = len(rows), len(scene.own), rows.shape[1]
        away = np.sign(mean(rows))
        draw = generator(scene.key, "fang attack")
        beside = draw.standard_normal((b, d))
        beside *= self.epsilon * draw.random((b, 1)) / np.linalg.norm(beside, axis=1, keepdims=True)
        beside[0] = 0.0
        gram = products(rows, np.zeros(d), np.vstack([away, beside]))
        neighbours = max(1, h + b - (b if self.f is None else self.f) - 2)
        size = self._bound(gram, h, neighbours, b if self.f is None else self.f)
        while size >= self.least and not self._picked(size, gram, h, neighbours):
            size /= 2
        return sent(scene, -size * away + beside)

    @staticmethod
    def _bound(gram: np.ndarray, h: int, neighbours: int, f: int) -> float:
        signs = gram[h, h]
        if not signs:
            return 0.0
        apart = np.sort(distances(gram[:h, :h]), axis=1)[:, 1 : neighbours + 1]
        nearest = float(apart.sum(1).min())
        return float(
            np.sqrt(nearest / (max(1, neighbours - f + 1) * signs))
            + np.sqrt(gram.diagonal()[:h].max() / signs)
        )

    @staticmethod
    def _picked(size: float, gram: np.ndarray, h: int, neighbours: int) -> bool:
        """Whether Krum picks one of the attackers, who come last."""
        mixing = np.delete(np.eye(len(gram)), h, axis=0)
        mixing[h:, h] = -size
        scores = krum_scores(distances(mixing @ gram @ mixing.T), neighbours)
        return bool(np.argmin(scores) >= h)


@dataclass(frozen=True)
class FangTrimmedMean(Attack):
    """Every coordinate just beyond the honest values, on the side that the honest mean doesn't point to.

    With c the factor, and the sign s of the honest mean in a coordinate: for s < 0 uniform in [max, c·max] if
    max > 0, else in [max, max/c]; for s ≥ 0 uniform in [min/c, min] if min > 0, else in [c·min, min]. Meant for
    trimmed mean and median.

    Args:
        factor: c, at least 1; 2 in the paper.
    """

    factor: float = 2.0
    citation = _PAPER
    knowledge = "updates"

    def __post_init__(self) -> None:
        checked_finite(self, "factor", self.factor, least=1)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        rows = known(scene)
        lowest, highest = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
        above = highest * np.where(highest > 0, self.factor, 1 / self.factor)
        below = lowest * np.where(lowest > 0, 1 / self.factor, self.factor)
        up = mean(rows) < 0
        near, far = np.where(up, highest, lowest), np.where(up, above, below)
        return sent(scene, near + (far - near) * generator(scene.key, "fang attack").random(scene.own.shape))
