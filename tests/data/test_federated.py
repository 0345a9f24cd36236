"""The federated data set: validation, views, splits, replication, the three constructors."""

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.data import Federated, iid
from dure.errors import ConfigError, DataError

FAST = settings(deadline=None, max_examples=40)


def small(**changes):
    fields = {
        "columns": {"x": np.arange(12.0).reshape(6, 2), "y": np.array([0, 1, 2, 0, 1, 0])},
        "offsets": np.array([0, 2, 2, 6]),
        "client_names": ["a", "b", "c"],
    }
    return Federated(**{**fields, **changes})


def test_clients_are_views_and_dtypes_are_float32_and_int32():
    data = small()
    assert (data.clients, data.examples, data.classes) == (3, 6, 3)
    assert data.columns["x"].dtype == np.float32
    assert data.columns["y"].dtype == np.int32
    assert data.offsets.dtype == np.int64
    np.testing.assert_array_equal(data.sizes, [2, 0, 4])
    assert np.shares_memory(data.client(2)["x"], data.columns["x"])
    np.testing.assert_array_equal(data.client(2)["y"], [2, 0, 1, 0])
    assert len(data.client(1)["y"]) == 0  # no examples is legal
    starts, sizes = data.rows(np.array([2, 0, 2]))
    np.testing.assert_array_equal(starts, [2, 0, 2])
    np.testing.assert_array_equal(sizes, [4, 2, 4])
    np.testing.assert_array_equal(data.class_counts(), [[1, 1, 0], [0, 0, 0], [2, 1, 1]])
    assert "3 clients" in repr(data)


def test_right_arrays_are_not_copied_and_the_callers_stay_writeable():
    x, y = np.zeros((6, 2), np.float32), np.zeros(6, np.int32)
    data = small(columns={"x": x, "y": y})
    assert np.shares_memory(x, data.columns["x"])
    assert x.flags.writeable
    assert y.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        data.columns["x"][0] = 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"columns": {}}, ["no columns"]),
        ({"columns": {"x": np.zeros(6), "y": np.zeros(5, int)}}, ["'x': 6", "'y': 5", "length"]),
        ({"columns": {"x": np.array([1.0, 2, 3, np.nan, 5, 6])}}, ["'x'", "nan", "row 3", "client 2", "'c'"]),
        ({"columns": {"x": np.array([1.0, 2, np.inf, 4, 5, 6])}}, ["'x'", "inf", "row 2", "its example 0"]),
        ({"columns": {"x": np.array([1.0, 2, 1e300, 4, 5, 6])}}, ["'x'", "inf", "float32"]),
        ({"columns": {"y": np.array([0, 1, -1, 0, 1, 0])}}, ["Label -1", "row 2", "client 2", "[0, 2)"]),
        ({"classes": 2}, ["Label 2", "row 2", "client 2", "[0, 2)"]),
        ({"classes": 0}, ["Label 0", "row 0", "[0, 0)"]),
        ({"columns": {"y": np.array([0, 1, 2**31, 0, 1, 0])}}, ["'y'", str(2**31), "row 2", "int32"]),
        ({"columns": {"x": np.array(["a"] * 6)}}, ["'x'", "dtype", "only numbers"]),
        ({"columns": {"x": np.array([object()] * 6)}}, ["'x'", "object"]),
        ({"columns": {"x": np.zeros(6, complex)}}, ["'x'", "complex"]),
        ({"columns": {"x": np.array(1.0)}}, ["'x'", "single value"]),
        ({"columns": {"x": np.zeros(6)}, "classes": 3}, ["classes=3", "no label column"]),
        ({"offsets": np.array([0, 2, 2, 5])}, ["from 0 to 5", "0 to 6"]),
        ({"offsets": np.array([1, 2, 2, 6])}, ["from 1 to 6"]),
        ({"offsets": np.array([0, 4, 2, 6])}, ["falls from 4 to 2", "client 1"]),
        ({"offsets": np.array([0])}, ["empty population"]),
        ({"offsets": np.array([0.0, 2, 2, 6])}, ["integers"]),
        ({"client_names": ["a"]}, ["1 client names", "3 clients"]),
        ({"class_names": ["a"]}, ["Label 1", "[0, 1)"]),
        ({"classes": 3, "class_names": ["a"]}, ["1 class names", "classes=3"]),
        ({"test": {"x": np.zeros((2, 2))}}, ["central test set", "['x']", "['x', 'y']"]),
        ({"test": {"x": np.zeros((2, 3)), "y": np.zeros(2, int)}}, ["'x'", "(3,)", "(2,)"]),
        ({"test": {"x": np.zeros((2, 2)), "y": np.zeros(2)}}, ["'y'", "float32", "int32"]),
        (
            {"test": {"x": np.zeros((2, 2)), "y": np.array([0, -3])}},
            ["Label -3", "row 1", "central test set"],
        ),
        ({"test": {"x": np.full((2, 2), np.nan), "y": np.zeros(2, int)}}, ["nan", "central test set"]),
        ({"client_test": {"x": np.zeros((2, 2)), "y": np.zeros(2, int)}}, ["belong together"]),
        ({"registered": 0}, ["registered=0", "empty population"]),
    ],
)
def test_bad_input_is_named(changes, words):
    with pytest.raises(DataError) as caught:
        small(**changes)
    for word in words:
        assert word in str(caught.value)


