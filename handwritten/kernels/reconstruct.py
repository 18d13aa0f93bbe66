"""Integers from their residues, scaled back: the last kernel of emulated float64.

Idea: with P the product of all moduli, X = sum of r_i * W_i - Q * P, where W_i is 1 modulo the i-th
modulus and 0 modulo the others, and Q the integer that brings X nearest to 0. All three are cut
into limbs of 42 bits, from -2**41 to 2**41. With up to 20 moduli, a limb's products and their sum
are exact in float64; so is the difference from Q times P's limb. Carries put the limbs side by
side; then their sum is rounded, to within 2**-50 of half a unit in the last place.
A thread takes four neighbours of a row. Of a symmetric result, blocks take the tiles that meet the
lower triangle; mirror images of these pass through shared memory, so that their rows are coalesced.
Layout: a is (moduli, m, n) residues, any batch, rows padded to 32 bytes; c and out (m, n), any
strides. In the last parameter, after the epilogue's operands: residues, the factors that scale
rows and columns back, and the flag of validity_check.
Constraints: none. If the flag is not 0, the kernel writes nothing and leaves the product to
`native_fallback`.
Source: H. Garner's problem, by Chinese remainders as in D. Knuth, "The Art of Computer
Programming", 4.3.2; T. Dekker, "A floating-point technique for extending the available precision"
(1971), for sums with their error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.groups import make_find_piece
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, tiles_of
from dxgemm.handwritten.parts.line_status import make_factors
from dxgemm.handwritten.parts.moduli import moduli_count, weights_of
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.residue_store import make_take
from dxgemm.handwritten.parts.triangle import make_tile_map
from dxgemm.handwritten.parts.unroll import device, gemm_kernel, static_range

WIDTH = 4  # elements of a thread
SWIZZLE_ROWS = 8  # at least, of the tiles of a symmetric result
PAD = 2  # elements of a row in shared memory, against bank conflicts of columns
LIMB_BITS = 42
LIMB = 2.0**LIMB_BITS
ROUNDING = 1.5 * 2.0**52  # a float64 added to this is rounded to an integer


@dataclass(frozen=True)
class Config(BaseConfig):
    """Rows of a block, and threads along each of them."""

    rows: int
    lanes: int

    @property
    def threads(self) -> int:
        return self.rows * self.lanes

    @property
    def cols(self) -> int:
        return self.lanes * WIDTH

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of a padded tile, through which mirror images of a symmetric result pass."""
        return self.rows * (self.cols + PAD) * 8

    def accumulator_bytes(self, dtype: str) -> int:
        return WIDTH * 4 * 8

    def __str__(self) -> str:
        return f"{self.rows} rows of {self.lanes} lanes"


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch, matrix after matrix."""
    blocks: int = problem.batch * tiles_of(problem, config.rows, config.cols)
    return blocks


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Number of moduli; triangle, left out where it is empty."""
    count = str(moduli_count(problem))
    return (count, problem.triangle) if problem.triangle else (count,)


def limbs_of(value: int, count: int) -> tuple[float, ...]:
    """An integer as so many limbs, the lowest first; the last takes what is left."""
    limbs = []
    for _ in range(count - 1):
        limb = (value + 2 ** (LIMB_BITS - 1)) % 2**LIMB_BITS - 2 ** (LIMB_BITS - 1)
        limbs.append(limb)
        value = (value - limb) >> LIMB_BITS
    return tuple(float(limb) for limb in (*limbs, value))


