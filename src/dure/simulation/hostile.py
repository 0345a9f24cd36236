"""Clients that an attacker controls: who they are, what becomes of their data and of what they send."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dure import keys
from dure.aggregation import FLTrust, MoNNA, Rule
from dure.attacks.base import Attack, Scene
from dure.errors import ConfigError, DataError
from dure.oracles.gain import Solution
from dure.oracles.local import JaxOracle

#: Beside the columns of rows, where an attack takes part in its clients' training: their numbers (b,), the
#: coordinates that they may move (d,), and how far (): infinity is no bound.
ATTACKERS, MOVABLE, RADIUS = "attackers", "attackers may move", "attackers stay within"


@dataclass(frozen=True)
class Hostile:
    """An attack and the clients that it controls; `ids` ascending."""

    attack: Attack
    ids: tuple[int, ...]

    def among(self, clients: np.ndarray) -> np.ndarray:
        """(m,) bool: which of these clients are the attacker's."""
        return np.isin(clients, np.asarray(self.ids, np.int64))


def hostile(attack: Any, attackers: Any, clients: int, seed: int) -> Hostile | None:
    """The attack with its clients: `attackers` of them drawn by the seed, or those with the numbers given.

    Raises:
        ConfigError: one without the other, or clients that aren't there.
    """
    if attack is None and attackers is None:
        return None
    if attack is None or attackers is None:
        given = f"attackers={attackers!r}" if attack is None else f"attack={attack!r}"
        raise ConfigError(
            f"{given} is only half of an attack: give attack= (what hostile clients do, such as "
            "dure.attacks.SignFlip()) and attackers= (how many, or which client numbers)."
        )
    if isinstance(attack, type) or not isinstance(attack, Attack):
        raise ConfigError(
            f"attack={attack!r} is not an attack: give an object such as dure.attacks.SignFlip(), with brackets."
        )
    if isinstance(attackers, int | np.integer) and not isinstance(attackers, bool):
        if not 0 <= attackers <= clients:
            raise ConfigError(f"attackers={attackers} is not allowed: there are {clients} clients.")
        chosen = keys.generator(seed, "attackers").choice(clients, int(attackers), replace=False)
        return _enough(Hostile(attack, tuple(sorted(map(int, chosen)))))
    ids = np.asarray(attackers)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or len(np.unique(ids)) != len(ids):
        raise ConfigError(f"attackers={attackers!r} must be a number of clients, or distinct client numbers.")
    if len(ids) and (ids.min() < 0 or ids.max() >= clients):
        raise ConfigError(
            f"attackers has client {ids.min() if ids.min() < 0 else ids.max()}, of {clients} clients."
        )
    return _enough(Hostile(attack, tuple(sorted(map(int, ids)))))


def _enough(enemy: Hostile) -> Hostile:
    parts = enemy.attack.parts()
    if 0 < len(enemy.ids) < parts:
        warnings.warn(
            f"{type(enemy.attack).__name__} divides its work into {parts} parts, and there are {len(enemy.ids)} "
            "attackers: the other parts are done by nobody. Give more attackers, or fewer parts.",
            stacklevel=4,
        )
    return enemy


def _parts(rule: Rule) -> Iterator[Rule]:
    """A rule and the rules in it."""
    yield rule
    for part in fields(rule):
        inner = getattr(rule, part.name)
        if isinstance(inner, Rule):
            yield from _parts(inner)


def trusted(rule: Rule) -> set[int]:
    """The clients that the rule trusts by number (`MoNNA`)."""
    return {int(part.trusted) for part in _parts(rule) if isinstance(part, MoNNA)}


def compares(rule: Rule) -> bool:
    """Whether the rule compares updates with the server's own (`FLTrust`)."""
    return any(isinstance(part, FLTrust) for part in _parts(rule))


