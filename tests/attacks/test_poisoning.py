"""Poisoned updates and labels: reference cases, closed forms, and figures worked out by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import pdist, squareform
from scipy.stats import norm

from dure.attacks import (
    ALIE,
    IPM,
    Attack,
    DataSizeLie,
    FangKrum,
    FangTrimmedMean,
    Gaussian,
    Huge,
    LabelFlip,
    Mimic,
    MinMax,
    MinSum,
    ModelReplacement,
    NotFinite,
    OptimizedALIE,
    OptimizedIPM,
    PixelTrigger,
    RoP,
    SignFlip,
    Zero,
    alie_zmax,
)
from dure.attacks.optimized import line_search
from dure.errors import ConfigError, DataError, DomainError
from scenes import Rule, cloud, scene

CASES = {
    case["id"]: case
    for case in json.loads((Path(__file__).parents[1] / "aggregation" / "robust_cases.json").read_text())[
        "cases"
    ]
}
ATTACKS: dict[str, Any] = {
    "attack_sign_flip": lambda: SignFlip(),
    "attack_ipm": lambda tau: IPM(tau),
    "attack_alie": lambda tau, sign, ddof: ALIE(tau, sign, ddof),
    "attack_mimic": lambda epsilon: Mimic(epsilon),
}


def one(attack: Attack, honest: Any, **known: Any) -> np.ndarray:
    """What every attacker sends; they must agree."""
    rows = attack.updates(scene(honest, **{"attackers": 2, **known})).rows
    np.testing.assert_array_equal(rows, np.broadcast_to(rows[0], rows.shape))
    return rows[0]


# ----- reference cases ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["rule"] in ATTACKS])
def test_reference_case(name: str) -> None:
    case = CASES[name]
    got = one(ATTACKS[case["rule"]](**case["params"]), case["inputs"])
    np.testing.assert_allclose(got, case["expected"], rtol=case["tol"], atol=case["tol"])


def test_every_attack_case_is_tried_somewhere() -> None:
    attacks = {c["rule"] for c in CASES.values() if "attack" in c["rule"] or "alie" in c["rule"]}
    elsewhere = {"alie_zmax", "attack_label_flip", "attack_model_replacement"}
    assert attacks == set(ATTACKS) | elsewhere


def test_zmax_of_the_paper() -> None:
    case = CASES["alie_zmax"]
    for (n, f), record in zip(case["inputs"], case["expected"], strict=True):
        assert alie_zmax(n, f) == pytest.approx(record["z"], abs=case["tol"], rel=case["tol"])
        assert norm.cdf(alie_zmax(n, f)) == pytest.approx(record["cdf"], abs=1e-12)
    assert round(alie_zmax(50, 24), 3) == 1.426


def test_label_flip_case() -> None:
    case = CASES["atk_labelflip"]
    labels = np.array(case["inputs"])
    _, flipped = LabelFlip().poison(np.zeros((4, 2)), labels, 0, case["params"]["classes"])
    np.testing.assert_array_equal(flipped, case["expected"])


def test_model_replacement_case() -> None:
    case = CASES["atk_model_replacement"]
    n, eta, start, wanted = (np.asarray(case["params"][k]) for k in ("n", "eta", "global", "backdoored"))
    attack = ModelReplacement(PixelTrigger(0))
    sent = attack.updates(scene(np.empty((0, 3)), own=(wanted - start)[None], share=float(eta / n))).rows[0]
    np.testing.assert_allclose(start + sent, case["expected"], rtol=1e-9, atol=1e-9)


# ----- closed forms ---------------------------------------------------------------------------------------


def test_sign_flip_of_ones_own() -> None:
    s = scene(cloud(4, 3), 2)
    np.testing.assert_array_equal(SignFlip("own").updates(s).rows, -s.own)
    assert SignFlip("own").knowledge == "own"
    assert SignFlip().knowledge == "updates"


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_alie_takes_its_z_from_the_cohort(sign: int, ddof: int) -> None:
    x = cloud(20, 4)
    z = norm.ppf(12 / 20)  # n = 25, f = 5: s = 8
    expected = x.mean(0) + sign * z * x.std(0, ddof=ddof)
    np.testing.assert_allclose(one(ALIE(sign=sign, ddof=ddof), x, attackers=5), expected, rtol=1e-12)


def test_alie_where_the_paper_has_no_answer() -> None:
    for n, f in ((10, 6), (2, 1), (1, 1), (1, 0)):  # attackers are the majority, or one honest client at most
        with pytest.raises(ConfigError, match=f"n={n}, f={f}"):
            alie_zmax(n, f)
    with pytest.raises(ConfigError, match="f=-1"):
        alie_zmax(5, -1)
    x = cloud(3, 2)
    half = x.mean(0) - norm.ppf(2 / 3) * x.std(0, ddof=1)
    np.testing.assert_allclose(one(ALIE(), x, attackers=3), half, rtol=1e-12)
    np.testing.assert_allclose(one(ALIE(), x, attackers=9), half, rtol=1e-12)
    np.testing.assert_array_equal(one(ALIE(), x[:1], attackers=3), x[0])


DIRECTIONS = ("std", "unit", "sign")


def along(direction: str, x: np.ndarray) -> np.ndarray:
    m = x.mean(0)
    return {"std": -x.std(0, ddof=1), "unit": -m / np.sqrt(m @ m), "sign": -np.sign(m)}[direction]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("h", "d"), [(2, 1), (3, 2), (12, 5), (7, 40)])
def test_min_max_reaches_its_bound_and_no_more(direction: Any, h: int, d: int) -> None:
    x = cloud(h, d, seed=h)
    sent, p, m = one(MinMax(direction), x), along(direction, x), x.mean(0)
    bound = pdist(x, "sqeuclidean").max()

    def furthest(point: np.ndarray) -> float:
        return float(((point - x) ** 2).sum(1).max())

    assert furthest(sent) == pytest.approx(bound, rel=1e-9)
    assert (sent - m) @ p > 0
    np.testing.assert_allclose(sent - m, ((sent - m) @ p) / (p @ p) * p, rtol=1e-9, atol=1e-12)
    assert furthest(m + (1 + 1e-6) * (sent - m)) > bound * (1 + 1e-9)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("h", "d"), [(3, 2), (12, 5), (7, 40)])
def test_min_sum_reaches_its_bound_and_no_more(direction: Any, h: int, d: int) -> None:
    x = cloud(h, d, seed=h)
    sent, p, m = one(MinSum(direction), x), along(direction, x), x.mean(0)
    bound = squareform(pdist(x, "sqeuclidean")).sum(1).max()
    assert ((sent - x) ** 2).sum() == pytest.approx(bound, rel=1e-9)
    np.testing.assert_allclose(sent - m, ((sent - m) @ p) / (p @ p) * p, rtol=1e-9, atol=1e-12)
    assert (sent - m) @ p > 0
    assert ((m + (1 + 1e-6) * (sent - m) - x) ** 2).sum() > bound * (1 + 1e-9)


def test_min_max_and_min_sum_by_hand_reject_the_known_wrong_variants() -> None:
    """Blades bounds γ by 5, and a public notebook takes min instead of max for Min-Sum."""
    far = np.array([[1.0, 10.0], [1.0, -10.0]])  # R = 400; γ² + 100 = 400
    np.testing.assert_allclose(one(MinMax("unit"), far), [1 - np.sqrt(300), 0], rtol=1e-12, atol=1e-12)
    assert np.sqrt(300) > 5
    line = np.array([[0.0], [1.0], [5.0]])  # sums of distances 26, 17, 41; Σ‖x − m‖² = 14
    np.testing.assert_allclose(one(MinSum("unit"), line), [2 - np.sqrt((41 - 14) / 3)], rtol=1e-12)
    assert not np.isclose(one(MinSum("unit"), line)[0], 2 - np.sqrt((17 - 14) / 3))
    np.testing.assert_allclose(one(MinMax("unit"), line), [0.0], atol=1e-12)  # 5 from the last, R = 25


def test_min_max_far_from_the_origin_in_float32() -> None:
    """Distances are formed about the mean: a common offset doesn't eat their digits."""
    x = (cloud(10, 300) * 1e-3 + 1e4).astype(np.float32)
    got = MinMax().updates(scene(x, dtype=np.float32, own=np.zeros((1, 300)))).rows[0]
    exact = one(MinMax(), x.astype(np.float64))
    np.testing.assert_allclose(got, exact.astype(np.float32), rtol=1e-7)
    y = x.astype(np.float64)
    assert ((exact - y) ** 2).sum(1).max() == pytest.approx(pdist(y, "sqeuclidean").max(), rel=1e-9)


