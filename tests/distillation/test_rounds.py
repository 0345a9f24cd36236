"""What a round computes, on problems small enough to say what must come out of it."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dure
from dure.distillation import DSFL, FedDF, FedMD
from dure.distillation.group import Group
from dure.distillation.round import Round
from dure.distillation.setting import public_set
from dure.models import mlp
from dure.oracles.model import Model
from dure.simulation.settings import settings

RNG = np.random.default_rng(11)
LINEAR = dure.classification(
    Model.from_functions(
        lambda key: {"w": jnp.zeros((4, 3), jnp.float32)},
        lambda params, x: jnp.matmul(x, params["w"], precision="highest"),
        name="linear",
    )
)
DEEP = dure.classification(mlp(4, (5,), 3))
SIZES = [3, 5, 0, 4, 6]
_r, _c, _k = np.arange(8)[:, None], np.arange(4)[None], np.arange(5)[:, None, None]
PUBLIC = np.cos(1.0 + _r * (_c + 1)).astype(np.float32)
W = np.sin(1.0 + _k + 2 * np.arange(4)[None, :, None] + 3 * np.arange(3)[None, None]).astype(np.float32)


def federation(sizes: list[int]) -> dure.Federated:
    rng = np.random.default_rng(0)
    n = sum(sizes)
    columns = {
        "x": rng.normal(size=(n, 4)).astype(np.float32),
        "y": rng.integers(0, 3, n).astype(np.int32),
    }
    return dure.Federated(columns, np.concatenate([[0], np.cumsum(sizes)]), classes=3)


DATA = federation(SIZES)


class Laboratory:
    """A round whose clients' models are given."""

    def __init__(
        self,
        method: Any,
        assignment: Any,
        tasks: Any = (LINEAR,),
        data: Any = DATA,
        public: np.ndarray = PUBLIC,
        optimizer: Any = 0.5,
        batch: float = np.inf,
        **keywords: Any,
    ):
        keywords = {"schedule": "sequential", "devices": 1, "batch_size": 2, **keywords}
        chosen = settings(data, optimizer=optimizer, **keywords)
        at = np.asarray(assignment)
        self.groups = [Group(t, data, at == a, chosen) for a, t in enumerate(tasks)]
        shown = public_set(public, 3, None, batch, optimizer)
        self.round = Round(1, self.groups, method, shown, chosen.seed)

    def models(self, rows: dict[int, np.ndarray]) -> Any:
        """These models for these clients; the others begin as they do."""
        for group in self.groups:
            mine = [k for k in rows if k in group.ids]
            if mine:
                vectors = np.stack([np.asarray(rows[k]).reshape(-1) for k in mine])
                group.engine.store.scatter(np.array(mine), vectors)
        return tuple(group.models(visit) for group, visit in self.round._pairs())

    def after(self, models: Any) -> dict[int, np.ndarray]:
        """client → its model."""
        self.round.end(models)
        return {int(k): row for g in self.groups for k, row in zip(g.ids, g.rows(), strict=True)}


ALL = {k: W[k] for k in range(5)}


def test_the_mean_is_of_those_with_examples_by_their_weights() -> None:
    for weighting, weights in (("uniform", [1, 1, 0, 1, 1]), ("examples", SIZES)):
        lab = Laboratory(FedMD(weighting=weighting), [0] * 5)
        logits = lab.round.mean(lab.models(ALL))
        wanted = np.average(np.float64(PUBLIC) @ np.float64(W), axis=0, weights=weights)
        np.testing.assert_allclose(logits, wanted, rtol=1e-6, atol=1e-6)


def test_a_weight_of_two_is_a_client_that_is_there_twice() -> None:
    one = Laboratory(FedMD(weighting="examples"), [0] * 3, data=federation([3, 6, 3]))
    two = Laboratory(FedMD(weighting="uniform"), [0] * 4, data=federation([3, 3, 3, 3]))
    first = one.round.mean(one.models({0: W[0], 1: W[1], 2: W[2]}))
    second = two.round.mean(two.models({0: W[0], 1: W[1], 2: W[1], 3: W[2]}))
    assert np.asarray(first).tobytes() == np.asarray(second).tobytes()


def test_neither_order_nor_devices_nor_architectures_can_be_seen_in_the_mean() -> None:
    """The sums are exact: the bits are the same however the clients are dealt."""
    data = federation([3, 3, 3, 3, 3])
    rows = dict(enumerate(np.exp(5 * RNG.normal(size=(5, 12))).astype(np.float32)))
    order = [3, 1, 4, 0, 2]
    shuffled = {i: rows[k] for i, k in enumerate(order)}
    found = []
    for assignment, given, tasks, more in (
        ([0] * 5, rows, (LINEAR,), {}),
        ([0] * 5, shuffled, (LINEAR,), {}),
        ([0, 1, 1, 0, 1], rows, (LINEAR, LINEAR), {}),
        ([1, 0, 0, 1, 0], shuffled, (LINEAR, LINEAR), {"devices": 2}),
    ):
        lab = Laboratory(FedMD(), assignment, tasks, data, **more)
        found.append(np.asarray(lab.round.mean(lab.models(given))).tobytes())
    assert len(set(found)) == 1


def test_predictions_that_are_not_finite_are_set_aside_and_named() -> None:
    broken = W[1].copy()
    broken[2, 1] = np.nan
    lab = Laboratory(FedMD(), [0] * 5)
    models = lab.models(ALL | {1: broken})
    logits = lab.round.mean(models)
    wanted = (np.float64(PUBLIC) @ np.float64(W[[0, 3, 4]])).mean(0)
    np.testing.assert_allclose(logits, wanted, rtol=1e-6, atol=1e-6)
    assert lab.round.asked().status == ["ok", "predictions not finite", "no examples", "ok", "ok"]


