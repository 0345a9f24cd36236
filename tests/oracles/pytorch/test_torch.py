"""PyTorch modules as models: what they hold, what they return, what goes wrong, against plain PyTorch loops."""

import os
import random
import signal
from typing import Any

import numpy as np
import optax
import pytest
import torch
from torch import nn

import dure
from dure.oracles.host.pool import pool
from problems import make_engine

RNG = np.random.default_rng(3)
SIZES = np.array([8, 12])
DATA = dure.Federated(
    {
        "x": RNG.normal(size=(SIZES.sum(), 4)).astype(np.float32),
        "y": RNG.integers(0, 3, SIZES.sum()).astype(np.int32),
    },
    np.concatenate([[0], np.cumsum(SIZES)]),
)
LOCAL: dict[str, Any] = {"epochs": 2, "batch_size": 4, "optimizer": 0.1, "devices": 1}


def network(*middle: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), *middle, nn.Linear(6, 3))


def trained(module: Any, algorithm: Any = None, rounds: int = 2, data: Any = DATA, **settings: Any) -> Any:
    task = module if isinstance(module, dure.Task) else dure.classification(module)
    engine = make_engine(algorithm or dure.FedAvg(), task, data, **{**LOCAL, **settings})
    for _ in range(rounds):
        engine.collect(engine.launch())
    return engine.state_dict()


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray], atol: float = 0.0) -> None:
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=0, atol=atol, err_msg=name)


# ----- state dicts ---------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """One tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.again = nn.Linear(4, 4, bias=False)
        self.again.weight = self.first.weight
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.again(torch.tanh(self.first(x))))


