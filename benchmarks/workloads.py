"""The workloads of `rounds.py`: exact definitions, data made once, starting weights, and a float64
reference round.

Every contestant imports this file in its own interpreter, so it needs numpy and nothing else.

Weights have one canonical order and layout for everybody: for each layer its kernel, then its bias; dense
kernels are (inputs, outputs), convolution kernels (height, width, inputs, outputs), images (height, width,
channels), and an image is flattened in that order.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

CACHE = Path(__file__).resolve().parent / ".cache"

MODELS: dict[str, list[tuple[int, ...]]] = {
    "softmax": [(60, 10), (10,)],
    "two_nn": [(784, 200), (200,), (200, 200), (200,), (200, 10), (10,)],
    "small_cnn": [(3, 3, 3, 32), (32,), (3, 3, 32, 64), (64,), (12544, 128), (128,), (128, 10), (10,)],
}
INPUTS: dict[str, tuple[int, ...]] = {"softmax": (60,), "two_nn": (784,), "small_cnn": (32, 32, 3)}
CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """One row of the benchmark. `registered` > `clients` repeats the same data under more client ids."""

    name: str
    title: str
    model: str
    clients: int
    examples: int  # per client; 0 for int(lognormal(4, 2)) clipped to [10, 500]
    cohort: int
    batch: int
    epochs: int = 1
    lr: float = 0.1
    registered: int = 0
    seed: int = 20

    @property
    def population(self) -> int:
        return self.registered or self.clients


WORKLOADS = {
    w.name: w
    for w in (
        Workload("W1", "softmax 60→10, 1000 ragged clients", "softmax", 1000, 0, 100, 10),
        Workload("W2", "2NN 784-200-200-10, 100 clients × 600", "two_nn", 100, 600, 10, 10),
        Workload("W3", "CNN 32×32×3, 1000 clients × 50", "small_cnn", 1000, 50, 50, 10),
        Workload("W4", "softmax 60→10, 100,000 clients × 8", "softmax", 100_000, 8, 1000, 8),
        Workload("W5", "as W4, 10,000,000 registered", "softmax", 100_000, 8, 1000, 8, registered=10_000_000),
    )
}


class Data(NamedTuple):
    """All rows, client by client: client k has rows [offsets[k], offsets[k + 1])."""

    x: np.ndarray
    y: np.ndarray
    offsets: np.ndarray


# -- data


def _sizes(workload: Workload, rng: np.random.Generator) -> np.ndarray:
    if workload.examples:
        return np.full(workload.clients, workload.examples, np.int64)
    return np.clip(rng.lognormal(4.0, 2.0, workload.clients).astype(np.int64), 10, 500)


def _vectors(rng: np.random.Generator, n: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian features, labels from a noisy linear teacher."""
    x = rng.standard_normal((n, features), dtype=np.float32)
    teacher = rng.standard_normal((features, CLASSES), dtype=np.float32)
    noise = rng.gumbel(size=(n, CLASSES)).astype(np.float32)
    return x, (x @ teacher + noise).argmax(axis=1).astype(np.int32)