def test_blocks_of_columns_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = cloud(6, 50)
    whole = [one(a, x, attackers=1) for a in (ALIE(), MinMax(), MinSum(), FangKrum(0.0))]
    monkeypatch.setattr("dure.attacks.known._COLUMNS", 7)
    monkeypatch.setattr("dure.aggregation.kernels.host.CHUNK", 7)
    for before, a in zip(whole, (ALIE(), MinMax(), MinSum(), FangKrum(0.0)), strict=True):
        np.testing.assert_allclose(one(a, x, attackers=1), before, rtol=1e-12)


def test_rop_steps_aside_from_the_last_aggregate() -> None:
    x, last = cloud(20, 6), cloud(1, 6, seed=5)[0]
    z = norm.ppf(12 / 20)
    m = x.mean(0)
    step = one(RoP(), x, attackers=5, previous=last, round=3) - last
    assert np.linalg.norm(step) == pytest.approx(z)
    assert step @ (0.9 * last + 0.1 * m) == pytest.approx(0, abs=1e-12)
    assert step.sum() < 0  # θ = 270° turns the ones around
    # The first round has no history: u = m. And a general angle and place.
    step = one(RoP(angle=30, location=0.25, z=2.0), x, previous=np.zeros(6)) - 0.75 * m
    u = m / np.linalg.norm(m)
    assert step @ u == pytest.approx(2 * np.cos(np.pi / 6))
    aside = step - (step @ u) * u
    assert np.linalg.norm(aside) == pytest.approx(1.0)  # 2 sin 30°
    np.testing.assert_allclose(aside, aside.sum() / (1 - u * u.sum()).sum() * (1 - u * u.sum()), atol=1e-12)
    # Where ones are no direction aside: the place itself.
    np.testing.assert_allclose(one(RoP(), np.ones((3, 4)), previous=np.ones(4), round=2), np.ones(4))