def limbs_of_weights(count: int) -> tuple[tuple[tuple[float, ...], ...], tuple[float, ...]]:
    """The limbs of each W, from -P / 2 to P / 2, and those of P."""
    weights, product = weights_of(count)
    limbs = -(-product.bit_length() // LIMB_BITS)
    return tuple(limbs_of(weight, limbs) for weight in weights), limbs_of(product, limbs)


def make_combine(count: int) -> Callable[..., Any]:
    """A device function: `count` residues, as float64, to the integer that has them."""
    weights, product = limbs_of_weights(count)
    limbs = len(product)
    # Units of limbs, over P; those below the upper two count for less than a quotient's last bit.
    shares = tuple(LIMB**i / float(weights_of(count)[1]) for i in range(limbs))
    units = tuple(LIMB**i for i in range(limbs))
    upper = range(max(limbs - 2, 0), limbs)
    first_upper, carry_unit = upper.start, 1 / LIMB

    @device
    def combine(residues):
        sums = ()
        for limb in static_range(limbs):
            total = residues[0] * weights[0][limb]
            for i in static_range(1, count):
                total += residues[i] * weights[i][limb]
            sums = sums + (total,)
        quotient = 0.0
        for limb in static_range(first_upper, limbs):
            quotient += sums[limb] * shares[limb]
        quotient = (quotient + ROUNDING) - ROUNDING
        # Carries, from the lowest limb on.
        carry, parts = 0.0, ()
        for limb in static_range(limbs):
            part = sums[limb] - quotient * product[limb] + carry
            if limb < limbs - 1:
                carry = (part * carry_unit + ROUNDING) - ROUNDING
                part -= carry * LIMB
            parts = parts + (part * units[limb],)
        # From the highest on: the sum so far, and what its rounding left.
        total, rest = parts[limbs - 1], 0.0
        for back in static_range(2, limbs + 1):
            term = rest + parts[limbs - back]
            rounded = total + term
            rest = term - (rounded - total)
            total = rounded
        return total + rest

    return combine


def make_mirror(config: Config, least: int, finish: Any, plus_c: Any) -> Any:
    """A device function: store the mirror images of a tile in shared memory, whose rows they cross.

    (smem, thread, first_row, first_col, matrix, m, beta, c, out, extra); images are of elements
    `least` or more below the diagonal.
    """
    from numba import int32, int64

    rows, threads, pitch = config.rows, config.threads, config.cols + PAD

    @device
    def mirror(smem, thread, first_row, first_col, matrix, m, beta, c, out, extra):
        for i in static_range(WIDTH):
            item: int32 = thread + i * threads
            below: int32 = item % rows
            right: int32 = item // rows
            row, col = int64(first_row + below), int64(first_col + right)
            if row < m and row - col >= least:
                place = matrix * c.batch + col * c.row + row * c.col
                (value,) = plus_c((smem[below * pitch + right],), beta, c, place, 0)
                value = finish(value, matrix, col, row, extra)
                out.data[matrix * out.batch + col * out.row + row * out.col] = value

    return mirror


def make_kernel(
    config: Config, dtype: str, count: str, stored: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate.

    Args:
        count: number of moduli.
        stored: triangles of a symmetric result that are written; "" for another result.
        epilogue: a `Fusion`, whose operands end with the buffers of residues, row
            factors, column factors and the flag of validity_check.
    """
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, float64, int32, int64

    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import (
        global_address,
        scaled,
        store_vector,
    )

    item_bytes, pair = 8, VECTOR_BYTES // 8
    rows, cols, lanes, moduli = config.rows, config.cols, config.lanes, int(count)
    combine, (find_factors, _) = make_combine(moduli), make_factors(config.threads)
    take = make_take(moduli, WIDTH)
    finish, plus_c = make_finish(epilogue, dtype, dtype), make_plus_c(dtype)
    first_buffer = len(epilogue.stage_operands)  # its place in `extra`
    row_factors, col_factors, invalid = first_buffer + 1, first_buffer + 2, first_buffer + 3
    is_whole, is_direct, is_mirrored = stored == "", stored != "upper", stored in ("both", "upper")
    mirror = make_mirror(config, 1 if is_direct else 0, finish, plus_c)
    (locate, _), find_piece = make_tile_map(rows, cols, SWIZZLE_ROWS), make_find_piece(rows, cols)
    pitch_smem, smem_items = cols + PAD, rows * (cols + PAD)

    @device
    def is_stored(row, col):
        """True if an element is written in place, and not as a mirror image alone."""
        return is_whole or (is_direct and row >= col)

    @gemm_kernel
    def reconstruct_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        if stored:
            tiles_m: int32 = (m + rows - 1) // rows
            tiles_n: int32 = (n + cols - 1) // cols
            matrix, tile_row, tile_col = locate(block, tiles_m, tiles_n)
            first_row, first_col = int32(tile_row * rows), int32(tile_col * cols)
        else:
            matrix, first_row, first_col = find_piece(block, m, n)
        row = int64(first_row + thread // lanes)
        col = int64(first_col + thread % lanes * WIDTH)
        if is_mirrored:
            tile_smem = cuda.shared.array(smem_items, float64)
        if row < m and col < n and extra[invalid][0][0] == 0:
            a_factors, _ = extra[row_factors]
            b_factors, _ = extra[col_factors]
            loaded = take(extra[first_buffer][0], matrix, m, n, row, col)
            row_factor = a_factors[row + (find_factors(matrix, m) if a.batch != 0 else 0)]
            at = col + (find_factors(matrix, n) if b.batch != 0 else 0)
            c_place, values = matrix * c.batch + row * c.row + col * c.col, ()
            for j in static_range(WIDTH):
                of_element = ()
                for i in static_range(moduli):
                    of_element = of_element + (float64(loaded[i][j]),)
                value = scaled(alpha, combine(of_element) * row_factor * b_factors[at + j])
                if is_mirrored:
                    tile_smem[thread // lanes * pitch_smem + thread % lanes * WIDTH + j] = value
                if col + j < n and is_stored(row, col + j):
                    (value,) = plus_c((value,), beta, c, c_place + j * c.col, 0)
                    value = finish(value, matrix, row, col + j, extra)
                values = values + (value,)
            place = matrix * out.batch + row * out.row + col * out.col
            address = global_address(out.data) + place * item_bytes
            is_inside = col + WIDTH <= n and is_stored(row, col + WIDTH - 1)
            if is_inside and out.col == 1 and address % VECTOR_BYTES == 0:
                for j in static_range(0, WIDTH, pair):
                    store_vector(out.data, place + j, values[j : j + pair])
            else:
                for j in static_range(WIDTH):
                    if col + j < n and is_stored(row, col + j):
                        out.data[place + j * out.col] = values[j]
        if is_mirrored:
            cuda.syncthreads()
            if extra[invalid][0][0] == 0:
                mirror(tile_smem, thread, first_row, first_col, matrix, m, beta, c, out, extra)

    return reconstruct_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(rows=8, lanes=32),),
    simulator_configs=(Config(rows=2, lanes=2),),
    variant=variant,
    block_count=block_count,
)