def test_a_population_without_one_example_is_refused():
    with pytest.raises(DataError, match="3 clients but not one example"):
        Federated({"x": np.zeros((0, 2))}, np.zeros(4, np.int64))


def test_client_test_offsets_must_be_of_the_same_clients():
    rows = {"x": np.zeros((2, 2)), "y": np.zeros(2, int)}
    with pytest.raises(DataError, match="for 2 clients, offsets for 3"):
        small(client_test=rows, client_test_offsets=np.array([0, 1, 2]))


def test_a_client_that_is_not_registered_is_an_error():
    with pytest.raises(DataError, match=r"Client 3 .*\[0, 3\)"):
        small().rows(np.array([0, 3]))
    with pytest.raises(DataError, match="Client -1"):
        small().client(-1)
    with pytest.raises(DataError, match="no test rows"):
        small().client_test_rows(0)


def test_sequences_may_have_positions_without_target():
    y = np.array([[0, 1, -1], [2, -1, -1]])
    data = Federated({"x": np.zeros((2, 3)), "y": y}, np.array([0, 1, 2]))
    np.testing.assert_array_equal(data.class_counts(), [[1, 1, 0], [0, 0, 1]])
    with pytest.raises(DataError, match=r"Label -2 .*\[-1, 3\)"):
        Federated({"x": np.zeros((2, 3)), "y": y - (y < 0)}, np.array([0, 1, 2]))


def test_float_targets_are_regression():
    data = Federated({"x": np.zeros((2, 3)), "y": np.array([-0.5, 7.0])}, np.array([0, 1, 2]))
    assert data.classes is None
    assert data.summary().counts is None
    with pytest.raises(DataError, match="no integer label column"):
        data.class_counts()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(any), st.data())