# ----- noise and broken numbers ---------------------------------------------------------------------------


def test_gaussian_noise_has_its_moments_and_its_address() -> None:
    s = scene(np.empty((0, 20_000)), 2)
    rows = Gaussian(0.1, 0.5).updates(s).rows
    np.testing.assert_allclose(rows.mean(1), 0.1, atol=5 * 0.5 / np.sqrt(20_000))
    np.testing.assert_allclose(rows.std(1), 0.5, rtol=0.05)
    assert abs(np.corrcoef(rows)[0, 1]) < 0.05
    np.testing.assert_array_equal(rows, Gaussian(0.1, 0.5).updates(s).rows)
    assert not np.array_equal(rows, Gaussian(0.1, 0.5).updates(s._replace(key=8)).rows)


def test_constant_rows() -> None:
    x = np.empty((0, 3))
    np.testing.assert_array_equal(one(Zero(), x), [0, 0, 0])
    np.testing.assert_array_equal(one(Huge(), x, dtype=np.float32), np.full(3, 1e38, np.float32))
    assert np.isinf(one(Huge(1e39), x, dtype=np.float32)).all()
    assert np.isnan(one(NotFinite(), x)).all()
    np.testing.assert_array_equal(one(NotFinite("-inf"), x), [-np.inf] * 3)


# ----- mimic ----------------------------------------------------------------------------------------------


