"""The models in PyTorch's own layout, shared by the contestants that use it.

Dense kernels are (outputs, inputs), convolutions (outputs, inputs, height, width), images (channels,
height, width).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

POOLED = (14, 14, 64)  # what small_cnn flattens, canonical order


def to_torch(model: str, weights: list[np.ndarray]) -> list[Tensor]:
    """Canonical weights to PyTorch's layout."""
    out = []
    for i, a in enumerate(weights):
        if model == "small_cnn" and i == 4:
            a = a.reshape(*POOLED, -1).transpose(2, 0, 1, 3).reshape(a.shape)
        if a.ndim > 1:
            a = a.transpose(3, 2, 0, 1) if a.ndim == 4 else a.T
        out.append(torch.from_numpy(np.ascontiguousarray(a)))
    return out


def from_torch(model: str, tensors: list[Tensor]) -> list[np.ndarray]:
    """The way back."""
    out = []
    for i, t in enumerate(tensors):
        a = t.detach().numpy()
        if a.ndim > 1:
            a = a.transpose(2, 3, 1, 0) if a.ndim == 4 else a.T
        if model == "small_cnn" and i == 4:
            h, w, c = POOLED
            a = a.reshape(c, h, w, -1).transpose(1, 2, 0, 3).reshape(a.shape)
        out.append(np.ascontiguousarray(a))
    return out


def tensors(model: str, x: np.ndarray, y: np.ndarray) -> tuple[Tensor, Tensor]:
    """Rows as tensors; images channels first."""
    if model == "small_cnn":
        x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))


def logits(model: str, p: list[Tensor], x: Tensor) -> Tensor:
    """The model as a function of a list of parameters."""
    if model == "softmax":
        return F.linear(x, p[0], p[1])
    if model == "small_cnn":
        x = F.relu(F.conv2d(x, p[0], p[1]))
        x = F.max_pool2d(F.relu(F.conv2d(x, p[2], p[3])), 2).flatten(1)
        p = p[4:]
    for i in range(0, len(p) - 2, 2):
        x = F.relu(F.linear(x, p[i], p[i + 1]))
    return F.linear(x, p[-2], p[-1])


def module(model: str, weights: list[np.ndarray]) -> nn.Module:
    """The same model as a plain nn.Module, for the frameworks that want one."""
    if model == "softmax":
        layers: list[nn.Module] = [nn.Linear(60, 10)]
    elif model == "two_nn":
        layers = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
    else:
        layers = [
            nn.Conv2d(3, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        ]
        layers += [nn.Linear(12544, 128), nn.ReLU(), nn.Linear(128, 10)]
    net = nn.Sequential(*layers)
    with torch.no_grad():
        for into, value in zip(net.parameters(), to_torch(model, weights), strict=True):
            into.copy_(value)
    return net