@FAST
def test_example_at_is_the_inverse_of_rows(sizes, draw):
    n = sum(sizes)
    data = Federated({"x": np.zeros(n)}, np.cumsum([0, *sizes]))
    registered = draw.draw(st.integers(1, 3 * len(sizes)).filter(lambda r: sum((sizes * 3)[:r]) > 0))
    data = data.replicate(registered)
    expected = np.repeat(np.arange(registered), np.resize(sizes, registered))
    assert data.examples == len(expected)
    np.testing.assert_array_equal(data.example_at(np.arange(data.examples)), expected)
    np.testing.assert_array_equal(data.sizes, np.resize(sizes, registered))
    with pytest.raises(DataError, match="does not exist"):
        data.example_at(np.array([data.examples]))


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any),
    st.floats(0.05, 0.95),
    st.integers(0, 5),
    st.booleans(),
)
@FAST
def test_split_divides_each_client_and_loses_nothing(sizes, fraction, seed, stratify):
    n = sum(sizes)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, n)
    data = Federated({"x": np.arange(n, dtype=np.float32), "y": y}, np.cumsum([0, *sizes]), classes=3)
    split = data.split(fraction, seed=seed, stratify=stratify)
    for k, size in enumerate(sizes):
        train, test = split.client(k), split.client_test_rows(k)
        whole = data.client(k)
        assert len(train["x"]) == max(int(np.floor((1 - fraction) * size + 1e-9)), min(size, 1))
        np.testing.assert_array_equal(np.sort(np.concatenate([train["x"], test["x"]])), whole["x"])
        np.testing.assert_array_equal(y[test["x"].astype(int)], test["y"])
        if stratify and size > 1:
            share = len(test["y"]) / size
            quota = np.bincount(whole["y"], minlength=3) * share
            assert np.all(np.abs(np.bincount(test["y"], minlength=3) - quota) < 1 + 1e-9)


def test_a_clients_split_does_not_depend_on_the_others():
    data = small()
    alone = Federated(data.client(0), np.array([0, 2]), classes=3)
    np.testing.assert_array_equal(data.split(0.5).client(0)["x"], alone.split(0.5).client(0)["x"])
    assert data.split(0.5, seed=1).fingerprint() == data.split(0.5, seed=1).fingerprint()


def test_split_refuses_impossible_requests():
    for fraction in (0.0, 1.0, -0.1, 1.5, float("nan")):
        with pytest.raises(ConfigError, match="test_fraction"):
            small().split(fraction)
    with pytest.raises(DataError, match="stratify"):
        Federated({"x": np.zeros(2)}, np.array([0, 2])).split(0.5, stratify=True)


def test_central_test_is_the_given_one_or_the_pooled_rows_of_clients():
    central = {"x": np.ones((1, 2)), "y": np.array([1])}
    assert small().central_test is None
    assert small().split(0.5).central_test is not None
    assert len(small(test=central).split(0.5).central_test["y"]) == 1


