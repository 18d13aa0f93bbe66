"""Bytes of a matrix of integers, as several matrices, for products by int8 tensor cores.

Idea: modulo 2**32, an integer is the sum of its digits times powers of 256. Digits of -128 to 127
are int8: they are the bytes of the integer plus 0x80808080, less 128 each. Digits of 16 bits are
the bytes themselves. Residues by several moduli are int8 too: those of the sum of the bytes,
each times a power of 256. With a modulus of the product itself, integers are reduced by it first,
to 32 bits.
A thread reads 16 neighbours along k, and writes 16 bytes of each matrix. Where warps read across
the rows, threads exchange their elements in shared memory first.
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

from dxgemm.handwritten.parts.chunks import WARP, ChunksConfig, make_find_chunk
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.moduli import MODULI, byte_weights, make_residue
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.unroll import device, static_range

CHUNK = 16  # elements of a thread
FORMS = ("balanced", "bytes", "residues", "reduced residues", "reduced")
ORDERS = ("up", "down")
SIGN_BIT = -(2**31)  # of a word
BIAS = 0x80808080 - 2**32


class Config(ChunksConfig):
    """A `ChunksConfig` whose chunks have 16 bytes of a digit."""

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM, so that enough reads are under way."""
        return 4


def variant(config: Config, problem: Any) -> tuple[str]:
    """Where the threads of a warp have neighbours: along a "row", or across the rows, a "column".

    "vector" is along a row whose elements are read by 16 bytes.
    """
    a, item_bytes = problem.a, np.dtype(problem.dtype).itemsize
    starts = problem.a_alignment, a.row * item_bytes, a.batch * item_bytes
    if a.col == 1 and not any(start % VECTOR_BYTES for start in starts):
        return ("vector",)
    return ("row" if abs(a.col) <= abs(a.row) else "column",)


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: one for each tile of each matrix."""
    (order,) = variant(config, problem)
    along = "row" if order == "vector" else order
    count: int = problem.batch * config.blocks(along, problem.m, -(-problem.b.col // CHUNK))
    return count


def make_take(dtype: str, is_vector: bool) -> Callable[..., Any]:
    """A device function: (pointer, index, step, left) -> elements of a chunk, 0 beyond `left`."""
    import numba

    from dxgemm.handwritten.parts.intrinsics import load_vector

    scalar = getattr(numba, dtype)
    width = min(VECTOR_BYTES // np.dtype(dtype).itemsize, 4)

    @device
    def take_vectors(pointer, index):
        taken = ()
        for i in static_range(CHUNK // width):
            taken = taken + load_vector(scalar, width, pointer, index + i * width)
        return taken

    @device
    def take(pointer, index, step, left):
        if is_vector and left >= CHUNK:
            return take_vectors(pointer, index)
        taken = ()
        for i in static_range(CHUNK):
            taken = taken + (pointer[index + i * step] if i < left else scalar(0),)
        return taken

    return take


def make_turn(config: Config) -> tuple[int, Callable[..., Any]]:
    """Items of shared memory, and a device function through which threads exchange chunks in it.

    (smem, thread, row, chunk, elements) -> elements, row, chunk: those of a thread that was across
    the rows become those of one along a row, so that what is written are whole cache lines.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import sync_block

    rows, chunks = config.tile("column")
    pitch = chunks * (CHUNK + 1) | 1  # no two rows, and few chunks, begin in the same bank

    @device
    def turn(smem, thread, row, chunk, elements):
        first: int32 = thread % WARP * pitch + thread // WARP * (CHUNK + 1)
        for i in static_range(CHUNK):
            smem[first + i] = elements[i]
        sync_block()
        first = thread // chunks * pitch + thread % chunks * (CHUNK + 1)
        turned = ()
        for i in static_range(CHUNK):
            turned = turned + (smem[first + i],)
        row = int32(row - thread % WARP + thread // chunks)
        return turned, row, int32(chunk - thread // WARP + thread % chunks)

    return rows * pitch, turn


def make_pack() -> Callable[..., Any]:
    """A device function: (words of elements, shift) -> the bytes from a bit on, as words."""
    from dxgemm.handwritten.parts.intrinsics import low_word

    @device
    def pack(words, shift):
        packed = ()
        for word in static_range(CHUNK // 4):
            bits = low_word(words[4 * word] >> shift & 255)
            for byte in static_range(1, 4):
                value = words[4 * word + byte] >> shift & 255
                bits = low_word(bits | value << (8 * byte))
            packed = packed + (bits,)
        return packed

    return pack


def make_residues(modulus: int, is_long: bool, has_sign: bool) -> Callable[..., Any]:
    """A device function: (low, high) -> words whose low bytes are the residues of elements.

    These are given by their words, the upper one if elements are long. Where elements have a sign,
    its bit is exchanged: so they are positive.
    """
    from numba import float32, int32, uint32

    from dxgemm.handwritten.parts.intrinsics import dot_bytes

    width = 8 if is_long else 4
    weights, offset = byte_weights(modulus, 2 ** (8 * width - 1) if has_sign else 0, width)
    low_weights, high_weights = weights[0], weights[-1]
    inverse, residue = float(float32(1 / modulus)), make_residue()

    @device
    def residues(low, high):
        found = ()
        for i in static_range(CHUNK):
            total = dot_bytes(uint32(low[i]), int32(low_weights), int32(offset))
            if is_long:
                total = dot_bytes(uint32(high[i]), int32(high_weights), total)
            found = found + (residue(total, int32(modulus), float32(inverse)),)
        return found

    return residues


def make_kernel(
    config: Config, dtype: str, order: str, digits: str, form: str, direction: str,
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

    count, has_residues, is_reduced = int(digits), "residues" in form, form.startswith("reduced")
    is_balanced, is_up = form == "balanced", direction == "up"
    is_long = dtype.endswith("64") and not is_reduced
    # Modulo 2**64, an unsigned integer of 64 bits is a signed one.
    has_sign = has_residues and (is_reduced or is_long or not dtype.startswith("u"))
    low_sign, high_sign = (0, SIGN_BIT) if is_long else (SIGN_BIT, 0)
    is_vector, is_across, pack = order == "vector", order == "column", make_pack()
    find_chunk = make_find_chunk(config, "row" if is_vector else order)
    take, smem_items, turn = make_take(dtype, is_vector), *make_turn(config)
    scalar = np.dtype(dtype).type
    residue_of = make_residue_of(dtype)
    residues = tuple(make_residues(modulus, is_long, has_sign) for modulus in MODULI[:count])

    @gemm_kernel
    def digits_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, this thread's chunk ---
        chunks: int32 = b.col // CHUNK
        block, thread = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x & 1023)
        matrix, row, chunk = find_chunk(block, thread, m, chunks)
        if has_residues and block == 0 and thread == 0:
            extra[0][0][0] = 0
        index = matrix * a.batch + row * a.row + int64(chunk) * CHUNK * a.col
        elements = take(a.data, index, a.col, int32(n - chunk * CHUNK) if row < m else int32(0))
        if is_across:
            smem = cuda.shared.array(smem_items, scalar)
            elements, row, chunk = turn(smem, thread, row, chunk, elements)
        if row < m and chunk < chunks:
            # --- The elements, as words whose bytes are digits ---
            low, high = (), ()
            for i in static_range(CHUNK):
                first, last = low_word(elements[i]), low_word(0)
                if is_reduced:
                    first = low_word(residue_of(elements[i], extra[1], extra[2]))
                if is_long:
                    last = low_word(int64(elements[i]) >> 32)
                if is_balanced:
                    first = low_word(low_word(first + BIAS) ^ BIAS)
                if has_sign:
                    first, last = low_word(first ^ low_sign), low_word(last ^ high_sign)
                low, high = low + (first,), high + (last,)

            # --- 16 bytes of each digit or residue ---
            target = global_address(out.data) + matrix * out.batch + row * out.row + chunk * CHUNK
            for digit in static_range(count):
                if has_residues:
                    packed = pack(residues[digit](low, high), 0)
                else:
                    packed = pack(low, digit * 8)
                place = digit if is_up else count - 1 - digit
                store_global(target + place * b.row, 0, packed)

    return digits_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(threads=256),),
    simulator_configs=(Config(threads=64),),
    variant=variant,
    block_count=block_count,
)