def test_with_nobody_usable_nothing_is_learnt() -> None:
    lab = Laboratory(DSFL(), [0] * 5)
    nan = np.full((4, 3), np.nan, np.float32)
    models = lab.models({0: nan, 1: nan, 2: W[2], 3: nan, 4: nan})
    models = lab.round.digest(models, lab.round.mean(models))
    assert lab.after(models)[2].tobytes() == W[2].tobytes()


# ----- digests ---------------------------------------------------------------------------------------------


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("t", [1.0, 3.0])
def test_a_digest_is_one_gradient_step_on_the_public_inputs(t: float) -> None:
    lab = Laboratory(FedMD(loss="kl", temperature=t), [0] * 5)
    models = lab.models(ALL)
    targets = np.float32(PUBLIC @ W[4])
    after = lab.after(lab.round.digest(models, jnp.asarray(targets)))
    x = np.float64(PUBLIC)
    for k in range(5):  # also the client without examples
        g = x.T @ (t * (softmax(x @ W[k] / t) - softmax(targets / t))) / 8
        np.testing.assert_allclose(after[k], (W[k] - 0.5 * g).reshape(-1), atol=2e-6)
    np.testing.assert_allclose(after[4], W[4].reshape(-1), atol=1e-6)


def test_the_ensemble_of_linear_models_teaches_their_mean() -> None:
    """Full-rank public inputs, averaged logits: the mean of the parameters, up to a constant over classes."""
    sizes = [3, 3, 3]
    method = FedDF(public_epochs=1500)
    lab = Laboratory(method, [0] * 3, data=federation(sizes), optimizer=dure.sgd(1.5, momentum=0.9))
    models = lab.models({k: W[k] for k in range(3)})
    ensemble = lab.round.mean(models)
    (taught,) = lab.round.teach((W[0].reshape(-1),), ensemble)
    found, mean = np.asarray(taught).reshape(4, 3), W[:3].mean(0)
    assert np.abs((found - found.mean(1, keepdims=True)) - (mean - mean.mean(1, keepdims=True))).max() < 2e-5


def test_students_that_agree_are_taught_nothing() -> None:
    lab = Laboratory(FedDF(public_epochs=20), [0] * 5)
    models = lab.models(dict.fromkeys(range(5), W[1]))
    (taught,) = lab.round.teach((W[1].reshape(-1),), lab.round.mean(models))
    np.testing.assert_allclose(taught, W[1].reshape(-1), atol=2e-6)


def test_prototypes_are_averaged_by_examples_within_their_architecture() -> None:
    lab = Laboratory(FedDF(), [0, 1, 0, 0, 1], (LINEAR, LINEAR))
    zero = np.zeros(12, np.float32)
    first, second = lab.round.average(lab.models(ALL), (zero, zero))
    for found, mine in ((first, [0, 2, 3]), (second, [1, 4])):
        wanted = np.average(np.float64(W[mine]), axis=0, weights=np.array(SIZES)[mine])
        np.testing.assert_allclose(np.asarray(found), wanted.reshape(-1), rtol=1e-6)


def test_a_client_trains_once_before_it_first_speaks() -> None:
    lab = Laboratory(FedMD(), [0] * 5)
    start = {k: np.zeros(12, np.float32) for k in range(5)}
    once = lab.after(lab.round.train(lab.models(start), newcomers=True))
    again = Round(1, lab.groups, FedMD(), lab.round._set, 0)
    models = again.begin(())
    lab.groups[0]._met[3] = False
    after = lab.after(again.train(models, newcomers=True))
    for k in (0, 1, 2, 4):
        assert after[k].tobytes() == once[k].tobytes()
    assert np.abs(after[3] - once[3]).max() > 1e-3
    assert not once[2].any()
    assert all(once[k].any() for k in (0, 1, 3, 4))


def test_statistics_of_batches_belong_to_the_model() -> None:
    """They move with local work and digests, stay with the client, and are averaged into a prototype."""

    def apply(params: Any, x: Any, buffers: Any, train: bool, mask: Any) -> Any:
        seen = jnp.sum(x * mask[:, None], 0) / jnp.maximum(mask.sum(), 1) if train else buffers["mean"]
        return (x - seen) @ params["w"], {"mean": seen}

    def init(key: Any) -> Any:
        return dure.Variables({"w": jnp.ones((4, 3), jnp.float32)}, {"mean": jnp.zeros(4, jnp.float32)})

    task = dure.classification(Model.from_functions(init, apply, name="centred"))
    lab = Laboratory(FedMD(), [0] * 5, (task,), batch_size=8)
    (group,) = lab.groups
    prototypes = (group.prototype,)
    trained = lab.round.train(lab.round.send(prototypes))
    (averaged,) = lab.round.average(trained, prototypes)
    means = {k: DATA.client(k)["x"].mean(0) for k in (0, 1, 3, 4)}
    wanted = np.average(list(means.values()), axis=0, weights=[SIZES[k] for k in means])
    np.testing.assert_allclose(np.asarray(averaged)[12:], wanted, atol=1e-6)
    digested = lab.after(lab.round.digest(trained, jnp.zeros((8, 3), jnp.float32)))
    for k in range(5):
        np.testing.assert_allclose(digested[k][12:], PUBLIC.mean(0), atol=1e-6)