def test_mimic_learns_whom_to_copy() -> None:
    """Against the recursion written out; one client differs from the others along one axis."""
    rounds = [cloud(6, 4, seed) * np.array([9, 1, 1, 1]) for seed in range(4)]
    attack, state, z, mu = Mimic(warmup=2), None, None, np.zeros(4)
    for t, x in enumerate(rounds):
        sent = attack.updates(scene(x, 3, key=11, round=t + 1, state=state))
        state = sent.state
        assert state is not None
        if z is None:
            z = _start_of(attack, x)
        if t < 2:
            mu = t / (t + 1) * mu + x.mean(0) / (t + 1)
            u = sum(((g - mu) @ z) * (g - mu) for g in x)
            z = t / (1 + t) * z + u / np.linalg.norm(u) / (1 + t)
            z /= np.linalg.norm(z)
            target = int(np.argmax(x @ z))
        np.testing.assert_allclose(state["direction"], z, rtol=1e-12)
        np.testing.assert_array_equal(sent.rows, np.stack([x[target]] * 3))
    # Another number of clients: the position says nothing any more.
    x = cloud(5, 4, seed=9)
    np.testing.assert_array_equal(attack.updates(scene(x, state=state)).rows[0], x[np.argmax(x @ z)])


def _start_of(attack: Mimic, x: np.ndarray) -> np.ndarray:
    """The random start, which the attack shows where all honest updates agree."""
    state = attack.updates(scene(np.ones_like(x), key=11)).state
    assert state is not None
    z = state["direction"]
    assert np.linalg.norm(z) == pytest.approx(1)
    return z


def test_mimic_copies() -> None:
    s = scene(cloud(4, 3))
    for attack in (Mimic(2), Mimic(6), Mimic()):
        rows = attack.updates(s).rows
        assert not np.shares_memory(rows, s.honest)
    np.testing.assert_array_equal(Mimic(6).updates(s).rows[0], s.honest[2])  # counted around


# ----- attacks on one rule --------------------------------------------------------------------------------


def naive_krum(x: np.ndarray, f: int) -> int:
    apart = squareform(pdist(x, "sqeuclidean"))
    scores = [np.sort(np.delete(row, i))[: len(x) - f - 2].sum() for i, row in enumerate(apart)]
    return int(np.argmin(scores))


@pytest.mark.parametrize(("h", "f"), [(10, 1), (8, 3), (20, 5), (16, 7)])
def test_krum_picks_fangs_attacker(h: int, f: int) -> None:
    for seed in range(5):
        x = np.random.default_rng(seed).normal(0.1, 1, (h, 6))  # Krum can be won: 0 is in the middle of them
        rows = FangKrum().updates(scene(x, f)).rows
        assert naive_krum(np.vstack([x, rows]), f) >= h
        away = np.sign(x.mean(0))
        size = -(rows[0] @ away) / 6
        np.testing.assert_allclose(rows[0], -size * away, rtol=1e-12)
        assert size > 0
        beside = np.linalg.norm(rows[1:] - rows[0], axis=1)
        assert ((beside > 0) & (beside <= 0.01)).all()
        # It was halved from the paper's bound, and no further than it had to be.
        sums = np.sort(squareform(pdist(x, "sqeuclidean")), axis=1)[:, 1 : h - 1].sum(1)
        bound = np.sqrt(sums.min() / ((h - f - 1) * 6)) + np.linalg.norm(x, axis=1).max() / np.sqrt(6)
        halvings = np.log2(bound / size)
        assert halvings == pytest.approx(round(halvings), abs=1e-9)
        if halvings > 0.5:
            assert naive_krum(np.vstack([x, rows - rows[0] + 2 * rows[0]]), f) < h


def test_fang_gives_up_where_krum_cannot_be_won() -> None:
    x = np.ones((6, 3)) + np.arange(6)[:, None] * 1e-9  # far away and close together
    sent = one(FangKrum(epsilon=0.0), x)
    assert 0 < -sent[0] < 1e-5
    np.testing.assert_array_equal(one(FangKrum(epsilon=0.0), np.zeros((4, 3))), [0, 0, 0])


def test_fang_against_the_trimmed_mean() -> None:
    x = np.array([[1.0, -3, -2, 2], [2, -1, 1, -1], [4, -2, -3, 3]])  # means: +, −, −, +
    rows = FangTrimmedMean().updates(scene(x, 400)).rows
    low, high = np.array([0.5, -1, 1, -2]), np.array([1, -0.5, 2, -1])  # [min/2, min], [max, max/2], …
    assert (rows >= low).all()
    assert (rows <= high).all()
    np.testing.assert_allclose(rows.min(0), low, atol=0.02)  # and all over the interval
    np.testing.assert_allclose(rows.max(0), high, atol=0.02)
    np.testing.assert_allclose(rows.mean(0), (low + high) / 2, atol=0.06)
    assert len(np.unique(rows)) == rows.size


