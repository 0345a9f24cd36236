"""Importing is light, the public table is true, and rooms import from rooms below them only."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dure

SOURCE = Path(dure.__file__).parent
#: From the ground up. A room may import from itself and from rooms above it in this list.
ROOMS = [
    {"errors", "facts"},
    {"devices"},
    {"keys"},
    {"aggregation", "channel"},
    {"attacks"},
    {"oracles"},
    {"algorithms", "models", "data", "flower"},
    {"population"},
    {"run"},
    {"statistics"},
    {"boosting"},
    {"report", "trackers"},
    {"simulation"},
    {"decentralized", "distillation"},
    {"config"},
    {"cli"},
]
#: The one arrow upwards: `Run.plot()` and `Run.report()` hand over to the report, inside those methods.
DOORS = {("run/reader.py", "report")}
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def imported_by(code: str) -> set[str]:
    """Top-level modules that are loaded after running some code in a fresh interpreter."""
    program = f"{code}\nimport sys\nprint(' '.join(m for m in sys.modules if '.' not in m))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_almost_nothing() -> None:
    loaded = imported_by("import dure; dure.__version__; dir(dure)")
    assert not loaded & {
        "jax",
        "numpy",
        "optax",
        "pandas",
        "sklearn",
        "matplotlib",
        "flax",
        "torch",
        "pydantic",
    }


def test_using_it_loads_no_optional_or_heavy_package() -> None:
    heavy = {
        "sklearn",
        "matplotlib",
        "pandas",
        "flax",
        "equinox",
        "torch",
        "polars",
        "pyarrow",
        "datasets",
        "flwr",
        "ray",
    }
    code = (
        "import dure, numpy as np\n"
        "for name in dure.__all__: getattr(dure, name)\n"
        "data = dure.Federated({'x': np.ones((4, 2), np.float32), 'y': np.array([0, 1, 0, 1])}, np.array([0, 2, 4]))\n"
        "task = dure.classification(dure.models.softmax_regression(2, 2))\n"
        "dure.simulate(dure.FedAvg(), task, data, rounds=1)\n"
    )
    assert not imported_by(code) & heavy


def test_every_public_name_is_there_and_listed() -> None:
    for name in dure.__all__:
        assert getattr(dure, name) is not None
        assert name in dir(dure)
    assert len(set(dure.__all__)) == len(dure.__all__)
    assert set(dure.__all__) == set(dure._HOME) | set(dure._ROOMS)
    with pytest.raises(AttributeError, match="nothing_like_it"):
        dure.nothing_like_it


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[tuple[int, str]]:
    """The dure modules that a file imports, anywhere in it, with the line."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, a.name) for a in node.names if a.name.startswith("dure.")]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module == "dure":
                found += [(node.lineno, f"dure.{a.name}") for a in node.names]
            elif node.module and node.module.startswith("dure."):
                found.append((node.lineno, node.module))
    return found


def room(module: str) -> str:
    return module.split(".")[1]


def test_the_arrows_point_one_way() -> None:
    wrong = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path == SOURCE / "__init__.py":
            continue  # the public table
        here = room(module_name(path))
        assert here in LEVEL, f"{here} is a new room: say in ROOMS where it stands"
        for line, module in imports(path):
            there = room(module)
            if there in ("__version__", here):
                continue
            home = dure._HOME.get(there)  # `from dure import FedAvg` means its home
            there = room(home) if home else there
            if LEVEL[there] > LEVEL[here] and (str(path.relative_to(SOURCE)), there) not in DOORS:
                wrong.append(f"{path.relative_to(SOURCE)}:{line}: {here} imports {there}")
    assert not wrong, "\n".join(wrong)


def test_the_doors_are_inside_functions() -> None:
    for name, there in DOORS:
        tree = ast.parse((SOURCE / name).read_text())
        top = [n.module or "" for n in tree.body if isinstance(n, ast.ImportFrom)]
        assert not any(module.startswith(f"dure.{there}") for module in top)


def test_algorithms_know_no_data() -> None:
    """Law 1: an algorithm sees an oracle. Its page imports neither data nor the code that holds them."""
    for path in (SOURCE / "algorithms").glob("*.py"):
        for line, module in imports(path):
            # FedOpt's server takes an optimizer, which is a function of vectors; FedExLoRA is told what lies where.
            known = room(module) in ("algorithms", "errors") or module in (
                "dure.oracles.optimizer", "dure.oracles.adapter", "dure.oracles.layout",
            )  # fmt: skip
            assert known, f"{path.name}:{line} imports {module}"


def test_aggregation_and_channel_know_arrays_and_drawn_numbers_only() -> None:
    for name in ("aggregation", "channel"):
        for path in (SOURCE / name).glob("*.py"):
            for line, module in imports(path):
                assert room(module) in ("aggregation", "channel", "errors", "keys"), (
                    f"{path.name}:{line} imports {module}"
                )


def test_nothing_draws_from_a_global_generator() -> None:
    """One place touches them: it seeds what a user's PyTorch module may draw from."""
    for path in SOURCE.rglob("*.py"):
        if path == SOURCE / "oracles" / "pytorch" / "functional.py":
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("np.random", "numpy.random"):
                assert node.attr in ("Generator", "Philox", "SeedSequence", "default_rng"), (
                    f"{path}:{node.lineno}"
                )
            if isinstance(node, ast.Import):
                assert all(a.name != "random" for a in node.names), f"{path}:{node.lineno}"