@pytest.mark.parametrize(
    "make",
    [lambda: network(nn.ReLU()), lambda: network(nn.BatchNorm1d(6), nn.ReLU()), lambda: Tied()],
    ids=["plain", "batch norm", "tied"],
)
def test_the_state_dict_loads_into_the_users_module(make: Any) -> None:
    module = make()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    found = trained(module)
    for name, value in module.state_dict().items():  # the user's own module was not touched
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    module.load_state_dict({name: torch.from_numpy(value) for name, value in found.items()}, strict=True)
    assert any(not torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_run_hands_the_state_dict_over(tmp_path: Any) -> None:
    module = network(nn.ReLU())
    run = dure.simulate(
        dure.FedAvg(), dure.classification(module), DATA, rounds=2, directory=tmp_path / "run", **LOCAL
    )
    found = {
        name: torch.from_numpy(value) for name, value in dure.Run.open(tmp_path / "run").state_dict().items()
    }
    module.load_state_dict(found, strict=True)
    same(run.state_dict(), {name: value.numpy() for name, value in found.items()})


def test_frozen_parameters_stay_and_do_not_travel() -> None:
    module = network(nn.ReLU())
    module[0].weight.requires_grad_(False)
    engine = make_engine(dure.FedAvg(), dure.classification(module), DATA, **LOCAL)
    assert engine.layout.size == 6 + 6 * 3 + 3
    engine.collect(engine.launch())
    found = engine.state_dict()
    np.testing.assert_array_equal(found["0.weight"], module[0].weight.detach().numpy())
    assert found.keys() == module.state_dict().keys()


def test_private_tensors_by_pattern() -> None:
    engine = make_engine(
        dure.FedPer(private=("2.*",)), dure.classification(network(nn.ReLU())), DATA, **LOCAL
    )
    assert engine.layout.shared_size == 4 * 6 + 6
    engine.collect(engine.launch())


# ----- against plain loops --------------------------------------------------------------------------------------


def by_hand(module: nn.Module, seed: int = 0, rounds: int = 2, rate: float = 0.1) -> dict[str, np.ndarray]:
    """FedAvg in a plain PyTorch loop, on dure's order of rows."""
    from dure.simulation.plan import Work, build

    start = {name: value.clone() for name, value in module.state_dict().items()}
    for round in range(1, rounds + 1):
        ids = np.arange(2)
        order, first, steps = build(Work(2, None, 4), seed, round, ids, DATA.offsets[:-1], SIZES, 4)
        found = []
        for k in ids:
            module.load_state_dict(start)
            module.train()
            for s in range(steps[k]):
                rows = order[first[k] + 4 * s : first[k] + 4 * (s + 1)]
                rows = rows[rows >= 0]
                x, y = (torch.from_numpy(DATA.columns[name][rows]) for name in ("x", "y"))
                module.zero_grad()
                nn.functional.cross_entropy(module(x), y.long()).backward()
                with torch.no_grad():
                    for p in module.parameters():
                        p -= rate * p.grad
            found.append({name: value.clone() for name, value in module.state_dict().items()})
        for name, value in start.items():
            a, b = found[0][name], found[1][name]
            mean = (
                (SIZES[0] * a + SIZES[1] * b) / SIZES.sum()
                if value.is_floating_point()
                else torch.maximum(a, b)
            )
            start[name] = mean
    return {name: value.numpy() for name, value in start.items()}


@pytest.mark.parametrize(
    "middle", [(nn.ReLU(),), (nn.BatchNorm1d(6), nn.Tanh())], ids=["plain", "batch norm"]
)
def test_fedavg_is_the_plain_loop(middle: Any) -> None:
    """Statistics of BatchNorm are averaged, its counter is the largest client's, short batches are as they are."""
    same(trained(network(*middle)), by_hand(network(*middle)), atol=1e-6)


def test_a_microbatch_changes_rounding_only() -> None:
    model = dure.Model.from_torch(network(nn.Tanh()), microbatch=3)
    same(
        trained(dure.classification(model), batch_size=8),
        trained(network(nn.Tanh()), batch_size=8),
        atol=1e-6,
    )


def test_mixed_precision_is_near() -> None:
    model = dure.Model.from_torch(network(nn.Tanh()), autocast="bfloat16")
    found, exact = trained(dure.classification(model)), trained(network(nn.Tanh()))
    assert max(np.abs(found[n] - exact[n]).max() for n in exact) > 0
    same(found, exact, atol=0.02)


class Times:
    """A loss so many times the cross entropy."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.factor * nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    "factor", [1e-6, pytest.param(100.0, marks=pytest.mark.slow)], ids=["would vanish", "would overflow"]
)
def test_gradients_in_float16_neither_vanish_nor_overflow(factor: float) -> None:
    """A loss so many times as large and a learning rate so many times smaller are the same training."""
    one = {"optimizer": 0.1 / factor, "eager": True}
    half = dure.Model.from_torch(network(nn.BatchNorm1d(6), nn.Tanh()), autocast="float16")
    found = trained(dure.Task(half, Times(factor)), **one)
    exact = trained(network(nn.BatchNorm1d(6), nn.Tanh()))
    assert max(np.abs(found[n] - exact[n]).max() for n in exact) > 0
    same(found, exact, atol=4e-3)


@pytest.mark.slow
def test_without_a_scale_they_would_vanish(monkeypatch: Any) -> None:
    monkeypatch.setattr("dure.oracles.pytorch.functional.LARGEST_SCALE", 1.0)
    half = dure.Model.from_torch(network(nn.Tanh()), autocast="float16")
    found = trained(dure.Task(half, Times(1e-6)), optimizer=1e5, eager=True)
    exact = trained(network(nn.Tanh()))
    with pytest.raises(AssertionError):
        same(found, exact, atol=4e-3)


def test_gradients_that_are_not_dense_or_not_there_are_right() -> None:
    """Of an embedding that makes sparse ones, and of a parameter that takes no part."""

    class Words(nn.Module):
        def __init__(self, sparse: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(5, 3, sparse=sparse)
            self.idle = nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.embedding(x).sum(1)

    words = dure.Federated(
        {"x": RNG.integers(0, 5, (20, 4)).astype(np.int32), "y": DATA.columns["y"]}, DATA.offsets
    )
    for algorithm in (dure.FedAvg(), dure.FedProx(mu=0.1)):
        found, exact = (
            trained(Words(sparse), algorithm, data=words, schedule="sequential") for sparse in (True, False)
        )
        same(found, exact, atol=1e-6)
        np.testing.assert_array_equal(found["idle"], 1.0)
        assert np.abs(found["embedding.weight"] - Words(True).embedding.weight.detach().numpy()).max() > 0.01


def test_half_precision_models_are_trained_through_float32() -> None:
    found = trained(network(nn.Tanh()).to(torch.bfloat16))
    same({n: np.asarray(v, np.float32) for n, v in found.items()}, trained(network(nn.Tanh())), atol=0.02)


def test_dropout_depends_on_its_address_only() -> None:
    """Not on the schedule, nor on which worker it was; another seed draws others."""
    first = trained(network(nn.Dropout(0.5)), schedule="sequential")
    same(trained(network(nn.Dropout(0.5)), schedule="vectorised"), first)
    same(trained(network(nn.Dropout(0.5)), schedule="sequential", devices=2), first)
    other = trained(network(nn.Dropout(0.5)), seed=1)
    assert any(not np.array_equal(other[name], first[name]) for name in first)


def test_a_function_that_makes_the_module_starts_from_the_seed() -> None:
    task = dure.classification(dure.Model.from_torch(lambda: nn.Linear(4, 3)))
    starts = [trained(task, rounds=0, seed=seed)["weight"] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


def mean_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets)


@pytest.mark.parametrize(
    "loss", [nn.CrossEntropyLoss(), pytest.param(mean_loss, marks=pytest.mark.slow)], ids=["module", "mean"]
)
def test_a_torch_loss_is_the_same_loss(loss: Any) -> None:
    task = dure.Task(dure.Model.from_torch(network(nn.Tanh())), loss)
    same(trained(task), trained(network(nn.Tanh())), atol=1e-6)
    data = DATA.split(0.25)
    runs = [
        dure.simulate(dure.FedAvg(), t, data, rounds=1, **LOCAL).final["client_loss_mean"]
        for t in (task, dure.classification(network(nn.Tanh())))
    ]
    np.testing.assert_allclose(runs[0], runs[1], rtol=1e-6)


WEIGHTS = torch.tensor([1.0, 5.0, 10.0])


def weighted(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, weight=WEIGHTS)


@pytest.mark.parametrize(
    "loss",
    [nn.CrossEntropyLoss(weight=WEIGHTS), pytest.param(weighted, marks=pytest.mark.slow)],
    ids=["module", "function"],
)
def test_a_loss_that_is_no_mean_of_examples_is_used_as_it_is(loss: Any) -> None:
    """Class weights: the batch's loss divides by the weights that are there, on every schedule."""
    task = dure.Task(dure.Model.from_torch(network(nn.Tanh())), loss)
    whole: dict[str, Any] = {"batch_size": 16, "epochs": 1, "rounds": 1}
    found = [trained(task, schedule=schedule, **whole) for schedule in ("sequential", "vectorised")]
    same(found[0], found[1])
    steps = []
    for k in range(2):
        module = network(nn.Tanh())
        rows = slice(*DATA.offsets[k : k + 2])
        x, y = (torch.from_numpy(DATA.columns[name][rows].copy()) for name in ("x", "y"))
        weighted(module(x), y.long()).backward()
        steps.append({n: (p - 0.1 * p.grad).detach().numpy() for n, p in module.named_parameters()})
    mean = {n: (SIZES[0] * steps[0][n] + SIZES[1] * steps[1][n]) / SIZES.sum() for n in steps[0]}
    same(found[0], mean, atol=1e-6)


def test_mse_of_a_column_of_outputs_is_elementwise() -> None:
    data = dure.Federated({"x": DATA.columns["x"], "y": DATA.columns["x"][:, 0].copy()}, DATA.offsets)
    torch.manual_seed(0)
    module = nn.Linear(4, 1)
    for schedule in ("sequential", "vectorised"):
        ours = trained(dure.regression(module), data=data, schedule=schedule)
        task = dure.Task(dure.Model.from_torch(module), nn.MSELoss())
        same(trained(task, data=data, schedule=schedule), ours, atol=1e-6)


class Halves(nn.Module):
    """Halves its input, in place or not."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.in_place = nn.Linear(4, 3), in_place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.mul_(0.5) if self.in_place else x * 0.5)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": np.inf},
        pytest.param({"algorithm": dure.FedLin(), "schedule": "vectorised"}, marks=pytest.mark.slow),
    ],
)
def test_a_module_may_change_its_input_in_place(settings: dict[str, Any]) -> None:
    found = [trained(Halves(in_place), **settings) for in_place in (True, False)]
    same(found[0], found[1], atol=1e-6)


class Running(nn.Module):
    """A running mean by hand: assigned anew, or changed in place."""

    def __init__(self, assigns: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.assigns = nn.Linear(4, 3), assigns
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            new = 0.9 * self.mean + 0.1 * x.mean(0).detach()
            if self.assigns:
                self.mean = new
            else:
                self.mean.copy_(new)
        return self.linear(x - self.mean)


def test_buffers_may_be_assigned_anew() -> None:
    found = [trained(Running(assigns)) for assigns in (True, False)]
    assert np.abs(found[0]["mean"]).max() > 0
    same(found[0], found[1], atol=1e-7)


class Coin(nn.Module):
    """Stochastic depth by Python's generator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(x + self.a(x) if random.random() < 0.5 else x)


def test_what_python_draws_depends_on_its_address_too() -> None:
    first = trained(Coin(), schedule="sequential")
    same(trained(Coin(), schedule="vectorised"), first)
    same(trained(Coin(), schedule="sequential", devices=2), first)


class Drop(nn.Module):
    """Dropout as a function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(nn.functional.dropout(x, 0.5, self.training))


def test_single_gradients_draw_at_their_address() -> None:
    found = [trained(Drop(), dure.FedSAM(rho=0.1)) for _ in range(2)]
    same(found[0], found[1])


class Clipped(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 8.0)
        return super().step(closure)


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Clipped, "Clipped does not treat every element by itself"),
        (torch.optim.Adafactor, "Adafactor does not treat every element by itself"),
        (torch.optim.LBFGS, "The optimizer LBFGS can't make a step"),
    ],
)
def test_an_optimizer_that_looks_at_whole_tensors_is_refused(factory: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        trained(network(nn.Tanh()), optimizer=dure.Optimizer(factory, {"lr": 0.1}))


@pytest.mark.slow
def test_a_schedule_is_any_function_of_the_step() -> None:
    """Python's `if` on the step's number, against optax's steps: 0.2, 0.2, 0.05, …; also where `gain` is asked for."""

    def drops(step: int) -> float:
        return 0.2 if step < 2 else 0.05

    by_torch = dure.Optimizer(torch.optim.SGD, {"lr": drops})
    by_optax = dure.sgd(optax.piecewise_constant_schedule(0.2, {2: 0.25}))
    for algorithm in (dure.FedAvg(), dure.FedNova()):
        found = [trained(network(nn.Tanh()), algorithm, optimizer=o) for o in (by_torch, by_optax)]
        same(found[0], found[1], atol=1e-6)


# ----- what goes wrong ------------------------------------------------------------------------------------------


class Fussy(nn.Module):
    """Fails on rows of client 1, which has a mark in its first feature."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.noise = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x[:, 0] > 50).any():
            raise ValueError("I don't like this row")
        return self.noise(self.linear(x))


MARKED = dure.Federated(
    {**DATA.columns, "x": np.where(np.arange(20)[:, None] < 8, DATA.columns["x"], 99)}, DATA.offsets
)


def test_a_client_that_raises_is_named_with_its_traceback() -> None:
    for schedule in ("sequential", "vectorised"):
        engine = make_engine(dure.FedAvg(), dure.classification(Fussy()), MARKED, schedule=schedule, **LOCAL)
        with pytest.raises(
            dure.RunError, match=r"Client 1 failed in round 1 \(solve\): ValueError: I don't like"
        ) as e:
            engine.collect(engine.launch())
        assert "in forward" in e.value.__notes__[0]


def test_a_client_that_raises_can_be_set_aside() -> None:
    engine = make_engine(
        dure.FedAvg(), dure.classification(Fussy()), MARKED, client_errors="set aside", **LOCAL
    )
    result = engine.collect(engine.launch())
    assert result.status == ["ok", "raised ValueError: I don't like this row"]
    assert result.accepted == 1


class Bad(nn.Module):
    def __init__(self, what: Any) -> None:
        super().__init__()
        self.linear, self.what = nn.Linear(4, 3), what

    def forward(self, x: torch.Tensor) -> Any:
        return self.what(self.linear(x))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Linear(5, 3), r"Linear fails on inputs of shape \(B, 4\) and dtype float32: RuntimeError"),
        (Bad(lambda y: (y, y)), "returned a tuple; dure needs one tensor"),
        (Bad(lambda y: y.sum()), "the first dimension must be the inputs'"),
    ],
)
def test_a_module_that_does_not_fit_is_refused_before_the_first_round(module: Any, message: str) -> None:
    with pytest.raises(dure.ConfigError, match=message):
        make_engine(dure.FedAvg(), dure.classification(module), DATA, **LOCAL)


def test_nothing_to_train_no_module_and_no_such_part() -> None:
    frozen = nn.Linear(4, 3).requires_grad_(False)
    for thing, message in (
        (frozen, "nothing to train"),
        (3, "neither a torch.nn.Module"),
        (lambda: 3, "returned a int"),
    ):
        with pytest.raises(dure.ConfigError, match=message):
            dure.Model.from_torch(thing)
    with pytest.raises(
        dure.ConfigError, match="features='head' is no part of Sequential; its parts: 0, 1, 2"
    ):
        dure.Model.from_torch(network(nn.ReLU()), features="head")


def wrong_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return outputs[:, :1].T @ outputs[:, :1]


def test_a_loss_of_another_shape_is_refused() -> None:
    task = dure.Task(dure.Model.from_torch(network(nn.ReLU())), wrong_loss)
    engine = make_engine(dure.FedAvg(), task, DATA, **LOCAL)
    with pytest.raises(dure.RunError, match=r"wrong_loss returned shape \(1, 1\)"):
        engine.collect(engine.launch())


class Moody:
    """A loss that fails on examples one by one, as evaluation asks for them."""

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(outputs) == 1:
            raise ValueError("not alone")
        return nn.functional.cross_entropy(outputs, targets)


def test_a_loss_that_fails_in_evaluation_is_never_silent() -> None:
    task = dure.Task(dure.Model.from_torch(network(nn.Tanh())), Moody())
    with pytest.raises(dure.RunError, match="ValueError: not alone"):
        dure.simulate(dure.FedAvg(), task, DATA.split(0.4), rounds=1, **{**LOCAL, "batch_size": 20})


def test_a_worker_killed_between_rounds_changes_nothing() -> None:
    settings = {**LOCAL, "schedule": "sequential"}
    engine = make_engine(dure.FedAvg(), dure.classification(network(nn.Tanh())), DATA, **settings)
    engine.collect(engine.launch())
    for process in pool().processes():
        os.kill(process, signal.SIGKILL)
    assert set(engine.collect(engine.launch()).status) == {"ok"}
    same(engine.state_dict(), trained(network(nn.Tanh()), schedule="sequential"))


class Suicidal(nn.Module):
    """Kills the process that trains it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.linear(x)


def test_a_model_that_kills_its_worker_does_not_hang_the_run() -> None:
    engine = make_engine(dure.FedAvg(), dure.classification(Suicidal()), DATA, schedule="vectorised", **LOCAL)
    with pytest.raises(dure.RunError, match="2 worker processes died over the same question"):
        engine.collect(engine.launch())


# ----- resume -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "middle", [pytest.param(nn.Tanh(), marks=pytest.mark.slow), nn.Dropout(0.5)], ids=["plain", "dropout"]
)
def test_a_resumed_run_equals_an_uninterrupted_one(middle: nn.Module, tmp_path: Any) -> None:
    def run(name: str, rounds: int, **keywords: Any) -> dict[str, np.ndarray]:
        task = dure.classification(network(middle))
        where = tmp_path / name
        done = dure.simulate(
            dure.Scaffold(),
            task,
            DATA,
            rounds=rounds,
            directory=where,
            schedule="vectorised",
            **LOCAL,
            **keywords,
        )
        return done.state_dict()

    whole = run("whole", 4)
    run("parts", 2)
    same(run("parts", 4, resume=True), whole)
