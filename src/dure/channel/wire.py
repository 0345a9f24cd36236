"""The wire encoding: what one message is in bytes.

    header   4s magic "DURE" · u16 version · u16 number of tensors · u32 round · u64 client · f64 weight · u32 CRC
    tensor   u8 length of name · name (UTF-8) · u8 dtype · u8 dimensions · u64 each · raw values

All numbers little-endian. The CRC-32 covers everything behind the header. The length of a message of
uncompressed tensors depends on names and shapes alone, so that `size` counts it without values; a test
holds it against `len(encode(…))`.
"""

import struct
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dure.errors import RunError

MAGIC = b"DURE"
VERSION = 1
_HEADER = struct.Struct("<4sHHIQdI")
_DTYPES = ("<f4", "<i4", "<f2", "<f8", "<i8", "|u1", "|i1", "|b1", "<u4")


class Message(NamedTuple):
    """One decoded message. `tensors`: by name; `weight`: the client's weight (0 in a broadcast)."""

    round: int
    client: int
    weight: float
    tensors: dict[str, np.ndarray]


def _dtype_code(name: str, dtype: Any) -> int:
    try:
        return _DTYPES.index(np.dtype(dtype).newbyteorder("<").str)
    except ValueError:
        raise RunError(
            f"Tensor {name!r} has dtype {np.dtype(dtype)}, which the wire format does not carry. "
            f"Send one of {', '.join(str(np.dtype(d)) for d in _DTYPES)}."
        ) from None


def encode(message: Message) -> bytes:
    """The message as bytes.

    Raises:
        RunError: a dtype that the format does not carry, or a name over 255 bytes.
    """
    parts = []
    for name, tensor in message.tensors.items():
        array = np.asarray(tensor)
        code = _dtype_code(name, array.dtype)
        raw_name = name.encode()
        if len(raw_name) > 255 or array.ndim > 255:
            raise RunError(
                f"Tensor name {name!r} is {len(raw_name)} bytes long; at most 255 fit in a message."
            )
        parts.append(struct.pack("<B", len(raw_name)) + raw_name)
        parts.append(struct.pack(f"<BB{array.ndim}Q", code, array.ndim, *array.shape))
        parts.append(np.ascontiguousarray(array, _DTYPES[code]).tobytes())
    body = b"".join(parts)
    head = (MAGIC, VERSION, len(message.tensors), message.round, message.client, message.weight)
    return _HEADER.pack(*head, zlib.crc32(body)) + body


def decode(data: bytes) -> Message:
    """The message in `data`.

    Raises:
        RunError: not a message of this version, damaged, or cut short.
    """
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise RunError(f"{len(data)} bytes that start with {data[:4]!r} are not a dure message.")
    _, version, count, round_, client, weight, checksum = _HEADER.unpack_from(data)
    if version != VERSION:
        raise RunError(f"The message has format version {version}; this dure reads version {VERSION}.")
    where = f"message of client {client} for round {round_}"
    if zlib.crc32(memoryview(data)[_HEADER.size :]) != checksum:
        raise RunError(f"The {where} is damaged: its checksum does not match. Ask for it again.")
    tensors: dict[str, np.ndarray] = {}
    at = _HEADER.size
    try:
        for _ in range(count):
            length = data[at]
            name = data[at + 1 : at + 1 + length].decode()
            at += 1 + length
            code, ndim = data[at], data[at + 1]
            shape = struct.unpack_from(f"<{ndim}Q", data, at + 2)
            at += 2 + 8 * ndim
            dtype = np.dtype(_DTYPES[code])
            values = np.frombuffer(data, dtype, int(np.prod(shape, dtype=np.int64)), at)
            tensors[name] = values.reshape(shape)
            at += values.nbytes
    except (IndexError, ValueError, struct.error) as error:
        raise RunError(f"The {where} is malformed at byte {at}: {error}") from error
    if at != len(data):
        raise RunError(f"The {where} has {len(data) - at} bytes behind its last tensor.")
    return Message(round_, client, weight, tensors)


def size(tensors: Mapping[str, Any]) -> int:
    """Bytes of a message with these tensors: arrays, or anything with `shape` and `dtype`."""
    total = _HEADER.size
    for name, tensor in tensors.items():
        _dtype_code(name, tensor.dtype)
        elements = int(np.prod(tensor.shape, dtype=np.int64))
        total += (
            1 + len(name.encode()) + 2 + 8 * len(tensor.shape) + elements * np.dtype(tensor.dtype).itemsize
        )
    return total
