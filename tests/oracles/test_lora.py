"""Models with low-rank adapters: where they start, what moves, what is refused; JAX, PyTorch, peft."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import nn

import dure
from dure.distillation.group import Group
from dure.errors import ConfigError
from dure.models import mlp
from dure.oracles.adapter import matrix
from dure.oracles.layout import Layout, Variables
from dure.simulation.engine import Engine
from dure.simulation.settings import settings
from problems import make_engine

RNG = np.random.default_rng(11)
SIZES = np.array([6, 9, 4])
DATA = dure.Federated(
    {
        "x": RNG.normal(size=(SIZES.sum(), 6)).astype(np.float32),
        "y": RNG.integers(0, 3, SIZES.sum()).astype(np.int32),
    },
    np.concatenate([[0], np.cumsum(SIZES)]),
)
X = DATA.columns["x"]
BASE = mlp(6, (5,), 3)
LOCAL: dict[str, Any] = {"epochs": 2, "batch_size": 4, "optimizer": 0.3, "devices": 1}


@pytest.fixture(autouse=True)
def quick() -> Any:
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def outputs(model: dure.Model, variables: Any, x: Any = X) -> np.ndarray:
    return np.asarray(model.apply(variables, x, train=False, key=None, mask=None)[0])


# ----- where it starts, and what moves ---------------------------------------------------------------------


def test_it_starts_at_the_base_exactly_and_a_follows_from_the_seed() -> None:
    model = dure.lora(BASE, targets=["dense*"], rank=2, alpha=7)
    keys = [jax.random.key(seed) for seed in range(2)]
    made = [model.init(key) for key in keys]
    for key, variables in zip(keys, made, strict=True):
        np.testing.assert_array_equal(outputs(model, variables), outputs(BASE, BASE.init(key)))
        assert not variables.params["dense1/weight.lora_B"].any()
    first, second = (v.params["dense1/weight.lora_A"] for v in made)
    assert first.shape == (2, 6)
    assert np.abs(first - second).min() > 0


def test_given_weights_are_the_base() -> None:
    own = BASE.init(jax.random.key(5))
    state = Layout.of(own).to_state_dict(Layout.of(own).flatten_params(own.params))
    for weights in (own.params, own, state):
        model = dure.lora(BASE, targets="dense1", rank=2, weights=weights)
        found = model.init(jax.random.key(9))
        np.testing.assert_array_equal(outputs(model, found), outputs(BASE, own))


def test_only_the_adapters_and_what_is_named_move() -> None:
    model = dure.lora(BASE, targets="dense1", rank=2, train=["dense2/bias"])
    assert model.name == "lora(mlp(6-5-3), rank=2)"
    engine = make_engine(dure.FedAvg(), dure.classification(model), DATA, **LOCAL)
    assert engine.layout.size == 2 * 6 + 5 * 2 + 3
    before = engine.state_dict()
    engine.launch()
    after = engine.state_dict()
    moved = {name for name in before if np.any(before[name] != after[name])}
    assert moved == {"dense1/weight.lora_A", "dense1/weight.lora_B", "dense2/bias"}
    assert set(before) == {*(f"dense{i}/{n}" for i in (1, 2) for n in ("weight", "bias")), *moved}


def test_what_the_base_has_beside_parameters_goes_on() -> None:
    """Running statistics, dropout's key and the representation are the base's."""

    def init(key: Any) -> Variables:
        weight = jax.random.normal(key, (6, 3))
        return Variables({"w": weight}, {"mean": jnp.zeros(6)})

    def hidden(params: Any, x: Any, buffers: Any) -> Any:
        return x - buffers["mean"]

    def apply(params: Any, x: Any, train: bool, key: Any, mask: Any, buffers: Any) -> Any:
        noise = jax.random.normal(key, x.shape) * 1e-3 if train else 0.0
        total = jnp.maximum(mask.sum(), 1) if mask is not None else len(x)
        return (x + noise - buffers["mean"]) @ params["w"], {"mean": x.sum(0) / total}

    base = dure.Model.from_functions(init, apply, features=hidden)
    model = dure.lora(base, targets="w", rank=2)
    assert (model.needs_key, model.masked) == (base.needs_key, base.masked) == (True, True)
    task = dure.classification(model)
    for page in (dure.FedExLoRA(), dure.Moon(mu=0.1)):
        engine = make_engine(page, task, DATA, **LOCAL)
        result = engine.collect(engine.launch())
        assert set(result.status) == {"ok"}
        assert np.any(engine.state_dict()["mean"] != 0)


def test_a_frozen_weight_in_bfloat16_keeps_its_dtype() -> None:
    w = RNG.normal(size=(6, 3)).astype(np.float32)
    base = dure.Model.from_functions(
        lambda key: {"w": jnp.asarray(w, jnp.bfloat16)}, lambda p, x: x @ p["w"].astype(jnp.float32)
    )
    model = dure.lora(base, targets="w", rank=2)
    engine = make_engine(dure.FLoRA(), dure.classification(model), DATA, **LOCAL)
    before = engine.state_dict()["w"]
    engine.launch()
    after = engine.state_dict()["w"]
    assert str(after.dtype) == "bfloat16"
    assert np.any(after != before)


# ----- tensors of more dimensions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "folded"),
    [
        ((64, 4, 16), (64, 64)),  # flax: a query's features, heads and size
        ((4, 16, 64), (64, 64)),  # flax: what joins the heads
        ((3, 3, 32, 64), (288, 64)),  # a convolution's window, inputs, outputs
        ((64, 32, 3, 3), (64, 288)),  # the same in PyTorch
        ((7, 5), (7, 5)),
    ],
)
def test_how_tensors_fold(shape: tuple[int, ...], folded: tuple[int, int]) -> None:
    assert matrix(shape) == folded


def test_a_folded_kernel_adds_its_product() -> None:
    w = RNG.normal(size=(6, 2, 3)).astype(np.float32)
    base = dure.Model.from_functions(
        lambda key: {"w": jnp.asarray(w)}, lambda p, x: jnp.einsum("bi,iho->bho", x, p["w"])
    )
    model = dure.lora(base, targets="w", rank=2, alpha=3)
    start = model.init(jax.random.key(0)).params
    assert (start["w.lora_A"].shape, start["w.lora_B"].shape) == ((2, 6), (6, 2))
    a, b = RNG.normal(size=(2, 6)).astype(np.float32), RNG.normal(size=(6, 2)).astype(np.float32)
    found = outputs(model, Variables({**start, "w.lora_A": jnp.asarray(a), "w.lora_B": jnp.asarray(b)}))
    whole = w + 1.5 * np.einsum("or,ri->io", b, a).reshape(w.shape)
    np.testing.assert_allclose(found, np.einsum("bi,iho->bho", X, whole), rtol=1e-4, atol=1e-5)


def test_flax_attention() -> None:
    flax = pytest.importorskip("flax.linen")

    class Attention(flax.Module):  # type: ignore[misc,name-defined]
        @flax.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return flax.MultiHeadDotProductAttention(num_heads=2, name="attention")(x)

    x = RNG.normal(size=(2, 3, 8)).astype(np.float32)
    model = dure.lora(Attention(), targets=["attention/query", "*out*"], rank=3, example_input=x)
    sides = {a.name: (a.inputs, a.outputs) for a in model.adapters}
    assert sides == {"attention/query/kernel": (8, 8), "attention/out/kernel": (8, 8)}


def test_equinox_has_inputs_last() -> None:
    eqx = pytest.importorskip("equinox")
    model = dure.lora(eqx.nn.Linear(6, 3, key=jax.random.key(0)), targets="weight", rank=2)
    assert model.adapters[0].inputs_last
    assert model.init(jax.random.key(0)).params["weight.lora_A"].shape == (2, 6)


# ----- what is refused -------------------------------------------------------------------------------------

TIED = jnp.ones((6, 6))
#: Without the tests' own check of types, which a user doesn't have.
LORA: Any = getattr(dure.lora, "__wrapped__", dure.lora)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"targets": "dense3"}, "targets pattern 'dense3' matches no parameter. Did you mean 'dense"),
        ({"targets": ["dense1", "*bias"]}, r"'\*bias' matches only vectors and biases \(dense1/bias \(5,\)"),
        ({"targets": []}, "targets is empty"),
        ({"rank": 4}, r"rank=4 is more than 'dense2/weight' of shape \(5, 3\) has, 3"),
        ({"rank": 0}, "rank=0 is not allowed"),
        ({"alpha": 0}, "alpha=0 is not allowed"),
        ({"alpha": float("nan")}, "alpha=nan is not allowed"),
        ({"alpha": np.float32("inf")}, "alpha=.*inf.* is not allowed"),
        ({"targets": None}, "targets=None is not allowed: give a name pattern"),
        ({"targets": ["dense1", 2]}, r"targets=\['dense1', 2\] is not allowed"),
        ({"targets": b"dense1"}, "targets=b'dense1' is not allowed"),
        ({"train": None}, "train=None is not allowed"),
        ({"inputs_last": "yes"}, "inputs_last='yes' is not allowed"),
        (
            {
                "base": (lambda key: {"w": TIED, "w.lora_A": 2 * TIED}, lambda p, x: x @ p["w"]),
                "targets": "w",
            },
            "has a parameter 'w.lora_A', which is the adapter's name",
        ),
        ({"train": "dense9"}, "train pattern 'dense9' matches no parameter"),
        ({"train": "dense2"}, "'dense2/weight' is a target and matched by train= too"),
        ({"weights": {"dense1": np.zeros(3)}}, "weights= don't fit model 'mlp"),
        ({"base": dure.lora(BASE, targets="dense1", rank=1)}, "has adapters already"),
        (
            {"base": (lambda key: {"a": TIED, "b": TIED}, lambda p, x: x @ p["a"] @ p["b"]), "targets": "a"},
            r"are one tensor \(tied\)",
        ),
        ({"base": dure.oracle(print, init=np.zeros(3)).model}, "'print' is a function"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_cannot_be_adapted(change: dict[str, Any], message: str) -> None:
    given = {"base": BASE, "targets": "dense*", "rank": 2, **change}
    with pytest.raises(ConfigError, match=message):
        LORA(given.pop("base"), **given)


@pytest.mark.parametrize("alpha", [np.float32(7), np.int64(7), 7])
def test_numbers_of_numpy_are_numbers(alpha: Any) -> None:
    (adapter,) = LORA(BASE, targets=("dense1",), rank=np.int64(2), alpha=alpha).adapters
    assert type(adapter.scale) is float
    assert adapter.scale == 3.5


def test_what_cannot_be_merged() -> None:
    model = dure.lora(BASE, targets="dense1", rank=2)
    params = model.init(jax.random.key(0)).params
    assert set(dure.merge_lora(model, params)) == {
        f"dense{i}/{n}" for i in (1, 2) for n in ("weight", "bias")
    }
    other = dure.lora(BASE, targets="dense1", rank=3)  # whose matrices could be multiplied too
    with pytest.raises(ConfigError, match=r"'dense1/weight.lora_B' .* has shape \(5, 2\), .* has \(5, 3\)"):
        dure.merge_lora(other, params)
    merge: Any = getattr(dure.merge_lora, "__wrapped__", dure.merge_lora)
    with pytest.raises(ConfigError, match=r"give the model that dure\.lora returned"):
        merge(dure.classification(model), params)
    with pytest.raises(ConfigError, match=r"got a list: give run.state_dict\(\)"):
        merge(model, [params])


def test_rooms_that_would_send_the_base_refuse_it() -> None:
    task = dure.classification(dure.lora(BASE, targets="dense1", rank=2))
    with pytest.raises(ConfigError, match="methods without a server would train"):
        dure.decentralized.simulate(
            dure.decentralized.DPSGD(), task, DATA, dure.decentralized.ring(3), rounds=1
        )
    with pytest.raises(ConfigError, match="distillation would send"):
        Group(task, DATA, np.ones(3, bool), settings(DATA))
    with pytest.raises(ConfigError, match="has no adapters to merge"):
        dure.merge_lora(BASE, {})
    with pytest.raises(ConfigError, match="has no 'dense1/weight'"):
        dure.merge_lora(task.model, {"dense2/weight": 0})


def test_frozen_parameters_in_a_layout() -> None:
    variables = Variables({"a": np.zeros(2), "b": np.ones((2, 2)), "c": np.full(3, 2.0)})
    layout = Layout.of(variables, private="c", frozen="a")
    assert (layout.size, layout.shared_size, layout.frozen_size, layout.whole_size) == (7, 4, 2, 9)
    vector = np.asarray(layout.flatten_params(variables.params))
    np.testing.assert_array_equal(vector, [1] * 4 + [2] * 3 + [0] * 2)
    np.testing.assert_array_equal(vector[layout.slice("frozen")], [0, 0])
    np.testing.assert_array_equal(layout.from_state_dict(layout.to_state_dict(vector))[0], vector)
    with pytest.raises(ConfigError, match="private pattern 'a' matches no parameter"):
        Layout.of(variables, private="a", frozen="a")
    with pytest.raises(ConfigError, match=r"this layout needs \(9,\)"):
        layout.unflatten_params(vector[:7])


# ----- PyTorch ---------------------------------------------------------------------------------------------


def module() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    rng = np.random.default_rng(3)
    for parameter in net.parameters():
        parameter.data = torch.from_numpy(0.5 * rng.normal(size=tuple(parameter.shape)).astype(np.float32))
    return net


def same_in_jax(net: nn.Module) -> dure.Model:
    start = {name: jnp.asarray(value.detach().numpy()) for name, value in net.named_parameters()}

    def apply(p: Any, x: Any) -> Any:
        hidden = jnp.tanh(jnp.dot(x, p["0.weight"].T, precision="highest") + p["0.bias"])
        return jnp.dot(hidden, p["2.weight"].T, precision="highest") + p["2.bias"]

    base = dure.Model.from_functions(lambda key: start, apply)
    return dure.lora(base, targets="*weight", rank=2, alpha=3, train="2.bias", inputs_last=True)


PAGES = [dure.FedIT(), dure.FFALoRA(), dure.FedExLoRA(), dure.FLoRA(), dure.Scaffold()]


@pytest.mark.parametrize(
    ("page", "schedule"),
    [
        *((page, "vectorised") for page in (PAGES[0], PAGES[2])),
        *(
            pytest.param(page, schedule, marks=pytest.mark.slow)
            for page, schedule in (
                (PAGES[1], "vectorised"),
                (PAGES[3], "vectorised"),
                (PAGES[4], "vectorised"),
                (PAGES[1], "sequential"),
            )
        ),
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_pytorch_does_what_jax_does(page: Any, schedule: str) -> None:
    """Two implementations of layer and local solver: the same models after each round."""
    net = module()
    theirs = dure.lora(net, targets=["0", "2.weight"], rank=2, alpha=3, train="2.bias")
    ours = same_in_jax(net)
    start = theirs.init(jax.random.key(4))
    named = {
        n.replace("base_layer.", "").replace("lora_", "weight.lora_"): v for n, v in start.params.items()
    }
    still = {n: v for n, v in ours.init(jax.random.key(0)).params.items() if n not in named}
    assert set(still) == {"0.bias"}  # PyTorch keeps what is no part of it with the module
    engines = []
    for model, variables in ((theirs, start), (ours, Variables({**named, **still}))):
        engine = Engine(
            page,
            dure.classification(model),
            DATA,
            settings(DATA, schedule=schedule, **LOCAL),
            variables=variables,
        )
        engines.append(engine)
    for _ in range(3):
        for engine in engines:
            assert engine.collect(engine.launch()).status == ["ok"] * 3
    one, other = (dure.merge_lora(m, e.state_dict()) for m, e in zip((theirs, ours), engines, strict=True))
    first = {n: np.asarray(v.detach()) for n, v in net.named_parameters()}
    assert set(one) == set(other) == set(first)
    for name in first:
        np.testing.assert_allclose(one[name], other[name], rtol=1e-4, atol=1e-5)
    assert np.abs(one["0.weight"] - first["0.weight"]).max() > 0.01
    np.testing.assert_array_equal(one["0.bias"], first["0.bias"])
    # The module without adapters takes it strictly, and computes what was evaluated.
    net.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in one.items()})
    found = outputs(theirs, engines[0].variables())
    np.testing.assert_allclose(net(torch.from_numpy(np.array(X))).detach().numpy(), found, atol=1e-5)


def test_pytorch_starts_at_the_base_and_a_follows_from_the_seed() -> None:
    net = module()
    model = dure.lora(net, targets="*", rank=2)
    assert [a.name for a in model.adapters] == ["0.weight", "2.weight"]
    starts = [model.init(jax.random.key(seed)) for seed in range(2)]
    for start in starts:
        with torch.no_grad():
            expected = net(torch.from_numpy(np.array(X))).numpy()
        np.testing.assert_array_equal(outputs(model, start), expected)
    assert np.abs(starts[0].params["0.lora_A"] - starts[1].params["0.lora_A"]).min() > 0
    assert sorted(n for n, p in net.named_parameters() if p.requires_grad) == sorted(
        dict(net.named_parameters())
    )


def test_other_seeds_do_not_share_what_a_worker_holds() -> None:
    """A stays where each seed began, also in the workers that trained another seed before."""
    model = dure.lora(module(), targets="*", rank=2)
    task = dure.classification(model)
    found = []
    for seed in (0, 1, 0):
        engine = make_engine(dure.FFALoRA(), task, DATA, seed=seed, schedule="vectorised", **LOCAL)
        engine.launch()
        found.append(engine.state_dict())
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[2][name])
    assert np.abs(found[0]["0.lora_B"] - found[1]["0.lora_B"]).max() > 1e-4


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = x[:, :4].reshape(-1, 1, 4)
        return self.head(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


def test_a_layer_whose_weight_is_read_past_its_forward() -> None:
    """nn.MultiheadAttention computes with out_proj.weight; that too is W + (α/r) B A."""
    model = dure.lora(Attending(), targets="attention.out_proj", rank=2)
    task = dure.classification(model)
    engine = make_engine(dure.FFALoRA(), task, DATA, **LOCAL)
    engine.launch()
    state = engine.state_dict()
    assert np.abs(state["attention.out_proj.lora_B"]).max() > 0
    merged = dure.merge_lora(model, state)
    plain = Attending()
    plain.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in merged.items()})
    with torch.no_grad():
        expected = plain.eval()(torch.from_numpy(np.array(X))).numpy()
    np.testing.assert_allclose(outputs(model, engine.variables()), expected, atol=1e-5)


def test_pytorch_layers_that_cannot_be_adapted() -> None:
    with pytest.raises(
        ConfigError, match=r"'attention\.in_proj_weight' is a target and not the weight of an nn.Linear"
    ):
        dure.lora(Attending(), targets="attention", rank=2)
    with pytest.raises(ConfigError, match=r"rank=4 is more than '2\.weight' of shape \(3, 5\) has, 3"):
        dure.lora(module(), targets="*", rank=4)
    with pytest.raises(ConfigError, match="load them into the PyTorch module"):
        dure.lora(module(), targets="*", rank=2, weights={})
    twins = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5))
    twins[1].weight = twins[0].weight
    with pytest.raises(ConfigError, match=r"are one tensor \(tied\)"):
        dure.lora(twins, targets="0", rank=2)


def test_peft_models() -> None:
    """An adapter of peft's: its trained parameters travel, and its adapters are known."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, lora_alpha=3, target_modules=["0", "2"], init_lora_weights=True)
    theirs = peft.get_peft_model(module(), config)
    model = dure.Model.from_torch(theirs)
    assert [(a.rank, a.scale, a.inputs, a.outputs) for a in model.adapters] == [
        (2, 1.5, 6, 5),
        (2, 1.5, 5, 3),
    ]
    for page in (dure.FedIT(), dure.FFALoRA(), dure.FedExLoRA(), dure.FLoRA()):
        engine = make_engine(page, dure.classification(model), DATA, **LOCAL)
        for _ in range(2):
            assert engine.collect(engine.launch()).status == ["ok"] * 3
        theirs.load_state_dict({n: torch.from_numpy(np.array(v)) for n, v in engine.state_dict().items()})
        merged = peft.get_peft_model(module(), config)
        merged.load_state_dict(theirs.state_dict())
        with torch.no_grad():
            expected = merged.merge_and_unload().eval()(torch.from_numpy(np.array(X))).numpy()
        np.testing.assert_allclose(outputs(model, engine.variables()), expected, atol=1e-5)
        own = dure.merge_lora(model, engine.state_dict())
        assert np.abs(own["base_model.model.0.weight"] - module()[0].weight.detach().numpy()).max() > 1e-3


def test_peft_layers_that_have_no_active_adapter() -> None:
    """Layer 2 knows only the second adapter, and takes no part where the first is active."""
    peft = pytest.importorskip("peft")
    theirs = peft.get_peft_model(module(), peft.LoraConfig(r=2, target_modules=["0"]))
    theirs.add_adapter("second", peft.LoraConfig(r=1, target_modules=["0", "2"]))
    for active, ranks in (("default", [2]), ("second", [1, 1])):
        theirs.set_adapter(active)
        assert [a.rank for a in dure.Model.from_torch(theirs).adapters] == ranks
    theirs.merge_adapter()
    with pytest.raises(ConfigError, match=r"peft's adapters merged into it.*unmerge_adapter\(\)"):
        dure.Model.from_torch(theirs)


def test_a_layer_without_a_shape_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'0\.weight' of Sequential has no shape yet \(a lazy layer\)"):
        dure.lora(nn.Sequential(nn.LazyLinear(3)), targets="0", rank=2)
