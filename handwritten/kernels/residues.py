"""Residues of a float64 operand, scaled to integers, by several moduli: for `emulated_float64`.

Idea: grown from `decompose`. A block takes a few lines, rows of a or columns of b. It reads them
twice, the second time backwards, while the end is still in L2: first for the largest magnitude
of each, which gives the power of two s that brings it into [2**(bits - 1), 2**bits); then to round
y = x * s to an integer, whose eight bytes, times 256**i modulo each modulus, give its residue.
Residues are K-major, as wgmma wants int8. An MN-major operand is transposed in shared
memory on the way.
Layout: a (m, k) is the operand, any strides, any batch; b is split as its transpose. In the last
parameter the buffers of residues (moduli, m, k), rows padded to 16 bytes, of the factors 1 / s
and of the status, two numbers per block, see below; and `bits`.
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
from dxgemm.handwritten.parts.emulation import WIDTH
from dxgemm.handwritten.parts.groups import make_find_block
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_status import (
    make_factors,
    make_largest,
    make_put_status,
    make_take,
)
from dxgemm.handwritten.parts.moduli import MODULI, byte_weights, make_residue
from dxgemm.handwritten.parts.residue_store import ALIGNMENT
from dxgemm.handwritten.parts.unroll import device, gemm_kernel, static_range

LARGEST = 400  # so that factors and their products with any sum are normal numbers
BIAS, UPPER_MANTISSA_BITS = 1023, 20  # of float64, in the upper half of its bits
LAX_BITS, WEAK_BITS = 12, 5
OFFSET_BITS = 62  # of what makes integers positive


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
        """Bytes of a number per thread, of a flag, and of a padded tile to be transposed."""
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


def make_take_k(step: int, is_vector: bool) -> Callable[..., Any]:
    """A device function: (pointer, source, place_k, k_stride, end_k) -> elements `step` k apart."""
    take = make_take("float64", is_vector)

    @device
    def take_k(pointer, source, place_k, k_stride, end_k):
        left = (end_k - place_k + step - 1) // step
        return take(pointer, source + place_k * k_stride, step * k_stride, left)

    return take_k


def make_residue_quad(modulus: int) -> Callable[..., Any]:
    """A device function: (lower, upper) -> residues of WIDTH integers, given by halves, as int8."""
    from numba import float32, int8, int32

    from dxgemm.handwritten.parts.intrinsics import dot_bytes

    (lower_weights, upper_weights), offset = byte_weights(modulus, 2**OFFSET_BITS, 8)
    inverse, residue = float(float32(1 / modulus)), make_residue()

    @device
    def residue_quad(lower, upper):
        quad = ()
        for i in static_range(WIDTH):
            total = dot_bytes(lower[i], int32(lower_weights), int32(offset))
            total = dot_bytes(upper[i], int32(upper_weights), total)
            low_byte = residue(total, int32(modulus), float32(inverse)) & 255
            quad = quad + (int8((low_byte ^ 128) - 128),)
        return quad

    return residue_quad


def make_measure() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The device functions larger_of and power_of_two.

    larger_of(values, top) is the largest magnitude so far, by the upper half of its bits, among
    which NaN is the largest. power_of_two(exponent) is that power.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import upper_bits, upper_bits_double

    @device
    def larger_of(values, top):
        for i in static_range(WIDTH):
            magnitude: int32 = upper_bits(values[i]) & 0x7FFFFFFF
            # One that is smaller than these bits tell is still not 0.
            top = max(top, int32(magnitude | (1 if values[i] != 0 else 0)))
        return top

    @device
    def power_of_two(exponent):
        return upper_bits_double(int32((BIAS + exponent) << UPPER_MANTISSA_BITS))

    return larger_of, power_of_two


def make_turn(config: Config) -> Callable[..., Any]:
    """A device function: (smem, values, read_line, read_k, line, member) -> values along k.

    A tile whose lines a thread has read across is transposed in shared memory; all threads of the
    block call it together.
    """
    from dxgemm.handwritten.parts.intrinsics import sync_block

    pitch, group_threads = config.tile_k + 1, config.threads_per_group

    @device
    def turn(smem, values, read_line, read_k, line, member):
        sync_block()
        for i in static_range(WIDTH):
            smem[read_line * pitch + read_k + i * group_threads] = values[i]
        sync_block()
        turned = ()
        for i in static_range(WIDTH):
            turned = turned + (smem[line * pitch + member * WIDTH + i],)
        return turned

    return turn


def make_round() -> Callable[..., Any]:
    """A device function: (values, is_fit, scale, strict, strong, left) -> integers, weak, is_lax.

    The integers are made positive, and given as their lower and their upper halves; weak is the
    number of weak ones, is_lax is True if one is lax. Those of an unfit line are 0.
    """
    from numba import float64, int32, int64, uint32

    @device
    def round_all(values, is_fit, scale, strict, strong, left):
        lower, upper, weak, is_lax = (), (), int32(0), False
        for i in static_range(WIDTH):
            y = values[i] * scale if is_fit else float64(0)
            integer = int64(round(y))
            size = abs(y)
            is_lax |= (size < strict) & (float64(integer) != y)
            weak = int32(weak + (1 if size < strong and i < left else 0))
            positive = integer + (int64(1) << OFFSET_BITS)
            lower = lower + (uint32(positive & 0xFFFFFFFF),)
            upper = upper + (uint32(positive >> 32),)
        return lower, upper, weak, is_lax

    return round_all


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
    from numba import cuda, float64, int32, int64

    from dxgemm.handwritten.parts.intrinsics import store_vector

    moduli, moduli_count = MODULI[: int(count)], int(count)
    lines, threads, tile_k = config.groups, config.threads, config.tile_k
    group_threads, across = config.threads_per_group, innermost == "mn"
    smem_items = lines * (tile_k + 1) if across else 1
    larger_of, power_of_two = make_measure()
    turn, round_all = make_turn(config), make_round()
    take_k = make_take_k(group_threads if across else 1, access == "vector")
    quads = tuple(map(make_residue_quad, moduli))
    find_block, put_status = make_find_block(lines), make_put_status(config, 1)
    largest_of = make_largest(config, 1)
    find_factors, pad_factors = make_factors(threads)

    @gemm_kernel
    def residues_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's lines, this thread's place ---
        smem = cuda.shared.array(threads, int32)
        lax_smem = cuda.shared.array(1, int32)
        tile_smem = cuda.shared.array(smem_items, float64)
        residues, factors, status = extra[0][0], extra[1][0], extra[2][0]
        bits: int32 = extra[3]
        thread: int32 = cuda.threadIdx.x & 1023
        matrix, block, blocks = find_block(int32(cuda.blockIdx.x), m)
        first_line = int64(block) * lines
        # The line whose residues a thread makes, and the one that it reads, if another.
        line: int32 = thread // group_threads
        member: int32 = thread % group_threads
        if across:
            read_line, read_member = int32(thread % lines), int32(thread // lines)
            read_k = read_member
        else:
            read_line, read_member, read_k = line, member, int32(member * WIDTH)
        source = matrix * a.batch + (first_line + read_line) * a.row
        readable = k if first_line + read_line < m else int64(0)
        tiles: int32 = (k + tile_k - 1) // tile_k
        lax_smem[0] = 0

        # --- First pass: the largest magnitude of each line ---
        top = int32(0)
        for tile in range(tiles):
            values = take_k(a.data, source, tile * tile_k + read_k, a.col, readable)
            top = larger_of(values, top)
        place: int32 = read_member * lines + read_line
        (top,) = largest_of(smem, place, read_member, read_line, line, (top,))

        # --- Powers of two that scale the lines ---
        exponent: int32 = (top >> UPPER_MANTISSA_BITS) - BIAS
        is_fit = exponent >= -LARGEST and exponent < LARGEST
        shift = int32(bits - 1 - exponent) if is_fit else int32(0)
        scale = power_of_two(shift)
        strict, strong = power_of_two(bits - LAX_BITS), power_of_two(bits - WEAK_BITS)
        is_inside = first_line + line < m
        factors_at = find_factors(matrix, m)
        if block == blocks - 1:
            pad_factors(factors, factors_at, thread, m)
        if member == 0 and is_inside:
            factors[factors_at + first_line + line] = power_of_two(-shift)

        # --- Second pass: the residues, from the end to the beginning ---
        row_items = (k + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        target = (matrix * moduli_count * m + first_line + line) * row_items
        weak, is_lax = int32(0), False
        for back in range(tiles):
            start = (tiles - 1 - back) * tile_k
            values = take_k(a.data, source, start + read_k, a.col, readable)
            place_k = start + member * WIDTH
            if across:
                values = turn(tile_smem, values, read_line, read_k, line, member)
            lower, upper, weaker, is_laxer = round_all(
                values, is_fit, scale, strict, strong, k - place_k
            )
            weak, is_lax = int32(weak + weaker), is_lax | is_laxer
            if is_inside and place_k < k:
                for which in static_range(moduli_count):
                    at = target + which * m * row_items + place_k
                    store_vector(residues, at, quads[which](lower, upper))
        # --- Status of the block ---
        fit = int32((1 if is_fit else 2) if is_inside and top != 0 else 0)
        number: int32 = cuda.blockIdx.x
        place = member * lines + line
        put_status(smem, lax_smem, status, number, place, member, line, (weak,), (fit,), is_lax)

    return residues_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(groups=16, threads_per_group=32),),
    simulator_configs=(Config(groups=2, threads_per_group=4),),
    variant=variant,
    block_count=block_count,
)
