"""Column rules in numba: blocks of columns are sorted by a network that stays in the first-level cache.

Every kernel works on the columns [low, high) of a matrix, holds no lock and writes only its part of the output:
a column's result depends on that column alone, so neither blocks nor threads can be seen in it. Kernels carry
`no_type_check` as numba compiles the bare function, without the checks that the tests wrap around others.
"""

from typing import no_type_check

import numpy as np
from llvmlite import ir
from numba import njit
from numba.extending import intrinsic

#: Columns that are sorted together: 128 float32 in each of 64 rows are 32 KiB.
BLOCK = 128
#: Columns that are summed together.
WIDE = 1024


@no_type_check
def _instruction(name):
    # As a comparison and a choice the compiler makes a masked store of it, which is several times slower.
    def typed(context, a, b):
        def generate(context, builder, signature, arguments):
            kind = arguments[0].type
            function = builder.module.declare_intrinsic(name, [kind], ir.FunctionType(kind, [kind, kind]))
            return builder.call(function, arguments, fastmath=("nnan", "nsz"))

        return a(a, b), generate

    return intrinsic(typed)


_lower = _instruction("llvm.minnum")
_upper = _instruction("llvm.maxnum")


@njit(nogil=True, cache=True)
@no_type_check
def _load(x, rows, first, width, block):
    for i in range(rows.shape[0]):
        row = rows[i]
        for c in range(width):
            block[i, c] = x[row, first + c]


@njit(nogil=True, cache=True)
@no_type_check
def _sort(block, network):
    for p in range(network.shape[0]):
        a, b, kind = network[p, 0], network[p, 1], network[p, 2]
        if kind == 0:
            for c in range(BLOCK):
                u, v = block[a, c], block[b, c]
                block[a, c] = _lower(u, v)
                block[b, c] = _upper(u, v)
        elif kind == 1:
            for c in range(BLOCK):
                block[a, c] = _lower(block[a, c], block[b, c])
        else:
            for c in range(BLOCK):
                block[b, c] = _upper(block[a, c], block[b, c])


@njit(nogil=True, cache=True)
@no_type_check
def middle(x, rows, low, high, network, first, last, out):
    """out[c] ← the mean of the ranks first … last of column c, formed relative to the rank `first`.

    With one rank it is that value, with two their midpoint; equal values give that value exactly.
    """
    block = np.zeros((rows.shape[0], BLOCK), x.dtype)
    total = np.zeros(BLOCK, np.float64)
    count = np.float64(last - first + 1)
    for start in range(low, high, BLOCK):
        width = min(BLOCK, high - start)
        _load(x, rows, start, width, block)
        _sort(block, network)
        total[:] = 0.0
        for i in range(first + 1, last + 1):
            for c in range(BLOCK):
                total[c] += np.float64(block[i, c]) - np.float64(block[first, c])
        for c in range(width):
            out[start + c] = np.float64(block[first, c]) + total[c] / count