# ----- attacks that try the rule --------------------------------------------------------------------------


def trimmed(f: int) -> Rule:
    return lambda x: np.sort(x, axis=0)[f : len(x) - f].mean(0)


def neighbours(f: int) -> Rule:
    """NNM, then the median."""

    def rule(x: np.ndarray) -> np.ndarray:
        near = np.argsort(squareform(pdist(x, "sqeuclidean")), axis=1, kind="stable")[:, : len(x) - f]
        return np.median(x[near].mean(1), axis=0)

    return rule


RULES: dict[str, Rule] = {
    "median": lambda x: np.median(x, axis=0),
    "trimmed": trimmed(3),
    "krum": lambda x: x[naive_krum(x, 3)],
    "neighbours": neighbours(3),
}
GRID = tuple(float(t) for t in np.linspace(0, 20, 101))


def line(attack: Any, x: np.ndarray, tau: float) -> np.ndarray:
    return -tau * x.mean(0) if isinstance(attack, OptimizedIPM) else x.mean(0) + tau * x.std(0, ddof=1)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kind", [OptimizedIPM, OptimizedALIE])
def test_search_against_a_grid(kind: Any, name: str) -> None:
    rule = RULES[name]
    for seed in range(3):
        x = cloud(10, 4, seed)

        def damage(v: np.ndarray, x: np.ndarray = x) -> float:
            return float(((rule(np.vstack([x, v, v, v])) - x.mean(0)) ** 2).sum())

        found = damage(one(kind(), x, attackers=3, rule=rule))
        grid = max(damage(line(kind(), x, tau)) for tau in GRID)
        assert found >= damage(line(kind(), x, 0.0))
        if name in ("median", "trimmed"):
            assert found >= 0.99 * grid
        with_grid = damage(one(kind(candidates=GRID), x, attackers=3, rule=rule))
        assert with_grid >= max(found, grid) * (1 - 1e-12)


def test_line_search_step_by_step() -> None:
    """Doubling while it helps, then shrinking by a fifth; never to the left; 20 evaluations in all."""
    asked: list[float] = []

    def value(t: float) -> float:
        asked.append(t)
        return -abs(t - 75)

    best, height = line_search(value)
    expected, at, step, growing = [0.0], 0.0, 10.0, True
    for _ in range(19):
        expected.append(at + step)
        if abs(at + step - 75) < abs(at - 75):
            at, step = at + step, step * (2 if growing else 0.8)
        else:
            step, growing = step * 0.8, False
    assert asked == pytest.approx(expected)
    assert asked[:5] == pytest.approx([0, 10, 30, 70, 150])
    assert (best, height) == (pytest.approx(at), -abs(best - 75))
    assert line_search(lambda t: np.nan, start=2.0)[0] == 2.0
    assert line_search(lambda t: t, evaluations=1) == (0.0, 0.0)


def test_optimised_attacks_need_the_rule_and_leave_its_rows_alone() -> None:
    x = cloud(4, 2)
    with pytest.raises(ConfigError, match="rule=None"):
        OptimizedIPM().updates(scene(x))

    def near(rows: np.ndarray) -> np.ndarray:
        """The last row if it is not far from the first."""
        return rows[-1].copy() if np.linalg.norm(rows[-1] - rows[0]) < 9 else rows[0].copy()

    def spiteful(rows: np.ndarray) -> np.ndarray:
        result = near(rows)
        rows[:] = 1e6
        return result

    sent = one(OptimizedIPM(), x, rule=near)
    np.testing.assert_array_equal(one(OptimizedIPM(), x, rule=spiteful), sent)
    assert 0 < np.linalg.norm(sent - x[0]) < 9


def test_a_cohort_too_small_for_the_rule_is_the_servers_matter() -> None:
    def refuses(rows: np.ndarray) -> np.ndarray:
        raise DomainError("Krum", len(rows), 3, "n ≥ 2f + 3")

    x = cloud(4, 2)
    np.testing.assert_allclose(one(OptimizedIPM(start=0.5), x, rule=refuses), -0.5 * x.mean(0))


