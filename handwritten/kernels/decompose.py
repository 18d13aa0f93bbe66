"""Two float16 parts of a float32 operand for `emulated_float32`, and a status of their error.

Idea: a block takes a few lines, which are rows of a or columns of b. It reads them twice, the
second time backwards, while the end is still in L2: first for the largest magnitude of each, which
gives the power of two that brings it into [2**14, 2**15), then to write the parts
hi = float16(x * s) and lo = float16((x * s - hi) * 2**12).
Layout: a (m, k) is the operand, any strides, any batch; b is split as its transpose. In the last
parameter the buffers of parts, of the factors 1 / s and of the status: two numbers per block, see
below.
Constraints: none; but see `validity_check` for what emulated_float32 may multiply.
Source: H. Ootomo and R. Yokota, arXiv 2203.03341, for the two parts and the factor of the second.

The error of hi + lo / 2**12 against y = x * s is bounded in units of y's last place, ulp =
2**(e - 23) for 2**e <= |y| < 2**(e + 1). y - hi is a multiple of ulp and at most 2**12 of them,
which lo holds but for the last bit. So the error is at most ulp, or 2**-23 |y|, as long as lo has a
unit as small: from |y| >= 2**-14 on. Below, hi is subnormal, and the error is at most half of lo's
smallest unit: 2**-37.

The status of a block is about its scaled lines:
    weak: elements below 2**4 in the line that has most of them; a line of zeros has none.
    lax: 1 if any line has an element between 0 and 2**-14; if not, 0, and the block is strict.
A line with NaN, infinity or with a largest element outside of [2**-LARGEST, 2**LARGEST) has so many
weak elements that no check accepts it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.configs import GroupsConfig
from dxgemm.handwritten.parts.emulation import (
    CHOSEN,
    LARGEST,
    SCHEMES,
    WIDTH,
)
from dxgemm.handwritten.parts.groups import make_each, make_find_block
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_status import (
    make_factors,
    make_largest,
    make_put_status,
    make_take,
)
from dxgemm.handwritten.parts.unroll import device, gemm_kernel, static_range

TOP = 14  # exponent of the largest element of a scaled line
BIAS, MANTISSA_BITS = 127, 23  # of float32
STRICT, STRONG = 2.0**-14, 2.0**4


@dataclass(frozen=True)
class Config(GroupsConfig):
    """A `GroupsConfig` whose groups have one line each, or four lines of an MN-major operand."""

    unrolled: int = 4

    def block_lines(self, innermost: str) -> int:
        """Lines of a block."""
        return self.groups * (WIDTH if innermost == "mn" else 1)

    def smem_bytes(self, dtype: str) -> int:
        """Four numbers per thread and a flag."""
        return self.threads * WIDTH * 4 + 4

    def accumulator_bytes(self, dtype: str) -> int:
        return WIDTH * 4


def variant(config: Config, problem: Any) -> tuple[str, str]:
    """Layout of the operand, "k" or "mn"; "vector" if it is read by four elements, or "element"."""
    strides = problem.a
    innermost = "mn" if strides.row == 1 and strides.col != 1 else "k"
    unit, other = (strides.row, strides.col) if innermost == "mn" else (strides.col, strides.row)
    is_aligned = problem.a_alignment >= 16 and other % WIDTH == strides.batch % WIDTH == 0
    return innermost, "vector" if unit == 1 and is_aligned else "element"


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one for so many lines, matrix after matrix."""
    innermost, _ = variant(config, problem)
    blocks: int = problem.batch * -(-problem.m // config.block_lines(innermost))
    return blocks


def make_take_ahead(
    unrolled: int, k_step: int, is_abreast: bool, is_vector: bool
) -> Callable[..., Any]:
    """A device function: four elements at each of the next indices along k, all in flight at once.

    (pointer, source, depth, k_stride, step, count, k) -> `unrolled` tuples, k_step apart. `count`
    elements exist: lines abreast if MN-major, else elements of the line.
    """
    take = make_take("float32", is_vector)

    @device
    def take_ahead(pointer, source, depth, k_stride, step, count, k):
        loaded = ()
        for ahead in static_range(unrolled):
            place_k = depth + ahead * k_step
            left = count if is_abreast else count - place_k
            index = source + place_k * k_stride
            loaded = loaded + (take(pointer, index, step, left if place_k < k else 0),)
        return loaded

    return take_ahead


def make_magnitudes(is_abreast: bool) -> Callable[..., Any]:
    """A device function: four values -> the largest magnitude of each line, as bits.

    Among these NaN is the largest.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import float_bits

    @device
    def magnitudes(values):
        bits = ()
        for i in static_range(WIDTH):
            bits = bits + (int32(float_bits(values[i]) & 0x7FFFFFFF),)
        if not is_abreast:
            bits = (max(max(bits[0], bits[1]), max(bits[2], bits[3])),)
        return bits

    return magnitudes


def make_scale_of() -> Callable[..., Any]:
    """A device function: (largest magnitude of a line, as bits) -> scale, factor and fitness.

    A line is multiplied by its scale, results by its factor. The fitness is 0 if the line is all
    zeros, 2 if it cannot be split, otherwise 1.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import bits_float

    @device
    def scale_of(top):
        exponent = int32((top >> MANTISSA_BITS) - BIAS) if top != 0 else int32(0)
        is_fit = exponent >= -LARGEST and exponent < LARGEST
        exponent = exponent if is_fit else int32(0)
        scale = bits_float(int32((BIAS + TOP - exponent) << MANTISSA_BITS))
        factor = bits_float(int32((BIAS - TOP + exponent) << MANTISSA_BITS))
        return scale, factor, int32(0 if top == 0 else 1 if is_fit else 2)

    return scale_of


def make_split(slots: int) -> Callable[..., Any]:
    """A device function: (four values, scales, left) -> hi, lo, weak elements, is_lax.

    The values belong to `slots` lines, whose weak elements are counted; `left` of a single line
    exist.
    """
    from numba import float32, int32

    from dxgemm.handwritten.parts.widening import NARROW, WIDEN

    narrow, widen = NARROW["float16"], WIDEN["float16"]
    lo_scale = float32(2.0 ** SCHEMES[CHOSEN].shift)
    strict, strong = float32(STRICT), float32(STRONG)

    @device
    def split(values, scales, left):
        hi, lo, weak, is_lax = (), (), (), False
        for i in static_range(WIDTH):
            y = values[i] * scales[i % slots]
            hi_bits = narrow(y)
            hi = hi + (hi_bits,)
            lo = lo + (narrow((y - widen(hi_bits)) * lo_scale),)
            size = abs(y)
            is_lax |= (size < strict) & (size != 0)
            weak = weak + (int32(1 if size < strong and (slots > 1 or i < left) else 0),)
        if slots == 1:
            weak = (int32(weak[0] + weak[1] + weak[2] + weak[3]),)
        return hi, lo, weak, is_lax

    return split


def make_kernel(
    config: Config, dtype: str, innermost: str, access: str, epilogue: Any
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        innermost: layout of the operand and of its parts: "k" (K-major) or "mn" (MN-major).
        access: "vector" if four neighbours can be read at a time, else "element".
        epilogue: a `Fusion` of three buffers.
    """
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import store_vector, zeros

    groups, group_threads, threads = config.groups, config.threads_per_group, config.threads
    abreast, unrolled = innermost == "mn", config.unrolled
    # A thread reads one k of four lines, or four k of one line.
    slots, lines = WIDTH if abreast else 1, config.block_lines(innermost)
    k_step = group_threads if abreast else group_threads * WIDTH
    take_ahead = make_take_ahead(unrolled, k_step, abreast, access == "vector")
    magnitudes, scale_of, split = make_magnitudes(abreast), make_scale_of(), make_split(slots)
    find_block, put_status = make_find_block(lines), make_put_status(config, slots)
    larger_of, sum_of = make_each(slots, max), make_each(slots, operator.add)
    largest_of = make_largest(config, slots)
    find_factors, pad_factors = make_factors(threads)

    @gemm_kernel
    def decompose_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's lines, this thread's share ---
        smem = cuda.shared.array(threads * slots, int32)
        lax_smem = cuda.shared.array(1, int32)
        parts, factors, status = extra[0][0], extra[1][0], extra[2][0]
        thread: int32 = cuda.threadIdx.x & 1023
        matrix, block, blocks = find_block(int32(cuda.blockIdx.x), m)
        if abreast:
            group: int32 = thread % groups
            member: int32 = thread // groups
            line = int64(block) * lines + group * WIDTH
            inner, rows, first, step = m, k, int64(member), a.row
        else:
            group = thread // group_threads
            member = thread % group_threads
            line = int64(block) * lines + group
            inner, rows, first, step = k, m, int64(member * WIDTH), a.col
        place: int32 = member * groups + group
        row_items = (inner + 7) // 8 * 8
        part_items = rows * row_items
        source = matrix * a.batch + line * a.row
        target = 2 * matrix * part_items + (line if abreast else line * row_items)
        count = m - line if abreast else (k if line < m else int64(0))

        # --- First pass: the largest magnitude of each line ---
        largest = zeros(int32, slots)
        rounds: int32 = (k + unrolled * k_step - 1) // (unrolled * k_step)
        depth = first
        for _ in range(rounds):
            loaded = take_ahead(a.data, source, depth, a.col, step, count, k)
            for ahead in static_range(unrolled):
                largest = larger_of(largest, magnitudes(loaded[ahead]))
            depth += unrolled * k_step
        if thread == 0:
            lax_smem[0] = 0
        largest = largest_of(smem, place, member, group, group, largest)

        # --- Powers of two that scale the lines ---
        factors_at = find_factors(matrix, m)
        scales, fits = (), ()
        for i in static_range(slots):
            scale, factor, fit = scale_of(largest[i])
            is_line = line + i < m
            scales, fits = scales + (scale,), fits + (fit * is_line,)
            if member == 0 and is_line:
                factors[factors_at + line + i] = factor
        if block == blocks - 1:
            pad_factors(factors, factors_at, thread, m)

        # --- Second pass: the parts, from the end to the beginning ---
        weak, is_lax = zeros(int32, slots), False
        for _ in range(rounds):
            depth -= unrolled * k_step
            loaded = take_ahead(a.data, source, depth, a.col, step, count, k)
            for ahead in static_range(unrolled):
                place_k = depth + ahead * k_step
                left = count if abreast else count - place_k
                if place_k < k and left > 0:
                    hi, lo, weaker, is_laxer = split(loaded[ahead], scales, left)
                    weak, is_lax = sum_of(weak, weaker), is_lax | is_laxer
                    at = target + (place_k * row_items if abreast else place_k)
                    store_vector(parts, at, hi)
                    store_vector(parts, at + part_items, lo)
        number: int32 = cuda.blockIdx.x
        put_status(smem, lax_smem, status, number, place, member, group, weak, fits, is_lax)

    return decompose_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(groups=8, threads_per_group=32),),
    simulator_configs=(Config(groups=2, threads_per_group=4, unrolled=2),),
    variant=variant,
    block_count=block_count,
)