def test_ten_million_clients_take_no_memory():
    data = small()
    tracemalloc.start()
    many = data.replicate(10**7)
    starts, sizes = many.rows(np.array([0, 9_999_999, 5]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert many.clients == 10**7
    assert many.examples == 6 * (10**7 // 3) + 2
    np.testing.assert_array_equal(starts, [0, 0, 2])
    np.testing.assert_array_equal(sizes, [2, 2, 4])
    np.testing.assert_array_equal(many.client(9_999_999)["x"], data.client(0)["x"])
    assert many.client_name(5) == "5"


def test_select_keeps_rows_names_and_tests():
    chosen = small().split(0.5).select(np.array([2, 0]))
    assert list(chosen.client_names) == ["c", "a"]
    np.testing.assert_array_equal(chosen.sizes, [2, 1])
    np.testing.assert_array_equal(
        chosen.client_test_rows(0)["x"], small().split(0.5).client_test_rows(2)["x"]
    )


def test_fingerprint_sees_every_change():
    base = small()
    assert base.fingerprint() == small().fingerprint()
    x = base.columns["x"].copy()
    x[3, 1] += 1
    others = [
        small(columns={"x": x, "y": base.columns["y"]}),
        small(offsets=np.array([0, 1, 2, 6])),
        base.replicate(4),
        base.split(0.5),
        small(columns={"x": base.columns["x"].reshape(6, 2, 1), "y": base.columns["y"]}),
        small(columns={"z": base.columns["x"], "y": base.columns["y"]}),
    ]
    assert len({base.fingerprint(), *(o.fingerprint() for o in others)}) == 7


@given(st.lists(st.sampled_from(["b", "a", "10", "2"]), min_size=1, max_size=20), st.randoms())
@FAST
def test_from_arrays_groups_stably_whatever_the_order(ids, random):
    x = np.arange(len(ids))
    data = Federated.from_arrays({"x": x.astype(float)}, ids)
    assert list(data.client_names) == sorted(set(ids))
    for k, name in enumerate(data.client_names):
        np.testing.assert_array_equal(data.client(k)["x"], [i for i in x if ids[i] == name])


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([1, 2], ["2 client ids for 3 examples"]),
        ([[1], [2], [3]], ["shape (3, 1)"]),
        ([1.0, np.nan, 2.0], ["row 1", "nan"]),
        ([1.5, 1.0, 2.0], ["row 0", "1.5"]),
        (np.array(["a", None, "b"], object), ["row 1", "missing"]),
        (np.array(["a", 1, "b"], object), ["mix", "int", "str"]),
    ],
)
def test_bad_client_ids_are_named(ids, words):
    with pytest.raises(DataError) as caught:
        Federated.from_arrays({"x": np.zeros(3)}, ids)
    for word in words:
        assert word in str(caught.value)


def test_from_arrays_names_the_row_as_it_was_given():
    with pytest.raises(DataError, match=r"nan at row 1 .*\(client 'z'\)"):
        Federated.from_arrays({"x": np.array([1.0, np.nan, 3.0])}, ["z", "z", "a"])


def test_from_arrays_takes_lists_and_refuses_ragged_ones():
    assert Federated.from_arrays({"x": [[1, 2], [3, 4]], "y": [True, False]}, ["a", "b"]).classes == 2
    with pytest.raises(DataError, match=r"'x' .*rectangular"):
        Federated.from_arrays({"x": [[1, 2], [3]]}, [1, 2])


def test_from_arrays_with_test_rows_of_clients():
    rows = {"x": np.array([1.0, 2, 3]), "y": np.array([0, 1, 1])}
    data = Federated.from_arrays(rows, [7, 3, 7], client_test=rows, test_client=[3, 9, 9])
    assert list(data.client_names) == ["3", "7", "9"]
    np.testing.assert_array_equal(data.sizes, [1, 2, 0])
    np.testing.assert_array_equal(data.client_test_rows(2)["x"], [2, 3])
    with pytest.raises(DataError, match="belong together"):
        Federated.from_arrays(rows, [7, 3, 7], client_test=rows)


def test_from_partition_deals_out_and_checks_the_number():
    y = np.array([0, 1, 1, 0])
    data = Federated.from_partition({"y": y}, iid(y, 2, seed=1), test={"y": y})
    assert data.clients == 2
    assert data.examples == 4
    with pytest.raises(DataError, match="of 3 examples, the columns have 4"):
        Federated.from_partition({"y": y}, iid(3, 2))


def frames():
    """The same table as a pandas and Polars frame, an Arrow table and an Arrow record batch."""
    columns = {
        "hospital": ["b", "a", "b", "a"],
        "age": [40, 50, 60, 70],
        "dose": [0.5, 1.0, 1.5, 2.0],
        "ill": ["yes", "no", "no", "yes"],
    }
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    return {
        "pandas": pd.DataFrame(columns),
        "pandas categories": pd.DataFrame(columns).astype({"ill": "category", "hospital": "category"}),
        "pandas nullable": pd.DataFrame(columns).convert_dtypes(),
        "polars": polars.DataFrame(columns),
        "polars categories": polars.DataFrame(columns).with_columns(
            polars.col("ill").cast(polars.Categorical)
        ),
        "arrow": arrow.table(columns),
        "arrow dictionary": arrow.table({**columns, "ill": arrow.array(columns["ill"]).dictionary_encode()}),
        "arrow batch": arrow.RecordBatch.from_pydict(columns),
    }


def test_every_kind_of_frame_gives_the_same_data():
    prints = {}
    for kind, frame in frames().items():
        data = Federated.from_frame(frame, client="hospital", target="ill", test=frame)
        np.testing.assert_array_equal(data.client(0)["x"], [[50, 1], [70, 2]])
        np.testing.assert_array_equal(data.client(1)["y"], [1, 0])
        assert list(data.class_names) == ["no", "yes"]
        prints[kind] = data.fingerprint()
    assert len(set(prints.values())) == 1, prints


def test_frames_with_lists_and_chosen_features():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"u": [1, 1, 2], "y": [0.5, 1.5, -2.0], "v": [[1.0, 2], [3, 4], [5, 6]], "w": ["a"] * 3}
    )
    data = Federated.from_frame(frame, client="u", target="y", features=["v"])
    np.testing.assert_array_equal(data.columns["x"], [[1, 2], [3, 4], [5, 6]])
    assert data.classes is None
    with pytest.raises(DataError, match=r"Feature 'w' .*'a'.*features="):
        Federated.from_frame(frame.drop("v").with_columns(z=1), client="u", target="y")


