"""Sums that do not depend on the order of their terms: a wide fixed-point accumulator in float64 limbs.

A float32 value times a float32 weight is exact in float64 (24 + 24 ≤ 53 bits). Each product is cut into
three integers of fixed weights 2⁸, 2⁻²⁴ and 2⁻⁵⁶, and each integer is summed by itself. All those sums
are exact (below 2⁵³), and exact sums are associative: the result is bit for bit the same for every order
of clients, every chunking and every number of devices. It is rounded once, at the end. The idea is that
of long accumulators (Kulisch, 1971) and of reproducible summation by pre-rounding (Demmel and Nguyen,
IEEE Trans. Computers 2015).

Range: |weight · value| < 2⁴⁰ (what is above is set aside by the validation, by name), up to 2²⁰ terms;
what is below 2⁻⁵⁷ ≈ 7e-18 in one product is rounded away, the same way for every order.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float32

#: Exponents of the three limbs' units.
EXPONENTS = (8, -24, -56)
_STEP = 2.0 ** (EXPONENTS[0] - EXPONENTS[1])
#: Largest |weight · value| that the accumulator holds; larger ones are rejected before they get here.
LIMIT = 2.0**40
#: Largest number of terms for which every limb's sum stays exact: 2³¹ · 2²⁰ < 2⁵³.
MAX_TERMS = 2**20


class Wide(NamedTuple):
    """Three float64 arrays of one shape that hold integers, in units of 2⁸, 2⁻²⁴ and 2⁻⁵⁶."""

    high: Array
    middle: Array
    low: Array


def zeros(like: Array | np.ndarray | np.float32 | jax.ShapeDtypeStruct) -> Wide:
    """An empty accumulator for terms shaped like `like`."""
    with jax.enable_x64(True):
        return Wide(*(jnp.zeros(like.shape, np.float64) for _ in EXPONENTS))


def add(
    total: Wide, value: Float32[Array | np.ndarray | np.float32, "*shape"], weight: Float32[Array, ""]
) -> Wide:
    """Add weight · value to the accumulator, exactly.

    With weight 0 nothing is added, whatever `value` holds; otherwise it must be finite and within `LIMIT`.
    """
    with jax.enable_x64(True):
        product = lax.convert_element_type(value, np.float64) * lax.convert_element_type(weight, np.float64)
        product = jnp.where(weight > 0, product, np.float64(0.0))
        return Wide(*(limb + part for limb, part in zip(total, _cut(product), strict=True)))


def add_all(total: Wide, values: Float32[Array, " m"]) -> Wide:
    """Add m numbers to a scalar accumulator, exactly."""
    with jax.enable_x64(True):
        parts = _cut(lax.convert_element_type(values, np.float64))
        return Wide(*(limb + part.sum() for limb, part in zip(total, parts, strict=True)))


def _cut(product: Array) -> list[Array]:
    """The three integers of a float64 number, in the units of the limbs."""
    rest = product * np.float64(2.0 ** -EXPONENTS[0])
    parts = []
    for _ in EXPONENTS:
        integer = lax.round(rest, lax.RoundingMethod.TO_NEAREST_EVEN)
        parts.append(integer)
        rest = (rest - integer) * np.float64(_STEP)
    return parts


def result(total: Wide) -> Float[Array, "*shape"]:
    """The accumulator's sum in float64: limbs carried, then added from the smallest."""
    with jax.enable_x64(True):
        high, middle, low = total
        carry = lax.round(low / np.float64(_STEP), lax.RoundingMethod.TO_NEAREST_EVEN)
        low, middle = low - carry * np.float64(_STEP), middle + carry
        carry = lax.round(middle / np.float64(_STEP), lax.RoundingMethod.TO_NEAREST_EVEN)
        middle, high = middle - carry * np.float64(_STEP), high + carry
        parts = [x * np.float64(2.0**e) for x, e in zip((high, middle, low), EXPONENTS, strict=True)]
        return parts[0] + (parts[1] + parts[2])


def divide(total: Wide, weights: Wide | None) -> Float32[Array, "*shape"]:
    """Σ w x / Σ w rounded once to float32, or Σ w x when `weights` is None; 0 where Σ w is 0."""
    with jax.enable_x64(True):
        numerator = result(total)
        if weights is not None:
            denominator = result(weights)
            numerator = numerator / jnp.where(denominator > 0, denominator, np.float64(1.0))
        return lax.convert_element_type(numerator, np.float32)
