"""A PyTorch module with its tensors in flat vectors."""

import hashlib
import random
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dure.errors import ConfigError

#: Of a loss in float16, a power of four as the smaller ones are: multiplying by them is exact.
LARGEST_SCALE = 65536.0


class Piece(NamedTuple):
    """One stored tensor, as a layout has it (its `Entry`, without what only JAX needs)."""

    name: str
    shape: tuple[int, ...]
    group: str
    start: int
    stop: int


class Form(NamedTuple):
    """All stored tensors and the lengths of the vectors: d, b (float buffers), c (counters)."""

    pieces: tuple[Piece, ...]
    size: int
    buffer_size: int
    counter_size: int


@dataclass(frozen=True)
class Options:
    """How a module is run.

    Attributes:
        device: "cpu", "cuda", "cuda:1", "mps", ….
        autocast: "bfloat16" or "float16" for mixed precision, or None.
        microbatch: most rows of one forward and backward pass; a larger batch's gradient is accumulated. None: no
            limit.
        features: name of the submodule whose input is the representation, or None.
    """

    device: str = "cpu"
    autocast: str | None = None
    microbatch: int | None = None
    features: str | None = None

    def precision(self) -> AbstractContextManager[Any]:
        """Mixed precision where it is asked for."""
        if self.autocast is None:
            return nullcontext()
        return torch.autocast(torch.device(self.device).type, getattr(torch, self.autocast))


class Functional:
    """A module and the tensors of a layout.

    The module's parameters are views of one vector while it is at work, so that copying a model, adding a
    gradient and moving along it are single operations.

    Args:
        module: a copy of the user's module; it is changed.
        form: its tensors.
        options: how it is run.
    """

    def __init__(self, module: nn.Module, form: Form, options: Options):
        self.module = module.to(options.device)
        self.options = options
        self.size, self.buffer_size, self.counter_size = form.size, form.buffer_size, form.counter_size
        self.pieces = [e for e in form.pieces if e.group in ("shared", "private")]
        named = dict(self.module.named_parameters(remove_duplicate=False))
        self.parameters = [named[e.name] for e in self.pieces]
        #: Frozen parameters and their places in a vector (f,) of their own.
        self._still = [
            (named[e.name], e.start - form.size, e.stop - form.size)
            for e in form.pieces
            if e.group == "frozen"
        ]
        for parameter, *_ in self._still:
            parameter.requires_grad_(False)
        self._frozen: np.ndarray | None = None
        # By owner and name: a forward pass may assign a buffer anew.
        self.buffers = [
            (e, self.module.get_submodule(e.name.rpartition(".")[0]), e.name.rpartition(".")[2])
            for e in form.pieces
            if e.group in ("buffers", "counters")
        ]
        self.foreign: bool | None = None  # whether forward draws from Python's or NumPy's generators
        self.plain = all(p.dtype == torch.float32 for p in self.parameters)
        self._grad, self._scale = torch.zeros(form.size, device=options.device), 1.0

    # ----- vectors ------------------------------------------------------------------------------------

    def views(self, vector: Tensor) -> list[Tensor]:
        """The parameters' places in a vector (d,), or in rows of vectors (m, d)."""
        lead = vector.shape[:-1]
        return [vector[..., e.start : e.stop].view(*lead, *e.shape) for e in self.pieces]

    def put(self, vector: Tensor) -> None:
        """Let the module's parameters be this vector (d,): the same memory where dtypes allow it."""
        for parameter, view in zip(self.parameters, self.views(vector), strict=True):
            parameter.data = view if self.plain else view.to(parameter.dtype)

    def put_frozen(self, vector: np.ndarray) -> bool:
        """Give the frozen parameters these values (f,); whether they had others."""
        if self._frozen is not None and np.array_equal(self._frozen, vector):
            return False
        self._frozen = np.array(vector)
        for parameter, start, stop in self._still:
            parameter.data.copy_(as_tensor(self._frozen[start:stop]).view(parameter.shape))
        return True

    def put_buffers(self, floats: Tensor, ints: Tensor) -> None:
        """Give the module's buffers these values."""
        for e, owner, name in self.buffers:
            source = floats if e.group == "buffers" else ints
            getattr(owner, name).data.copy_(source[e.start : e.stop].view(e.shape))

    def take_buffers(self, floats: Tensor, ints: Tensor) -> None:
        """Write the module's buffers into these vectors."""
        for e, owner, name in self.buffers:
            into = floats if e.group == "buffers" else ints
            into[e.start : e.stop] = getattr(owner, name).detach().reshape(-1).to(into.dtype)

    def kept_buffers(self) -> list[Tensor]:
        """Copies of the buffers, for `return_buffers`."""
        return [getattr(owner, name).clone() for _, owner, name in self.buffers]

    def return_buffers(self, kept: list[Tensor]) -> None:
        """Give the buffers the values that they had."""
        for (_, owner, name), value in zip(self.buffers, kept, strict=True):
            getattr(owner, name).copy_(value)

    # ----- gradients ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Before a client's first `backward`: nothing that was found for another one counts."""
        self._scale = LARGEST_SCALE if self.options.autocast == "float16" else 1.0

    def backward(self, passes: Callable[[float], Any]) -> Any:
        """Let `passes(scale)` run forward and backward of a loss times `scale`; the gradients are here then.

        Where float16 is in use, small gradients would vanish in it: the scale is large there, and smaller for the
        rest of the client's steps when something overflows (Micikevicius et al., ICLR 2018). No step is lost over
        it: the same passes run again.
        """
        kept = self.kept_buffers() if self._scale > 1 else []
        while True:
            for parameter in self.parameters:
                parameter.grad = None  # the first gradient is taken and not added
            found = passes(self._scale)
            if self._scale == 1 or all(bool(g.isfinite().all()) for g in self.gradients()):
                return found
            self._scale /= 4
            self.return_buffers(kept)

    def gradients(self) -> list[Tensor]:
        """What `backward` has found for each tensor; zero where the outputs don't depend on it."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        found = [g.to_dense() if g.is_sparse else g for g in found]
        return found if self._scale == 1 else [g.float() / self._scale for g in found]

    def collect(self) -> Tensor:
        """The same in one vector (d,), which the next call overwrites."""
        for view, gradient in zip(self.views(self._grad), self.gradients(), strict=True):
            view.copy_(gradient)
        return self._grad

    # ----- passes -------------------------------------------------------------------------------------

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for a batch.

        Raises:
            ConfigError: the module returned no tensor.
        """
        with self.options.precision():
            found = self.module(as_inputs(self.module, inputs))
        return one_tensor(self.module, found)

    def represent(self, inputs: Tensor) -> Tensor:
        """What goes into the submodule that `Options.features` names, (B, p)."""
        return represented(self.module, self.options, lambda: self.forward(inputs))


