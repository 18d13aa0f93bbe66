"""Bytes of a matrix of integers, as matrices side by side, for products by int8 tensor cores.

Idea: modulo 2**32 or 2**64, an integer is the sum of its digits times powers of 256. Digits of -128
to 127 are int8: they are the bytes of the integer plus 0x8080..., less 128 each. Digits of 16 bits
are the bytes themselves. A thread reads 16 neighbours along k, and writes 16 bytes of each digit.
Layout: a (m, n), any strides, any batch, a row for each row of a factor or column of b, n along k.
out (m, digits * step), row-major and aligned: each row has the digits side by side, `b.col` bytes
each, from the lowest or from the highest on. What is behind the n-th is 0. c and k are not used.
Constraints: the row of out is a multiple of 16 bytes.
Source: Donald E. Knuth, "The Art of Computer Programming", volume 2, 4.1, for balanced digits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig

WARP, CHUNK = 32, 16  # elements of a thread
FORMS = ("balanced", "bytes")
ORDERS = ("up", "down")
BIASES = {32: 0x80808080 - 2**32, 64: 0x8080808080808080 - 2**64}


def variant(config: ThreadsConfig, problem: Any) -> tuple[str]:
    """Direction in which the threads of a warp have neighbours: along a row, or across the rows."""
    return ("row" if abs(problem.a.col) <= abs(problem.a.row) else "column",)


def tile(config: ThreadsConfig, order: str) -> tuple[int, int]:
    """Rows and chunks of a block: the threads of a warp along a row, or across the rows."""
    warps = config.threads // WARP
    return (warps, WARP) if order == "row" else (WARP, warps)


def block_count(config: ThreadsConfig, problem: Any) -> int:
    """Blocks to launch: one for each tile of each matrix."""
    rows, chunks = tile(config, *variant(config, problem))
    count: int = problem.batch * -(-problem.m // rows) * -(-problem.b.col // (chunks * CHUNK))
    return count


def make_kernel(
    config: ThreadsConfig, dtype: str, order: str, digits: str, form: str, direction: str,
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one variant, as a Python function to compile.

    Args:
        order: see `variant`.
        digits: number of digits, from 2 on.
        form: one of `FORMS`.
        direction: "up" if the lowest digit is first, "down" if it is last.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        divide,
        global_address,
        low_word,
        store_global,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    count = int(digits)
    is_long, is_balanced, is_up = count > 4, form == "balanced", direction == "up"
    bias, low_bias = BIASES[64 if is_long else 32], BIASES[32]
    tile_rows, tile_chunks = tile(config, order)
    along = order == "row"

    @gemm_kernel
    def digits_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, this thread's chunk ---
        chunks: int32 = b.col // CHUNK
        tiles_m: int32 = (m + tile_rows - 1) // tile_rows
        tiles_n: int32 = (chunks + tile_chunks - 1) // tile_chunks
        block: int32 = cuda.blockIdx.x
        strip = divide(block, tiles_n)
        matrix = divide(strip, tiles_m)
        thread: int32 = cuda.threadIdx.x & 1023
        across: int32 = thread // WARP if along else thread % WARP
        beside: int32 = thread % WARP if along else thread // WARP
        row: int32 = (strip - matrix * tiles_m) * tile_rows + across
        chunk: int32 = (block - strip * tiles_n) * tile_chunks + beside
        if row < m and chunk < chunks:
            # --- The elements, as words whose bytes are digits ---
            index = matrix * a.batch + row * a.row + int64(chunk) * CHUNK * a.col
            low, high = (), ()
            for i in static_range(CHUNK):
                first, last = low_word(0), low_word(0)
                if chunk * CHUNK + i < n:
                    if is_long:
                        value = int64(a.data[index + i * a.col])
                        value = (value + bias) ^ bias
                        first, last = low_word(value), low_word(value >> 32)
                    else:
                        first = low_word(a.data[index + i * a.col])
                        if is_balanced:
                            first = low_word(low_word(first + low_bias) ^ low_bias)
                low, high = low + (first,), high + (last,)

            # --- 16 bytes of each digit ---
            target = global_address(out.data) + matrix * out.batch + row * out.row + chunk * CHUNK
            for digit in static_range(count):
                words = low if digit < 4 else high
                shift = digit % 4 * 8
                packed = ()
                for word in static_range(CHUNK // 4):
                    bits = low_word(words[4 * word] >> shift & 255)
                    for byte in static_range(1, 4):
                        value = words[4 * word + byte] >> shift & 255
                        bits = low_word(bits | value << (8 * byte))
                    packed = packed + (bits,)
                place = digit if is_up else count - 1 - digit
                store_global(target + place * b.col, 0, packed)

    return digits_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(ThreadsConfig(threads=256),),
    simulator_configs=(ThreadsConfig(threads=64),),
    variant=variant,
    block_count=block_count,
)
