"""Averages of low-rank adapters: what is exact is exact, what isn't is off by what the formula says."""

import importlib.util
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure import keys
from dure.algorithms.base import Algorithm, RoundInfo
from dure.channel import wire
from dure.errors import ConfigError
from dure.oracles.adapter import Adapter
from dure.oracles.layout import Layout, Variables
from problems import make_engine

EXACT = [dure.FedExLoRA(), dure.FLoRA()]
ALL = [dure.FedIT(), dure.FFALoRA(), dure.FlexLoRA(), *EXACT]
NAMED: Any = {"ids": lambda page: type(page).__name__}

# ----- pages alone, in float64 -----------------------------------------------------------------------------


class Matrix:
    """One weight W with an adapter, as a page sees it; vectors are (A, B) and then W."""

    def __init__(self, inputs: int, outputs: int, rank: int, alpha: float, inputs_last: bool = True):
        self.inputs, self.outputs, self.rank, self.scale = inputs, outputs, rank, alpha / rank
        self.inputs_last = inputs_last
        shape = (outputs, inputs) if inputs_last else (inputs, outputs)
        self.adapter = Adapter(
            "w", "w", "w.lora_A", "w.lora_B", shape, inputs, outputs, rank, self.scale, inputs_last
        )
        shapes = {"w": shape, "w.lora_A": (rank, inputs), "w.lora_B": (outputs, rank)}
        self.layout = Layout.of(
            Variables({n: np.zeros(s, np.float32) for n, s in shapes.items()}), frozen="w"
        )

    def vector(self, a: Any, b: Any) -> np.ndarray:
        return np.concatenate([np.ravel(a), np.ravel(b)]).astype(np.float64)

    def factors(self, vector: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        n = self.rank * self.inputs
        return vector[:n].reshape(self.rank, self.inputs), vector[n:].reshape(self.outputs, self.rank)

    def added(self, vector: np.ndarray) -> np.ndarray:
        """s B A as W is shaped, by NumPy."""
        a, b = self.factors(vector)
        return self.scale * (b @ a if self.inputs_last else (b @ a).T)

    def effective(self, whole: np.ndarray) -> np.ndarray:
        d = self.layout.size
        return whole[d:].reshape(self.adapter.shape) + self.added(whole[:d])


def averaged(
    page: Algorithm, on: Matrix, start: Any, weight: Any, sent: list[Any], p: Any, number: int = 1
) -> Any:
    """The server's state after clients came back with these vectors (A, B)."""
    with jax.enable_x64(True):
        bound = page.bind([on.adapter], on.layout)
        whole = jnp.concatenate([jnp.asarray(start), jnp.asarray(weight).reshape(-1)])
        server = bound.init(whole if bound.changes_frozen else jnp.asarray(start))
        return continued(bound, server, start, sent, p, number)


def continued(bound: Algorithm, server: Any, start: Any, sent: list[Any], p: Any, number: int) -> Any:
    with jax.enable_x64(True):
        server = jax.tree.map(jnp.asarray, server)
        received = [bound.receive(dure.Update(jnp.asarray(y - start))) for y in sent]
        mean = jax.tree.map(lambda *x: sum(pk * xk for pk, xk in zip(p, x, strict=True)), *received)
        one = jnp.asarray(1.0)
        info = RoundInfo(jnp.int32(number), jnp.int32(len(sent)), one, one)
        return jax.tree.map(np.asarray, bound.apply(server, mean, info))


def model(page: Algorithm, on: Matrix, server: Any, weight: Any) -> np.ndarray:
    """The weight that the server's model computes with."""
    with jax.enable_x64(True):
        found = np.asarray(page.bind([on.adapter], on.layout).model(jax.tree.map(jnp.asarray, server)))
    return on.effective(found if len(found) > on.layout.size else np.concatenate([found, np.ravel(weight)]))


@pytest.mark.parametrize(
    ("page", "error"),
    [(dure.FedIT(), 0.5), (dure.FedExLoRA(), 0.0), (dure.FLoRA(), 0.0), (dure.FlexLoRA(), 0.0)],
    **NAMED,
)
def test_the_references_two_clients(page: Algorithm, error: float) -> None:
    """B_1 = e1, A_1 = e1ᵀ and B_2 = e2, A_2 = e2ᵀ: the mean of the products is ½ I; FedIT's is ¼ · ones."""
    on = Matrix(2, 2, 2, alpha=2)  # rank 2, of which each client uses one, so that FlexLoRA can hold ½ I
    e = np.eye(2)
    clients = [on.vector(np.outer(e[0], e[k]), np.outer(e[k], e[0])) for k in range(2)]
    found = model(page, on, averaged(page, on, np.zeros(8), np.zeros(4), clients, (0.5, 0.5)), np.zeros(4))
    assert np.linalg.norm(found - e / 2) == pytest.approx(error, abs=1e-12)
    if error:
        np.testing.assert_allclose(found, np.full((2, 2), 0.25), atol=1e-12)


def test_a_common_a_makes_the_average_exact() -> None:
    """FFA-LoRA on the same clients: A is e1 + e2 for both, and only B differs."""
    on, e = Matrix(2, 2, 1, alpha=1), np.eye(2)
    a = e.sum(0)
    with jax.enable_x64(True):
        start = jnp.zeros(2)
        received = [jnp.asarray(e[k]) - start for k in range(2)]
        one = jnp.asarray(1.0)
        mean = dure.Update(sum(received) / 2)
        new = dure.FFALoRA().apply(dure.Server(start), mean, RoundInfo(jnp.int32(1), jnp.int32(2), one, one))
    found = on.added(on.vector(a, np.asarray(new.w)))
    np.testing.assert_allclose(found, (np.outer(e[0], a) + np.outer(e[1], a)) / 2, atol=1e-12)


RNG = np.random.default_rng(7)
P = np.array([0.5, 0.3, 0.2])
WRONG: dict[str, Callable[[Matrix, np.ndarray, list[np.ndarray]], np.ndarray]] = {
    "residual left out": lambda on, w, ys: w + on.added(sum(p * y for p, y in zip(P, ys, strict=True))),
    "α/r missing": lambda on, w, ys: w + sum(p * on.added(y) for p, y in zip(P, ys, strict=True)) / on.scale,
    "weights not by examples": lambda on, w, ys: w + sum(on.added(y) for y in ys) / 3,
    "W left out": lambda on, w, ys: 0 * w + sum(p * on.added(y) for p, y in zip(P, ys, strict=True)),
}


@pytest.mark.parametrize("page", EXACT, **NAMED)
@pytest.mark.parametrize("inputs_last", [True, False])
@pytest.mark.parametrize("square", [True, False])
def test_the_server_has_the_mean_of_the_products(page: Algorithm, inputs_last: bool, square: bool) -> None:
    """W + (α/r) Σ p_k B_k A_k after a round, from factors that are not zero, to the rounding of float64."""
    on = Matrix(5, 5 if square else 3, 2, alpha=5, inputs_last=inputs_last)
    start = RNG.normal(size=on.layout.size)
    weight = RNG.normal(size=on.adapter.shape)
    ys = [start + RNG.normal(size=start.shape) for _ in P]
    right = weight + sum(p * on.added(y) for p, y in zip(P, ys, strict=True))
    found = model(page, on, averaged(page, on, start, weight, ys, P), weight)
    np.testing.assert_allclose(found, right, atol=1e-12)
    for name, wrong in WRONG.items():
        assert np.abs(wrong(on, weight, ys) - found).max() > 0.1, name
    if square:
        transposed = weight + sum(p * on.added(y).T for p, y in zip(P, ys, strict=True))
        assert np.abs(transposed - found).max() > 0.1


def test_fedit_is_off_by_the_covariance_of_the_factors() -> None:
    on = Matrix(4, 3, 2, alpha=3)
    start, weight = RNG.normal(size=on.layout.size), RNG.normal(size=(3, 4))
    ys = [start + RNG.normal(size=start.shape) for _ in P]
    page = dure.FedIT()
    found = model(page, on, averaged(page, on, start, weight, ys, P), weight)
    right = weight + sum(p * on.added(y) for p, y in zip(P, ys, strict=True))
    mean = sum(p * y for p, y in zip(P, ys, strict=True))
    covariance = sum(p * on.added(y - mean) for p, y in zip(P, ys, strict=True))
    np.testing.assert_allclose(right - found, covariance, atol=1e-12)
    assert np.abs(covariance).max() > 0.1


def test_flexlora_is_the_nearest_of_its_rank() -> None:
    """Eckart–Young: what is left has the singular values behind the r-th."""
    on = Matrix(6, 4, 2, alpha=3, inputs_last=False)
    start, weight = RNG.normal(size=on.layout.size), np.zeros((6, 4))
    ys = [start + RNG.normal(size=start.shape) for _ in P]
    page = dure.FlexLoRA()
    found = model(page, on, averaged(page, on, start, weight, ys, P), weight)
    right = sum(p * on.added(y) for p, y in zip(P, ys, strict=True))
    values = np.linalg.svd(right, compute_uv=False)
    left = np.linalg.svd(right - found, compute_uv=False)
    np.testing.assert_allclose(left, [*values[2:], 0, 0], atol=1e-12)
    assert values[2] > 0.01


def test_flexlora_components_without_a_singular_value_begin_anew() -> None:
    """Where the mean product has rank 1 of 3, A and B of the others must not both be zero: they would never move."""
    on = Matrix(6, 4, 3, alpha=3)
    start = RNG.normal(size=on.layout.size)
    one = on.vector(np.eye(3)[0][:, None] * RNG.normal(size=6), RNG.normal(size=(4, 1)) * np.eye(3)[0])
    page = dure.FlexLoRA()
    for sent, rank in (([one, 2 * one, one], 1), ([0 * start] * 3, 0)):
        states = [averaged(page, on, start, np.zeros((4, 6)), sent, P, number) for number in (1, 2)]
        right = sum(p * on.added(y) for p, y in zip(P, sent, strict=True))
        for state in states:
            np.testing.assert_allclose(on.added(state.w), right, atol=1e-12)
            a, b = on.factors(state.w)
            assert not b[:, rank:].any()
            assert np.abs(a[rank:]).min() > 0
            assert np.linalg.matrix_rank(a) == 3
        assert np.abs(on.factors(states[0].w)[0][rank:] - on.factors(states[1].w)[0][rank:]).min() > 0


def test_flora_begins_anew_and_counts_nothing_twice() -> None:
    on = Matrix(4, 3, 2, alpha=3)
    start, weight = RNG.normal(size=on.layout.size), RNG.normal(size=(3, 4))
    ys = [start + RNG.normal(size=start.shape) for _ in P]
    page = dure.FLoRA()
    first = averaged(page, on, start, weight, ys, P)
    a, b = on.factors(first.w)
    assert not b.any()
    assert np.abs(a - on.factors(start)[0]).min() > 0
    ys2 = [first.w + RNG.normal(size=start.shape) for _ in P]
    bound = page.bind([on.adapter], on.layout)
    second = continued(bound, first, first.w, ys2, P, 2)
    right = weight + sum(p * (on.added(y) + on.added(y2)) for p, y, y2 in zip(P, ys, ys2, strict=True))
    np.testing.assert_allclose(model(page, on, second, weight), right, atol=1e-12)
    assert np.abs(on.factors(second.w)[0] - a).min() > 0
    # Factors that were merged and kept would count twice.
    kept = right + on.added(sum(p * y for p, y in zip(P, ys2, strict=True)))
    assert np.abs(kept - right).max() > 0.1


def test_new_factors_are_normal_with_variance_one_over_inputs() -> None:
    adapter = Matrix(400, 3, 50, alpha=1).adapter
    a = np.asarray(adapter.fresh(jax.random.key(1)))
    assert a.shape == (50, 400)
    assert a.std() == pytest.approx(1 / 20, rel=0.02)  # 20,000 draws: 0.5 % is a standard deviation
    assert abs(a.mean()) < 4 / 20 / math.sqrt(a.size)


# ----- through the engine ----------------------------------------------------------------------------------

SIZES = np.array([4, 7, 2])
X = RNG.normal(size=(SIZES.sum(), 4)).astype(np.float32)
Y = RNG.normal(size=(SIZES.sum(), 3)).astype(np.float32)
DATA = dure.Federated({"x": X, "y": Y}, np.concatenate([[0], np.cumsum(SIZES)]))
W0 = RNG.normal(size=(4, 3)).astype(np.float32)
BASE = dure.Model.from_functions(
    lambda key: {"w": jnp.asarray(W0)}, lambda p, x: jnp.dot(x, p["w"], precision="highest"), name="matrix"
)
RANK, ALPHA = 2, 3.0
LORA = dure.lora(BASE, targets="w", rank=RANK, alpha=ALPHA)
TASK = dure.Task(LORA, lambda outputs, y: 0.5 * ((outputs - y) ** 2).sum(-1))
RATE, STEPS = 0.05, 3
LOCAL: dict[str, Any] = {"steps": STEPS, "batch_size": math.inf, "optimizer": RATE, "devices": 1}
S = ALPHA / RANK


def engine(page: Algorithm, **changed: Any) -> Any:
    return make_engine(page, TASK, DATA, **{**LOCAL, "schedule": "sequential", **changed})


def descended(
    a: np.ndarray, b: np.ndarray, w: np.ndarray, rows: slice, fixed: bool
) -> tuple[np.ndarray, np.ndarray]:
    """A client's gradient descent by hand: with G = ∇_W F, ∇A = s Bᵀ Gᵀ and ∇B = s Gᵀ Aᵀ for W (inputs, outputs)."""
    x, y = X[rows].astype(np.float64), Y[rows].astype(np.float64)
    for _ in range(STEPS):
        g = x.T @ (x @ (w + S * (b @ a).T) - y) / len(x)
        step_a, step_b = S * b.T @ g.T, S * g.T @ a.T
        a, b = a - (0 if fixed else RATE) * step_a, b - RATE * step_b
    return a, b


def by_hand(page: Algorithm, whole: dict[str, np.ndarray]) -> tuple[Any, np.ndarray]:
    """(clients' factors, W + s Σ p_k B_k A_k) after a round from a state dict."""
    a, b, w = (whole[n].astype(np.float64) for n in ("w.lora_A", "w.lora_B", "w"))
    ends = np.cumsum(SIZES)
    factors = [
        descended(a, b, w, slice(end - n, end), isinstance(page, dure.FFALoRA))
        for n, end in zip(SIZES, ends, strict=True)
    ]
    p = SIZES / SIZES.sum()
    return factors, w + S * sum(pk * (bk @ ak).T for pk, (ak, bk) in zip(p, factors, strict=True))


@pytest.mark.parametrize("page", [dure.FFALoRA(), *EXACT], **NAMED)
def test_rounds_by_hand(page: Algorithm) -> None:
    """Each round's model is W + s Σ p_k B_k A_k of clients that descended by hand from the one before."""
    running = engine(page)
    for _ in range(3):
        _, right = by_hand(page, running.state_dict())
        assert running.collect(running.launch()).status == ["ok"] * 3
        state = running.state_dict()
        merged = dure.merge_lora(LORA, state)
        np.testing.assert_allclose(merged["w"], right, atol=2e-6)
        assert set(merged) == {"w"}
        assert np.abs(right - W0).max() > 0.05
    if isinstance(page, dure.FFALoRA):
        np.testing.assert_array_equal(state["w.lora_A"], engine(page).state_dict()["w.lora_A"])
        np.testing.assert_array_equal(state["w"], W0)
    else:
        assert np.abs(state["w"] - W0).max() > 1e-4
    # What is evaluated is the same model.
    found = running.task.model.apply(running.variables(), X, train=False, key=None, mask=None)[0]
    np.testing.assert_allclose(found, X @ merged["w"], atol=1e-5)


def test_fedit_by_hand_and_its_error() -> None:
    page = dure.FedIT()
    running = engine(page)
    for _ in range(2):
        factors, right = by_hand(page, running.state_dict())
        running.launch()
    p = SIZES / SIZES.sum()
    state = running.state_dict()
    for i, name in enumerate(("w.lora_A", "w.lora_B")):
        np.testing.assert_allclose(
            state[name], sum(pk * f[i] for pk, f in zip(p, factors, strict=True)), atol=2e-6
        )
    np.testing.assert_array_equal(state["w"], W0)
    assert np.abs(dure.merge_lora(LORA, state)["w"] - right).max() > 1e-3


@pytest.mark.parametrize("page", [dure.FedIT(), dure.FlexLoRA(), *EXACT], **NAMED)
def test_one_client_is_plain_training(page: Algorithm) -> None:
    alone = dure.Federated({"x": X, "y": Y}, np.array([0, len(X)]))
    running = make_engine(page, TASK, alone, **LOCAL)
    start = running.state_dict()
    running.launch()
    a, b = descended(
        start["w.lora_A"].astype(np.float64), np.zeros((3, RANK)), W0.astype(np.float64), slice(None), False
    )
    np.testing.assert_allclose(
        dure.merge_lora(LORA, running.state_dict())["w"], W0 + S * (b @ a).T, atol=2e-6
    )


#: The last of the three has all that the others have.
FEW = pytest.mark.parametrize(
    "page",
    [*(pytest.param(p, marks=pytest.mark.slow) for p in (dure.FFALoRA(), EXACT[0])), EXACT[1]],
    **NAMED,
)


@FEW
def test_alone_and_in_chunks(page: Algorithm) -> None:
    found = []
    for settings in ({}, {"schedule": "vectorised", "width": 2}):  # eager: tests/simulation/test_methods.py
        running = engine(page, **settings)
        for _ in range(2):
            running.launch()
        found.append(dure.merge_lora(LORA, running.state_dict())["w"])
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=1e-5)


