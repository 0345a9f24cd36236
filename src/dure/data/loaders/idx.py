"""IDX files, the format of MNIST and its relatives, and Fashion-MNIST where it is installed."""

import gzip
import hashlib
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dure.data.pooled import Pooled
from dure.errors import DataError

_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PARTS = {
    "train images": ("train-images", 3),
    "train labels": ("train-labels", 1),
    "test images": ("t10k-images", 3),
    "test labels": ("t10k-labels", 1),
}
_DEBIAN = "/usr/share/datasets/fashion-mnist"
_VARIABLE = "DURE_FASHION_MNIST"
# SHA-256 of the four files of Fashion-MNIST after decompression, so that recompressed copies pass.
_FASHION = {
    "train images": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train labels": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "test images": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "test labels": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_CLOTHES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """One IDX file, compressed with gzip or not, as an array of the type and shape that its header says.

    The header: two zero bytes, a type byte, the number of dimensions, then each dimension as a big-endian
    32-bit integer.

    Raises:
        DataError: not there, not readable, not IDX, or not as long as its header says.
    """
    return _parse(_bytes(Path(path)), Path(path))


def idx(path: str | os.PathLike[str], prefix: str = "") -> Pooled:
    """A folder with the four files of an MNIST-like data set.

    Args:
        path: a folder with train-images, train-labels, t10k-images and t10k-labels (with -idx3-ubyte or
            -idx1-ubyte, with or without .gz; "test" for "t10k" as in EMNIST). Without the two test files
            there is no test set.
        prefix: what the file names begin with when the folder holds several sets, such as "emnist-balanced-".

    Returns:
        x (H, W, 1) float32 in [0, 1] (bytes / 255), y int32; without clients: use `.partition`.

    Raises:
        DataError: a file is missing, ambiguous, damaged, or images and labels differ in number.
    """
    folder = Path(path)
    found = {part: _find(folder, prefix, stem, dimensions) for part, (stem, dimensions) in _PARTS.items()}
    contents = {part: _bytes(file) for part, file in found.items() if file is not None}
    files = {part: file for part, file in found.items() if file is not None}
    return _pooled(contents, files, prefix.strip("-") or folder.name, str(folder))


def fashion_mnist(path: str | os.PathLike[str] | None = None) -> Pooled:
    """Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 grey images 28×28 of ten kinds of clothes.

    Args:
        path: the folder of the four files, with or without .gz; when not given, the folder in the environment
            variable DURE_FASHION_MNIST, then where Debian's package dataset-fashion-mnist puts it.

    Returns:
        x (28, 28, 1) float32 in [0, 1], y int32 in 0..9; without clients: use `.partition`.

    Raises:
        DataError: nowhere found (the message says how to get it), or a file has the wrong SHA-256.
    """
    named = path if path is not None else os.environ.get(_VARIABLE)
    folder = Path(named) if named is not None else Path(_DEBIAN)
    if named is None and not folder.is_dir():
        raise DataError(
            "Fashion-MNIST is not on this machine. Install the Debian or Ubuntu package "
            "dataset-fashion-mnist, or give the folder of its four files as path=… or in the environment "
            f"variable {_VARIABLE}."
        )
    found = {part: _find(folder, "", stem, dimensions) for part, (stem, dimensions) in _PARTS.items()}
    missing = [_PARTS[part][0] for part, file in found.items() if file is None]
    if missing:
        raise DataError(f"{folder} has no file {missing[0]}-idx*-ubyte (with or without .gz).")
    files = {part: file for part, file in found.items() if file is not None}
    contents = {part: _bytes(file) for part, file in files.items()}
    for part, content in contents.items():
        seen = hashlib.sha256(content).hexdigest()
        if seen != _FASHION[part]:
            raise DataError(
                f"{files[part]} is not Fashion-MNIST's {part}: SHA-256 of the content is {seen}, expected "
                f"{_FASHION[part]}. For another data set in this format use idx(path)."
            )
    return _pooled(
        contents, files, "fashion-mnist", str(folder), class_names=_CLOTHES,
        licence="MIT, © 2017 Zalando SE",
        citation="Xiao, H., Rasul, K. and Vollgraf, R. (2017). Fashion-MNIST: a Novel Image Dataset for "
        "Benchmarking Machine Learning Algorithms. arXiv:1708.07747",
    )  # fmt: skip


def _find(folder: Path, prefix: str, stem: str, dimensions: int) -> Path | None:
    """The file of one part, or None when a test file is not there."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder. Give the folder that holds the IDX files.")
    stems = [stem, stem.replace("t10k", "test")]
    wanted = {
        f"{prefix}{s}{sep}idx{dimensions}-ubyte{gz}" for s in stems for sep in "-." for gz in ("", ".gz")
    }
    there = sorted(file for file in folder.iterdir() if file.name in wanted)
    plain = [file for file in there if file.suffix != ".gz"]
    if there:
        return (plain or there)[0]  # the same file twice: the one that needs no decompression
    if stem.startswith("train"):
        raise DataError(f"{folder} has no file {prefix}{stem}-idx{dimensions}-ubyte (with or without .gz).")
    return None


def _bytes(path: Path) -> bytes:
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {error}.") from error


def _parse(content: bytes, path: Path) -> np.ndarray:
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in _TYPES:
        raise DataError(f"{path} is not an IDX file: it begins with {content[:4].hex() or 'nothing'}.")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path} ends inside its header.")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    kind = np.dtype(_TYPES[content[2]])
    expected = start + int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    if len(content) != expected:
        raise DataError(f"{path} has {len(content)} bytes; its header, shape {shape}, says {expected}.")
    return np.frombuffer(content, kind, offset=start).reshape(shape)


def _pooled(
    contents: Mapping[str, bytes],
    files: Mapping[str, Path],
    name: str,
    source: str,
    class_names: tuple[str, ...] | None = None,
    licence: str = "",
    citation: str = "",
) -> Pooled:
    tables: dict[str, dict[str, np.ndarray]] = {}
    for part in ("train", "test"):
        if f"{part} images" not in contents or f"{part} labels" not in contents:
            continue
        images = _parse(contents[f"{part} images"], files[f"{part} images"])
        labels = _parse(contents[f"{part} labels"], files[f"{part} labels"])
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DataError(
                f"The {part} images have shape {images.shape}, the labels {labels.shape}; expected "
                "(n, H, W) and (n,)."
            )
        x = images.astype(np.float32)[..., None]
        x /= 255
        tables[part] = {"x": x, "y": labels.astype(np.int32)}
    classes = max(int(table["y"].max()) for table in tables.values()) + 1
    return Pooled(
        tables["train"], tables.get("test"), classes=classes, class_names=class_names,
        name=name, source=source, licence=licence, citation=citation,
    )  # fmt: skip
