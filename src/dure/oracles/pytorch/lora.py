"""Low-rank adapters in PyTorch modules: dure's own, and those of the `peft` package."""

import glob
from collections.abc import Mapping, Sequence
from copy import deepcopy
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dure.errors import ConfigError
from dure.oracles import tensors as t
from dure.oracles.adapter import Adapter
from dure.oracles.lora import check_rank, choose
from dure.oracles.model import Model


class LoraLinear(nn.Module):
    """A frozen linear layer and what its adapter adds: x Wᵀ + bias + (α/r) (x Aᵀ) Bᵀ."""

    def __init__(self, base_layer: nn.Linear, rank: int, scale: float):
        super().__init__()
        self.base_layer, self.scale = base_layer, scale
        self.in_features, self.out_features = base_layer.in_features, base_layer.out_features
        like: dict[str, Any] = {"dtype": base_layer.weight.dtype, "device": base_layer.weight.device}
        self.lora_A = nn.Parameter(torch.randn(rank, self.in_features, **like) / sqrt(self.in_features))
        self.lora_B = nn.Parameter(torch.zeros(self.out_features, rank, **like))

    def forward(self, x: Tensor) -> Tensor:
        """Rows (…, inputs) to (…, outputs)."""
        added = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return torch.add(self.base_layer(x), added, alpha=self.scale)

    @property
    def weight(self) -> Tensor:
        """W + (α/r) B A, for modules that read it past `forward` (nn.MultiheadAttention)."""
        return torch.add(self.base_layer.weight, self.lora_B @ self.lora_A, alpha=self.scale)

    @property
    def bias(self) -> Tensor | None:
        """The layer's own."""
        return self.base_layer.bias


def torch_lora(base: Model, targets: Sequence[str], rank: int, alpha: float, train: Sequence[str]) -> Model:
    """See `dure.lora`; the base is a PyTorch module's model."""
    from dure.oracles.pytorch.model import torch_model

    outside: Any = base.outside
    module: nn.Module = deepcopy(outside.module)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    # Patterns name folders with "/".
    names = {n.replace(".", "/"): n for n in parameters}
    targets, train = (tuple(p.replace(".", "/") for p in patterns) for patterns in (targets, train))
    shapes = {n: tuple(parameters[own].shape) for n, own in names.items()}
    trained = t.match("train", list(names), train)
    for folder, name in names.items():
        parameters[name].requires_grad_(trained[folder])
    chosen = [names[n] for n in choose(list(names), shapes, targets, train)]
    layers = {n: _layer(module, n, parameters, rank) for n in chosen}

    def make() -> nn.Module:
        made = deepcopy(module)
        for name in layers:
            path = name.removesuffix(".weight")
            layer = made.get_submodule(path) if path != name else made
            assert isinstance(layer, nn.Linear)
            adapted = LoraLinear(layer, rank, alpha / rank)
            if path == name:  # the module is one linear layer
                return adapted
            owner, _, attribute = path.rpartition(".")
            setattr(made.get_submodule(owner), attribute, adapted)
        return made

    return torch_model(make, f"lora({base.name}, rank={rank})", outside.options)


def _layer(module: nn.Module, name: str, parameters: Mapping[str, Tensor], rank: int) -> nn.Linear:
    """The linear layer of a weight.

    Raises:
        ConfigError: the parameter is not a linear layer's weight, is tied, or has too few rows for the rank.
    """
    owner, _, attribute = name.rpartition(".")
    layer = module.get_submodule(owner)
    if not (isinstance(layer, nn.Linear) and attribute == "weight"):
        raise ConfigError(
            f"{name!r} is a target and not the weight of an nn.Linear layer, which is what adapters are made for in "
            f"PyTorch (it belongs to {type(layer).__name__}). Narrow the pattern, or train it with train=."
        )
    twins = [n for n, p in parameters.items() if p is parameters[name] and n != name]
    if twins:
        raise ConfigError(
            f"{name!r} and {twins[0]!r} are one tensor (tied), and a target: what an adapter adds to one place can't "
            "be merged into both. Leave it out of targets."
        )
    check_rank(name, tuple(parameters[name].shape), rank)
    return layer


# ----- what adapters a module has -------------------------------------------------------------------------


def adapters_of(module: nn.Module) -> tuple[Adapter, ...]:
    """The adapters of dure's layers or of peft's, if all of the module's are on linear layers; else none.

    Raises:
        ConfigError: peft has merged its adapters into the weights.
    """
    found: list[Adapter] = []
    named = dict(module.named_parameters(remove_duplicate=False))
    for path, part in module.named_modules():
        prefix = path + "." if path else ""
        if isinstance(part, LoraLinear):
            found.append(_adapter(prefix, named, prefix + "lora_A", prefix + "lora_B", part.scale, True))
        elif hasattr(part, "lora_A") and hasattr(part, "scaling") and hasattr(part, "base_layer"):
            theirs = _of_peft(prefix, part, named)
            if theirs is None:
                return ()
            found += theirs
    return tuple(found)


def _of_peft(prefix: str, part: Any, named: Mapping[str, Tensor]) -> list[Adapter] | None:
    """The trained adapters of one of peft's layers, or None for a kind that adds something else than (α/r) B A."""
    found = []
    if getattr(part, "merged_adapters", ()):
        raise ConfigError(
            f"{prefix}base_layer.weight has peft's adapters merged into it, and training would not reach them: call "
            "unmerge_adapter() before."
        )
    for key in part.active_adapters:
        if key not in part.scaling:
            continue  # another layer's adapter
        a, b = (f"{prefix}lora_{side}.{key}.weight" for side in "AB")
        plain = {a, b, f"{prefix}base_layer.weight"} <= set(named) and named[a].ndim == named[b].ndim == 2
        plain = plain and not getattr(part, "use_dora", {}).get(key, False)
        plain = plain and not getattr(part, "lora_bias", {}).get(key, False)
        if not plain:
            return None
        if named[a].requires_grad or named[b].requires_grad:
            last = not getattr(part, "fan_in_fan_out", False)
            found.append(_adapter(prefix, named, a, b, float(part.scaling[key]), last))
    return found


def _adapter(prefix: str, named: Mapping[str, Tensor], a: str, b: str, scale: float, last: bool) -> Adapter:
    weight = f"{prefix}base_layer.weight"
    (rank, inputs), (outputs, _) = named[a].shape, named[b].shape
    name, shape = f"{prefix}weight", tuple(named[weight].shape)
    return Adapter(name, weight, a, b, shape, inputs, outputs, rank, scale, last)


def held(adapters: Sequence[Adapter]) -> tuple[str, ...]:
    """Patterns of the adapted weights, which are among the parameters without being trained."""
    return tuple(glob.escape(a.weight) for a in adapters)
