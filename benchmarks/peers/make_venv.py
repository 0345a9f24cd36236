"""Make the peers' virtual environments: `python benchmarks/peers/make_venv.py [torch pfl flower fedjax byzfl]`.

The peers' pins exclude one another, so each peer has an environment of its own,
`benchmarks/peers/.venvs/<peer>`, made from the pins in `benchmarks/peers/<peer>.txt` with whatever package
index pip is configured for. `--fresh` makes an environment again, `--check` only says which peers can be
imported.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENVIRONMENTS = HERE / ".venvs"
IMPORTS = {
    "torch": "torch",
    "pfl": "pfl.algorithm.federated_averaging",
    "flower": "flwr",
    "fedjax": "fedjax",
    "byzfl": "torch",
}


def interpreter(peer: str) -> Path:
    """Where a peer's Python is, made or not."""
    folder = "Scripts" if sys.platform == "win32" else "bin"
    return ENVIRONMENTS / peer / folder / "python"


def importable(peer: str) -> str | None:
    """None when the peer can be imported in its environment, else why not, in one line."""
    python = interpreter(peer)
    if not python.exists():
        return f"not installed (python benchmarks/peers/make_venv.py {peer})"
    tried = subprocess.run(
        [python, "-c", f"import {IMPORTS[peer]}"], capture_output=True, text=True, timeout=300
    )
    if tried.returncode == 0:
        return None
    lines = [line for line in tried.stderr.strip().splitlines() if line.strip()]
    return f"not importable: {lines[-1] if lines else 'no message'}"


def make(peer: str, fresh: bool) -> None:
    folder = ENVIRONMENTS / peer
    if fresh and folder.exists():
        shutil.rmtree(folder)
    if not interpreter(peer).exists():
        venv.create(folder, with_pip=True)
    pip = [str(interpreter(peer)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(HERE / f"{peer}.txt")], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peers", nargs="*", default=list(IMPORTS), help=f"which of {', '.join(IMPORTS)}")
    parser.add_argument("--fresh", action="store_true", help="remove the environment first")
    parser.add_argument("--check", action="store_true", help="install nothing")
    asked = parser.parse_args()
    unknown = [peer for peer in asked.peers if peer not in IMPORTS]
    if unknown:
        parser.error(f"unknown peer {', '.join(unknown)}; there are {', '.join(IMPORTS)}")
    failed = 0
    for peer in asked.peers:
        if not asked.check:
            print(f"{peer}: installing", flush=True)
            try:
                make(peer, asked.fresh)
            except subprocess.CalledProcessError as error:
                print(f"{peer}: pip failed ({error.returncode})")
                failed += 1
                continue
        why = importable(peer)
        failed += why is not None
        print(f"{peer}: {why or 'ready'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
