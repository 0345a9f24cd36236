"""ALIE, "a little is enough" (Baruch, Baruch and Goldberg, NeurIPS 2019), and RoP, which uses its size."""

from dataclasses import dataclass
from math import cos, radians, sin
from statistics import NormalDist

import numpy as np

from dure.aggregation.checking import checked_count, checked_finite, checked_number
from dure.attacks.base import Attack, Scene, Sent, sent
from dure.attacks.known import deviation, known, mean
from dure.errors import ConfigError


def alie_zmax(n: int, f: int) -> float:
    """Z = Φ⁻¹((n − f − s)/(n − f)), s = ⌊n/2⌋ + 1 − f: how many standard deviations stay unnoticed.

    s is how many honest clients must lie further out than the attackers for these to be in the majority.

    Args:
        n: clients, attackers included.
        f: attackers among them, 0 ≤ f < n.

    Raises:
        ConfigError: no such z: the attackers are the majority already, or the only honest client would have to be
            on their side.
    """
    for what, value, least in (("n", n, 1), ("f", f, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise ConfigError(
                f"alie_zmax({what}={value!r}) is not allowed: it must be an integer of at least {least}."
            )
    honest, supporters = n - f, n // 2 + 1 - f
    if not 0 < supporters < honest:
        raise ConfigError(
            f"alie_zmax(n={n}, f={f}) has no solution: {supporters} of {honest} honest clients would have to support "
            "the attackers, and it must be at least one and not all. Give z instead."
        )
    return NormalDist().inv_cdf((honest - supporters) / honest)


def _size(z: float | None, known: int, attackers: int) -> float:
    """z, or the paper's for this cohort; where that has no solution the nearest that there is."""
    if z is not None:
        return z
    if known == 1:
        return 0.0  # one honest client shows no spread to hide in
    attackers = min(attackers, known)
    return alie_zmax(known + attackers, attackers)


def _checked_sign(attack: Attack, sign: int) -> None:
    if sign not in (-1, 1):
        raise ConfigError(f"{type(attack).__name__}(sign={sign!r}) is not allowed: it must be −1 or 1.")


@dataclass(frozen=True)
class ALIE(Attack):
    """m ± zσ: a shift of every coordinate that is small against the spread σ of the honest updates.

    Args:
        z: how many standard deviations; None: `alie_zmax` of the cohort. Where this has no solution the nearest one is
            taken: attackers in the majority count as half, and with one honest client z = 0.
        sign: −1 subtracts, as in the paper; 1 adds, as in ByzFL (z = 1.5) and in the code of Shejwalkar and
            Houmansadr (NDSS 2021). Updates point downhill: who attacks gradients with −1 attacks updates with 1, and
            models whose parameters aren't symmetric (after a ReLU) feel the difference.
        ddof: σ has the divisor h − ddof for h honest updates; 0 where there are no more than ddof of them.
    """

    z: float | None = None
    sign: int = -1
    ddof: int = 1
    citation = "G. Baruch, M. Baruch, Y. Goldberg. A Little Is Enough. NeurIPS 2019."
    knowledge = "updates"

    def __post_init__(self) -> None:
        if self.z is not None:
            checked_finite(self, "z", self.z)
        _checked_sign(self, self.sign)
        checked_count(self, "ddof", self.ddof)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        rows = known(scene)
        z = _size(self.z, len(rows), len(scene.own))
        return sent(scene, mean(rows) + self.sign * z * deviation(rows, self.ddof))


@dataclass(frozen=True)
class RoP(Attack):
    """Relocated orthogonal perturbation: a step aside from where centred clipping looks for the updates.

    With M the last aggregate and m the mean of the honest updates: u = λM + (1 − λ)m, in round 1 m; q the part of
    the vector of ones that is orthogonal to u, at length 1; q′ = q sin θ + (u/‖u‖) cos θ. Sent is
    πM + (1 − π)m + z q′/‖q′‖. Where there is no orthogonal direction, M and m only.

    Args:
        reference: λ in [0, 1].
        location: π in [0, 1].
        angle: θ in degrees; 270 is orthogonal to u.
        z: the length of the step; None: as in `ALIE`.
    """

    reference: float = 0.9
    location: float = 1.0
    angle: float = 270.0
    z: float | None = None
    citation = (
        "K. Ozfatura, E. Ozfatura, A. Küpçü, D. Gündüz. Byzantines Can Also Learn From History. arXiv, 2022."
    )
    knowledge = "updates"

    def __post_init__(self) -> None:
        for name in ("reference", "location"):
            checked_number(self, name, getattr(self, name), np.nextafter(0.0, -1.0), 1.0, "in [0, 1]")
        checked_finite(self, "angle", self.angle)
        if self.z is not None:
            checked_finite(self, "z", self.z)

    def craft(self, scene: Scene) -> Sent:  # noqa: D102
        rows, last = known(scene), scene.previous.astype(np.float64)
        m = mean(rows)
        u = m if scene.round == 1 else self.reference * last + (1 - self.reference) * m
        u = _unit(u)
        aside = _unit(1.0 - u * u.sum(), least=1e-12 * np.sqrt(len(u)))
        turned = aside * sin(radians(self.angle)) + u * cos(radians(self.angle))
        step = _size(self.z, len(rows), len(scene.own)) * _unit(turned, least=1e-12)
        return sent(scene, self.location * last + (1 - self.location) * m + step)


def _unit(vector: np.ndarray, least: float = 0.0) -> np.ndarray:
    """At length 1; zeros where the length is at most `least` and says nothing."""
    length = float(np.linalg.norm(vector))
    return vector / length if length > least else np.zeros_like(vector)
