"""A server step that is not finite: model, server state and the updates' part of client state stay."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from dure.algorithms import Algorithm, Update
from problems import LINEAR, make_engine, rows_data


class Followed(NamedTuple):
    w: Any
    control: Any


class Both(NamedTuple):
    mine: Any
    shared: Any


@dataclass(frozen=True)
class Breaks(Algorithm):
    """Breaks one part of the server's state in round 2; a client counts its rounds in both parts of its state."""

    own: ClassVar[tuple[str, ...]] = ("mine",)
    part: str = "control"

    def init(self, w: Any) -> Followed:
        return Followed(w, jnp.zeros_like(w))

    def init_client(self, w: Any) -> Both:
        return Both(jnp.zeros(1, w.dtype), jnp.zeros(1, w.dtype))

    def local(self, server: Followed, own: Both, oracle: Any) -> tuple[Update, Both]:
        return Update(oracle.solve(server.w).w - server.w), Both(own.mine + 1, own.shared + 1)

    def apply(self, server: Followed, mean: Update, round: Any) -> Followed:
        new = Followed(server.w + mean.delta, server.control + 1)
        broken = jnp.where(round.number == 2, jnp.nan, 0.0)
        return new._replace(**{self.part: getattr(new, self.part) + broken})


@pytest.mark.parametrize("part", ["w", "control"])
def test_nothing_of_a_broken_step_is_kept(part: str) -> None:
    engine = make_engine(Breaks(part), LINEAR, rows_data([4, 6]), optimizer=0.1)
    engine.collect(engine.launch())
    first = [np.array(x) for x in engine.model.server]
    result = engine.collect(engine.launch())
    assert not result.finite
    assert result.move == 0
    for now, before in zip(engine.model.server, first, strict=True):
        np.testing.assert_array_equal(now, before)
    # Each client worked twice; only the first round's update was used.
    np.testing.assert_array_equal(engine.store.gather(np.arange(2)), [[2, 1], [2, 1]])
    assert engine.collect(engine.launch()).finite
    assert np.any(np.asarray(engine.model.server.w) != first[0])
    np.testing.assert_array_equal(engine.store.gather(np.arange(2)), [[3, 2], [3, 2]])
