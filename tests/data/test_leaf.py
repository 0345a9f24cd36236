"""LEAF's JSON format: numbers, texts, several files, test rows, and files that contradict themselves."""

import json

import numpy as np
import pytest

from dure.data import leaf_json
from dure.errors import ConfigError, DataError


def write(path, users, counts=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(users),
        "user_data": {u: {"x": x, "y": y} for u, (x, y) in users.items()},
    }
    if counts:
        content["num_samples"] = [len(y) for _, y in users.values()]
    path.write_text(json.dumps(content))
    return path


IMAGES = {"f_1": ([[0.0, 1, 2, 3], [4, 5, 6, 7]], [0, 2]), "f_0": ([[8, 9, 10, 11]], [1])}


def test_one_file(tmp_path):
    data = leaf_json(write(tmp_path / "all.json", IMAGES), shape=(2, 2, 1))
    assert list(data.client_names) == ["f_0", "f_1"]
    assert data.sizes.tolist() == [1, 2]
    assert data.client(1)["x"].shape == (2, 2, 2, 1)
    np.testing.assert_array_equal(data.client(1)["x"][1].ravel(), [4, 5, 6, 7])
    assert data.columns["x"].dtype == np.float32
    assert (data.classes, data.name) == (3, "all")


def test_train_and_test_folders_with_several_files(tmp_path):
    write(tmp_path / "femnist/train/a.json", IMAGES)
    write(tmp_path / "femnist/train/b.json", {"f_2": ([[0, 0, 0, 0]], [2])}, counts=False)
    write(tmp_path / "femnist/test/a.json", {"f_1": ([[1, 1, 1, 1]], [1]), "f_9": ([[2, 2, 2, 2]], [0])})
    data = leaf_json(tmp_path / "femnist")
    assert data.name == "femnist"
    assert list(data.client_names) == ["f_0", "f_1", "f_2", "f_9"]
    assert data.sizes.tolist() == [1, 2, 1, 0]
    assert np.diff(data.client_test_offsets).tolist() == [0, 1, 0, 1]
    np.testing.assert_array_equal(data.client_test_rows(3)["x"], [[2, 2, 2, 2]])
    explicit = leaf_json(tmp_path / "femnist/train", test=tmp_path / "femnist/test/a.json")
    assert explicit.fingerprint() == data.fingerprint()


def test_texts_are_encoded_by_characters(tmp_path):
    users = {"HAMLET": (["to b", "o be"], ["e", " "]), "OTHELLO": (["farew"[:4]], ["w"])}
    data = leaf_json(write(tmp_path / "s.json", users))
    alphabet = "".join(data.class_names)
    assert alphabet == "".join(sorted(set("to be farew")))
    assert ["".join(alphabet[c] for c in row) for row in data.client(0)["x"]] == ["to b", "o be"]
    assert [alphabet[c] for c in data.client(0)["y"]] == ["e", " "]
    assert data.classes == len(alphabet)
    with pytest.raises(DataError, match=r"'HAMLET'.*' '.*vocabulary"):
        leaf_json(tmp_path / "s.json", vocabulary="abefortw")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"users": ["f_1", "f_7"]}, ["'f_7'", "no lists x and y"]),
        ({"num_samples": [2, 5]}, ["'f_0'", "1 x, 1 y", "5"]),
        ({"num_samples": [2]}, ["2 users", "1 entries"]),
        (
            {"user_data": {"f_1": {"x": [[1]], "y": [0, 1]}, "f_0": {"x": [[1]], "y": [0]}}},
            ["'f_1'", "1 x, 2 y"],
        ),
        (
            {"user_data": {"f_1": {"x": [[1], [1, 2]], "y": [0, 1]}, "f_0": {"x": [[1]], "y": [0]}}},
            ["'x'", "length"],
        ),
        (
            {"user_data": {"f_1": {"x": ["ab", "c"], "y": [0, 1]}, "f_0": {"x": ["cd"], "y": [0]}}},
            ["'c'", "2 characters"],
        ),
    ],
)
def test_contradictions_are_named(tmp_path, change, words):
    content = json.loads(write(tmp_path / "a.json", IMAGES).read_text())
    (tmp_path / "a.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(DataError) as caught:
        leaf_json(tmp_path / "a.json")
    for word in words:
        assert word in str(caught.value)


def test_other_files_and_folders(tmp_path):
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(DataError, match=r"a\.json is not JSON"):
        leaf_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(DataError, match="not in LEAF's format"):
        leaf_json(tmp_path / "a.json")
    with pytest.raises(DataError, match="cannot be read"):
        leaf_json(tmp_path / "b.json")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no \.json file"):
        leaf_json(tmp_path / "empty")
    with pytest.raises(DataError, match="no examples"):
        leaf_json(write(tmp_path / "none.json", {"a": ([], [])}))
    with pytest.raises(ConfigError, match=r"shape=\(3, 1\) does not fit"):
        leaf_json(write(tmp_path / "i.json", IMAGES), shape=(3, 1))
