"""The catalogue, and that importing the data room stays light."""

import subprocess
import sys

from dure import data
from dure.data import CATALOGUE


def test_every_entry_is_complete_and_unique():
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    for entry in CATALOGUE:
        assert callable(entry.loader)
        assert entry.loader.__doc__
        assert all((entry.description, entry.clients, entry.licence, entry.needs))


def test_loaders_are_public_under_their_names():
    for entry in CATALOGUE:
        assert entry.name in ("arrays", "frame") or getattr(data, entry.name) is entry.loader
    assert set(data.__all__) <= set(dir(data))


def test_what_needs_nothing_loads():
    for entry in CATALOGUE:
        if entry.needs == "nothing":
            loaded = entry.loader()
            assert str(loaded.clients) == entry.clients.split(",")[0]
            assert entry.licence.split()[0].lower() in loaded.licence.lower()


def test_imports_stay_light():
    heavy = ["sklearn", "matplotlib", "pandas", "polars", "pyarrow", "torch", "flax", "datasets"]
    code = f"import sys, dure.data, dure.population; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.strip() == "[]"
