"""Min-Max and Min-Sum: as far out as the honest updates are from each other (Shejwalkar and Houmansadr, NDSS 2021)."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dure.aggregation.checking import checked_count
from dure.attacks.base import Attack, Scene, Sent, sent
from dure.attacks.known import deviation, distances, known, mean, products
from dure.errors import ConfigError


@dataclass(frozen=True)
class _Furthest(Attack):
    """m + γp with the largest γ that a bound on distances allows.

    Args:
        direction: p: "std" −σ, "unit" −m/‖m‖, "sign" −sign(m), with the mean m of the honest updates and their
            coordinate-wise standard deviation σ.
        ddof: σ has the divisor h − ddof for h honest updates; 0 where there are no more than ddof of them.
    """

    direction: Literal["std", "unit", "sign"] = "std"
    ddof: int = 1
    knowledge = "updates"
    citation = "V. Shejwalkar, A. Houmansadr. Manipulating the Byzantine. NDSS 2021."

    def __post_init__(self) -> None:
        if self.direction not in ("std", "unit", "sign"):
            raise ConfigError(
                f"{type(self).__name__}(direction={self.direction!r}) is not allowed: it must be 'std', 'unit' or "
                "'sign'."
            )
        checked_count(self, "ddof", self.ddof)

    def craft(self, scene: Scene) -> Sent:
        rows = known(scene)
        m = mean(rows)
        p = self._direction(rows, m)
        return sent(scene, m + self.scale(products(rows, m, p[None])) * p)

    def _direction(self, rows: np.ndarray, m: np.ndarray) -> np.ndarray:
        if self.direction == "std":
            return -deviation(rows, self.ddof)
        if self.direction == "sign":
            return np.asarray(-np.sign(m))
        length = float(np.linalg.norm(m))
        return np.asarray(-m / length) if length else np.zeros_like(m)

    def scale(self, gram: np.ndarray) -> float:
        """γ from the inner products (h + 1, h + 1) of the updates minus their mean, and of p; 0 where p = 0."""
        raise NotImplementedError


@dataclass(frozen=True)
class MinMax(_Furthest):
    """No honest update is further from the attackers than two honest ones are from each other.

    max_i ‖m + γp − x_i‖² ≤ R = max_ij ‖x_i − x_j‖². In closed form: γ is the smallest of the positive roots of
    ‖p‖²γ² + 2γ(m − x_i)·p + ‖m − x_i‖² − R = 0.

    Args:
        direction: p: "std" −σ, "unit" −m/‖m‖, "sign" −sign(m), with the mean m of the honest updates and their
            coordinate-wise standard deviation σ.
        ddof: σ has the divisor h − ddof for h honest updates; 0 where there are no more than ddof of them.
    """

    def scale(self, gram: np.ndarray) -> float:  # noqa: D102
        around, along, length = gram[:-1, :-1], gram[:-1, -1], float(gram[-1, -1])
        if not length:
            return 0.0
        slack = np.maximum(distances(around).max() - np.diag(around), 0.0)
        root = np.sqrt(along**2 + length * slack)
        # Two forms of the same root, each without cancellation for its sign.
        far = along > 0
        denominator = np.where(far, length, root - along)
        numerator = np.where(far, along + root, slack)
        return float(np.divide(numerator, denominator, out=np.zeros_like(root), where=denominator > 0).min())


@dataclass(frozen=True)
class MinSum(_Furthest):
    """The attackers' sum of squared distances to the honest updates is at most that of an honest one.

    Σ_i ‖m + γp − x_i‖² ≤ R = max_i Σ_j ‖x_i − x_j‖². In closed form: γ² = (R − Σ‖x_i − m‖²)/(h‖p‖²).

    Args:
        direction: p: "std" −σ, "unit" −m/‖m‖, "sign" −sign(m), with the mean m of the honest updates and their
            coordinate-wise standard deviation σ.
        ddof: σ has the divisor h − ddof for h honest updates; 0 where there are no more than ddof of them.
    """

    def scale(self, gram: np.ndarray) -> float:  # noqa: D102
        around, length = gram[:-1, :-1], float(gram[-1, -1])
        if not length:
            return 0.0
        room = float(distances(around).sum(1).max() - np.trace(around))
        return float(np.sqrt(max(room, 0.0) / (len(around) * length)))
