"""Residues of a float64 operand, scaled to integers, by several moduli: for `emulated_float64`.

Idea: grown from `decompose`. A block takes a few lines, rows of a or columns of b. It reads them
twice, the second time backwards, while the end is still in L2: first for the largest magnitude
of each, which gives the power of two s that brings it into [2**(bits - 1), 2**bits); then to round
y = x * s to an integer, whose eight bytes, times 256**i modulo each modulus, give its residue.
Residues lie along k, as wgmma wants int8. An operand that lies across k is transposed in shared
memory on the way.
Layout: a (m, k) is the operand, any strides, any batch; b is split as its transpose. In the last
parameter the buffers of residues (moduli, m, k), rows padded to 16 bytes, of the factors 1 / s
and of the status, two numbers a block, see below; and `bits`.
Constraints: bits at most 62; but see `validity_check` for what may be multiplied.
Source: `moduli`; CUDA C++ Programming Guide, "__dp4a".

The status of a block is about its scaled lines:
    weak: elements below 2**(bits - 5) in the line that has most of them; a line of zeros has none.
    lax: 1 if any element below 2**(bits - 12) is rounded; if not, 0, and the block is strict.
Rounding costs at most 1/2. So the error of a sum of k products, in scaled numbers, is at most
    2**(13 - bits) of |A| |B| if both operands are strict: each element is right to
    2**(11 - bits) of itself;
    k * 2**bits if they are not. But if weak elements of a row of a and a column of b are
    together at most 7/8 k, then k/8 products of strong ones make |A| |B| at least
    k * 2**(2 * bits - 13), of which that is again 2**(13 - bits).
A line with NaN, infinity or with a largest element outside of [2**-LARGEST, 2**LARGEST) has so many
weak elements that no check accepts it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.configs import GroupsConfig
from dxgemm.handwritten.parts.emulation import PADDING, STATUS_ITEMS, UNFIT
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.moduli import MODULI, byte_weights
from dxgemm.handwritten.parts.residue_store import ALIGNMENT

WIDTH = 4  # elements that a thread takes at a time
LARGEST = 400  # so that factors and their products with any sum are normal numbers
BIAS, UPPER_MANTISSA_BITS = 1023, 20  # of float64, in the upper half of its bits
LAX_BITS, WEAK_BITS = 12, 5


@dataclass(frozen=True)
class Config(GroupsConfig):
    """A `GroupsConfig` whose groups have a line each."""

    @property
    def tile_k(self) -> int:
        """Elements of a line that are taken at a time."""
        return self.threads_per_group * WIDTH

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM, so that enough reads are under way."""
        return 2

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of a number a thread, of a flag, and of a padded tile to be transposed."""
        return self.threads * 4 + 8 + self.groups * (self.tile_k + 1) * 8

    def accumulator_bytes(self, dtype: str) -> int:
        return WIDTH * 8


def variant(config: Config, problem: Any) -> tuple[str, str]:
    """Layout of the operand, "k" or "mn"; "vector" if it is read by two elements, or "element"."""
    strides = problem.a
    if strides.row == 1 and strides.col != 1:
        return "mn", "element"
    starts = (strides.row * 8, strides.batch * 8, problem.a_alignment)
    is_vector = strides.col == 1 and all(start % 16 == 0 for start in starts)
    return "k", "vector" if is_vector else "element"


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one for so many lines, matrix after matrix."""
    blocks: int = problem.batch * -(-problem.m // config.groups)
    return blocks


def make_kernel(
    config: Config, dtype: str, innermost: str, access: str, count: str, epilogue: Any
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        innermost: layout of the operand: "k" (K-major) or "mn" (MN-major).
        access: "vector" if two neighbours along k can be read at a time, else "element".
        count: number of moduli.
        epilogue: a `Fusion` of three buffers and a number.
    """
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, float32, float64, int8, int32, int64, uint32

    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        divide,
        dot_bytes,
        load_vector,
        store_vector,
        upper_bits,
        upper_bits_double,
    )
    from dxgemm.handwritten.parts.moduli import make_residue
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range, unroll

    moduli = MODULI[: int(count)]
    moduli_count = len(moduli)
    offset_bits = 62  # what makes integers positive
    weights = tuple(byte_weights(modulus, 2**offset_bits, 8) for modulus in moduli)
    inverses = tuple(float(float32(1 / modulus)) for modulus in moduli)
    residue = make_residue()
    lines, threads, tile_k = config.groups, config.threads, config.tile_k
    group_threads = config.threads_per_group
    pitch = tile_k + 1
    across, vectors = innermost == "mn", access == "vector"

    def read(pointer, index, k_stride, step, count):
        """Elements that a thread takes of a tile, `step` apart along k, zeros beyond `count`."""
        if vectors and count >= WIDTH:
            return load_vector(float64, 2, pointer, index) + load_vector(
                float64, 2, pointer, index + 2
            )
        values = ()
        for i in static_range(WIDTH):
            value = float64(0)
            if i * step < count:
                value = pointer[index + i * step * k_stride]
            values = values + (value,)
        return values

    read = device_function(unroll(read))

    @gemm_kernel
    def residues_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's lines, this thread's place ---
        numbers_smem = cuda.shared.array(threads, int32)
        lax_smem = cuda.shared.array(1, int32)
        tile_smem = cuda.shared.array(lines * pitch if across else 1, float64)
        residues, _ = extra[0]
        factors, _ = extra[1]
        status, _ = extra[2]
        bits: int32 = extra[3]
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        blocks: int32 = (m + lines - 1) // lines
        matrix = divide(block, blocks)
        first_line = int64(block - matrix * blocks) * lines
        # The line whose residues a thread makes, and the one that it reads, if another.
        line: int32 = thread // group_threads
        member: int32 = thread % group_threads
        if across:
            read_line, read_k = int32(thread % lines), int32(thread // lines)
            step = group_threads
        else:
            read_line, read_k, step = line, int32(member * WIDTH), 1
        source = matrix * a.batch + (first_line + read_line) * a.row
        readable = k if first_line + read_line < m else int64(0)
        tiles: int32 = (k + tile_k - 1) // tile_k
        lax_smem[0] = 0

        # --- First pass: the largest magnitude of each line ---
        # Magnitudes are compared by the upper half of their bits, among which NaN is the largest.
        top = int32(0)
        for tile in range(tiles):
            place_k = tile * tile_k + read_k
            index = source + place_k * a.col
            values = read(a.data, index, a.col, step, readable - place_k)
            for i in static_range(WIDTH):
                magnitude: int32 = upper_bits(values[i]) & 0x7FFFFFFF
                # One that is smaller than these bits tell is still not 0.
                top = max(top, int32(magnitude | (1 if values[i] != 0 else 0)))
        numbers_smem[read_line * group_threads + (read_k if across else member)] = top
        cuda.syncthreads()
        half: int32 = group_threads // 2
        place: int32 = line * group_threads + member
        while half > 0:
            if member < half:
                numbers_smem[place] = max(numbers_smem[place], numbers_smem[place + half])
            cuda.syncthreads()
            half = half // 2
        top = numbers_smem[line * group_threads]
        cuda.syncthreads()

        # --- Powers of two that scale the lines ---
        exponent: int32 = (top >> UPPER_MANTISSA_BITS) - BIAS
        is_fit = exponent >= -LARGEST and exponent < LARGEST
        shift = int32(bits - 1 - exponent) if is_fit else int32(0)
        scale = upper_bits_double(int32((BIAS + shift) << UPPER_MANTISSA_BITS))
        strict = upper_bits_double(int32((BIAS + bits - LAX_BITS) << UPPER_MANTISSA_BITS))
        strong = upper_bits_double(int32((BIAS + bits - WEAK_BITS) << UPPER_MANTISSA_BITS))
        is_inside = first_line + line < m
        factors_pitch = (m + PADDING - 1) // PADDING * PADDING
        if block - matrix * blocks == blocks - 1:  # the padding is read with the last factors
            for i in range(m + thread, factors_pitch, threads):
                factors[matrix * factors_pitch + i] = float64(0)
        if member == 0 and is_inside:
            factor = upper_bits_double(int32((BIAS - shift) << UPPER_MANTISSA_BITS))
            factors[matrix * factors_pitch + first_line + line] = factor

        # --- Second pass: the residues, from the end to the beginning ---
        row_items = (k + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        target = (matrix * moduli_count * m + first_line + line) * row_items
        weak, is_lax = int32(0), False
        for back in range(tiles):
            start = (tiles - 1 - back) * tile_k
            place_k = start + read_k
            index = source + place_k * a.col
            values = read(a.data, index, a.col, step, readable - place_k)
            place_k = start + member * WIDTH
            if across:
                cuda.syncthreads()
                for i in static_range(WIDTH):
                    tile_smem[read_line * pitch + read_k + i * group_threads] = values[i]
                cuda.syncthreads()
                turned = ()
                for i in static_range(WIDTH):
                    turned = turned + (tile_smem[line * pitch + member * WIDTH + i],)
                values = turned
            lower, upper = (), ()
            for i in static_range(WIDTH):
                y = values[i] * scale if is_fit else float64(0)
                integer = int64(round(y))
                size = abs(y)
                is_lax |= (size < strict) & (float64(integer) != y)
                weak = int32(weak + (1 if size < strong and place_k + i < k else 0))
                positive = integer + (int64(1) << offset_bits)
                lower = lower + (uint32(positive & 0xFFFFFFFF),)
                upper = upper + (uint32(positive >> 32),)
            if is_inside and place_k < k:
                for which in static_range(moduli_count):
                    quad = ()
                    for i in static_range(WIDTH):
                        total = int32(weights[which][1])
                        total = dot_bytes(lower[i], int32(weights[which][0][0]), total)
                        total = dot_bytes(upper[i], int32(weights[which][0][1]), total)
                        nearest = residue(total, int32(moduli[which]), float32(inverses[which]))
                        quad = quad + (int8(nearest),)
                    store_vector(residues, target + which * m * row_items + place_k, quad)
        # --- Status of the block ---
        if is_lax:
            lax_smem[0] = 1
        numbers_smem[place] = weak
        cuda.syncthreads()
        half = group_threads // 2
        while half > 0:
            if member < half:
                numbers_smem[place] += numbers_smem[place + half]
            cuda.syncthreads()
            half = half // 2
        if member == 0:
            if not is_inside or top == 0:
                numbers_smem[place] = 0
            elif not is_fit:
                numbers_smem[place] = UNFIT
        cuda.syncthreads()
        if thread == 0:
            weakest = int32(0)
            for index in range(lines):
                weakest = max(weakest, numbers_smem[index * group_threads])
            status[block * STATUS_ITEMS] = weakest
            status[block * STATUS_ITEMS + 1] = lax_smem[0]

    return residues_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(groups=16, threads_per_group=32),),
    simulator_configs=(Config(groups=2, threads_per_group=4),),
    variant=variant,
    block_count=block_count,
)
