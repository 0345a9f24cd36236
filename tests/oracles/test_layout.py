"""Layout: what goes into the vectors comes out of them, and what can't go in is named."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dure.errors import ConfigError
from dure.oracles.layout import Layout, Variables

FLOATS = [np.float16, ml_dtypes.bfloat16, np.float32]
INTS = [np.int8, np.uint8, np.int32, np.int64, np.bool_]


@st.composite
def leaf(draw, dtypes):
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=3)))
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if np.issubdtype(dtype, np.integer):
        return rng.integers(np.iinfo(np.int8).min if dtype.kind == "i" else 0, 127, shape).astype(dtype)
    return np.asarray(rng.normal(size=shape)).astype(dtype)


def trees(leaves):
    names = st.text("abcxyz_0", min_size=1, max_size=3)
    branch = lambda inner: st.one_of(  # noqa: E731
        st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3), st.tuples(inner, inner)
    )
    return st.recursive(leaves, branch, max_leaves=6)


def equal(one, two):
    a, tree_a = jax.tree.flatten(one)
    b, tree_b = jax.tree.flatten(two)
    assert tree_a == tree_b
    for x, y in zip(a, b, strict=True):
        assert np.shape(x) == np.shape(y)
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


@settings(max_examples=25, deadline=None)
@given(trees(leaf(FLOATS)), trees(leaf(FLOATS + INTS)))
def test_round_trips_are_exact_for_every_tree(params, buffers):
    variables = Variables({"p": params}, {"b": buffers})
    layout = Layout.of(variables)
    vector = layout.flatten_params(variables.params)
    floats, ints = layout.flatten_buffers(variables.buffers)
    sizes = [np.size(x) for x in jax.tree.leaves(params)]
    assert layout.size == sum(sizes) == vector.size
    assert (vector.dtype, floats.dtype, ints.dtype) == (jnp.float32, jnp.float32, jnp.int32)
    assert (floats.size, ints.size) == (layout.buffer_size, layout.counter_size)

    back = layout.unflatten_params(vector)
    equal(variables.params, back)
    for original, leaf in zip(jax.tree.leaves(params), jax.tree.leaves(back), strict=True):
        assert leaf.dtype == original.dtype
    equal(variables.buffers, layout.unflatten_buffers(floats, ints))
    assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(layout.unflatten_params(vector, jnp.float32)))

    state = layout.to_state_dict(vector, floats, ints)
    leaves = jax.tree.leaves(variables.params) + jax.tree.leaves(variables.buffers)
    assert [e.name for e in layout.entries] == list(state)
    for original, (name, value) in zip(leaves, state.items(), strict=True):
        assert value.dtype == original.dtype, name
        np.testing.assert_array_equal(value, original)
    for one, two in zip(layout.from_state_dict(state), (vector, floats, ints), strict=True):
        np.testing.assert_array_equal(one, two)


@settings(max_examples=30, deadline=None)
@given(trees(leaf(FLOATS)), st.data())
def test_entries_tile_the_vector_shared_first(params, data):
    variables = Variables({"p": params})
    names = [e.name for e in Layout.of(variables).entries]
    private = data.draw(st.sets(st.sampled_from(names))) if names else set()
    layout = Layout.of(variables, private=sorted(private))
    at = 0
    for group in ("shared", "private"):
        assert layout.slice(group).start == at
        for e in layout.entries:
            if e.group == group:
                assert (e.group == "private") == (e.name in private)
                assert e.start == at
                assert e.stop - e.start == np.prod(e.shape, dtype=int)
                at = e.stop
        assert layout.slice(group).stop == at
    assert at == layout.size
    equal(variables.params, layout.unflatten_params(layout.flatten_params(variables.params)))


def model():
    return Variables(
        {"body": {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}, "head": {"w": jnp.ones((3, 1), jnp.bfloat16)}},
        {"norm": {"mean": jnp.zeros(3), "count": jnp.array(7, jnp.int32)}},
    )


def test_names_groups_and_places():
    layout = Layout.of(model(), private=["head/*"])
    found = [(e.name, e.shape, e.dtype, e.group, e.start, e.stop) for e in layout.entries]
    assert found == [
        ("body/b", (3,), "float32", "shared", 0, 3),
        ("body/w", (2, 3), "float32", "shared", 3, 9),
        ("head/w", (3, 1), "bfloat16", "private", 9, 12),
        ("norm/count", (), "int32", "counters", 0, 1),
        ("norm/mean", (3,), "float32", "buffers", 0, 3),
    ]
    assert (layout.size, layout.shared_size, layout.buffer_size, layout.counter_size) == (12, 9, 3, 1)
    assert layout.slice("counters") == slice(0, 1)
    assert [e.name for e in layout.params] == ["body/b", "body/w", "head/w"]
    with pytest.raises(ConfigError, match=r"Unknown group 'shard'. Did you mean 'shared'\?"):
        layout.slice("shard")


def test_layouts_are_hashable_and_equal_for_equal_models():
    assert hash(Layout.of(model())) == hash(Layout.of(model()))
    assert Layout.of(model()) == Layout.of(model())
    assert Layout.of(model()) != Layout.of(model(), private="head")


def test_private_by_folder_by_pattern_and_unmatched():
    assert Layout.of(model(), private="body").shared_size == 3
    assert Layout.of(model(), private=["*/w"]).shared_size == 3
    with pytest.raises(
        ConfigError, match=r"private pattern 'haed' matches no parameter. Did you mean 'head'"
    ):
        Layout.of(model(), private=["haed"])
    with pytest.raises(ConfigError, match="'norm' matches no parameter"):
        Layout.of(model(), private="norm")


def test_traceable_under_jit_vmap_and_grad():
    variables = model()
    layout = Layout.of(variables, private="body")
    vector = layout.flatten_params(variables.params)
    rows = jnp.stack([vector, 2 * vector])
    trees = jax.jit(jax.vmap(layout.unflatten_params))(rows)
    assert trees["head"]["w"].shape == (2, 3, 1)
    np.testing.assert_array_equal(jax.vmap(layout.flatten_params)(trees), rows)
    total = lambda v: sum(jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(layout.unflatten_params(v)))  # noqa: E731
    np.testing.assert_array_equal(jax.jit(jax.grad(total))(vector), np.ones(12))
    floats, ints = jax.jit(layout.flatten_buffers)(variables.buffers)
    equal(jax.jit(layout.unflatten_buffers)(floats, ints), variables.buffers)


def test_a_bare_array_and_nothing_at_all():
    layout = Layout.of(Variables(jnp.float32(3.0)))
    assert [e.name for e in layout.entries] == ["params"]
    assert layout.unflatten_params(layout.flatten_params(jnp.float32(3.0))).shape == ()
    empty = Layout.of(Variables({}))
    assert empty.flatten_params({}).shape == (0,)
    assert empty.unflatten_params(np.zeros(0, np.float32)) == {}
    assert empty.to_state_dict(np.zeros(0, np.float32)) == {}


def test_numpy_and_python_floats_follow_jax():
    layout = Layout.of(Variables({"a": np.zeros(2), "b": 1.5}))
    assert {e.dtype for e in layout.entries} == {"float32"}
    np.testing.assert_array_equal(layout.flatten_params({"a": np.zeros(2), "b": 1.5}), [0, 0, 1.5])


class TestTiedWeights:
    """The same array at two places is one tensor."""

    def setup_method(self):
        self.shared = jnp.arange(6.0).reshape(2, 3)
        self.params = {"decoder": self.shared, "embedding": self.shared, "scale": jnp.ones(2)}
        self.layout = Layout.of(Variables(self.params))

    def test_stored_once(self):
        assert self.layout.size == 8
        assert [e.tied_to for e in self.layout.entries] == [None, "decoder", None]
        back = self.layout.unflatten_params(self.layout.flatten_params(self.params))
        equal(back, self.params)
        equal(
            self.params,
            self.layout.unflatten_params(np.arange(8.0, dtype=np.float32) * 0 + [*range(6), 1, 1]),
        )

    def test_gradients_of_both_places_add_up(self):
        def loss(vector):
            p = self.layout.unflatten_params(vector)
            return jnp.sum(2 * p["decoder"]) + jnp.sum(3 * p["embedding"])

        gradient = jax.grad(loss)(self.layout.flatten_params(self.params))
        np.testing.assert_array_equal(gradient, [5.0] * 6 + [0.0] * 2)

    def test_disagreeing_places_are_an_error(self):
        bad = {**self.params, "embedding": self.shared + 1}
        with pytest.raises(ConfigError, match="'embedding' is tied to 'decoder'"):
            self.layout.flatten_params(bad)

    def test_state_dict_has_both_names_and_needs_one(self):
        vector = self.layout.flatten_params(self.params)
        state = self.layout.to_state_dict(vector)
        np.testing.assert_array_equal(state["embedding"], state["decoder"])
        np.testing.assert_array_equal(self.layout.from_state_dict(state)[0], vector)
        once = {k: v for k, v in state.items() if k != "embedding"}
        np.testing.assert_array_equal(self.layout.from_state_dict(once)[0], vector)
        with pytest.raises(ConfigError, match="'embedding' is tied to 'decoder' and has other values"):
            self.layout.from_state_dict({**state, "embedding": state["embedding"] + 1})

    def test_untied_on_request(self):
        layout = Layout.of(Variables(self.params), tie=False)
        assert layout.size == 14
        assert all(e.tied_to is None for e in layout.entries)

    def test_private_and_shared_at_once_is_an_error(self):
        with pytest.raises(ConfigError, match="'embedding', which is tied to 'decoder'"):
            Layout.of(Variables(self.params), private="embedding")
        assert Layout.of(Variables(self.params), private=["embedding", "decoder"]).shared_size == 2

    def test_equal_python_numbers_are_not_tied(self):
        assert Layout.of(Variables({"a": 1.0, "b": 1.0})).size == 2


class TestStateDict:
    """Strict: every misfit is named."""

    def setup_method(self):
        variables = model()
        self.layout = Layout.of(variables)
        parts = (
            self.layout.flatten_params(variables.params),
            *self.layout.flatten_buffers(variables.buffers),
        )
        self.state = self.layout.to_state_dict(*parts)

    def test_dtypes_are_kept(self):
        assert self.state["head/w"].dtype == ml_dtypes.bfloat16
        assert self.state["norm/count"].dtype == np.int32

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"body/w": None}, "'body/w' is missing"),
            ({"body/weight": np.zeros(1)}, r"'body/weight' is unexpected \(Did you mean 'body/w'"),
            ({"body/w": np.zeros((3, 2), np.float32)}, r"'body/w' has shape \(3, 2\), not \(2, 3\)"),
            ({"body/w": np.zeros((2, 3))}, "'body/w' has dtype float64, not float32"),
            ({"norm/count": np.float32(7)}, "'norm/count' has dtype float32, not int32"),
        ],
    )
    def test_misfits(self, change, message):
        state = {k: v for k, v in {**self.state, **change}.items() if v is not None}
        with pytest.raises(ConfigError, match=message):
            self.layout.from_state_dict(state)

    def test_many_misfits_are_summed_up(self):
        layout = Layout.of(Variables({f"w{i}": np.zeros(1, np.float32) for i in range(9)}))
        with pytest.raises(ConfigError, match="and 4 more"):
            layout.from_state_dict({})

    def test_vectors_of_a_wrong_length(self):
        with pytest.raises(
            ConfigError, match=r"parameter vector has shape \(3,\); this layout needs \(12,\)"
        ):
            self.layout.to_state_dict(np.zeros(3, np.float32))
        with pytest.raises(ConfigError, match="buffer vector"):
            self.layout.to_state_dict(np.zeros(12, np.float32))
        with pytest.raises(ConfigError, match="parameter vector"):
            self.layout.unflatten_params(np.zeros(3, np.float32))
        with pytest.raises(ConfigError, match="counter vector"):
            self.layout.unflatten_buffers(np.zeros(3, np.float32), np.zeros(2, np.int32))


class TestNamedErrors:
    """What can't be a parameter or a buffer says which tensor it is."""

    @pytest.mark.parametrize(
        ("leaf", "message"),
        [
            (np.zeros(2, np.int32), "Parameter 'a/w' has dtype int32, which has no gradient"),
            (3, "Parameter 'a/w' has dtype int64"),
            (np.zeros(2, bool), "Parameter 'a/w' has dtype bool"),
            (np.zeros(2, np.complex64), "Parameter 'a/w' has dtype complex64"),
            (jax.random.key(0), "'a/w' in the parameters is a random key"),
            (np.tanh, "'a/w' in the parameters is a ufunc, not an array"),
            ("relu", "'a/w' in the parameters is a str, not an array"),
        ],
    )
    def test_parameters(self, leaf, message):
        with pytest.raises(ConfigError, match=message):
            Layout.of(Variables({"a": {"w": leaf}}))

    def test_buffers(self):
        with pytest.raises(ConfigError, match="Buffer 'b' has dtype complex64"):
            Layout.of(Variables({}, {"b": np.zeros(1, np.complex64)}))
        with pytest.raises(ConfigError, match="'b' in the buffers is a random key"):
            Layout.of(Variables({}, {"b": jax.random.key(0)}))

    def test_float64_in_64_bit_mode(self):
        with (
            jax.enable_x64(True),
            pytest.raises(ConfigError, match=r"Parameter 'w' has dtype float64\. The vectors are float32"),
        ):
            Layout.of(Variables({"w": jnp.zeros(2, jnp.float64)}))

    def test_two_tensors_with_one_name(self):
        with pytest.raises(ConfigError, match="Two tensors of the model are named 'a/b'"):
            Layout.of(Variables({"a": {"b": 1.0}, "a/b": 2.0}))
        with pytest.raises(ConfigError, match="Two tensors of the model are named 'w'"):
            Layout.of(Variables({"w": 1.0}, {"w": 2.0}))

    def test_another_structure_shape_or_kind(self):
        layout = Layout.of(model())
        with pytest.raises(ConfigError, match=r"missing \['body/b', 'body/w'\], unexpected \['bdy/w'\]"):
            layout.flatten_params({"bdy": {"w": 1.0}, "head": {"w": 1.0}})
        params = model().params
        with pytest.raises(
            ConfigError, match=r"'head/w' in the params has shape \(1, 3\); the layout has \(3, 1\)"
        ):
            layout.flatten_params({**params, "head": {"w": jnp.ones((1, 3))}})
        with pytest.raises(
            ConfigError, match="'head/w' in the params has dtype int32; the layout has bfloat16"
        ):
            layout.flatten_params({**params, "head": {"w": jnp.ones((3, 1), jnp.int32)}})
        with pytest.raises(ConfigError, match="'norm/count' in the buffers has dtype float32"):
            layout.flatten_buffers({"norm": {"mean": jnp.zeros(3), "count": jnp.float32(1)}})


class TestCounters:
    """Integers keep their dtype and every bit, or are refused by name."""

    def test_dtypes_and_bits(self):
        buffers = {
            "steps": np.int64(2**31 - 1),
            "small": np.array([250, 252], np.uint8),
            "flags": np.array([True, False]),
        }
        layout = Layout.of(Variables({}, buffers))
        floats, ints = layout.flatten_buffers(buffers)
        np.testing.assert_array_equal(ints, [1, 0, 250, 252, 2**31 - 1])
        state = layout.to_state_dict(np.zeros(0, np.float32), floats, ints)
        for name, value in buffers.items():
            assert state[name].dtype == value.dtype
            np.testing.assert_array_equal(state[name], value)

    def test_outside_int32(self):
        buffers = {"steps": np.array(2**53 + 1)}
        layout = Layout.of(Variables({}, buffers))
        with pytest.raises(ConfigError, match="Counter 'steps' holds 9007199254740993, outside int32"):
            layout.flatten_buffers(buffers)
        with pytest.raises(ConfigError, match="Counter 'steps' holds 9007199254740993"):
            layout.from_state_dict(buffers)
