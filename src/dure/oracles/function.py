"""`oracle`: a client whose local work is any Python function."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dure.errors import ConfigError
from dure.oracles import metrics as m
from dure.oracles.host.bridge import Handle, ask, shape
from dure.oracles.host.function import FunctionHost, Predict, Shape, Train
from dure.oracles.host.hosted import Hosted, asked
from dure.oracles.layout import Layout, Variables
from dure.oracles.metrics import Metric
from dure.oracles.model import Model
from dure.oracles.problem import ClientPlan, Shared
from dure.oracles.task import Task

_LARGEST = float(np.finfo(np.float32).max)


def oracle(
    train: Any,
    *,
    init: Any,
    predict: Any = None,
    loss: Callable[[Any, Any], Array] = m.softmax_cross_entropy,
    metrics: tuple[Metric, ...] = (m.accuracy,),
    input: str = "x",
    target: str = "y",
    name: str | None = None,
) -> Task:
    """A task whose local work is a plain Python function, for methods that take what a client returns.

    The function runs in worker processes, one client after another in each. Methods that add terms to the local
    problem (FedProx, SCAFFOLD, …) or ask for gradients need to see inside, and refuse it.

    Args:
        train: `train(params, data, config)` → (params, n) or (params, n, loss). `params` as `init` has them, as
            NumPy arrays of the function's own; `data` {column: (n_k, …)}, read-only; `config` has "round", "client"
            and "seed" (an integer for this client and round). n must be n_k; loss is recorded: the mean over the
            clients that report one (not None), None where nobody does; with NaN the update is rejected.
        init: the parameters at the start: a dict or a list of float arrays, or one array.
        predict: `predict(params, inputs)` → outputs (B, …) for evaluation; without it nothing is evaluated.
        loss: (outputs, targets) → (B,), for evaluation.
        metrics: see `dure.oracles.metrics`.
        input: column of inputs.
        target: column of targets.
        name: for records; by default the function's name.

    Raises:
        ConfigError: `train` or `predict` can't be called, or `init` holds no float arrays or values that aren't
            finite.
    """
    for what, function in (("train", train), ("predict", predict)):
        if not (callable(function) or (what == "predict" and function is None)):
            raise ConfigError(f"{what}={function!r} is not a function.")
    form, variables = _shape_of(init)
    host = FunctionHost(train, predict, form)
    layout = Layout.of(variables, tie=False)
    outside = FunctionOutside(host, layout, Handle(host), predict, predict is not None)
    called = name or str(getattr(train, "__name__", "function"))
    model = Model(lambda key: variables, outside.apply, called, outside=outside)
    return Task(model, loss, metrics if predict else (), input, target, called)


def _shape_of(init: Any) -> tuple[Shape, Variables]:
    if isinstance(init, Mapping):
        if not all(isinstance(n, str) for n in init):
            raise ConfigError(f"init has the names {list(init)}: give texts, or a list of arrays.")
        kind, names = "dict", tuple(sorted(init))
        arrays = [np.asarray(init[n]) for n in names]
    elif isinstance(init, list | tuple):
        kind, names, arrays = "list", tuple(range(len(init))), [np.asarray(x) for x in init]
    else:
        kind, names, arrays = "array", (0,), [np.asarray(init)]
    if not arrays or any(a.dtype.kind != "f" for a in arrays):
        raise ConfigError(
            "init must hold the parameters as float arrays: a dict or a list of them, or one array; it holds "
            f"{', '.join(str(a.dtype) for a in arrays) or 'nothing'}."
        )
    wrong = [str(n) for n, a in zip(names, arrays, strict=True) if not np.abs(a).max(initial=0) <= _LARGEST]
    if wrong:
        where = "" if kind == "array" else f" in {', '.join(wrong)}"
        raise ConfigError(
            f"init has values{where} that are NaN, infinite or too large for float32: no training can start from them."
        )
    form = Shape(kind, names, tuple(a.shape for a in arrays), tuple(a.dtype.str for a in arrays))
    # Names that sort in the order of the vector.
    width = len(str(len(arrays)))
    keys = [str(n) if kind == "dict" else f"{i:0{width}}" for i, n in enumerate(names)]
    return form, Variables({k: np.asarray(a, np.float32) for k, a in zip(keys, arrays, strict=True)})


@dataclass(frozen=True, eq=False)
class FunctionOutside(Hosted):
    """Local work by a function; see `Outside`."""

    host: FunctionHost
    layout: Layout
    handle: Handle
    predict: Callable[..., Any] | None
    predicts: bool
    local_work: str = "own"
    clients: int | None = None
    measured: bool = False  # a trial would call the user's function more often than the rounds do
    frozen: Mapping[str, Any] = field(default_factory=dict)
    _outputs: dict[Any, tuple[int, ...]] = field(default_factory=dict)

    def bind(self, task: Any, columns: Mapping[str, Any], layout: Any, executor: str) -> "FunctionOutside":
        """See `Outside`."""
        if layout.shared_size != layout.size:
            raise ConfigError("A function trains all parameters together: it can't have private ones.")
        host = FunctionHost(self.host.train, self.predict, self.host.shape, dict(columns))
        return replace(self, host=host, handle=asked(host, executor))

    def solve(
        self,
        shared: Shared,
        client: ClientPlan,
        arrays: Mapping[str, Array],
        factor: Any,
        repeats: int,
        train: Any,
    ) -> Any:
        """See `Outside`."""
        plain = isinstance(factor, float) and factor == 1.0 and repeats == 1 and train is None
        if set(arrays) != {"start"} or not plain:
            extra = ", ".join(sorted(set(arrays) - {"start"})) or "steps of its own length"
            raise ConfigError(
                f"This method adds to the local problem ({extra}), and the local work is the function "
                f"{shared.task.name}, which can't be told. Use a method that takes any local work, such as FedAvg, "
                "FedAvgM, FedOpt, FedAdam, FedYogi or FedExP."
            )
        given = {
            "start": arrays["start"], "row": client.start, "size": client.size, "key": client.key,
            "client": client.client, "round": shared.round,
        }  # fmt: skip
        wanted = {"w": shape((shared.layout.size,)), "loss": shape(())}
        found = ask(self.handle, Train(), given, wanted)
        return found["w"], found["loss"], shared.floats, shared.ints

    def gain(self, shared: Any, prox: Any, factor: Any, steps: Array, longest: int) -> Any:
        """See `Outside`."""
        raise ConfigError(
            "This method divides by the displacement per unit of gradient (`gain`), which a function does not have. "
            "Use FedAvg or a server optimizer."
        )

    def apply(
        self, variables: Variables, inputs: Any, *, train: bool = False, key: Any = None, mask: Any = None
    ) -> tuple[Any, PyTree]:
        """The outputs that `predict` gives; there is no gradient.

        Raises:
            ConfigError: training mode, or there is no `predict`.
        """
        if train or self.predict is None:
            raise ConfigError(
                "This method asks for gradients, and the model is a function that has none to give. Use a method that "
                "takes any local work, such as FedAvg."
                if train
                else "There is no `predict` to evaluate with: give oracle(…, predict=…)."
            )
        w = self.layout.flatten_params(variables.params)
        inputs = jnp.asarray(inputs)
        outputs = shape((inputs.shape[0], *self._shape_for(inputs)))
        return ask(self.handle, Predict(), {"w": w, "inputs": inputs}, {"outputs": outputs})["outputs"], {}

    def _shape_for(self, inputs: Any) -> tuple[int, ...]:
        key = (inputs.shape[1:], str(inputs.dtype))
        if key not in self._outputs:
            assert self.predict is not None
            params = self.host.shape.unpack(np.zeros(self.layout.size, np.float32))
            example = np.zeros((2, *inputs.shape[1:]), inputs.dtype)
            found = np.shape(self.predict(params, example))
            if found[:1] != (2,):
                raise ConfigError(
                    f"predict made outputs of shape {found} of two inputs: one row for each is wanted."
                )
            self._outputs[key] = tuple(found[1:])
        return self._outputs[key]
