"""Integers modulo 2**64 from the residues of a product by several moduli: see `digits`.

Idea: with P the product of all moduli, X = sum of r_i * W_i - Q * P, where W_i is 1 modulo the i-th
modulus and 0 modulo the others. Q, the integer that brings X nearest to 0, comes from the sum of
r_i * W_i / P in float32: X is below 0.49 P, so that its error does not matter. All else is computed
modulo 2**64. A thread has four neighbours of a row.
Layout: c and out (m, n), any strides, any batch, in int64 or uint64. The residues are in the last
operand: bytes (moduli, m, n), any batch, rows padded to 32 bytes. a, b and k are not used.
Source: Chinese remainders as in D. Knuth, "The Art of Computer Programming", 4.3.2; `moduli`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from dxgemm.handwritten.parts.groups import make_find_piece
from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig
from dxgemm.handwritten.parts.moduli import MODULI
from dxgemm.handwritten.parts.residue_store import make_take
from dxgemm.handwritten.parts.unroll import device, static_range

WIDTH, LANES = 4, 32  # elements of a thread, threads along a row


def tile(config: ThreadsConfig) -> tuple[int, int]:
    """Rows and columns of a block."""
    lanes = min(LANES, config.threads)
    return config.threads // lanes, lanes * WIDTH


def block_count(config: ThreadsConfig, problem: Any) -> int:
    """Blocks to launch, matrix after matrix."""
    rows, cols = tile(config)
    count: int = problem.batch * -(-problem.m // rows) * -(-problem.n // cols)
    return count


def word(value: int) -> int:
    """The low 64 bits of an integer, as an int64."""
    return (value + 2**63) % 2**64 - 2**63


def make_combine(count: int) -> Callable[..., Any]:
    """A device function: `count` residues, as int32, to the integer that has them, as int64."""
    from numba import float32, int64

    moduli = MODULI[:count]
    product = prod(moduli)
    wholes = []
    for modulus in moduli:
        others = product // modulus
        weight = others * pow(others, -1, modulus)
        wholes.append(weight if 2 * weight < product else weight - product)
    weights = tuple(map(word, wholes))
    shares = tuple(float(float32(whole / product)) for whole in wholes)
    product_word = word(product)

    @device
    def combine(residues):
        total, share = int64(0), float32(0)
        for i in static_range(count):
            total += int64(residues[i]) * int64(weights[i])
            share += float32(residues[i]) * float32(shares[i])
        return total - int64(round(share)) * int64(product_word)

    return combine


def make_kernel(
    config: ThreadsConfig, dtype: str, out_dtype: str, count: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one dtype of c and out and so many moduli, as a Python function to compile."""
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.elements import make_put_element
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    moduli, (rows, cols) = int(count), tile(config)
    lanes = cols // WIDTH
    find_piece, combine = make_find_piece(rows, cols), make_combine(moduli)
    take, (begin, put) = make_take(moduli, WIDTH), make_put_element("int64", out_dtype)

    @gemm_kernel
    def add_residues_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        matrix, first_row, first_col = find_piece(block, m, n)
        row = int64(first_row + thread // lanes)
        col = int64(first_col + thread % lanes * WIDTH)
        if row < m and col < n:
            at = begin(matrix, alpha, beta, c, out, extra)
            loaded = take(extra[0][0], matrix, m, n, row, col)
            for j in static_range(WIDTH):
                if col + j < n:
                    of_element = ()
                    for i in static_range(moduli):
                        of_element = of_element + (int32(loaded[i][j]),)
                    put((combine(of_element),), at, row, col + j)

    return add_residues_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(ThreadsConfig(threads=256),),
    simulator_configs=(ThreadsConfig(threads=2),),
    block_count=block_count,
)
