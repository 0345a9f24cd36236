"""Gradients of many clients in one pass: `torch.func` vectorises, a traced graph repeats it without its overhead."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dure.oracles.pytorch import losses
from dure.oracles.pytorch.functional import Functional, foreign_states


class Together:
    """The gradient of each client's batch at each client's own iterate.

    Args:
        functional: the module.
        loss: a name of `losses.OWN`, or `losses.Given`.
    """

    def __init__(self, functional: Functional, loss: Any):
        self.functional = self._f = functional
        self._loss = loss
        self._possible: bool | None = None
        self._graphs: dict[Any, Callable[..., Any]] = {}

    def possible(self, inputs: Tensor, targets: Tensor, batch: int) -> bool:
        """Whether the module can be vectorised: no buffers, no random numbers, nothing that `vmap` can't do."""
        if self._possible is None:
            f = self._f
            self._possible = (
                f.plain and not f.buffers and f.options.autocast is None and f.options.microbatch is None
                and self._tried(inputs, targets, batch)
            )  # fmt: skip
        return self._possible

    def _tried(self, inputs: Tensor, targets: Tensor, batch: int) -> bool:
        rows = torch.arange(batch) % len(inputs)
        given = [c[torch.stack([rows, rows])] for c in (inputs, targets)]
        weights = torch.full((2, batch), 1 / batch)
        y = torch.cat([p.detach().reshape(-1) for p in self._f.parameters]).expand(2, -1).clone()
        before = foreign_states()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # the answer must be the same in a program that makes errors of them
                if not self._separable(*(c[0] for c in given)):
                    return False
                finite = torch.isfinite(self.gradients(y, given, weights)[1]).all()
            # A graph would repeat what Python's or NumPy's generators said once.
            return bool(finite) and foreign_states() == before
        except Exception:
            self._graphs.clear()
            return False

    def _separable(self, inputs: Tensor, targets: Tensor) -> bool:
        if isinstance(self._loss, str):
            return True
        with torch.no_grad():
            separable: bool = self._loss.separable(self.functional.forward(inputs.clone()), targets)
        return separable

    @staticmethod
    def room(active: int, clients: int) -> int:
        """For how many clients a step with so many at work is computed: few different numbers, one graph for each."""
        bits = (active - 1).bit_length()
        return min(1 << (bits + bits % 2), clients)  # powers of four

    @staticmethod
    def joined(parts: list[Tensor]) -> Tensor:
        """Gradients of single tensors as (m, d)."""
        return torch.cat([part.reshape(len(part), -1) for part in parts], 1)

    def gradients(self, y: Tensor, batch: list[Tensor], weights: Tensor) -> tuple[list[Tensor], Tensor]:
        """(gradients (m, …) of each tensor, mean losses (m,)) at y (m, d) of batches (m, B, …), whose rows' weights
        in the mean are (m, B).
        """
        key = (len(y), *(tuple(c.shape[1:]) for c in batch))
        if key not in self._graphs:
            # On copies: tracing runs the module, which may change its inputs.
            self._graphs[key] = self._traced(y.clone(), [c.clone() for c in batch], weights)
        found: tuple[list[Tensor], Tensor] = self._graphs[key](self._f.views(y), *batch, weights)
        return found

    def _traced(self, y: Tensor, batch: list[Tensor], weights: Tensor) -> Callable[..., Any]:
        from torch.func import functional_call, grad_and_value, vmap
        from torch.fx.experimental.proxy_tensor import make_fx

        f = self._f
        names = [e.name for e in f.pieces]

        def loss(views: list[Tensor], inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
            given = inputs if inputs.is_floating_point() else inputs.long()
            outputs = functional_call(f.module, dict(zip(names, views, strict=True)), (given,))
            return (losses.rows(self._loss, outputs, targets) * weights).sum()

        f.module.train()
        all_clients = vmap(grad_and_value(loss))
        traced: Any = make_fx(all_clients)(f.views(y), *batch, weights)
        _shorten(traced)
        return _scripted(traced, f.views(y), [*(c.clone() for c in batch), weights])


def _shorten(traced: Any) -> None:
    """Leave out operations that do nothing; `vmap` leaves many, and small models cost by the operation."""
    aten = torch.ops.aten
    same_if_shape_is = (
        aten.expand.default,
        aten.view.default,
        aten._unsafe_view.default,
        aten._to_copy.default,
    )
    for node in list(traced.graph.nodes):
        if node.op != "call_function":
            continue
        source = node.args[0] if node.args else None
        old, new = getattr(source, "meta", {}).get("val"), node.meta.get("val")
        idle = node.target is aten.mul.Scalar and node.args[1] == 1
        if node.target in same_if_shape_is and old is not None and new is not None:
            idle = old.shape == new.shape and old.dtype == new.dtype and old.device == new.device
        if idle:
            node.replace_all_uses_with(source)
    traced.graph.eliminate_dead_code()
    traced.recompile()


class _Flat(torch.nn.Module):
    """The graph with plain arguments and a tuple of results."""

    def __init__(self, traced: Any):
        super().__init__()
        self.traced = traced

    def forward(self, *arguments: Tensor) -> Any:
        gradients, losses = self.traced(list(arguments[:-3]), *arguments[-3:])
        return (*gradients, losses)


def _scripted(traced: Any, views: list[Tensor], others: list[Tensor]) -> Callable[..., Any]:
    """The graph run by TorchScript, which takes half of Python's time; Python's where that doesn't work."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # TorchScript is to be replaced; until then nothing starts operations faster
            script: Any = torch.jit.trace(_Flat(traced).eval(), (*views, *others), check_trace=False)  # type: ignore[no-untyped-call]
            script = torch.jit.freeze(script)
    except Exception:
        return traced  # type: ignore[no-any-return]

    def run(views: list[Tensor], *others: Tensor) -> tuple[list[Tensor], Tensor]:
        *gradients, losses = script(*views, *others)
        return gradients, losses

    return run
