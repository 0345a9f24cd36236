"""Hugging Face data sets: from disk and as objects (needs the package `datasets`)."""

import numpy as np
import pytest

from dure.data import Federated, Pooled, huggingface, iid
from dure.errors import DataError


def test_what_is_no_data_set_is_named(tmp_path):
    with pytest.raises(DataError, match="not a folder"):
        huggingface(tmp_path / "nowhere")
    with pytest.raises(DataError, match="a list"):
        huggingface([1, 2])


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets", reason="the optional package datasets is not installed")


@pytest.fixture
def images(datasets):
    pixels = np.random.default_rng(0).integers(0, 256, (6, 4, 4), np.uint8)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "user": datasets.Value("string"),
        }
    )
    from PIL import Image

    rows = {
        "image": [Image.fromarray(p) for p in pixels],
        "label": [0, 1, 0, 1, 0, 1],
        "user": ["b", "a", "b", "a", "c", "c"],
    }
    return pixels, datasets.Dataset.from_dict(rows, features=features)


def test_images_by_user(images):
    pixels, data = images
    federated = huggingface(data, client="user")
    assert isinstance(federated, Federated)
    assert list(federated.client_names) == ["a", "b", "c"]
    np.testing.assert_allclose(federated.client(0)["x"], pixels[[1, 3], ..., None] / 255, rtol=1e-6)
    assert federated.client(0)["y"].tolist() == [1, 1]
    assert federated.class_names == ["cat", "dog"]


def test_from_disk_with_splits(datasets, images, tmp_path):
    _, data = images
    whole = datasets.DatasetDict({"train": data.select(range(4)), "test": data.select(range(4, 6))})
    whole.save_to_disk(str(tmp_path / "saved"))
    federated = huggingface(str(tmp_path / "saved"), client="user")
    assert list(federated.client_names) == ["a", "b", "c"]
    assert federated.sizes.tolist() == [2, 2, 0]
    assert len(federated.client_test_rows(2)["y"]) == 2
    central = huggingface(whole.map(lambda row: row), client="user", features=["image"])
    assert central.fingerprint() == federated.fingerprint()
    pooled = huggingface(tmp_path / "saved", features=["image"])
    assert isinstance(pooled, Pooled)
    assert pooled.partition(iid(pooled.labels, 2)).clients == 2
    with pytest.raises(DataError, match=r"no split 'validatio'.*'validatio'|no split 'tset'.*'test'"):
        huggingface(whole, test="tset")
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="save_to_disk"):
        huggingface(tmp_path / "other")


def test_number_columns_and_lists(datasets):
    rows = {
        "age": [1, 2, 3],
        "dose": [0.5, 1.0, 1.5],
        "label": ["no", "yes", "no"],
        "v": [[1, 2], [3, 4], [5, 6]],
    }
    data = datasets.Dataset.from_dict(rows)
    table = huggingface(data, features=["age", "dose"])
    np.testing.assert_array_equal(table["train"]["x"], [[1, 0.5], [2, 1], [3, 1.5]])
    assert table["train"]["y"].tolist() == [0, 1, 0]
    assert table.class_names == ["no", "yes"]
    np.testing.assert_array_equal(huggingface(data, features=["v"])["train"]["x"], rows["v"])
    np.testing.assert_array_equal(huggingface(data, features=["age"])["train"]["x"].ravel(), [1, 2, 3])


def test_bad_columns_are_named(datasets, images):
    _, data = images
    with pytest.raises(DataError, match=r"'users'.*client.*'user'"):
        huggingface(data, client="users")
    with pytest.raises(DataError, match=r"'lable'.*target.*'label'"):
        huggingface(data, target="lable", features=["image"])
    with pytest.raises(DataError, match=r"'imag'.*features.*'image'"):
        huggingface(data, features=["imag"])
    with pytest.raises(DataError, match=r"'user'"):
        huggingface(data, features=["user"])
