"""Bytes of a matrix of integers, as several matrices, for products by int8 tensor cores.

Idea: modulo 2**32, an integer is the sum of its digits times powers of 256. Digits of -128 to 127
are int8: they are the bytes of the integer plus 0x80808080, less 128 each. Digits of 16 bits are
the bytes themselves. Residues by several moduli are int8 too: those of the sum of the bytes,
each times a power of 256. With a modulus of the product itself, integers are reduced by it first.
A thread reads 16 neighbours along k, and writes 16 bytes of each matrix.
Layout: a (m, n), any strides, any batch, a row for each row of a factor or column of b, n along k.
out (m, n) bytes for each digit or modulus, row-major and aligned, `b.row` bytes apart, the lowest
digit first or last. Rows are filled up with 0 to `b.col` bytes. c and k are not used. In the last
parameter, for residues, a flag that is set to 0; and a modulus, and its inverse in float64.
Constraints: rows of out are multiples of 16 bytes.
Source: Donald E. Knuth, "The Art of Computer Programming", volume 2, 4.1, for balanced digits;
`moduli`, `modular`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.chunks import ChunksConfig, make_find_chunk
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.moduli import MODULI, byte_weights, make_residue
from dxgemm.handwritten.parts.unroll import device, static_range

CHUNK = 16  # elements of a thread
FORMS = ("balanced", "bytes", "residues", "reduced residues", "reduced")
ORDERS = ("up", "down")
FIELDS = 5  # numbers of a modulus: it, its inverse, two words of weights, an offset
SIGN_BIT = -(2**31)  # of a word
BIAS = 0x80808080 - 2**32


def variant(config: ChunksConfig, problem: Any) -> tuple[str]:
    """Direction in which the threads of a warp have neighbours: along a row, or across the rows."""
    return ("row" if abs(problem.a.col) <= abs(problem.a.row) else "column",)


def block_count(config: ChunksConfig, problem: Any) -> int:
    """Blocks to launch: one for each tile of each matrix."""
    (order,) = variant(config, problem)
    count: int = problem.batch * config.blocks(order, problem.m, -(-problem.b.col // CHUNK))
    return count


def make_pack_digit() -> Callable[..., Any]:
    """A device function: (words of elements, shift) -> the bytes from a bit on, as words."""
    from dxgemm.handwritten.parts.intrinsics import low_word

    @device
    def pack_digit(words, shift):
        packed = ()
        for word in static_range(CHUNK // 4):
            bits = low_word(words[4 * word] >> shift & 255)
            for byte in static_range(1, 4):
                value = words[4 * word + byte] >> shift & 255
                bits = low_word(bits | value << (8 * byte))
            packed = packed + (bits,)
        return packed

    return pack_digit


def make_residues(count: int) -> tuple[Callable[..., None], Callable[..., Any]]:
    """The device functions fill and pack_residue for so many moduli.

    fill(table) writes FIELDS numbers for each modulus. pack_residue(table, which, low, high)
    returns the residues of elements, given by their low and high words, as words.
    """
    from numba import float32, int32, uint32

    from dxgemm.handwritten.parts.intrinsics import bits_float, dot_bytes, low_word

    residue = make_residue()
    numbers: tuple[int, ...] = ()
    for modulus in MODULI[:count]:
        # Of the integer plus 2**63, whose bytes have no sign.
        weights, offset = byte_weights(modulus, 2**63, 8)
        numbers += (modulus, int(np.float32(1 / modulus).view(np.int32)), *weights, offset)
    size = len(numbers)

    @device
    def fill(table):
        for i in static_range(size):
            table[i] = int32(numbers[i])

    @device
    def pack_residue(table, which, low, high):
        at: int32 = which * FIELDS
        modulus, inverse = int32(table[at]), bits_float(int32(table[at + 1]))
        low_weights, high_weights = int32(table[at + 2]), int32(table[at + 3])
        offset: int32 = table[at + 4]
        packed = ()
        for word in static_range(CHUNK // 4):
            bits = low_word(0)
            for byte in static_range(4):
                i = 4 * word + byte
                total = dot_bytes(uint32(low[i]), low_weights, offset)
                total = dot_bytes(uint32(high[i] ^ SIGN_BIT), high_weights, total)
                nearest = low_word(residue(total, modulus, float32(inverse)) & 255)
                bits = low_word(bits | nearest << (8 * byte))
            packed = packed + (bits,)
        return packed

    return fill, pack_residue


def make_kernel(
    config: ChunksConfig, dtype: str, order: str, digits: str, form: str, direction: str,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one variant, as a Python function to compile.

    Args:
        order: see `variant`.
        digits: number of digits, 2 or 4, or of moduli; 1 for the reduced integers themselves.
        form: one of `FORMS`.
        direction: "up" if the lowest digit is first, "down" if it is last.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import global_address, low_word, store_global
    from dxgemm.handwritten.parts.modular import make_residue_of
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    count = int(digits)
    is_balanced, is_up, has_residues = form == "balanced", direction == "up", "residues" in form
    is_modular, residue_of = form.startswith("reduced"), make_residue_of(dtype)
    pack_digit = make_pack_digit()
    fill, pack_residue = make_residues(count if has_residues else 1)
    table_size, find_chunk = FIELDS * count, make_find_chunk(config, order)

    @gemm_kernel
    def digits_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, this thread's chunk ---
        chunks: int32 = b.col // CHUNK
        block, thread = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x & 1023)
        matrix, row, chunk = find_chunk(block, thread, m, chunks)
        if has_residues:
            table = cuda.shared.array(table_size, int32)
            if thread == 0:
                fill(table)
                if block == 0:
                    extra[0][0][0] = 0
            cuda.syncthreads()
        if row < m and chunk < chunks:
            # --- The elements, as words whose bytes are digits ---
            index = matrix * a.batch + row * a.row + int64(chunk) * CHUNK * a.col
            low, high = (), ()
            for i in static_range(CHUNK):
                first, last = low_word(0), low_word(0)
                if chunk * CHUNK + i < n:
                    if is_modular:
                        value = residue_of(a.data[index + i * a.col], extra[1], extra[2])
                        first, last = low_word(value), low_word(value >> 32)
                    elif has_residues:
                        value = int64(a.data[index + i * a.col])
                        first, last = low_word(value), low_word(value >> 32)
                    else:
                        first = low_word(a.data[index + i * a.col])
                        if is_balanced:
                            first = low_word(low_word(first + BIAS) ^ BIAS)
                low, high = low + (first,), high + (last,)

            # --- 16 bytes of each digit or residue ---
            target = global_address(out.data) + matrix * out.batch + row * out.row + chunk * CHUNK
            if has_residues:
                for which in range(count):
                    store_global(target, 0, pack_residue(table, int32(which), low, high))
                    target += b.row
            else:
                for digit in static_range(count):
                    packed = pack_digit(low, digit * 8)
                    place = digit if is_up else count - 1 - digit
                    store_global(target + place * b.row, 0, packed)

    return digits_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(ChunksConfig(threads=256),),
    simulator_configs=(ChunksConfig(threads=64),),
    variant=variant,
    block_count=block_count,
)