@njit(nogil=True, cache=True)
@no_type_check
def around(x, rows, low, high, network, keep, out):
    """out[c] ← the mean of the `keep` values nearest the median of column c; of equal windows the smaller values."""
    n = rows.shape[0]
    block = np.zeros((n, BLOCK), x.dtype)
    one = np.zeros(n, np.float64)
    for start in range(low, high, BLOCK):
        width = min(BLOCK, high - start)
        _load(x, rows, start, width, block)
        _sort(block, network)
        for c in range(width):
            for i in range(n):
                one[i] = block[i, c]
            centre = one[(n - 1) // 2] + (one[n // 2] - one[(n - 1) // 2]) * 0.5
            best, found = 0, max(centre - one[0], one[keep - 1] - centre)
            for i in range(1, n - keep + 1):
                reach = max(centre - one[i], one[i + keep - 1] - centre)
                if reach < found:
                    best, found = i, reach
            total = 0.0
            for i in range(best + 1, best + keep):
                total += one[i] - one[best]
            out[start + c] = one[best] + total / keep


@njit(nogil=True, cache=True)
@no_type_check
def weighted(x, rows, low, high, weights, bound, trim, out):
    """Weighted median (`trim` < 0) or mean of what is left when mass `trim` is cut off both ends of each column.

    `bound`: the total weight W. Equal values are in the order of the rows.
    """
    n = rows.shape[0]
    one = np.zeros(n, np.float64)
    order = np.zeros(n, np.int64)
    for c in range(low, high):
        for i in range(n):  # insertion, stable
            value, j = np.float64(x[rows[i], c]), i
            while j > 0 and one[j - 1] > value:
                one[j], order[j] = one[j - 1], order[j - 1]
                j -= 1
            one[j], order[j] = value, i
        below = 0.0
        if trim < 0:
            first = last = n - 1
            found = False
            for i in range(n):
                below += weights[order[i]]
                if not found and 2.0 * below >= bound:
                    first, found = i, True
                if 2.0 * below > bound:
                    last = i
                    break
            out[c] = one[first] + (one[last] - one[first]) * 0.5
        else:
            total, base = 0.0, one[n // 2]
            for i in range(n):
                above = below + weights[order[i]]
                part = min(above, bound - trim) - max(below, trim)
                if part > 0:
                    total += part * (one[i] - base)
                below = above
            out[c] = base + total / (bound - 2.0 * trim)


@njit(nogil=True, cache=True)
@no_type_check
def combined(x, rows, low, high, coefficients, centre, rest, out):
    """out[c] ← Σ_i coefficients[i] x[rows[i], c] + rest · centre[c], in float64, row after row."""
    total = np.zeros(WIDE, np.float64)
    n = rows.shape[0]
    for start in range(low, high, WIDE):
        width = min(WIDE, high - start)
        for c in range(width):
            total[c] = rest * centre[start + c] if rest != 0.0 else 0.0
        done = 0
        while (
            done + 4 <= n
        ):  # four rows at a time: memory is read in several streams, the sum is written once
            a, b, c_, d = rows[done], rows[done + 1], rows[done + 2], rows[done + 3]
            fa, fb = coefficients[done], coefficients[done + 1]
            fc, fd = coefficients[done + 2], coefficients[done + 3]
            for c in range(width):
                sum_ = total[c] + fa * np.float64(x[a, start + c])
                sum_ = sum_ + fb * np.float64(x[b, start + c])
                sum_ = sum_ + fc * np.float64(x[c_, start + c])
                total[c] = sum_ + fd * np.float64(x[d, start + c])
            done += 4
        while done < n:
            factor, row = coefficients[done], rows[done]
            for c in range(width):
                total[c] += factor * np.float64(x[row, start + c])
            done += 1
        for c in range(width):
            out[start + c] = total[c]


@njit(nogil=True, cache=True)
@no_type_check
def largest(bits, rows, low, high, mask, out):
    """out[i] ← the largest of bits[rows[i], c] & mask in [low, high): of magnitudes, as floats without a sign compare
    as their bits do, and infinity and NaN are the largest.
    """
    n = rows.shape[0]
    done = 0
    while done + 4 <= n:  # four rows at a time: memory is read in several streams
        a, b, c_, d = rows[done], rows[done + 1], rows[done + 2], rows[done + 3]
        ma = mb = mc = md = mask & 0
        for c in range(low, high):
            ma = max(ma, bits[a, c] & mask)
            mb = max(mb, bits[b, c] & mask)
            mc = max(mc, bits[c_, c] & mask)
            md = max(md, bits[d, c] & mask)
        out[done], out[done + 1], out[done + 2], out[done + 3] = ma, mb, mc, md
        done += 4
    while done < n:
        ma = mask & 0
        for c in range(low, high):
            ma = max(ma, bits[rows[done], c] & mask)
        out[done] = ma
        done += 1


@njit(nogil=True, cache=True)
@no_type_check
def squared_to(x, rows, low, high, point, out):
    """out[i] ← Σ over [low, high) of (x[rows[i], c] − point[c])² in float64."""
    for i in range(rows.shape[0]):
        row = rows[i]
        first = second = third = fourth = 0.0  # four sums at a time, so that none waits for the last addition
        c = low
        while c + 4 <= high:
            a = np.float64(x[row, c]) - np.float64(point[c])
            b = np.float64(x[row, c + 1]) - np.float64(point[c + 1])
            d = np.float64(x[row, c + 2]) - np.float64(point[c + 2])
            e = np.float64(x[row, c + 3]) - np.float64(point[c + 3])
            first, second, third, fourth = first + a * a, second + b * b, third + d * d, fourth + e * e
            c += 4
        while c < high:
            a = np.float64(x[row, c]) - np.float64(point[c])
            first += a * a
            c += 1
        out[i] = (first + second) + (third + fourth)