def poisoned(data: Any, enemy: Hostile | None, seed: int, input: str, target: str) -> Any:
    """The data with the attackers' training rows as the attack makes them; the same object if it leaves them alone.

    Raises:
        ConfigError: the attackers' rows are also those of honest clients (a replicated data set).
        DataError: the attack returned rows of another shape.
    """
    if enemy is None or not enemy.attack.poisons or not enemy.ids:
        return data
    if data.stored != data.clients:
        raise ConfigError(
            f"{type(enemy.attack).__name__} changes its clients' data, and in {data.name!r} {data.clients} registered "
            f"clients share the data of {data.stored}: attack the data set before it is replicated."
        )
    columns = poisoned_columns(data, enemy, seed, input, target)
    return replace(data, columns={**data.columns, **columns}, name=f"{data.name}, poisoned")


def poisoned_columns(data: Any, enemy: Hostile, seed: int, input: str, target: str) -> dict[str, np.ndarray]:
    """The two columns of the task with the attackers' rows as the attack makes them of the clean `data`."""
    columns = {name: np.array(data.columns[name]) for name in (input, target)}
    for turn, client in enumerate(enemy.ids):
        rows = slice(int(data.offsets[client]), int(data.offsets[client + 1]))
        key = int(keys.words(seed, "poison", 0, np.array([client]), np.zeros(1, np.int64))[0] >> np.uint64(1))
        given = data.columns[input][rows], data.columns[target][rows]
        made = enemy.attack.poison(*given, key, data.classes, turn)
        for name, old, new in zip((input, target), given, made, strict=True):
            if np.shape(new) != old.shape:
                raise DataError(
                    f"{type(enemy.attack).__name__}.poison returned {np.shape(new)} for {old.shape} in column "
                    f"{name!r} of client {data.client_name(client)}: it must keep the shape."
                )
            columns[name][rows] = new
    return columns


def scene(
    rows: np.ndarray,
    bad: np.ndarray,
    attack: Attack,
    previous: np.ndarray | None,
    rule: Any,
    round: int,
    key: int,
    state: dict[str, np.ndarray] | None,
    weights: np.ndarray,
) -> Scene:
    """What the attackers see of the rows (m, d) of a round, with their weights (m,), of which `bad` (m,) are theirs."""
    honest = rows[~bad] if attack.knowledge != "own" else rows[:0]
    before = np.zeros(rows.shape[1], rows.dtype) if previous is None else previous
    return Scene(
        honest,
        rows[bad],
        before,
        rule if attack.knowledge == "rule" else None,
        round,
        key,
        state,
        float(weights[bad].mean() / weights.sum()),
    )


def hooks(enemy: Hostile | None, previous: np.ndarray | None, size: int) -> dict[str, np.ndarray]:
    """What attackers' training is given in a round, beside the columns of rows; empty where it is as any other.

    `size`: d, all of a client's parameters; the private ones among them are behind those of the aggregate.
    """
    if enemy is None or not enemy.ids:
        return {}
    before = np.zeros(size, np.float32) if previous is None else previous[:size]
    mask, radius = enemy.attack.mask(before), enemy.attack.radius
    if mask is None and radius is None:
        return {}
    movable = np.ones(size, np.float32)
    if mask is not None:
        movable[: len(mask)] = mask
    return {
        ATTACKERS: np.asarray(enemy.ids, np.int32),
        MOVABLE: movable,
        RADIUS: np.asarray(np.inf if radius is None else radius, np.float32),
    }


class HostileOracle(JaxOracle):
    """The oracle of a client that may be the attacker's: its iterates are kept where the attack wants them.

    Coordinates that it may not move stay where they began, which is training with a masked gradient, and the
    iterate is projected to a ball around the start after every step (Wang et al., NeurIPS 2020).
    """

    def solve(self, start: Array, **terms: Any) -> Solution:
        """As `JaxOracle.solve`."""
        columns = self._shared.columns
        hostile = (columns[ATTACKERS] == self.client).any()
        free, radius = columns[MOVABLE], columns[RADIUS]

        def project(y: Array) -> Array:
            move = (y - start) * free
            length = jnp.sqrt(jnp.vdot(move, move))
            inside = start + move * jnp.minimum(1.0, radius / jnp.maximum(length, 1e-30))
            return jnp.where(hostile, inside, y)

        return super().solve(start, **terms, project=project)
