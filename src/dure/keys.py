"""Addressed randomness: every random choice has a key derived from (seed, purpose, address).

Nothing is consumed from a shared stream, so a choice doesn't depend on what was drawn before it, on
chunk sizes, workers, the order of arrival, or on a run having been interrupted (law 6 of the design).
Addresses are integers such as (round,), (round, client) or (round, client, step).
"""

import hashlib

import jax
import numpy as np
from jaxtyping import Array, UInt64

from dure import devices as _devices  # noqa: F401  (before any JAX array is made)
from dure.errors import ConfigError

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def digest(seed: int, purpose: str, *address: int) -> bytes:
    """32 bytes that identify one random choice: SHA-256 of the seed, the purpose and the address.

    Args:
        seed: the experiment's seed, 0 ≤ seed < 2⁶³.
        purpose: a plain word, such as "cohort" or "plan"; different purposes are independent.
        address: integers, such as the round and the client.

    Raises:
        ConfigError: the seed is not an integer in range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ConfigError(f"seed={seed!r} is not an integer in [0, 2**63). Give one, such as seed=0.")
    numbers = ",".join(str(int(a)) for a in address)
    return hashlib.sha256(f"{int(seed)}/{purpose}/{numbers}".encode()).digest()


def number(seed: int, purpose: str, *address: int) -> int:
    """An integer in [0, 2⁶³) for one address, to be the seed of choices of its own."""
    return int.from_bytes(digest(seed, purpose, *address)[:8], "little") >> 1


def generator(seed: int, purpose: str, *address: int) -> np.random.Generator:
    """A fresh NumPy generator (Philox, counter-based) for one address. Equal addresses give equal streams."""
    key = np.frombuffer(digest(seed, purpose, *address)[:16], np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def jax_key(seed: int, purpose: str, *address: int) -> Array:
    """A typed JAX key for one address (64 bits of `digest`)."""
    words = np.frombuffer(digest(seed, purpose, *address)[:8], np.uint32)
    key: Array = jax.random.wrap_key_data(jax.numpy.asarray(words), impl="threefry2x32")
    return key


def mix(values: UInt64[np.ndarray, "..."]) -> UInt64[np.ndarray, "..."]:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64-bit words."""
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return np.asarray(values ^ (values >> np.uint64(31)))


def words(seed: int, purpose: str, round: int, clients: np.ndarray, index: np.ndarray) -> np.ndarray:
    """One 64-bit word for every (client, index) pair, all at once.

    The address of a word is (seed, purpose, round, client, index): arrays only make it fast, they don't
    make a word depend on its neighbours. Two rounds of SplitMix64 mixing separate client and index.

    Args:
        seed: the experiment's seed.
        purpose: see `digest`.
        round: round number.
        clients: integer array (...), client ids.
        index: integer array that broadcasts against `clients`, such as an example's position.

    Returns:
        uint64 array of the broadcast shape.
    """
    base = np.frombuffer(digest(seed, purpose, round)[:8], np.uint64)[0]
    with np.errstate(over="ignore"):  # arithmetic modulo 2⁶⁴ is meant
        streams = mix(base + (np.asarray(clients).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        return mix(streams + (np.asarray(index).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