def represented(module: nn.Module, options: Options, run: Callable[[], Any]) -> Tensor:
    """What goes into the submodule that `Options.features` names while `run` runs the module, (B, p)."""
    assert options.features is not None
    seen: list[Tensor] = []
    part = module.get_submodule(options.features)
    hook = part.register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(1)))
    try:
        run()
    finally:
        hook.remove()
    return seen[0]


def as_inputs(module: nn.Module, inputs: Tensor) -> Tensor:
    """Inputs in the kind of number that the module has: int64 for whole ones, else its parameters' dtype."""
    if not inputs.is_floating_point():
        return inputs.long()
    return inputs.to(next(module.parameters()).dtype)


def one_tensor(module: nn.Module, found: Any) -> Tensor:
    """What a module returned, which must be a tensor.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(found, Tensor):
        return found
    raise ConfigError(
        f"{type(module).__name__} returned a {type(found).__name__}; dure needs one tensor of outputs. Wrap the "
        "module in one that returns it."
    )


def seeded(key: np.ndarray, *address: int, foreign: bool = True) -> None:
    """Draw what follows at this address: independent of everything that was drawn before.

    `foreign`: also from Python's and NumPy's generators.
    """
    content = np.asarray(key, np.uint32).tobytes() + np.asarray(address, np.int64).tobytes()
    seed = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1
    if foreign:
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)  # torch.manual_seed notes the call stack for each GPU: 500 µs
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)


def foreign_states() -> tuple[Any, Any]:
    """Where Python's and NumPy's generators stand."""
    kind, numbers, place, *_ = np.random.get_state(legacy=True)  # noqa: NPY002  (what modules may draw from)
    return random.getstate(), (kind, np.asarray(numbers).tobytes(), place)


def as_tensor(array: np.ndarray) -> Tensor:
    """The array as a tensor of the same memory; copied if it is not in one piece. Nobody may write into it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that the array may be read-only
        return torch.from_numpy(np.ascontiguousarray(array))


def put_buffers(f: Functional, given: Mapping[str, np.ndarray]) -> None:
    """Give the module's buffers the values in a question; vectors without elements don't travel."""
    floats = as_tensor(given["floats"]) if f.buffer_size else torch.zeros(0)
    ints = as_tensor(given["ints"]) if f.counter_size else torch.zeros(0, dtype=torch.int32)
    f.put_buffers(floats.to(f.options.device), ints.to(f.options.device))


def take_buffers(f: Functional, wanted: Mapping[str, np.ndarray]) -> None:
    """Write the module's buffers into an answer."""
    floats, ints = torch.zeros(f.buffer_size), torch.zeros(f.counter_size, dtype=torch.int32)
    f.take_buffers(floats, ints)
    if f.buffer_size:
        wanted["floats"][...] = floats.numpy()
    if f.counter_size:
        wanted["ints"][...] = ints.numpy()
