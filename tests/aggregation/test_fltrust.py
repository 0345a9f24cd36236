"""FLTrust follows the server's own update, and what points against it counts for nothing."""

import numpy as np
import pytest

from dure.aggregation import FLTrust
from dure.errors import ConfigError, DataError

RNG = np.random.default_rng(11)
SERVER = RNG.normal(size=60)
HONEST = SERVER + RNG.normal(size=(6, 60))


def naive(x: np.ndarray, g: np.ndarray) -> np.ndarray:
    total, mass = np.zeros(len(g)), 0.0
    for row in x:
        length = np.sqrt((row**2).sum())
        if length > 0:
            trust = max(0.0, float(row @ g) / length / np.sqrt((g**2).sum()))
            total, mass = total + trust * np.sqrt((g**2).sum()) / length * row, mass + trust
    return total / mass


@pytest.mark.parametrize("centre", [None, 100.0 * RNG.normal(size=60)])
def test_trusted_directions_at_the_servers_length(centre: np.ndarray | None) -> None:
    origin = 0.0 if centre is None else centre
    x = np.vstack([HONEST, np.zeros((1, 60)), 1e6 * HONEST[:1], -HONEST[:2]])
    found = FLTrust()(origin + x, center=centre, server=origin + SERVER)
    np.testing.assert_allclose(found.vector, origin + naive(x, SERVER), rtol=1e-9, atol=1e-9)
    assert found.scores is not None
    np.testing.assert_array_equal(found.scores[-2:], 1.0)  # against the server
    np.testing.assert_allclose(found.scores[7], found.scores[0], atol=1e-9)  # length buys no trust


def test_sign_flipped_clients_change_nothing_even_as_the_many() -> None:
    alone = FLTrust()(HONEST, server=SERVER).vector
    flipped = np.vstack([HONEST, np.repeat(-100.0 * HONEST[:1], 30, 0)])
    np.testing.assert_allclose(FLTrust()(flipped, server=SERVER).vector, alone, rtol=1e-12)
    assert np.linalg.norm(flipped.mean(0) - alone) > 10 * np.linalg.norm(alone)


def test_nobody_is_trusted() -> None:
    found = FLTrust()(-HONEST, server=SERVER)
    np.testing.assert_array_equal(found.vector, SERVER)
    assert found.flags == ("no client is trusted: server was used",)
    assert found.weights_used is None
    zero = FLTrust(on_no_trust="zero")(-HONEST, center=np.ones(60), server=1.0 + SERVER)
    np.testing.assert_array_equal(zero.vector, np.ones(60))
    assert "no client is trusted: zero was used" in zero.flags
    for x, server in ((np.zeros((3, 60)), SERVER), (HONEST, np.zeros(60))):
        found = FLTrust()(x, server=server)
        np.testing.assert_array_equal(found.vector, server)
        np.testing.assert_array_equal(found.details["trust"], np.zeros(len(x)))
        assert found.flags


def test_huge_and_tiny_rows() -> None:
    x = np.vstack([HONEST, HONEST[:1], HONEST[:1]]).astype(np.float32)
    x[6] *= np.float32(1e37)
    x[7] *= np.float32(1e-30)
    found = FLTrust()(x, server=SERVER)
    np.testing.assert_allclose(found.details["trust"][[6, 7]], found.details["trust"][0], rtol=1e-5)
    np.testing.assert_allclose(found.vector, naive(x.astype(np.float64), SERVER), rtol=1e-5, atol=1e-6)


def test_a_dropped_client_and_errors() -> None:
    x = HONEST.copy()
    x[2, 3] = np.inf
    found = FLTrust()(x, server=SERVER)
    np.testing.assert_allclose(found.vector, naive(np.delete(x, 2, 0), SERVER), rtol=1e-9)
    assert np.isnan(found.details["trust"][2])
    with pytest.raises(ConfigError, match="give server="):
        FLTrust()(HONEST)
    with pytest.raises(DataError, match="server is not finite"):
        FLTrust()(HONEST, server=np.full(60, np.nan))
    with pytest.raises(DataError, match="server has shape"):
        FLTrust()(HONEST, server=np.zeros(59))
    with pytest.raises(ConfigError, match="unequal weights"):
        FLTrust()(HONEST, np.arange(1.0, 7.0), server=SERVER)