def test_bad_frames_are_named():
    frame = pd.DataFrame({"who": ["a", "b"], "age": [1.0, np.nan], "ill": [0, 1]})
    cases = [
        ({"client": "whom", "target": "ill"}, frame, ["'whom'", "'who'"]),
        ({"client": "who", "target": "sick"}, frame, ["'sick'", "target"]),
        ({"client": "who", "target": "ill", "features": ["agee"]}, frame, ["'agee'", "'age'"]),
        ({"client": "who", "target": "ill"}, frame, ["nan", "row 1", "'b'"]),
        ({"client": "who", "target": "ill"}, frame.drop(columns="age"), ["no feature"]),
        ({"client": "who", "target": "ill"}, frame.assign(ill=[None, "x"]), ["'ill'", "missing", "row 0"]),
        ({"client": "who", "target": "ill"}, {"who": [1]}, ["dict", "from_arrays"]),
        ({"client": "who", "target": "ill"}, pd.concat([frame, frame], axis=1), ["two columns", "'who'"]),
        ({"client": "age", "target": "ill"}, frame.drop(columns="who").assign(z=1), ["row 1", "nan"]),
    ]
    for arguments, given_, words in cases:
        with pytest.raises(DataError) as caught:
            Federated.from_frame(given_, **arguments)
        for word in words:
            assert word in str(caught.value)
    polars = pytest.importorskip("polars")
    with pytest.raises(DataError, match="collect"):
        Federated.from_frame(polars.DataFrame({"a": [1]}).lazy(), client="a", target="a")


def test_missing_values_where_they_are_declared():
    x = np.array([[1.0, np.nan], [2.0, 3.0]], np.float32)
    y = np.array([0, 1])
    with pytest.raises(DataError, match=r"missing=\('x',\)"):
        Federated({"x": x, "y": y}, np.array([0, 2]))
    data = Federated.from_arrays(
        {"x": x, "y": y}, [4, 4], missing=("x",), client_test={"x": x, "y": y}, test_client=[4, 4]
    )
    np.testing.assert_array_equal(data.columns["x"], x)
    assert data.split(0.5).missing == data.select(np.array([0])).missing == ("x",)
    np.testing.assert_array_equal(data.complete("y"), y)
    with pytest.raises(DataError, match=r"'x' has missing values .*row 0"):
        data.complete("x")
    with pytest.raises(DataError, match="is inf"):
        Federated({"x": np.where(np.isnan(x), np.inf, x), "y": y}, np.array([0, 2]), missing=("x",))
    with pytest.raises(DataError, match="is nan"):
        Federated({"x": x, "z": x}, np.array([0, 2]), missing=("z",))
    with pytest.raises(DataError, match="give names of columns"):
        Federated({"x": x}, np.array([0, 2]), missing="x")
    frame = pd.DataFrame({"who": [1, 2], "a": [np.nan, 2.0], "ill": [0, 1]})
    read = Federated.from_frame(frame, client="who", target="ill", missing=True)
    assert np.isnan(read.columns["x"]).sum() == 1
    with pytest.raises(DataError):
        Federated.from_frame(frame, client="who", target="ill")