def _images(rng: np.random.Generator, n: int, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Pixels 0…255: one template a class, under noise."""
    y = rng.integers(0, CLASSES, n, dtype=np.int32)
    templates = rng.integers(64, 192, (CLASSES, *shape), dtype=np.int16)
    x = np.empty((n, *shape), np.uint8)
    for start in range(0, n, 1000):
        rows = slice(start, start + 1000)
        noise = rng.integers(-60, 60, x[rows].shape, dtype=np.int16)
        x[rows] = (templates[y[rows]] + noise).astype(np.uint8)
    return x, y


def make(workload: Workload) -> Data:
    """The workload's rows, the same ones wherever this is called. Image pixels are still bytes."""
    rng = np.random.default_rng(workload.seed)
    offsets = np.concatenate([[0], np.cumsum(_sizes(workload, rng))]).astype(np.int64)
    n, shape = int(offsets[-1]), INPUTS[workload.model]
    x, y = _vectors(rng, n, shape[0]) if workload.model == "softmax" else _images(rng, n, shape)
    return Data(x, y, offsets)


def data_file(workload: Workload, folder: Path = CACHE) -> Path:
    """Path of the workload's data file, made on the first call. W5 shares W4's."""
    defines = {k: v for k, v in asdict(workload).items() if k in ("model", "clients", "examples", "seed")}
    digest = hashlib.sha256(json.dumps(["v1", defines], sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"{workload.model}-{workload.clients}-{digest}.npz"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.stem}.{os.getpid()}.npz")
        np.savez(unfinished, **make(workload)._asdict())
        unfinished.replace(path)
    return path


def load(path: Path | str) -> Data:
    """Read a data file; bytes become float32 in [-1, 1]."""
    with np.load(path) as file:
        x, y, offsets = file["x"], file["y"], file["offsets"]
    if x.dtype == np.uint8:
        scaled = np.empty(x.shape, np.float32)
        for start in range(0, len(x), 4096):
            rows = slice(start, start + 4096)
            scaled[rows] = x[rows] * np.float32(2 / 255) - np.float32(1)
        x = scaled
    return Data(x, y, offsets)


def initial(model: str, seed: int = 7) -> list[np.ndarray]:
    """Starting weights: kernels N(0, 2 / fan_in), small non-zero biases (a forgotten bias shows)."""
    rng = np.random.default_rng(seed)
    weights = []
    for shape in MODELS[model]:
        deviation = np.sqrt(2.0 / np.prod(shape[:-1])) if len(shape) > 1 else 0.01
        weights.append((rng.standard_normal(shape) * deviation).astype(np.float32))
    return weights


def cohort(workload: Workload, round: int) -> np.ndarray:
    """The ids that take part in a round, without replacement; O(cohort) however many are registered."""
    rng = np.random.default_rng([workload.seed, round])
    return np.sort(rng.choice(workload.population, workload.cohort, replace=False, shuffle=False))


# -- what a round costs


def steps(sizes: np.ndarray, batch: int, epochs: int = 1) -> int:
    """Local steps of clients with these many examples."""
    return int(epochs * np.sum(-(-np.asarray(sizes) // batch)))


def expected(workload: Workload, data: Data) -> tuple[float, float]:
    """Mean local steps and mean examples of a round over cohorts."""
    sizes = np.diff(data.offsets)
    scale = workload.cohort / len(sizes)
    return steps(sizes, workload.batch, workload.epochs) * scale, float(workload.epochs * sizes.sum() * scale)


def flops_per_row(model: str) -> float:
    """Operations of one example's gradient: forward, weight gradients, input gradients (not the first)."""
    positions = {0: 30 * 30, 2: 28 * 28} if model == "small_cnn" else {}
    total = 0.0
    for i, shape in enumerate(MODELS[model]):
        if len(shape) > 1:
            total += 2.0 * np.prod(shape) * positions.get(i, 1) * (2 if i == 0 else 3)
    return float(total)


def bytes_per_round(model: str, local_steps: float, rows: float) -> float:
    """Least float32 traffic: a step reads the weights twice and writes them; rows are read once."""
    weights = sum(int(np.prod(shape)) for shape in MODELS[model])
    return 4.0 * (3 * weights * local_steps + rows * float(np.prod(INPUTS[model])))


# -- the reference: one full-batch step per client, float64

TINY_SIZES = (3, 8, 5, 6)
TINY_BATCH = 8  # no smaller than the largest client, so that each client makes one full-batch step


def tiny(model: str) -> tuple[Workload, Data]:
    """The check's case: four clients of different sizes, everyone takes part."""
    workload = Workload("check", "check", model, len(TINY_SIZES), 0, len(TINY_SIZES), TINY_BATCH, seed=3)
    rng = np.random.default_rng(3)
    offsets = np.concatenate([[0], np.cumsum(TINY_SIZES)]).astype(np.int64)
    x = rng.standard_normal((int(offsets[-1]), *INPUTS[model])).astype(np.float32)
    return workload, Data(x, rng.integers(0, CLASSES, len(x), dtype=np.int32), offsets)


def _patches(x: np.ndarray) -> np.ndarray:
    """3×3 windows of (B, H, W, C) as (B, H − 2, W − 2, 9 C), in (row, column, channel) order."""
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return windows.transpose(0, 1, 2, 4, 5, 3).reshape(*windows.shape[:3], -1)


def _conv_back(kernel: np.ndarray, inputs: np.ndarray, out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kernel and input gradients of a valid 3×3 convolution from the output's gradient."""
    d_kernel = np.tensordot(_patches(inputs), out, ((0, 1, 2), (0, 1, 2))).reshape(kernel.shape)
    padded = np.pad(out, ((0, 0), (2, 2), (2, 2), (0, 0)))
    turned = kernel[::-1, ::-1].transpose(0, 1, 3, 2).reshape(-1, kernel.shape[2])
    return d_kernel, _patches(padded) @ turned


def _convolutions(
    weights: list[np.ndarray], x: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    first = np.maximum(_patches(x) @ weights[0].reshape(-1, 32) + weights[1], 0)
    second = np.maximum(_patches(first) @ weights[2].reshape(-1, 64) + weights[3], 0)
    blocks = second.reshape(len(x), 14, 2, 14, 2, 64)
    pooled = blocks.max(axis=(2, 4), keepdims=True)
    picked = (blocks == pooled) / (blocks == pooled).sum(axis=(2, 4), keepdims=True)
    return pooled.reshape(len(x), -1), [x, first, second], picked


def gradient(model: str, weights: Sequence[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Gradient of the mean cross-entropy, written out by hand in float64."""
    w = [np.asarray(a, np.float64) for a in weights]
    x = np.asarray(x, np.float64)
    first_dense, activations, picked = 0, [x.reshape(len(x), -1)], None
    kept: list[np.ndarray] = []
    if model == "small_cnn":
        flat, kept, picked = _convolutions(w, x)
        first_dense, activations = 4, [flat]
    for i in range(first_dense, len(w), 2):
        out = activations[-1] @ w[i] + w[i + 1]
        activations.append(np.maximum(out, 0) if i + 2 < len(w) else out)
    shifted = np.exp(activations[-1] - activations[-1].max(axis=1, keepdims=True))
    delta = shifted / shifted.sum(axis=1, keepdims=True)
    delta[np.arange(len(y)), y] -= 1.0
    delta /= len(y)
    grads: list[np.ndarray] = [np.zeros(0)] * len(w)
    for i in range(len(w) - 2, first_dense - 1, -2):
        inputs = activations[(i - first_dense) // 2]
        grads[i], grads[i + 1] = inputs.T @ delta, delta.sum(axis=0)
        delta = delta @ w[i].T
        if i > first_dense:
            delta = delta * (inputs > 0)
    if picked is not None:
        image, first, second = kept
        delta = (picked * delta.reshape(len(x), 14, 1, 14, 1, 64)).reshape(second.shape) * (second > 0)
        grads[3] = delta.sum(axis=(0, 1, 2))
        grads[2], delta = _conv_back(w[2], first, delta)
        delta = delta * (first > 0)
        grads[1] = delta.sum(axis=(0, 1, 2))
        grads[0], _ = _conv_back(w[0], image, delta)
    return grads


def reference_round(workload: Workload, data: Data, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Weights after one round of one full-batch step per client; weighted by examples, float64."""
    total = [np.zeros(a.shape) for a in weights]
    for start, stop in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        grads = gradient(workload.model, weights, data.x[start:stop], data.y[start:stop])
        for into, g in zip(total, grads, strict=True):
            into += (stop - start) / data.offsets[-1] * g
    return [np.asarray(a, np.float64) - workload.lr * g for a, g in zip(weights, total, strict=True)]
