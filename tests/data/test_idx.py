"""IDX files and Fashion-MNIST: the format from its description, damaged files, probing."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from dure.data import fashion_mnist, idx, iid, read_idx
from dure.errors import DataError

INSTALLED = Path("/usr/share/datasets/fashion-mnist")


def encoded(array, kind=0x08, magic=b"\0\0"):
    header = magic + bytes([kind, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def folder(path, train=6, test=4, names=("train", "t10k"), sep="-", gz=False, prefix=""):
    rng = np.random.default_rng(0)
    path.mkdir(exist_ok=True)
    written = {}
    for part, n in zip(names, (train, test), strict=True):
        images, labels = rng.integers(0, 256, (n, 3, 2), np.uint8), np.arange(n, dtype=np.uint8) % 3
        for stem, array in (
            (f"{part}-images{sep}idx3-ubyte", images),
            (f"{part}-labels{sep}idx1-ubyte", labels),
        ):
            content = encoded(array)
            name = prefix + stem + (".gz" if gz else "")
            (path / name).write_bytes(gzip.compress(content) if gz else content)
        written[part] = images, labels
    return written


@pytest.mark.parametrize(
    ("kind", "dtype"), [(8, "u1"), (9, "i1"), (0xB, ">i2"), (0xC, ">i4"), (0xD, ">f4"), (0xE, ">f8")]
)
def test_read_idx_reads_every_type(tmp_path, kind, dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    (tmp_path / "a").write_bytes(encoded(array, kind))
    (tmp_path / "b").write_bytes(gzip.compress(encoded(array, kind)))
    for name in "ab":
        np.testing.assert_array_equal(read_idx(tmp_path / name), array)


def test_magic_numbers_are_those_of_mnist():
    assert encoded(np.zeros((1, 1, 1), np.uint8))[:4] == struct.pack(">I", 2051)
    assert encoded(np.zeros(1, np.uint8))[:4] == struct.pack(">I", 2049)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with nothing"),
        (b"\x89PNG....", "not an IDX file"),
        (encoded(np.zeros(4, np.uint8))[:-1], "has 11 bytes"),
        (encoded(np.zeros(4, np.uint8)) + b"x", "has 13 bytes"),
        (encoded(np.zeros((1, 1, 1), np.uint8))[:9], "ends inside its header"),
        (gzip.compress(encoded(np.zeros(4, np.uint8)))[:-9], "cannot be read"),
    ],
    ids=["empty", "png", "short", "long", "header", "gzip"],
)
def test_damaged_files_are_named(tmp_path, content, words):
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_idx(tmp_path / "damaged")
    assert "damaged" in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere"):
        read_idx(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "form", [{}, {"gz": True}, {"sep": "."}, {"names": ("train", "test"), "prefix": "emnist-letters-"}]
)
def test_a_folder_becomes_arrays(tmp_path, form):
    written = folder(tmp_path, **form)
    data = idx(tmp_path, prefix=form.get("prefix", ""))
    images, labels = written["train"]
    np.testing.assert_allclose(data["train"]["x"], images[..., None] / 255, rtol=1e-6)
    np.testing.assert_array_equal(data["train"]["y"], labels)
    assert data["train"]["x"].dtype == np.float32
    assert data["train"]["y"].dtype == np.int32
    assert data["test"]["x"].shape == (4, 3, 2, 1)
    assert data.classes == 3
    assert list(data) == ["train", "test"]
    federated = data.partition(iid(data.labels, 2))
    assert federated.clients == 2
    assert len(federated.central_test["y"]) == 4
    assert "6 + 4 examples" in repr(data)


def test_a_folder_without_test_files(tmp_path):
    folder(tmp_path)
    for file in tmp_path.glob("t10k*"):
        file.unlink()
    data = idx(tmp_path)
    assert dict(data).keys() == {"train"}
    with pytest.raises(KeyError):
        data["test"]
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="no file train-labels"):
        idx(tmp_path)
    with pytest.raises(DataError, match="not a folder"):
        idx(tmp_path / "elsewhere")


def test_images_and_labels_must_agree(tmp_path):
    folder(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(encoded(np.zeros(5, np.uint8)))
    with pytest.raises(DataError, match=r"train images have shape \(6, 3, 2\), the labels \(5,\)"):
        idx(tmp_path)


def test_fashion_mnist_refuses_other_data(tmp_path, monkeypatch):
    folder(tmp_path)
    with pytest.raises(DataError, match=r"SHA-256.*idx\(path\)"):
        fashion_mnist(tmp_path)
    monkeypatch.setenv("DURE_FASHION_MNIST", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="nowhere is not a folder"):
        fashion_mnist()
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="no file t10k-labels"):
        fashion_mnist(tmp_path)


def test_fashion_mnist_that_is_not_installed(monkeypatch):
    monkeypatch.delenv("DURE_FASHION_MNIST", raising=False)
    monkeypatch.setattr("dure.data.loaders.idx._DEBIAN", "/nowhere/fashion-mnist")
    with pytest.raises(DataError, match=r"dataset-fashion-mnist.*DURE_FASHION_MNIST"):
        fashion_mnist()


@pytest.mark.skipif(
    not INSTALLED.is_dir(), reason="the Debian package dataset-fashion-mnist is not installed"
)
def test_fashion_mnist_as_installed(monkeypatch):
    monkeypatch.delenv("DURE_FASHION_MNIST", raising=False)
    data = fashion_mnist()
    assert data["train"]["x"].shape == (60_000, 28, 28, 1)
    assert np.bincount(data["train"]["y"]).tolist() == [6000] * 10
    assert np.bincount(data["test"]["y"]).tolist() == [1000] * 10
    assert (data["train"]["x"].min(), data["train"]["x"].max()) == (0, 1)
    assert (data.classes, len(data.class_names)) == (10, 10)
    assert "MIT" in data.licence
