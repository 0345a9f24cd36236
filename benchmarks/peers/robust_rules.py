"""PyTorch's and ByzFL's robust aggregation, timed on request: one JSON job a line in, one result a line out.

Run by benchmarks/robust_kernels.py in the environment `byzfl`. A job: {"who", "rule", "arguments", "file", "seconds",
"threads"}; the result: {"ms": [one per call], "vector": file} or {"error"}.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

# ByzFL imports torchvision for its image benchmarks, which aren't used here; its wheels are tied to other builds.
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms"):
    sys.modules[name] = MagicMock()
with contextlib.redirect_stdout(io.StringIO()):
    import byzfl


def in_torch(rule: str, arguments: dict[str, Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a careful user of PyTorch would write."""
    if rule == "Mean":
        return lambda x: x.mean(0)
    if rule == "Median":
        return lambda x: torch.quantile(x, 0.5, dim=0) if len(x) % 2 == 0 else x.median(0).values
    if rule == "TrimmedMean":
        f = arguments["f"]
        return lambda x: x.sort(0).values[f : len(x) - f].mean(0)
    raise KeyError(rule)


def in_byzfl(rule: str, arguments: dict[str, Any]) -> Callable[[torch.Tensor], Any]:
    """A new object for every call: centred clipping goes on from what the same object returned before."""
    return lambda x: getattr(byzfl, rule)(**arguments)(x)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        torch.set_num_threads(job["threads"])
        try:
            made = {"torch": in_torch, "byzfl": in_byzfl}[job["who"]](job["rule"], job["arguments"])
            x = torch.from_numpy(np.load(job["file"]))
            taken: list[float] = []
            found = None
            begin = time.perf_counter()
            while not taken or (time.perf_counter() - begin < job["seconds"] and len(taken) < 50):
                given = (
                    x.clone() if job["rule"] in ("Clipping", "ARC") else x
                )  # these overwrite what they are given
                at = time.perf_counter()
                found = made(given)
                taken.append(1e3 * (time.perf_counter() - at))
            np.save(job["vector"], np.asarray(found))
            answer = {"ms": taken}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
