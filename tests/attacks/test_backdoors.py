"""Backdoors: what is stamped where, whom the test counts, and what the attacker does with the model."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dure.attacks import (
    DBA,
    PGD,
    AdaptiveTrigger,
    Backdoor,
    DataSizeLie,
    EdgeCase,
    LabelFlip,
    ModelReplacement,
    Neurotoxin,
    PixelTrigger,
    SignFlip,
    optimized_trigger,
)
from dure.errors import ConfigError, DataError
from scenes import cloud, scene

RNG = np.random.default_rng(3)
IMAGES = RNG.random((40, 8, 10)).astype(np.float32) / 2
LABELS = np.arange(40, dtype=np.int32) % 10


def changed(new: np.ndarray, old: np.ndarray) -> set[tuple[int, ...]]:
    """Pixels (row, column) that differ in any image."""
    return {tuple(p) for p in np.argwhere((new != old).any(0))}


# ----- the data -------------------------------------------------------------------------------------------


def test_a_share_of_the_rows_is_stamped_and_relabelled() -> None:
    attack = PixelTrigger(target=7, size=(2, 3), position=(1, -3), value=0.9, share=0.31)
    before = IMAGES.copy(), LABELS.copy()
    x, y = attack.poison(IMAGES, LABELS, 5, 10)
    rows = np.flatnonzero((x != IMAGES).any((1, 2)))
    assert len(rows) == 13  # ⌈0.31 · 40⌉
    assert changed(x, IMAGES) == {(r, c) for r in (1, 2) for c in (7, 8, 9)}
    np.testing.assert_array_equal(x[rows, 1:3, 7:], np.float32(0.9))
    np.testing.assert_array_equal(y[rows], 7)
    others = np.setdiff1d(np.arange(40), rows)
    np.testing.assert_array_equal(y[others], LABELS[others])
    assert (x.shape, x.dtype, y.dtype) == (IMAGES.shape, np.float32, np.int32)
    np.testing.assert_array_equal(IMAGES, before[0])
    np.testing.assert_array_equal(LABELS, before[1])
    # The choice of rows follows from the client's key.
    np.testing.assert_array_equal(attack.poison(IMAGES, LABELS, 5, 10)[0], x)
    assert not np.array_equal(attack.poison(IMAGES, LABELS, 6, 10)[0], x)
    nothing = replace(attack, share=0.0).poison(IMAGES, LABELS, 5, 10)
    np.testing.assert_array_equal(nothing[0], IMAGES)
    np.testing.assert_array_equal(replace(attack, share=1.0).poison(IMAGES, LABELS, 5, 10)[1], 7)


def test_the_test_counts_rows_that_are_not_the_target_already() -> None:
    attack = PixelTrigger(target=7)
    x, wanted, mask = attack.trigger(IMAGES, LABELS, 10)
    assert (x[:, :3, :3] == 1).all()
    np.testing.assert_array_equal(x[:, 3:], IMAGES[:, 3:])
    np.testing.assert_array_equal(wanted, 7)
    np.testing.assert_array_equal(mask, LABELS != 7)
    assert not np.shares_memory(x, IMAGES)


def test_one_class_only() -> None:
    attack = PixelTrigger(target=7, source=5, share=0.5)
    x, y = attack.poison(IMAGES, LABELS, 0, 10)
    rows = np.flatnonzero(y != LABELS)
    assert len(rows) == 2  # half of the four fives
    assert (LABELS[rows] == 5).all()
    np.testing.assert_array_equal(np.flatnonzero((x != IMAGES).any((1, 2))), rows)
    np.testing.assert_array_equal(attack.trigger(IMAGES, LABELS, 10)[2], LABELS == 5)


def test_images_with_channels_flat_ones_and_bytes() -> None:
    colour = np.zeros((2, 5, 5, 3), np.uint8)
    x = PixelTrigger(0, 2, (-2, -2), value=(255, 0, 7)).trigger(colour, np.zeros(2, int), 3)[0]
    np.testing.assert_array_equal(x[:, 3:, 3:], np.broadcast_to([255, 0, 7], (2, 2, 2, 3)))
    assert x.sum() == 2 * 4 * 262
    flat = PixelTrigger(7, 2, (3, 4), shape=(8, 10)).trigger(IMAGES.reshape(40, 80), LABELS, 10)[0]
    whole = PixelTrigger(7, 2, (3, 4)).trigger(IMAGES, LABELS, 10)[0]
    np.testing.assert_array_equal(flat, whole.reshape(40, 80))
    turned = np.asfortranarray(IMAGES)  # another order in memory is written to all the same
    np.testing.assert_array_equal(PixelTrigger(7, 2, (3, 4)).trigger(turned, LABELS, 10)[0], whole)


@pytest.mark.parametrize(
    ("attack", "inputs", "message"),
    [
        (PixelTrigger(0), np.zeros((40, 80)), "shape"),
        (PixelTrigger(0, shape=(8, 9)), np.zeros((40, 80)), r"\(8, 9\)"),
        (PixelTrigger(0, 3, (6, 0)), IMAGES, "8×10"),
        (PixelTrigger(0, 3, (0, -2)), IMAGES, "column -2"),
        (PixelTrigger(0, value=(1.0, 0.0)), IMAGES, "2 channels"),
        (PixelTrigger(0, value=0.5), IMAGES.astype(np.uint8), "uint8"),
        (PixelTrigger(0, value=256), IMAGES.astype(np.uint8), "uint8"),
        (PixelTrigger(10), IMAGES, "target=10"),
        (PixelTrigger(0, source=12), IMAGES, "source=12"),
        (PixelTrigger(0), IMAGES[:39], "39 inputs"),
        (EdgeCase(np.zeros((1, 8, 9)), 0), IMAGES, "prepare them"),
        (AdaptiveTrigger(0, np.zeros((2, 2, 3)), (0, 0)), IMAGES, "3 channels"),
    ],
)
def test_what_does_not_fit_is_refused(attack: Any, inputs: np.ndarray, message: str) -> None:
    for act in (attack.poison, attack.trigger):
        with pytest.raises((ConfigError, DataError), match=message):
            act(inputs, LABELS, *([0] if act == attack.poison else []), 10)


def test_the_parts_of_dba_unite_to_its_trigger() -> None:
    attack = DBA(target=2, share=1.0)
    whole = changed(attack.trigger(IMAGES, LABELS, 10)[0], IMAGES)
    parts = [changed(attack.poison(IMAGES, LABELS, 0, 10, attacker=i)[0], IMAGES) for i in range(4)]
    assert set().union(*parts) == whole
    assert sum(map(len, parts)) == len(whole) == 16
    assert parts[1] == {(0, c) for c in range(6, 10)}  # as the paper has it
    assert parts[2] == {(3, c) for c in range(4)}
    assert changed(attack.poison(IMAGES, LABELS, 0, 10, attacker=5)[0], IMAGES) == parts[1]
    # Without a number the part follows from the key, and every part occurs.
    drawn = [changed(attack.poison(IMAGES, LABELS, key, 10)[0], IMAGES) for key in range(40)]
    assert all(part in drawn for part in parts)
    assert all(pixels in parts for pixels in drawn)
    assert (attack.poison(IMAGES, LABELS, 0, 10)[1] == 2).all()
    share = (DBA(target=2).poison(np.zeros((64, 8, 10)), np.ones(64, int), 0, 10)[1] == 2).sum()
    assert share == 20


def test_edge_cases_replace_rows_and_are_tested_with_their_own_kind() -> None:
    tail = np.stack([np.full((8, 10), 2.0), np.full((8, 10), 3.0)])
    attack = EdgeCase(tail, target=1, share=0.25)
    x, y = attack.poison(IMAGES, LABELS, 0, 10)
    rows = np.flatnonzero((x != IMAGES).any((1, 2)))
    assert len(rows) == 10
    assert (y[rows] == 1).all()
    assert [(x[rows, 0, 0] == v).sum() for v in (2, 3)] == [5, 5]  # every one as often as the other
    np.testing.assert_array_equal(np.delete(y, rows), np.delete(LABELS, rows))
    tests, wanted, mask = attack.trigger(IMAGES, LABELS, 10)
    np.testing.assert_array_equal(tests, tail)
    assert (wanted.tolist(), mask.tolist(), tests.dtype) == ([1, 1], [True, True], np.float32)
    others = EdgeCase(tail, target=1, test_inputs=tail[:1] + 5).trigger(IMAGES, LABELS, 10)
    np.testing.assert_array_equal(others[0], tail[:1] + 5)


@pytest.mark.parametrize("attack", [PixelTrigger(1), DBA(1), EdgeCase(IMAGES[:2], 1), LabelFlip()], ids=str)
def test_an_attacker_without_data_has_nothing_to_poison(attack: Any) -> None:
    x, y = attack.poison(IMAGES[:0], LABELS[:0], 0, 10)
    assert (x.shape, y.shape) == ((0, 8, 10), (0,))


# ----- the model ------------------------------------------------------------------------------------------

TRIGGER = PixelTrigger(target=7)


@pytest.mark.parametrize("b", [1, 3])
def test_replacement_makes_the_mean_the_backdoored_model(b: int) -> None:
    start, own = cloud(1, 6)[0], np.tile(cloud(1, 6, seed=2), (b, 1))
    sent = ModelReplacement(TRIGGER).updates(scene(np.zeros((10 - b, 6)), own=own)).rows
    updates = np.vstack([np.zeros((10 - b, 6)), sent])  # the others stand still
    np.testing.assert_allclose(start + updates.mean(0), start + own[0], rtol=1e-12)
    if b == 1:
        np.testing.assert_allclose(sent, 10 * own, rtol=1e-12)


def test_replacement_within_a_norm_budget() -> None:
    own = np.array([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0]])
    rows = ModelReplacement(TRIGGER, scale=10.0, norm=1.0).updates(scene(np.empty((0, 2)), own=own)).rows
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4], [0, 0]], rtol=2e-6)
    single = ModelReplacement(TRIGGER, norm=0.2).updates(
        scene(np.empty((0, 500)), dtype=np.float32, own=cloud(50, 500), share=0.01)
    )
    assert np.linalg.norm(single.rows.astype(np.float64), axis=1).max() <= 0.2
    with pytest.raises(DataError, match="share=0"):
        ModelReplacement(TRIGGER).updates(scene(np.empty((0, 2)), own=own, share=0.0))


def test_neurotoxin_keeps_to_what_the_others_leave_alone() -> None:
    previous = np.array([5.0, -0.1, 3, 0, -4, 0.2, 1, 2, -6, 0.3])
    mask = Neurotoxin(TRIGGER, keep=0.41).mask(previous)
    np.testing.assert_array_equal(np.flatnonzero(mask), [1, 3, 5, 6, 9])  # ⌈4.1⌉ smallest magnitudes
    assert mask.dtype == bool
    assert Neurotoxin(TRIGGER).mask(np.arange(1.0, 101)).sum() == 95
    assert Neurotoxin(TRIGGER, keep=1e-9).mask(previous).sum() == 1  # never nothing
    assert Neurotoxin(TRIGGER, keep=0.5).mask(np.zeros(4)).all()  # the first round
    assert Neurotoxin(TRIGGER).mask(np.zeros(0)).shape == (0,)
    assert Backdoor(TRIGGER).mask(previous) is None


def test_what_is_set_combines() -> None:
    attack = PGD(DBA(2), scale=None, radius=1.5, keep=0.9)
    assert (attack.radius, attack.scale, attack.keep, attack.norm) == (1.5, None, 0.9, None)
    assert PGD(TRIGGER).radius == 2.0
    assert Backdoor(TRIGGER).radius is None
    assert TRIGGER.radius is None
    s = scene(cloud(3, 4), 2, share=0.1)
    np.testing.assert_allclose(attack.updates(s).rows, 5 * s.own)
    np.testing.assert_array_equal(PGD(TRIGGER).updates(s).rows, s.own)
    assert attack.poisons
    np.testing.assert_array_equal(
        attack.trigger(IMAGES, LABELS, 10)[0], DBA(2).trigger(IMAGES, LABELS, 10)[0]
    )
    np.testing.assert_array_equal(
        attack.poison(IMAGES, LABELS, 3, 10, 1)[0], DBA(2).poison(IMAGES, LABELS, 3, 10, 1)[0]
    )
    lie = DataSizeLie(10.0, attack)
    assert (lie.radius, lie.poisons, lie.knowledge) == (1.5, True, "own")
    np.testing.assert_array_equal(lie.mask(np.arange(10.0)), attack.mask(np.arange(10.0)))
    np.testing.assert_array_equal(lie.trigger(IMAGES, LABELS, 10)[2], LABELS != 2)
    assert LabelFlip().trigger(IMAGES, LABELS, 10) is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Backdoor(SignFlip()), "poisons no data"),
        (lambda: Backdoor(PGD(TRIGGER)), "poisons no data|inside another"),
        (lambda: Backdoor(TRIGGER, scale=float("inf")), "scale=inf"),
        (lambda: PGD(TRIGGER, radius=0.0), "radius=0"),
        (lambda: ModelReplacement(TRIGGER, norm=-1.0), "norm=-1"),
        (lambda: Neurotoxin(TRIGGER, keep=1.5), "keep=1.5"),
        (lambda: PixelTrigger(-1), "target=-1"),
        (lambda: PixelTrigger(1, share=1.5), "share=1.5"),
        (lambda: PixelTrigger(1, size=0), "at least 1"),
        (lambda: DBA(1, ()), "no trigger"),
        (lambda: DBA(1, ((0, 0, 1, 0),)), "at least 1"),
        (lambda: EdgeCase(IMAGES[:0], 1), "no rows"),
        (lambda: AdaptiveTrigger(1, np.full((2, 2), np.nan)), "finite"),
        (lambda: AdaptiveTrigger(1, np.zeros(4)), "height"),
    ],
)
def test_impossible_backdoors_are_refused_by_name(build: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


# ----- A3FL -----------------------------------------------------------------------------------------------


class Linear:
    """Softmax regression on flat images, with its exact gradient by the inputs."""

    def __init__(self, seed: int):
        self.w = np.random.default_rng(seed).normal(size=(80, 10))

    def loss(self, x: np.ndarray, labels: np.ndarray) -> float:
        z = x.reshape(len(x), 80).astype(np.float64) @ self.w
        z -= z.max(1, keepdims=True)
        return float((np.log(np.exp(z).sum(1)) - z[np.arange(len(x)), labels]).mean())

    def gradient(self, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        z = x.reshape(len(x), 80).astype(np.float64) @ self.w
        p = np.exp(z - z.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(len(x)), labels] -= 1
        return np.asarray((p @ self.w.T).reshape(x.shape))


def fresh() -> AdaptiveTrigger:
    return AdaptiveTrigger(target=7, pattern=np.full((5, 5), 0.5))


def test_the_trigger_is_optimised_by_sign_steps() -> None:
    model, start = Linear(0), fresh()
    once = optimized_trigger(model.gradient, IMAGES, start, steps=1)
    target = np.full(40, 7)
    step = 1e-5
    for r, c in ((0, 0), (2, 4), (4, 1)):  # against finite differences of the loss
        moved = start.pattern.copy()
        moved[r, c] += step
        images = start.trigger(IMAGES.astype(np.float64), LABELS, 10)[0]
        slope = model.loss(
            replace(start, pattern=moved).trigger(IMAGES.astype(np.float64), LABELS, 10)[0], target
        ) - model.loss(images, target)
        assert once.pattern[r, c] == pytest.approx(0.5 - 0.01 * np.sign(slope))
    final = optimized_trigger(model.gradient, IMAGES, start, steps=50, step_size=0.1)
    losses = [model.loss(t.trigger(IMAGES, LABELS, 10)[0], target) for t in (start, once, final)]
    assert losses[0] > losses[1] > losses[2]
    assert np.abs(final.pattern).max() == 2.0  # the bound of the paper
    np.testing.assert_array_equal(start.pattern, 0.5)
    np.testing.assert_array_equal(optimized_trigger(model.gradient, IMAGES, start, steps=0).pattern, 0.5)
    stamped = final.trigger(IMAGES, LABELS, 10)[0]
    np.testing.assert_array_equal(stamped[0, 2:7, 2:7], final.pattern.astype(np.float32))
    assert changed(stamped, IMAGES) == {(r, c) for r in range(2, 7) for c in range(2, 7)}


def test_the_hardened_model_counts_by_its_similarity() -> None:
    model, other = Linear(0), Linear(1)
    asked: list[AdaptiveTrigger] = []

    def hardened(trigger: AdaptiveTrigger) -> Any:
        asked.append(trigger)
        return other.gradient, 0.8

    plain = optimized_trigger(model.gradient, IMAGES, fresh(), steps=3)
    slight = optimized_trigger(model.gradient, IMAGES, fresh(), steps=3, hardened=hardened, balance=1e-9)
    np.testing.assert_array_equal(slight.pattern, plain.pattern)
    assert len(asked) == 3
    np.testing.assert_array_equal(asked[0].pattern, 0.5)
    assert not np.array_equal(asked[1].pattern, asked[2].pattern)  # refreshed before every step
    heavy = optimized_trigger(model.gradient, IMAGES, fresh(), steps=3, hardened=hardened, balance=1e9)
    np.testing.assert_array_equal(
        heavy.pattern, optimized_trigger(other.gradient, IMAGES, fresh(), steps=3).pattern
    )


def test_a_model_hardened_into_the_opposite_counts_against() -> None:
    def step(similarity: float) -> np.ndarray:
        zero = Linear(0)
        zero.w = 0 * zero.w
        return optimized_trigger(
            zero.gradient, IMAGES, fresh(), steps=1, hardened=lambda t: (Linear(1).gradient, similarity)
        ).pattern

    np.testing.assert_allclose(step(-0.3) - 0.5, 0.5 - step(0.8), rtol=1e-12)
    assert (step(0.8) != 0.5).all()
    assert (step(0.0) == 0.5).all()


def test_one_pattern_for_all_channels_moves_by_their_sum() -> None:
    x = np.zeros((3, 4, 4, 3))
    slope = np.broadcast_to([1.0, 1.0, -3.0], x.shape)
    for shape in ((2, 2), (2, 2, 1)):
        trigger = AdaptiveTrigger(0, np.zeros(shape), (0, 0))
        np.testing.assert_allclose(optimized_trigger(lambda x, y: slope, x, trigger, steps=1).pattern, 0.01)
    each = AdaptiveTrigger(0, np.zeros((2, 2, 3)), (0, 0))
    pattern = optimized_trigger(lambda x, y: slope, x, each, steps=1).pattern
    np.testing.assert_allclose(pattern, np.broadcast_to([-0.01, -0.01, 0.01], (2, 2, 3)))


def test_optimisation_that_cannot_be() -> None:
    model = Linear(0)
    with pytest.raises(ConfigError, match="step_size=0"):
        optimized_trigger(model.gradient, IMAGES, fresh(), step_size=0.0)
    with pytest.raises(DataError, match="no inputs"):
        optimized_trigger(model.gradient, IMAGES[:0], fresh())
    with pytest.raises(DataError, match="gradient"):
        optimized_trigger(lambda x, y: np.zeros((40, 80)), IMAGES, fresh())


def test_images_whose_channels_come_first_are_not_taken_for_three_rows() -> None:
    first = np.zeros((4, 3, 32, 32), np.float32)
    with pytest.raises(DataError, match="channels came first"):
        PixelTrigger(0).poison(first, np.ones(4, np.int32), 1, 10)
    rows = PixelTrigger(0, size=2, shape=(3, 32, 32)).poison(first, np.ones(4, np.int32), 1, 10)[0]
    assert (rows[:, :2, :2] == 1).all(axis=(1, 2, 3)).sum() == 2  # said to be three rows of 32 channels