def test_a_rule_that_ignores_attackers_leaves_the_start() -> None:
    x = cloud(5, 3)
    for attack in (OptimizedIPM(start=0.5), OptimizedALIE(start=0.5)):
        np.testing.assert_allclose(
            one(attack, x, rule=lambda r: r[:5].mean(0)), line(attack, x, 0.5), rtol=1e-12
        )
    less = OptimizedALIE(start=0.5, sign=-1, ddof=0)
    np.testing.assert_allclose(one(less, x, rule=lambda r: r[0]), x.mean(0) - 0.5 * x.std(0), rtol=1e-12)


# ----- labels and sizes -----------------------------------------------------------------------------------


def test_label_flip_of_one_class_and_kinds_of_labels() -> None:
    y = np.array([3, 5, 3, 1], np.uint8)
    x = np.ones((4, 2))
    new_x, new = LabelFlip(source=3, target=7).poison(x, y, 0, 10)
    np.testing.assert_array_equal(new, [7, 5, 7, 1])
    assert new.dtype == np.uint8
    np.testing.assert_array_equal(new_x, x)
    np.testing.assert_array_equal(LabelFlip().poison(x, np.float32([0, 1, 1, 0]), 0, 2)[1], [1, 0, 0, 1])
    assert LabelFlip().poison(x[:0], y[:0], 0, 10)[1].shape == (0,)
    np.testing.assert_array_equal(
        LabelFlip().poison(x, np.array([[0, 1], [2, 0]]), 0, 3)[1], [[2, 1], [0, 2]]
    )


