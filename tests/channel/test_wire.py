"""Messages: round trips, counted bytes, and what happens to damaged ones."""

import contextlib
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dure.channel import wire
from dure.errors import RunError

DTYPES = st.sampled_from(["<f4", "<i4", "<f2", "<f8", "<i8", "|u1", "|i1", "|b1", "<u4"]).map(np.dtype)
NAMES = st.text(max_size=20)
TENSORS = st.dictionaries(
    NAMES, hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)), max_size=4
)
MESSAGES = st.builds(
    wire.Message, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.floats(allow_nan=False), TENSORS
)


@settings(deadline=None, max_examples=100)
@given(MESSAGES)
def test_round_trip_and_size(message: wire.Message) -> None:
    data = wire.encode(message)
    assert len(data) == wire.size(message.tensors)
    back = wire.decode(data)
    assert back[:3] == message[:3]
    assert list(back.tensors) == list(message.tensors)
    for name, sent in message.tensors.items():
        assert back.tensors[name].dtype == sent.dtype
        assert back.tensors[name].shape == sent.shape
        assert back.tensors[name].tobytes() == sent.tobytes()


@settings(deadline=None, max_examples=100)
@given(MESSAGES, st.data())
def test_damage_is_found(message: wire.Message, data: st.DataObject) -> None:
    """One flipped bit behind the header is always found: a CRC-32 finds every burst of up to 32 bits."""
    good = wire.encode(message)
    header = len(wire.encode(message._replace(tensors={})))
    if len(good) == header:
        return
    at = data.draw(st.integers(header, len(good) - 1))
    bad = bytearray(good)
    bad[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(RunError, match="damaged"):
        wire.decode(bytes(bad))


@settings(deadline=None, max_examples=100)
@given(MESSAGES, st.data())
def test_short_and_long_messages_are_refused(message: wire.Message, data: st.DataObject) -> None:
    good = wire.encode(message)
    with pytest.raises(RunError):
        wire.decode(good[: data.draw(st.integers(0, len(good) - 1))])
    with pytest.raises(RunError):
        wire.decode(good + data.draw(st.binary(min_size=1, max_size=9)))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200))
def test_noise_is_refused_by_name(noise: bytes) -> None:
    with pytest.raises(RunError):
        wire.decode(noise)


@settings(deadline=None, max_examples=100)
@given(MESSAGES, st.binary(min_size=1, max_size=60))
def test_a_body_of_lies_with_a_right_checksum_is_refused(message: wire.Message, body: bytes) -> None:
    """Someone who can make checksums can still not make `decode` raise anything but RunError."""
    head = struct.Struct("<4sHHIQdI")
    data = head.pack(b"DURE", 1, 2, 3, 4, 5.0, zlib.crc32(body)) + body
    with contextlib.suppress(RunError):
        wire.decode(data)


def test_a_malformed_body_names_the_message() -> None:
    body = b"\x01w\x00\x01" + (99).to_bytes(8, "little")  # 99 numbers, none of which are there
    with pytest.raises(RunError, match=r"message of client 4 for round 3 is malformed at byte"):
        wire.decode(struct.Struct("<4sHHIQdI").pack(b"DURE", 1, 1, 3, 4, 5.0, zlib.crc32(body)) + body)


def test_a_body_that_goes_on_behind_its_tensors_is_refused() -> None:
    body = b"more"
    with pytest.raises(RunError, match="4 bytes behind its last tensor"):
        wire.decode(struct.Struct("<4sHHIQdI").pack(b"DURE", 1, 0, 3, 4, 5.0, zlib.crc32(body)) + body)


def test_the_format_is_the_documented_one() -> None:
    """Byte by byte, so that two versions of the package that call themselves version 1 understand each other."""
    message = wire.Message(7, 258, 1.5, {"w": np.array([1.0, -2.0], np.float32)})
    data = wire.encode(message)
    assert data[:4] == b"DURE"
    assert data[4:12] == bytes([1, 0, 1, 0, 7, 0, 0, 0])
    assert data[12:20] == bytes([2, 1, 0, 0, 0, 0, 0, 0])
    assert data[20:28] == np.float64(1.5).tobytes()
    assert data[32:] == b"\x01w" + bytes([0, 1, 2, 0, 0, 0, 0, 0, 0, 0]) + np.float32([1, -2]).tobytes()


def test_foreign_byte_orders_and_strides_are_written_plainly() -> None:
    big = np.arange(6, dtype=">f4").reshape(2, 3)
    back = wire.decode(wire.encode(wire.Message(0, 0, 0.0, {"a": big.T}))).tensors["a"]
    np.testing.assert_array_equal(back, big.T)
    assert back.dtype == np.dtype("<f4")


def test_other_versions_and_dtypes_are_refused() -> None:
    data = bytearray(wire.encode(wire.Message(0, 0, 0.0, {})))
    data[4] = 9
    with pytest.raises(RunError, match="version 9"):
        wire.decode(bytes(data))
    with pytest.raises(RunError, match=r"'z'.*complex64"):
        wire.encode(wire.Message(0, 0, 0.0, {"z": np.zeros(1, np.complex64)}))
    with pytest.raises(RunError, match="255"):
        wire.encode(wire.Message(0, 0, 0.0, {"n" * 256: np.zeros(1, np.float32)}))
