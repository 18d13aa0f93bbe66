"""Two float16 parts of a float32 operand for `emulated_float32`, and a status of their error.

Idea: a block takes a few lines, which are rows of a or columns of b. It reads them twice, the
second time backwards, while the end is still in L2: first for the largest magnitude of each, which
gives the power of two that brings it into [2**14, 2**15), then to write the parts
hi = float16(x * s) and lo = float16((x * s - hi) * 2**12).
Layout: a (m, k) is the operand, any strides, any batch; b is split as its transpose. In the last
parameter the buffers of parts, of the factors 1 / s and of the status: two numbers a block, see
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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.configs import GroupsConfig
from dxgemm.handwritten.parts.emulation import (
    CHOSEN,
    LARGEST,
    PADDING,
    SCHEMES,
    STATUS_ITEMS,
    UNFIT,
    WIDTH,
)
from dxgemm.handwritten.parts.kernel import Kernel

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
        """Four numbers a thread and a flag."""
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
    from numba import cuda, float32, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        bits_float,
        device_function,
        divide,
        float_bits,
        load_vector,
        store_vector,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range, unroll
    from dxgemm.handwritten.parts.widening import NARROW, WIDEN

    narrow, widen = NARROW["float16"], WIDEN["float16"]
    lo_scale = float32(2.0 ** SCHEMES[CHOSEN].shift)
    strict, strong = float32(STRICT), float32(STRONG)
    groups, group_threads, threads = config.groups, config.threads_per_group, config.threads
    unrolled = config.unrolled
    abreast = innermost == "mn"
    # A thread reads one k of four lines, or four k of one line.
    slots = WIDTH if abreast else 1
    lines = config.block_lines(innermost)
    k_step = group_threads if abreast else group_threads * WIDTH
    vectors = access == "vector"

    def read(pointer, index, step, count):
        """Four neighbours, zeros beyond `count`."""
        if vectors and count >= WIDTH:
            return load_vector(float32, WIDTH, pointer, index)
        values = ()
        for i in static_range(WIDTH):
            values = values + (pointer[index + i * step] if i < count else float32(0),)
        return values

    read = device_function(unroll(read))

    def read_ahead(pointer, source, depth, k_stride, step, count, k):
        """Read four elements at each of the next `unrolled` places along k, all under way at once.

        `count` elements exist: lines abreast if MN-major, else elements of the line.
        """
        loaded = ()
        for ahead in static_range(unrolled):
            place_k = depth + ahead * k_step
            left = count if abreast else count - place_k
            index = source + place_k * k_stride
            loaded = loaded + (read(pointer, index, step, left if place_k < k else 0),)
        return loaded

    read_ahead = device_function(unroll(read_ahead))

    @gemm_kernel
    def decompose_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's lines, this thread's place ---
        smem = cuda.shared.array(threads * slots, int32)
        lax_smem = cuda.shared.array(1, int32)
        parts, _ = extra[0]
        factors, _ = extra[1]
        status, _ = extra[2]
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        blocks: int32 = (m + lines - 1) // lines
        matrix = divide(block, blocks)
        if abreast:
            group: int32 = thread % groups
            member: int32 = thread // groups
            line = int64(block - matrix * blocks) * lines + group * WIDTH
            inner, rows = m, k
        else:
            group = thread // group_threads
            member = thread % group_threads
            line = int64(block - matrix * blocks) * lines + group
            inner, rows = k, m
        place: int32 = member * groups + group
        factors_pitch = (m + PADDING - 1) // PADDING * PADDING
        row_items = (inner + 7) // 8 * 8
        part_items = rows * row_items
        source = matrix * a.batch + line * a.row
        target = 2 * matrix * part_items
        if abreast:
            first, count, step = int64(member), m - line, a.row
            target += line
        else:
            first, count, step = int64(member * WIDTH), k if line < m else int64(0), a.col
            target += line * row_items

        # --- First pass: the largest magnitude of each line ---
        # Magnitudes are compared as bits, among which NaN is the largest.
        largest = ()
        for _ in static_range(slots):
            largest = largest + (int32(0),)
        rounds: int32 = (k + unrolled * k_step - 1) // (unrolled * k_step)
        depth = first
        for _ in range(rounds):
            loaded = read_ahead(a.data, source, depth, a.col, step, count, k)
            for ahead in static_range(unrolled):
                values = loaded[ahead]
                bits = ()
                for i in static_range(WIDTH):
                    bits = bits + (int32(float_bits(values[i]) & 0x7FFFFFFF),)
                if abreast:
                    larger = ()
                    for i in static_range(slots):
                        larger = larger + (max(largest[i], bits[i]),)
                    largest = larger
                else:
                    top = max(max(bits[0], bits[1]), max(bits[2], bits[3]))
                    largest = (max(largest[0], top),)
            depth += unrolled * k_step
        half: int32 = group_threads // 2
        while half > 0:
            for i in static_range(slots):
                smem[i * threads + place] = largest[i]
            cuda.syncthreads()
            if member < half:
                larger = ()
                for i in static_range(slots):
                    other = smem[i * threads + place + half * groups]
                    larger = larger + (max(largest[i], other),)
                largest = larger
            cuda.syncthreads()
            half = half // 2
        if member == 0:
            for i in static_range(slots):
                smem[i * threads + group] = largest[i]
        if thread == 0:
            lax_smem[0] = 0
        cuda.syncthreads()

        # --- Powers of two that scale the lines ---
        scales = ()
        fits = ()
        for i in static_range(slots):
            top = smem[i * threads + group]
            exponent = int32((top >> MANTISSA_BITS) - BIAS) if top != 0 else int32(0)
            is_fit = exponent >= -LARGEST and exponent < LARGEST
            exponent = exponent if is_fit else int32(0)
            scales = scales + (bits_float(int32((BIAS + TOP - exponent) << MANTISSA_BITS)),)
            # 0 for a line of zeros, which has no weak elements; 2 for one that cannot be split.
            fits = fits + (int32(0 if top == 0 else 1 if is_fit else 2),)
            if member == 0 and line + i < m:
                factor = bits_float(int32((BIAS - TOP + exponent) << MANTISSA_BITS))
                factors[matrix * factors_pitch + line + i] = factor
        if block - matrix * blocks == blocks - 1:  # the padding is read with the last factors
            for i in range(m + thread, factors_pitch, threads):
                factors[matrix * factors_pitch + i] = float32(0)
        cuda.syncthreads()

        # --- Second pass: the parts, from the end to the beginning ---
        weak = ()
        for _ in static_range(slots):
            weak = weak + (int32(0),)
        is_lax = False
        for _ in range(rounds):
            depth -= unrolled * k_step
            loaded = read_ahead(a.data, source, depth, a.col, step, count, k)
            for ahead in static_range(unrolled):
                place_k = depth + ahead * k_step
                left = count if abreast else count - place_k
                if place_k < k and left > 0:
                    values = loaded[ahead]
                    hi, lo, weaker = (), (), ()
                    for i in static_range(WIDTH):
                        y = values[i] * scales[i % slots]
                        hi_bits = narrow(y)
                        hi = hi + (hi_bits,)
                        lo = lo + (narrow((y - widen(hi_bits)) * lo_scale),)
                        size = abs(y)
                        is_lax |= (size < strict) & (size != 0)
                        is_weak: int32 = 1 if size < strong else 0
                        if abreast:
                            weaker = weaker + (int32(weak[i] + is_weak),)
                        elif i < left:
                            weak = (int32(weak[0] + is_weak),)
                    if abreast:
                        weak = weaker
                        at = target + place_k * row_items
                    else:
                        at = target + place_k
                    store_vector(parts, at, hi)
                    store_vector(parts, at + part_items, lo)
        # --- Status of the block ---
        if is_lax:
            lax_smem[0] = 1
        half = group_threads // 2
        while half > 0:
            for i in static_range(slots):
                smem[i * threads + place] = weak[i]
            cuda.syncthreads()
            if member < half:
                weaker = ()
                for i in static_range(slots):
                    weaker = weaker + (int32(weak[i] + smem[i * threads + place + half * groups]),)
                weak = weaker
            cuda.syncthreads()
            half = half // 2
        if member == 0:
            for i in static_range(slots):
                if line + i >= m or fits[i] == 0:
                    smem[i * threads + group] = 0
                elif fits[i] == 1:
                    smem[i * threads + group] = weak[i]
                else:
                    smem[i * threads + group] = UNFIT
        cuda.syncthreads()
        if thread == 0:
            weakest = int32(0)
            for index in range(groups):
                for i in static_range(slots):
                    weakest = max(weakest, smem[i * threads + index])
            status[block * STATUS_ITEMS] = weakest
            status[block * STATUS_ITEMS + 1] = lax_smem[0]

    return decompose_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(groups=8, threads_per_group=32),),
    simulator_configs=(Config(groups=2, threads_per_group=4, unrolled=2),),
    variant=variant,
    block_count=block_count,
)
