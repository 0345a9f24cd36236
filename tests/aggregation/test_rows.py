"""Rows: distances, combinations and mixing against numpy; blocks and devices can't be seen in a result."""

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dure.aggregation import Blocks
from dure.aggregation import rows as module
from dure.aggregation.rows import Rows
from dure.errors import DataError


def data(n=9, d=5000, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def apart(x):
    x = np.asarray(x, np.float64)
    return ((x[:, None] - x) ** 2).sum(2)


def everything(rows, point):
    """All that a rule may ask."""
    n = rows.n
    weights = np.arange(1.0, n + 1)
    return {
        "distances": rows.distances,
        "from_centre": rows.from_centre,
        "inner": rows.inner,
        "squared_to": rows.squared_to(point),
        "about": rows.about(point),
        "combine": rows.combine(np.linspace(-1, 2, n)),
        "median": rows.median(),
        "ranks": rows.ranks(1, n - 2),
        "around": rows.around_median(n - 2),
        "weighted": rows.median(weights),
        "trimmed": rows.trimmed_mean(float(n), weights),
        "columns": rows.some_columns(np.array([0, 3, rows.d - 1])),
        "matrix": rows.matrix(),
        "votes": rows.votes(),
    }


def expected(y, centre, point):
    """The same in float64 with numpy, of rows y."""
    n = len(y)
    coefficients, ranked = np.linspace(-1, 2, n), np.sort(y, axis=0)
    copies = np.repeat(y, np.arange(1, n + 1), axis=0)
    cut = np.sort(copies, axis=0)[n:-n]
    near = np.take_along_axis(y, np.argsort(np.abs(y - np.median(y, axis=0)), axis=0)[: n - 2], 0)
    return {
        "distances": apart(y),
        "from_centre": ((y - centre) ** 2).sum(1),
        "inner": (y - centre) @ (y - centre).T,
        "squared_to": ((y - point) ** 2).sum(1),
        "about": (y - point) @ (y - point).T,
        "combine": coefficients @ y + (1 - coefficients.sum()) * centre,
        "median": np.median(y, axis=0),
        "ranks": ranked[1 : n - 1].mean(0),
        "around": near.mean(0),
        "weighted": np.median(copies, axis=0),
        "trimmed": cut.mean(0),
        "columns": y[:, [0, 3, -1]],
        "matrix": y,
        "votes": np.sign(y - centre).sum(0),
    }


@pytest.fixture(params=["plain", "mixed"])
def case(request):
    """(make rows of a source, the rows that they are, centre, point)."""
    x, rng = data(dtype=np.float64), np.random.default_rng(1)
    centre, point = rng.normal(size=(2, x.shape[1]))
    index = np.array([0, 2, 3, 5, 6, 7, 8])
    mixing = rng.uniform(0, 0.3, (6, len(index))) if request.param == "mixed" else None

    def make(source):
        rows = Rows(source, centre, index)
        return rows if mixing is None else rows.mixed(mixing)

    y = x[index] if mixing is None else mixing @ x[index] + (1 - mixing.sum(1, keepdims=True)) * centre
    return make, x, y, centre, point


def test_rows_are_what_numpy_says(case):
    make, x, y, centre, point = case
    for name, found in everything(make(x), point).items():
        scale = 1e-12 * (1 + np.abs(expected(y, centre, point)[name]).max())
        np.testing.assert_allclose(found, expected(y, centre, point)[name], atol=scale, err_msg=name)


def test_neither_blocks_nor_order_in_memory_can_be_seen(case):
    make, x, _, _, point = case
    whole = everything(make(x), point)
    for source in (
        Blocks([x]),
        Blocks([x[:, :1], x[:, 1:4096], x[:, 4096:4500], x[:, 4500:]]),
        Blocks(lambda: (x[:, i : i + 613] for i in range(0, x.shape[1], 613))),
        np.asfortranarray(x),
    ):
        for name, found in everything(make(source), point).items():
            np.testing.assert_array_equal(found, whole[name], err_msg=name)


def test_many_blocks_are_as_one_beyond_a_segment():
    x = data(3, 2**16 + 5000)
    one = Rows(x)
    for width in (2**16, 50_000, 4096, 70_001):
        blocks = Rows(Blocks([x[:, i : i + width] for i in range(0, x.shape[1], width)]))
        np.testing.assert_array_equal(one.distances, blocks.distances)
        np.testing.assert_array_equal(one.median(), blocks.median())
        np.testing.assert_array_equal(one.combine(np.ones(3)), blocks.combine(np.ones(3)))


def test_blocks_that_change_between_two_passes_are_an_error():
    x = np.random.default_rng(0).normal(size=(5, 70))
    once = iter([x])
    used = Blocks(lambda: once)  # nothing is left for the second pass
    with pytest.raises(DataError, match="end after 0 columns, and had 70"):
        Rows(used).median()
    for later in ([x, x], [x[:, :69]], [x[:4]], [x.astype(np.float32)], [x[:, :1], x[:, :69], x[0]]):
        passes = iter([[x], later])
        blocks = Blocks(lambda passes=passes: next(passes))
        with pytest.raises(DataError, match=r"were|had"):
            Rows(blocks).median()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_device_gives_what_the_host_gives(case, dtype, monkeypatch):
    make, x, _y, _centre, point = case
    x = x.astype(dtype)
    host = everything(make(x), point)
    monkeypatch.setattr(module, "_accelerated", lambda array: True)
    with_device = {}

    def device(x):
        if dtype == np.float32:
            return jnp.asarray(x)
        import jax

        with jax.enable_x64(True):
            return jnp.asarray(x)

    rows = make(device(x))
    assert rows._on_device
    with_device = everything(rows, point)
    step = float(np.finfo(dtype).eps)
    for name, found in with_device.items():
        assert found.dtype == host[name].dtype, name
        scale = (1e-12 if found.dtype == np.float64 and name != "matrix" else 2 * step) * (
            1 + np.abs(host[name]).max()
        )
        np.testing.assert_allclose(found, host[name], atol=scale, err_msg=name)
    for name in ("median", "weighted") if make(x).mixing is None else ():
        np.testing.assert_array_equal(with_device[name], host[name])


def test_broken_rows_are_found_on_both_sides(monkeypatch):
    x = data(5, 5000)
    x[1, 4999], x[3, 17] = np.nan, -np.inf
    for accelerated in (False, True):
        monkeypatch.setattr(module, "_accelerated", lambda array, a=accelerated: a)
        rows = Rows(jnp.asarray(x))
        for geometric in (False, True):
            np.testing.assert_array_equal(rows.broken_rows(geometric), [False, True, False, True, False])
    huge = np.zeros((3, 4))
    huge[1, 2], huge[2, 0] = 2.0**501, 2.0**499
    np.testing.assert_array_equal(Rows(huge).broken(), [False, True, False])


@pytest.mark.parametrize("offset", [0.0, 1.0, 1e4])
def test_distances_keep_their_digits_far_from_0(offset):
    rng = np.random.default_rng(2)
    x = (offset + 1e-3 * rng.normal(size=(12, 3000))).astype(np.float32)
    x[3] = x[9]
    x[5] = 2 * offset + 1e6  # one client can't take the digits of the others
    found = Rows(x).distances
    np.testing.assert_allclose(found, apart(x), rtol=1e-7)
    np.testing.assert_array_equal(found, found.T)
    assert found[3, 9] == 0.0
    np.testing.assert_array_equal(found[3], found[9])
    assert (found >= 0).all()
    assert (np.diag(found) == 0).all()


@pytest.mark.parametrize("n", [8, 23, 37, 64])
def test_equal_and_almost_equal_rows_have_distances_that_are_0_or_more(n):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 5001))
    x[n // 2 :] = x[: n - n // 2] + np.where(rng.random(n - n // 2) < 0.5, 0.0, 1e-10)[:, None]
    x = x[rng.permutation(n)]
    found, exact = Rows(x).distances, apart(x)
    assert (found >= 0).all()
    assert (found[exact == 0] == 0).all()
    assert ((exact > 0) & (exact < 1e-6)).any()


def test_the_inner_products_near_the_rows_are_those_of_differences():
    x = (1e4 + 1e-3 * np.random.default_rng(3).normal(size=(6, 2000))).astype(np.float32)
    rows = Rows(x)
    shares = np.array([0.5, 0.25, 0.25, -1.0, 0.0, 0.0])
    exact = np.linalg.norm(shares @ x.astype(np.float64)) ** 2
    np.testing.assert_allclose(shares @ rows.products @ shares, exact, rtol=1e-6)


def test_taking_rows_keeps_what_is_known():
    rows, chosen = Rows(data()), np.array([1, 4, 8])
    before = rows.take(chosen).distances
    rows.distances
    np.testing.assert_allclose(rows.take(chosen).distances, before, rtol=1e-12)
    np.testing.assert_array_equal(rows.take(chosen).distances, rows.distances[np.ix_(chosen, chosen)])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_computed_in_more(dtype):
    x = data(7, 300).astype(dtype)
    wide = x.astype(np.float64)
    rows = Rows(x)
    np.testing.assert_allclose(rows.distances, apart(wide), rtol=1e-12)
    np.testing.assert_array_equal(rows.median(), np.median(wide, axis=0).astype(dtype))
    np.testing.assert_allclose(rows.squared_to(wide[0]), apart(wide)[0], rtol=1e-12)


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [np.zeros((3, 2)), np.zeros((4, 2))],
        [np.zeros((3, 2)), np.zeros((3, 2), np.float32)],
        [np.zeros(3)],
    ],
)
def test_blocks_that_do_not_fit_are_refused(parts):
    with pytest.raises(DataError):
        Blocks(parts)
