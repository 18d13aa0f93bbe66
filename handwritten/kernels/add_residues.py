"""Integers modulo 2**64, or a number, from the residues of a product by several moduli.

Idea: with P the product of all moduli, X = sum of r_i * W_i - Q * P, where W_i is 1 modulo the i-th
modulus and 0 modulo the others. Q, the integer that brings X nearest to 0, comes from the sum of
r_i * W_i / P in fixed point: X is below 0.49 P, so that its error does not matter. All else is
computed modulo 2**64; or modulo p, by W_i and P modulo p. A thread has four neighbours of a row.
Layout: c and out (m, n), any strides, any batch, in int64 or uint64; modulo p of 32 bits, too. The
residues, which `digits` and `emulated_float64` make, are in the last operand: bytes (moduli, m, n),
any batch, rows padded to 32 bytes. Modulo p, numbers follow them: p, its inverse in float64, P,
-128 times the sum of all W_i, and each W_i, modulo p. Or p and its inverse follow sums in int32,
rows padded to 32 elements, which are reduced modulo p alone. a, b and k are not used.
Source: Chinese remainders as in D. Knuth, "The Art of Computer Programming", 4.3.2; `moduli`,
`modular`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.groups import make_find_piece
from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig
from dxgemm.handwritten.parts.moduli import make_combine
from dxgemm.handwritten.parts.residue_store import make_take
from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

WIDTH, LANES = 4, 32  # elements of a thread, threads along a row


class Config(ThreadsConfig):
    """Threads of a block."""

    def min_blocks(self, dtype: str) -> int:
        """Minimum resident blocks per SM, so that enough reads are under way."""
        return 4


def tile(config: Config) -> tuple[int, int]:
    """Rows and columns of a block."""
    lanes = min(LANES, config.threads)
    return config.threads // lanes, lanes * WIDTH


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch, matrix after matrix."""
    rows, cols = tile(config)
    count: int = problem.batch * -(-problem.m // rows) * -(-problem.n // cols)
    return count


def make_kernel(
    config: Config, dtype: str, out_dtype: str, count: str, kind: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one dtype of c and out and so many moduli, as a Python function to compile.

    Args:
        kind: "modular" for a result modulo a number, "sums" for that of sums in the place of
            residues, "" for one modulo 2**64.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.elements import make_put_neighbours
    from dxgemm.handwritten.parts.modular import make_finish

    moduli, (rows, cols), is_modular = int(count), tile(config), kind != ""
    is_sum, lanes = kind == "sums", cols // WIDTH
    find_piece, combine = make_find_piece(rows, cols), make_combine(moduli, is_modular)
    take = make_take(moduli, WIDTH, "int32" if is_sum else "int8")
    finish, plus_c = make_finish(out_dtype), make_plus_c("int64", out_dtype)
    put = make_put_neighbours(WIDTH, out_dtype)

    @gemm_kernel
    def add_residues_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        matrix, first_row, first_col = find_piece(block, m, n)
        row = int64(first_row + thread // lanes)
        col = int64(first_col + thread % lanes * WIDTH)
        if row < m and col < n:
            loaded = take(extra[0][0], matrix, m, n, row, col)
            place, values = matrix * c.batch + row * c.row + col * c.col, ()
            for j in static_range(WIDTH):
                of_element = ()
                for i in static_range(moduli):
                    of_element = of_element + (int32(loaded[i][j]),)
                value = int64(of_element[0]) if is_sum else combine(of_element, extra)
                if col + j < n:
                    at = place + j * c.col
                    if is_modular:
                        value = finish(value, alpha, beta, c, at, extra[1], extra[2])
                    else:
                        (value,) = plus_c((int64(alpha * value),), beta, c, at, 0)
                values = values + (value,)
            place = matrix * out.batch + row * out.row + col * out.col
            put(values, out, place, n - col)

    return add_residues_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(threads=256),),
    simulator_configs=(Config(threads=2),),
    block_count=block_count,
)