@pytest.mark.parametrize("page", ALL, **NAMED)
def test_bytes_are_the_adapters_and_what_changed(page: Algorithm) -> None:
    """The base travels to nobody; its adapted weights come down where the server changes them."""
    a, b, w = RANK * 4, RANK * 3, 4 * 3
    running = engine(page)
    trained = b if isinstance(page, dure.FFALoRA) else a + b
    down = {"w": np.zeros(trained, np.float32)}
    if page in EXACT:
        down["weights"] = np.zeros(w, np.float32)
    assert running.uplink_message == wire.size({"delta": np.zeros(trained, np.float32)})
    assert running.downlink_message == wire.size(down)


class Stop(Exception):
    pass


@FEW
def test_resumed_bit_for_bit(page: Algorithm, tmp_path: Path) -> None:
    data = dure.Federated({"x": X, "y": Y}, DATA.offsets, test={"x": X, "y": Y})

    def run(name: str, **more: Any) -> Any:
        return dure.simulate(
            page, TASK, data, rounds=5, directory=tmp_path / name, checkpoint_every=2, lost_uploads=0.2,
            seed=3, schedule="sequential", **{**LOCAL, **more},
        )  # fmt: skip

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Stop

    whole = run("whole")
    with pytest.raises(Stop):
        run("parts", on_round=stop)
    run("parts", resume=True)
    for file in ("rounds.jsonl", "participation.jsonl", "model.safetensors"):
        assert (tmp_path / "parts" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    merged = dure.merge_lora(LORA, dure.Run.open(tmp_path / "whole").state_dict())["w"]
    np.testing.assert_allclose(
        0.5 * ((X @ merged - Y) ** 2).sum(-1).mean(), whole.final["test_loss"], rtol=1e-5
    )


def test_another_base_is_another_experiment(tmp_path: Path) -> None:
    def run(model: dure.Model, **more: Any) -> Any:
        task = dure.Task(model, TASK.loss)
        return dure.simulate(
            dure.FedExLoRA(), task, DATA, rounds=1, directory=tmp_path / "run", **LOCAL, **more
        )

    run(LORA)
    other = dure.lora(BASE, targets="w", rank=RANK, alpha=ALPHA, weights={"w": W0 + 1})
    with pytest.raises(ConfigError, match=r"model\.frozen was"):
        run(other, resume=True)


def test_another_alpha_is_another_experiment(tmp_path: Path) -> None:
    """Nothing in the parameters says what α is, or which side the inputs are on."""

    def run(**more: Any) -> Any:
        square = dure.Model.from_functions(lambda key: {"w": jnp.eye(4)}, lambda p, x: (x @ p["w"])[:, :3])
        task = dure.Task(dure.lora(square, targets="w", rank=RANK, **more), TASK.loss)
        resume = (tmp_path / "run").exists()
        return dure.simulate(
            dure.FedIT(), task, DATA, rounds=1, directory=tmp_path / "run", resume=resume, **LOCAL
        )

    run(alpha=3.0)
    run(alpha=3)
    with pytest.raises(ConfigError, match=r"model\.adapters\.w\.scale was 1\.5 and is 2\.0"):
        run(alpha=4.0)
    with pytest.raises(ConfigError, match=r"model\.adapters\.w\.inputs_last was False and is True"):
        run(alpha=3.0, inputs_last=True)


# ----- any method, on adapters as on any parameters --------------------------------------------------------


def plain_task(frozen: np.ndarray) -> dure.Task:
    """The same model written by hand, with the factors as its parameters and W in the code."""

    def init(key: Any) -> Any:
        start = LORA.init(key).params
        return {"a": start["w.lora_A"], "b": start["w.lora_B"]}

    def apply(p: Any, x: Any) -> Any:
        added = S * jnp.matmul(p["b"], p["a"], precision="highest").T
        return jnp.dot(x, frozen + added, precision="highest")

    return dure.Task(dure.Model.from_functions(init, apply), TASK.loss)


@pytest.mark.parametrize("page", [dure.FedProx(mu=0.5), dure.Scaffold()], **NAMED)
def test_methods_see_plain_parameters(page: Algorithm) -> None:
    plain = make_engine(page, plain_task(W0), DATA, **LOCAL)
    adapted = make_engine(page, TASK, DATA, **LOCAL)
    for _ in range(3):
        plain.launch()
        adapted.launch()
    np.testing.assert_allclose(adapted.vector()[: plain.layout.size], plain.vector(), atol=1e-6)
    np.testing.assert_array_equal(adapted.state_dict()["w"], W0)
    assert adapted.uplink_message == plain.uplink_message
    assert adapted.downlink_message == plain.downlink_message


def test_fedsa_keeps_b_with_the_client() -> None:
    """FedSA-LoRA: A is shared, B is private: partial sharing by name, with personal models."""
    data = DATA.split(0.3, seed=1)
    run = dure.simulate(dure.FedPer(private=("*lora_B",)), TASK, data, rounds=2, **LOCAL)
    sent = {"delta": np.zeros(RANK * 4, np.float32)}
    assert run.config["messages"]["uplink_bytes"] == wire.size(sent)
    assert run.final["client_personal_loss_mean"] > 0
    np.testing.assert_array_equal(run.state_dict()["w.lora_B"], np.zeros((3, RANK)))


def test_a_method_for_adapters_needs_some() -> None:
    task = dure.Task(BASE, TASK.loss)
    for page in ALL:
        with pytest.raises(ConfigError, match=f"{type(page).__name__} averages low-rank adapters.*dure.lora"):
            make_engine(page, task, DATA, **LOCAL)


def test_who_multiplies_needs_both_factors() -> None:
    class Half(dure.FedExLoRA):
        @property
        def frozen_patterns(self) -> tuple[str, ...]:
            return ("*lora_A",)

    with pytest.raises(ConfigError, match="of 'w' A is frozen, B shared and the weight frozen"):
        make_engine(Half(), TASK, DATA, **LOCAL)


def test_a_sweep_runs_its_points_one_by_one() -> None:
    """Each seed has a base and an A of its own, which one program can't hold."""
    data = dure.Federated({"x": X, "y": Y}, DATA.offsets, test={"x": X, "y": Y})
    found = dure.sweep(dure.FFALoRA(), TASK, data, rounds=1, seeds=(0, 1), optimizer=RATE, steps=1)
    assert not found.together
    for point in found.points:
        state = point.run.state_dict()
        own = LORA.init(keys.jax_key(point.seed, "init"))
        np.testing.assert_array_equal(state["w.lora_A"], own.params["w.lora_A"])


# ----- a transformer ---------------------------------------------------------------------------------------


def example() -> Any:
    spec = importlib.util.spec_from_file_location(
        "lora_example", Path(__file__).parents[2] / "examples" / "lora.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow  # examples and pages train it too
def test_a_transformer_learns_its_clients_dialects() -> None:
    """Pretrained, then adapted: it starts at the base, gains, and is the merged model that was evaluated."""
    it = example()
    base = it.pretrained(epochs=3, number=64)
    model, data = it.adapted(base, rank=2), it.clients([1, 2], 32)
    x, y = data.central_test["x"], data.central_test["y"]

    def loss(params: Any) -> float:
        logits = np.asarray(jax.jit(it.apply)(params, x), np.float64)
        shifted = logits - logits.max(-1, keepdims=True)
        chances = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return float(-np.take_along_axis(chances, y[..., None], -1).mean())

    layout = Layout.of(Variables(base))
    run = dure.simulate(
        dure.FedExLoRA(), dure.classification(model), data, rounds=2, epochs=2, batch_size=16, optimizer=it.ADAM,
        devices=1, schedule="sequential",
    )  # fmt: skip
    before, after = run.rounds[0]["test_loss"], run.final["test_loss"]
    assert before == pytest.approx(loss(base), rel=1e-5)
    assert after < 0.95 * before
    vector = layout.from_state_dict(dure.merge_lora(model, run.state_dict()))[0]
    assert after == pytest.approx(loss(layout.unflatten_params(vector)), rel=1e-5)
    still = np.asarray(layout.flatten_params(base)) == vector
    for e in layout.params:
        adapted = e.name.startswith(("attention/", "hidden/"))
        assert still[e.start : e.stop].all() != adapted, e.name