@pytest.mark.parametrize(
    ("attack", "labels", "classes", "message"),
    [
        (LabelFlip(), np.array([0, 10]), 10, "label 10"),
        (LabelFlip(), np.array([-1]), 10, "label -1"),
        (LabelFlip(), np.array([0.5]), 10, "whole numbers"),
        (LabelFlip(), np.eye(10, dtype=np.float32)[:1], 10, "one-hot"),
        (LabelFlip(), np.array([0]), None, "classes=None"),
        (LabelFlip(), np.array([0], np.uint8), 1000, "uint8"),
        (LabelFlip(3, 12), np.array([0]), 10, "target=12"),
    ],
)
def test_labels_that_cannot_be_flipped(attack: Attack, labels: Any, classes: Any, message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        attack.poison(np.zeros((len(labels), 1)), labels, 0, classes)


def test_a_lie_about_the_size_goes_with_any_attack() -> None:
    sizes = np.array([3, 5])
    attack = DataSizeLie(100.0, SignFlip())
    np.testing.assert_array_equal(attack.weights(sizes), [300, 500])
    np.testing.assert_array_equal(sizes, [3, 5])
    assert (attack.knowledge, attack.poisons) == ("updates", False)
    s = scene(cloud(4, 3))
    np.testing.assert_array_equal(attack.updates(s).rows, SignFlip().updates(s).rows)
    np.testing.assert_array_equal(DataSizeLie().updates(s).rows, s.own)
    both = DataSizeLie(attack=LabelFlip())
    assert both.poisons
    assert both.poison(np.zeros((1, 1)), np.array([2]), 0, 10)[1] == 7


# ----- any attack -----------------------------------------------------------------------------------------

EVERY: list[Attack] = [
    Attack(), SignFlip(), SignFlip("own"), IPM(), ALIE(), ALIE(1.5, 1, 0), Gaussian(), Zero(), Huge(), NotFinite(),
    Mimic(), Mimic(1), LabelFlip(), MinMax(), MinMax("unit"), MinMax("sign"), MinSum(), FangKrum(), FangTrimmedMean(),
    OptimizedIPM(), OptimizedALIE(), RoP(), DataSizeLie(), ModelReplacement(PixelTrigger(0)), PixelTrigger(0),
]  # fmt: skip


@pytest.mark.parametrize("attack", EVERY, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize(
    ("h", "b", "d"), [(5, 2, 3), (1, 2, 3), (0, 2, 3), (5, 0, 3), (5, 2, 0), (0, 1, 1), (1, 1, 1)]
)
def test_small_rounds_are_defined_and_nothing_given_is_changed(
    attack: Attack, h: int, b: int, d: int
) -> None:
    for dtype in (np.float32, np.float64):
        s = scene(cloud(h, d) if h else np.empty((0, d)), b, dtype, rule=lambda x: np.median(x, axis=0))
        before = [np.copy(a) for a in (s.honest, s.own, s.previous)]
        for a in (s.honest, s.own, s.previous):
            a.flags.writeable = False
        rows, _ = attack.updates(s)
        assert (rows.shape, rows.dtype) == ((b, d), dtype)
        assert not any(np.shares_memory(rows, a) for a in (s.honest, s.own, s.previous))
        assert isinstance(attack, NotFinite) or np.isfinite(rows).all()
        for a, old in zip((s.honest, s.own, s.previous), before, strict=True):
            np.testing.assert_array_equal(a, old)


@pytest.mark.parametrize("attack", [a for a in EVERY if a.knowledge == "own"], ids=lambda a: type(a).__name__)
def test_what_knows_its_own_only_never_reads_the_others(attack: Attack) -> None:
    blind = attack.updates(scene(np.empty((0, 4)), 2, share=0.1)).rows
    np.testing.assert_array_equal(attack.updates(scene(np.full((5, 4), np.nan), 2, share=0.1)).rows, blind)


@pytest.mark.parametrize(
    "attack", [a for a in EVERY if a.knowledge == "updates"], ids=lambda a: type(a).__name__
)
def test_honest_updates_that_are_not_finite_are_left_out_as_the_server_does(attack: Attack) -> None:
    x = cloud(5, 4)
    broken = np.vstack([x[:2], np.full((1, 4), np.inf), x[2:], np.full((1, 4), np.nan)])
    np.testing.assert_array_equal(attack.updates(scene(broken, 2)).rows, attack.updates(scene(x, 2)).rows)


def test_without_an_honest_client_the_attackers_own_updates_stand_in() -> None:
    own = cloud(4, 3)
    np.testing.assert_allclose(one(IPM(), np.empty((0, 3)), own=own), -0.1 * own.mean(0))


def test_scenes_that_do_not_fit() -> None:
    s = scene(cloud(3, 2))
    with pytest.raises(DataError, match=r"previous\[3\]"):
        Zero().updates(s._replace(previous=np.zeros(3)))
    with pytest.raises(DataError, match="int64"):
        Zero().updates(s._replace(own=np.zeros((1, 2), np.int64)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SignFlip("median"), "median"),  # type: ignore[arg-type]
        (lambda: IPM(float("nan")), "scale=nan"),
        (lambda: ALIE(sign=0), "sign=0"),
        (lambda: ALIE(ddof=-1), "ddof=-1"),
        (lambda: ALIE(z=float("inf")), "z=inf"),
        (lambda: Gaussian(std=-1.0), "std=-1"),
        (lambda: NotFinite("none"), "'none'"),  # type: ignore[arg-type]
        (lambda: Mimic(-1), "index=-1"),
        (lambda: Mimic(warmup=0), "warmup=0"),
        (lambda: MinMax("mean"), "'mean'"),  # type: ignore[arg-type]
        (lambda: FangKrum(epsilon=-0.1), "epsilon"),
        (lambda: FangTrimmedMean(0.5), "factor=0.5"),
        (lambda: OptimizedIPM(evaluations=0), "evaluations=0"),
        (lambda: OptimizedALIE(step=0.0), "step=0"),
        (lambda: OptimizedALIE(sign=2), "sign=2"),
        (lambda: OptimizedALIE(candidates=(float("nan"),)), "candidates=nan"),
        (lambda: RoP(reference=1.5), "reference=1.5"),
        (lambda: LabelFlip(source=1), "target=None"),
        (lambda: DataSizeLie(0.0), "factor=0"),
    ],
)
def test_impossible_values_are_refused_by_name(build: Any, message: str) -> None:
    with pytest.raises(Exception, match=message) as caught:
        build()
    # A value outside a `Literal` is caught by the type checker that the tests run under.
    assert isinstance(caught.value, ConfigError) or "Literal" in str(caught.value)
