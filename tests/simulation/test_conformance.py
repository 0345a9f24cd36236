"""What holds of the local problem holds whoever solves it: the same tests on every framework's oracle.

JAX and PyTorch are two implementations that share the formulas' source and no code for them, so that their
agreement after several rounds is a test of both.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch import nn

import dure
from problems import Q10, make_engine, q10

FRAMEWORKS = pytest.mark.parametrize("framework", ["jax", "torch"])
#: What other tests show of JAX's.
NEWER = pytest.mark.parametrize("framework", [pytest.param("jax", marks=pytest.mark.slow), "torch"])
RNG = np.random.default_rng(5)
SIZES = np.array([7, 12, 3, 9])
DATA = dure.Federated(
    {
        "x": RNG.normal(size=(SIZES.sum(), 6)).astype(np.float32),
        "y": RNG.integers(0, 3, SIZES.sum()).astype(np.int32),
    },
    np.concatenate([[0], np.cumsum(SIZES)]),
)
WEIGHTS = {
    "0.weight": 0.5 * RNG.normal(size=(5, 6)),
    "0.bias": 0.1 * RNG.normal(size=5),
    "2.weight": 0.5 * RNG.normal(size=(3, 5)),
    "2.bias": 0.1 * RNG.normal(size=3),
}
WEIGHTS = {name: value.astype(np.float32) for name, value in WEIGHTS.items()}
#: On one device, and without XLA's optimisations: most of the time would go into compiling.
LOCAL: dict[str, Any] = {"epochs": 2, "batch_size": 4, "devices": 1}


@pytest.fixture(autouse=True)
def quick() -> Any:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def module() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    net.load_state_dict({name: torch.from_numpy(value) for name, value in WEIGHTS.items()})
    return net


def hidden(params: Any, x: Any) -> Any:
    return jnp.tanh(jnp.dot(x, params["0.weight"].T, precision="highest") + params["0.bias"])


def outputs(params: Any, x: Any) -> Any:
    return jnp.dot(hidden(params, x), params["2.weight"].T, precision="highest") + params["2.bias"]


def network(framework: str) -> dure.Task:
    """The same multilayer perceptron, with the same start."""
    if framework == "torch":
        return dure.classification(dure.Model.from_torch(module(), features="2"))
    start = {name: jnp.asarray(value) for name, value in WEIGHTS.items()}
    return dure.classification(dure.Model.from_functions(lambda key: start, outputs, features=hidden))


class Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(5))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows @ self.x


def half_square(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return 0.5 * ((outputs - targets) ** 2).sum(-1)


def quadratic(framework: str) -> dure.Task:
    from problems import QUADRATIC

    return QUADRATIC if framework == "jax" else dure.Task(dure.Model.from_torch(Quadratic()), half_square)


def trained(task: dure.Task, algorithm: Any, rounds: int, data: Any = DATA, **settings: Any) -> np.ndarray:
    engine = make_engine(algorithm, task, data, **{**LOCAL, "optimizer": 0.2, **settings})
    for _ in range(rounds):
        result = engine.collect(engine.launch())
        assert set(result.status) == {"ok"}
    return np.asarray(engine.vector())


# ----- two implementations agree -----------------------------------------------------------------------------

METHODS: dict[str, Callable[[], Any]] = {
    "FedAvg": dure.FedAvg,
    "FedSGD": lambda: dure.FedSGD(learning_rate=0.3),
    "FedProx": lambda: dure.FedProx(mu=0.5),
    "SCAFFOLD": dure.Scaffold,
    "FedNova": dure.FedNova,
    "FedDyn": lambda: dure.FedDyn(alpha=0.2),
    "Mime (survey, variance reduction)": lambda: dure.Mime(beta=0.5),
    "FedSAM (another direction)": lambda: dure.FedSAM(rho=0.1),
    "FedLC (another loss)": lambda: dure.FedLC(3, tau=1.0),
    "MOON (a penalty)": lambda: dure.Moon(mu=1.0),
    "FedRep (private tensors in turns)": lambda: dure.FedRep(private=("2.*",)),
    "APFL (steps of its own)": lambda: dure.APFL(alpha=0.5),
}


#: One of each kind; the others take minutes together: `make test-slow`.
QUICK = ("SCAFFOLD", "Mime (survey, variance reduction)", "FedLC (another loss)")


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        *((name, "vectorised") for name in QUICK),
        *(pytest.param(n, "vectorised", marks=pytest.mark.slow) for n in METHODS if n not in QUICK),
        pytest.param("SCAFFOLD", "sequential", marks=pytest.mark.slow),
        ("FedSAM (another direction)", "sequential"),
    ],
)
def test_both_frameworks_train_the_same_model(name: str, schedule: str) -> None:
    found = [
        trained(network(framework), METHODS[name](), 3, schedule=schedule, sampler=dure.Uniform(count=3))
        for framework in ("jax", "torch")
    ]
    moved = np.abs(found[0] - np.concatenate([WEIGHTS[n].reshape(-1) for n in sorted(WEIGHTS)])).max()
    assert moved > 0.01 or name.startswith("FedRep")
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=2e-6)


OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "momentum": (dure.sgd(0.1, momentum=0.9),) * 2,
    "Nesterov": (dure.sgd(0.1, momentum=0.9, nesterov=True),) * 2,
    "decay and clipping": (dure.sgd(0.1, weight_decay=0.1, clip_norm=0.5),) * 2,
    "a schedule": (dure.sgd(optax.linear_schedule(0.3, 0.0, 6), round_decay=0.5),) * 2,
    "Adam": (
        dure.Optimizer(optax.adam, {"learning_rate": 0.05, "eps": 1e-2}),
        dure.Optimizer(torch.optim.Adam, {"lr": 0.05, "eps": 1e-2}),
    ),
    "torch's SGD": (
        dure.sgd(0.1, momentum=0.9, weight_decay=0.01),
        dure.Optimizer(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ),
    "optax in PyTorch": (dure.Optimizer(optax.rmsprop, {"learning_rate": 0.01}),) * 2,
}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("decay and clipping", "vectorised"),
        ("Adam", "vectorised"),
        ("Nesterov", "sequential"),
        *(
            pytest.param(name, "vectorised", marks=pytest.mark.slow)
            for name in OPTIMIZERS
            if name not in ("decay and clipping", "Adam")
        ),
        pytest.param("decay and clipping", "sequential", marks=pytest.mark.slow),
    ],
)
def test_both_frameworks_make_the_same_steps(name: str, schedule: str) -> None:
    found = [
        trained(network(framework), dure.FedProx(mu=0.3), 2, schedule=schedule, optimizer=optimizer)
        for framework, optimizer in zip(("jax", "torch"), OPTIMIZERS[name], strict=True)
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=5e-6)


# ----- fixed points and reductions, on each framework ---------------------------------------------------------


@FRAMEWORKS
def test_scaffold_reaches_the_optimum_of_the_quadratics(framework: str) -> None:
    settings: dict[str, Any] = {"steps": 10, "epochs": None, "batch_size": 1, "optimizer": 0.1}
    w = trained(quadratic(framework), dure.Scaffold(), 120, q10(), schedule="vectorised", **settings)
    np.testing.assert_allclose(w, Q10.optimum(Q10.uniform), rtol=0, atol=2e-5)


@pytest.mark.slow
@FRAMEWORKS
def test_fednova_reaches_the_optimum_with_unequal_steps_and_momentum(framework: str) -> None:
    """FedNova's fixed point is the optimum of Σ p_k F_k as η → 0; FedAvg's is weighted by the steps."""

    def unequal(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return 1 + ids % 4

    def distance(algorithm: Any) -> float:
        settings: dict[str, Any] = {"steps": 4, "epochs": None, "batch_size": np.inf, "work_limit": unequal}
        w = trained(
            quadratic(framework), algorithm, 250, q10(), optimizer=dure.sgd(0.01, momentum=0.5), **settings
        )
        return float(np.linalg.norm(w - Q10.optimum(Q10.uniform)))

    assert distance(dure.FedNova()) < 0.1 * distance(dure.FedAvg())


@FRAMEWORKS
def test_one_step_on_all_rows_is_fedsgd(framework: str) -> None:
    task, settings = network(framework), {"epochs": 1, "batch_size": np.inf}
    one = trained(task, dure.FedAvg(), 2, optimizer=0.3, **settings)
    np.testing.assert_allclose(one, trained(task, dure.FedSGD(learning_rate=0.3), 2), rtol=0, atol=1e-6)


@NEWER
def test_fedprox_without_its_term_is_fedavg_bit_for_bit(framework: str) -> None:
    task = network(framework)
    np.testing.assert_array_equal(trained(task, dure.FedProx(mu=0.0), 2), trained(task, dure.FedAvg(), 2))


@NEWER
def test_chunks_and_devices_change_rounding_only(framework: str) -> None:
    task = network(framework)
    alone = trained(task, dure.Scaffold(), 2, schedule="sequential")
    for settings in ({"schedule": "vectorised", "width": 2}, {"schedule": "vectorised", "devices": 2}):
        np.testing.assert_allclose(trained(task, dure.Scaffold(), 2, **settings), alone, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(trained(task, dure.Scaffold(), 2, schedule="sequential", devices=2), alone)


@pytest.mark.slow
def test_eager_is_compiled() -> None:
    task = network("torch")  # JAX's is in test_invariance
    eager = trained(task, dure.Mime(beta=0.5), 1, eager=True)
    np.testing.assert_allclose(eager, trained(task, dure.Mime(beta=0.5), 1), rtol=0, atol=1e-6)


def test_the_gain_of_a_torch_optimizer_is_its_response() -> None:
    """FedNova divides by it: under momentum and unequal work both frameworks must take the same server step."""

    def unequal(seed: int, round: int, ids: np.ndarray, steps: np.ndarray) -> np.ndarray:
        return np.maximum(steps - ids, 1)

    optimizers = dure.sgd(0.1, momentum=0.9), dure.Optimizer(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9})
    found = [
        trained(network(framework), dure.FedNova(), 2, optimizer=optimizer, work_limit=unequal)
        for framework, optimizer in zip(("jax", "torch"), optimizers, strict=True)
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=0, atol=5e-6)


def test_a_torch_optimizer_without_a_gain_is_refused_where_one_is_needed() -> None:
    with pytest.raises(dure.ConfigError, match="Adam does not have"):
        trained(network("torch"), dure.FedNova(), 1, optimizer=dure.Optimizer(torch.optim.Adam, {"lr": 0.1}))


def test_a_torch_optimizer_is_refused_where_jax_makes_the_steps() -> None:
    optimizer = dure.Optimizer(torch.optim.Adam, {"lr": 0.1})
    for task, algorithm in ((network("jax"), dure.FedAvg()), (network("torch"), dure.FedSAM())):
        with pytest.raises(dure.ConfigError, match=r"torch\.optim\.Adam can't be used here"):
            trained(task, algorithm, 1, optimizer=optimizer)


# ----- everywhere else ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gossip_distillation_and_personal_models_take_torch_modules() -> None:
    data = DATA.split(0.34)
    task = network("torch")
    gossip = [
        dure.decentralized.simulate(dure.decentralized.DPSGD(), t, DATA, dure.decentralized.ring(4), rounds=2)
        for t in (network("jax"), task)
    ]
    for name, value in gossip[0].state_dict().items():
        np.testing.assert_allclose(gossip[1].state_dict()[name], value, rtol=0, atol=2e-6)
    mixed = dure.distillation.simulate(
        dure.distillation.FedMD(), [task, network("jax")], data, DATA.columns["x"][:8],
        assignment=np.arange(4) % 2, rounds=1, optimizer=0.1,
    )  # fmt: skip
    assert mixed.state == "complete"
    personal = [
        dure.simulate(dure.Ditto(lam=0.1), t, data, rounds=2, batch_size=4).final["client_personal_loss_mean"]
        for t in (network("jax"), task)
    ]
    np.testing.assert_allclose(personal[1], personal[0], rtol=1e-5)
