"""The machine's own peak, as this interpreter's libraries reach it: `python probe.py` prints one JSON
object.

GEMM: float32 2048 × 2048 products on all cores, floating-point operations a second. Copy: 256 MiB from one
array to another on all cores, bytes read plus bytes written a second. The best of many tries of numpy and,
where installed, PyTorch and JAX: a peak, not an average.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

SIDE, MEBIBYTES, SECONDS = 2048, 256, 1.0


def best(call: Callable[[], object]) -> float:
    """Seconds of the fastest call within SECONDS, at least three calls."""
    call()
    times: list[float] = []
    while len(times) < 3 or sum(times) < SECONDS:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((SIDE, SIDE), dtype=np.float32)
    product = np.empty_like(a)
    source = np.ones(MEBIBYTES * 2**18, np.float32)
    target = np.empty_like(source)
    cores = os.cpu_count() or 1
    parts = list(zip(np.array_split(target, cores), np.array_split(source, cores), strict=True))
    gemm = {"numpy": lambda: np.matmul(a, a, out=product)}
    with ThreadPoolExecutor(cores) as pool:
        copy = {"numpy": lambda: list(pool.map(lambda pair: np.copyto(*pair), parts))}
        try:
            import torch
        except ImportError:
            pass
        else:
            t, u, v = torch.from_numpy(a), torch.from_numpy(target), torch.from_numpy(source)
            gemm["torch"] = lambda: torch.mm(t, t)
            copy["torch"] = lambda: u.copy_(v)
        try:
            import jax
        except ImportError:
            pass
        else:
            j, f = jax.numpy.asarray(a), jax.jit(lambda m: m @ m)
            gemm["jax"] = lambda: f(j).block_until_ready()
        found = {
            "gemm_flops": {name: 2.0 * SIDE**3 / best(call) for name, call in gemm.items()},
            "copy_bytes": {name: 2.0 * source.nbytes / best(call) for name, call in copy.items()},
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
