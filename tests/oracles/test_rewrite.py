"""Convolutions in canonical form, and small products as sums: the same values and gradients as the plain ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from dure.oracles.rewrite import for_cpu, has_convolution

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return jnp.asarray(RNG.normal(size=shape), jnp.float32)


NHWC = ("NHWC", "HWIO", "NHWC")


def same_size(x: Any, kernel: Any) -> Any:
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=NHWC)


def close(a: Any, b: Any) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), a, b)


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "SAME"},
        {"padding": "VALID"},
        {"padding": "SAME", "window_strides": (2, 2)},
        {"padding": [(1, 2), (0, 3)], "window_strides": (1, 3)},
        {"padding": "SAME", "rhs_dilation": (2, 2)},
        {"padding": [(2, 2), (2, 2)], "lhs_dilation": (2, 1)},
        {"padding": "SAME", "feature_group_count": 2},
        {"padding": "VALID", "batch_group_count": 2},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
@pytest.mark.parametrize(
    "layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("NHWC", "OIHW", "NCHW")]
)
def test_values_and_gradients(options: dict[str, Any], layout: tuple[str, str, str]) -> None:
    groups = options.get("feature_group_count", 1)
    sizes = {"N": 4, "H": 9, "W": 8, "C": 4, "I": 4 // groups, "O": 6}

    def tensor(names: str, height: int, width: int) -> Any:
        here = {**sizes, "H": height, "W": width}
        return normal(*(here[name] for name in names))

    x, kernel = tensor(layout[0], 9, 8), tensor(layout[1], 3, 2)
    strides = options.get("window_strides", (1, 1))
    rest = {k: v for k, v in options.items() if k != "window_strides"}

    def convolution(x: Any, kernel: Any) -> Any:
        return lax.conv_general_dilated(
            x, kernel, strides, dimension_numbers=layout, precision="highest", **rest
        )

    probe = normal(*convolution(x, kernel).shape)

    def loss(x: Any, kernel: Any) -> Any:
        return jnp.sum(probe * jnp.tanh(convolution(x, kernel)))

    plain = jax.value_and_grad(loss, argnums=(0, 1))
    close(jax.jit(for_cpu(plain))(x, kernel), jax.jit(plain)(x, kernel))
    close(jax.jit(for_cpu(convolution))(x, kernel), convolution(x, kernel))


def test_every_convolution_becomes_canonical() -> None:
    def loss(kernel: Any, x: Any) -> Any:
        y = same_size(x, kernel)
        return jnp.sum(y**2)

    rewritten = jax.make_jaxpr(for_cpu(jax.grad(loss)))(normal(3, 3, 2, 4), normal(5, 8, 8, 2))
    found = [e for e in rewritten.jaxpr.eqns if e.primitive.name == "conv_general_dilated"]
    assert len(found) >= 2
    for equation in found:
        numbers = equation.params["dimension_numbers"]
        assert tuple(numbers) == ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    plain = jax.make_jaxpr(jax.grad(loss))(normal(3, 3, 2, 4), normal(5, 8, 8, 2))
    assert any(
        tuple(e.params["dimension_numbers"]) != ((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
        for e in plain.jaxpr.eqns
        if e.primitive.name == "conv_general_dilated"
    ), "or there was nothing to do"


def test_inside_jit_custom_rules_and_structures() -> None:
    """Called functions are followed, pytrees keep their structure, has_aux works."""

    @jax.jit
    def inner(x: Any, kernel: Any) -> Any:
        return jax.nn.relu(same_size(x, kernel))

    def loss(params: Any, x: Any) -> Any:
        hidden = inner(x, params["kernel"])
        return jnp.sum(hidden**2) + params["bias"], {"mean": hidden.mean()}

    params = {"kernel": normal(3, 3, 2, 4), "bias": jnp.float32(0.5)}
    plain = jax.value_and_grad(loss, has_aux=True)
    x = normal(2, 6, 6, 2)
    close(for_cpu(plain)(params, x), plain(params, x))
    assert has_convolution(jax.make_jaxpr(inner)(x, params["kernel"]).jaxpr)
    assert not has_convolution(jax.make_jaxpr(lambda a: a @ a)(normal(3, 3)).jaxpr)


def test_under_vmap() -> None:
    def loss(kernel: Any, x: Any) -> Any:
        return jnp.sum(same_size(x, kernel) ** 2)

    kernels, xs = normal(3, 3, 3, 2, 4), normal(3, 2, 6, 6, 2)
    plain = jax.grad(loss)
    close(jax.vmap(for_cpu(plain, together=True))(kernels, xs), jax.vmap(plain)(kernels, xs))


@pytest.mark.parametrize("rows", [1, 8, 32, 33])
def test_small_products(rows: int) -> None:
    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ params["a"]) @ params["b"] - y) ** 2)

    params = {"a": normal(4, 6, 5), "b": normal(4, 5, 3)}
    x, y = normal(4, rows, 6), normal(4, rows, 3)
    plain = jax.value_and_grad(loss)
    close(jax.vmap(for_cpu(plain, together=True))(params, x, y), jax.vmap(plain)(params, x, y))
