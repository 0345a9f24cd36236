"""What the devices hold."""

import jax
import numpy as np
import pytest

import dure
from dure import devices
from dure.errors import ConfigError
from problems import rows_data


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_the_devices_of_a_cpu_share_one_copy(dtype: type) -> None:
    mesh = devices.mesh()
    assert mesh.size > 1, "the tests ask for several devices"
    original = np.arange(10_001, dtype=dtype).reshape(73, 137)
    whole = devices.replicate(original, mesh)
    places = {shard.data.unsafe_buffer_pointer() for shard in whole.addressable_shards}
    assert len(whole.addressable_shards) == mesh.size
    assert len(places) == 1
    expected = original.copy()
    original[:] = 0  # the copy is not the caller's array
    np.testing.assert_array_equal(np.asarray(whole), expected)
    assert whole.dtype == dtype


def test_empty_columns() -> None:
    assert devices.replicate(np.zeros((0, 3), np.float32), devices.mesh()).shape == (0, 3)


def test_more_devices_than_there_are() -> None:
    count = len(jax.local_devices()) + 1
    with pytest.raises(ConfigError, match=f"devices={count}"):
        devices.mesh(count)


def test_a_session_that_refuses_rank_promotion() -> None:
    """Adding a bias to a batch is one; the user's setting is for the user's code, and stays."""
    task = dure.Task(dure.models.mlp(3, (4,), 1), lambda outputs, y: (outputs[:, 0] - y) ** 2)
    data = rows_data([3, 5])
    with jax.numpy_rank_promotion("raise"):
        dure.simulate(dure.FedAvg(), task, data, rounds=1, devices=1, schedule="sequential")
        dure.Simulation(dure.FedAvg(), task, data, devices=1, schedule="sequential").step(wait=True)
        assert jax.config.jax_numpy_rank_promotion == "raise"
