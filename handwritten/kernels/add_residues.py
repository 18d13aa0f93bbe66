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
from math import prod
from typing import Any

from dxgemm.handwritten.parts.groups import make_find_piece
from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig
from dxgemm.handwritten.parts.moduli import MODULI
from dxgemm.handwritten.parts.residue_store import make_take
from dxgemm.handwritten.parts.unroll import device, static_range

WIDTH, LANES = 4, 32  # elements of a thread, threads along a row
MASK = 2**32 - 1  # of the low word
SHARE_BITS = 20  # after the point, of a share of P: the sum of 20, with their errors, fits int32


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


def weights_of(count: int) -> tuple[list[int], int]:
    """W_i for each modulus, nearest to 0, and P."""
    moduli, weights = MODULI[:count], []
    product = prod(moduli)
    for modulus in moduli:
        others = product // modulus
        weight = others * pow(others, -1, modulus)
        weights.append(weight if 2 * weight < product else weight - product)
    return weights, product


def numbers_modulo(modulus: int, count: int) -> tuple[int | float, ...]:
    """The numbers that follow the residues for a result modulo a number."""
    weights, product = weights_of(count)
    moved = -128 * sum(weights) % modulus
    of_moduli = (weight % modulus for weight in weights)
    return modulus, 1 / modulus, product % modulus, moved, *of_moduli


def make_combine(count: int, is_modular: bool) -> Callable[..., Any]:
    """A device function: (residues, extra) -> the integer that has `count` residues, as int64.

    Modulo a number, an integer of up to 2**12 times that which is congruent to it.
    """
    from numba import int32, int64, uint32

    from dxgemm.handwritten.parts.elementary import wide_product
    from dxgemm.handwritten.parts.intrinsics import low_word

    wholes, product = weights_of(count)
    shares = tuple(round(2**SHARE_BITS * whole / product) for whole in wholes)
    lower, upper = (tuple(whole >> bits & MASK for whole in wholes) for bits in (0, 32))
    # Residues are made positive, for products of 64 bits of numbers without a sign.
    moved, product_word = word(-128 * sum(wholes)), word(product)

    @device
    def combine(residues, extra):
        total, high, share = int64(0), low_word(0), int32(1 << (SHARE_BITS - 1))
        for i in static_range(count):
            share = int32(share + residues[i] * shares[i])
            positive = uint32(residues[i] + 128)
            if is_modular:
                total += int64(wide_product(positive, uint32(extra[5 + i])))
            else:
                total += int64(wide_product(positive, uint32(lower[i])))
                high = low_word(high + int64(positive) * int64(upper[i]))
        quotient = int64(share >> SHARE_BITS)
        if is_modular:
            return total + extra[4] - quotient * extra[3]
        return total + (int64(high) << 32) + int64(moved) - quotient * int64(product_word)

    return combine


def make_kernel(
    config: ThreadsConfig, dtype: str, out_dtype: str, count: str, kind: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one dtype of c and out and so many moduli, as a Python function to compile.

    Args:
        kind: "modular" for a result modulo a number, "sums" for that of sums in the place of
            residues, "" for one modulo 2**64.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.elements import make_put_element
    from dxgemm.handwritten.parts.modular import make_finish
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    moduli, (rows, cols), is_modular = int(count), tile(config), kind != ""
    is_sum = kind == "sums"
    lanes = cols // WIDTH
    find_piece, combine = make_find_piece(rows, cols), make_combine(moduli, is_modular)
    take = make_take(moduli, WIDTH, "int32" if is_sum else "int8")
    begin_finish, finish = make_finish(out_dtype)
    begin, put = make_put_element("int64", out_dtype)

    @gemm_kernel
    def add_residues_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        matrix, first_row, first_col = find_piece(block, m, n)
        row = int64(first_row + thread // lanes)
        col = int64(first_col + thread % lanes * WIDTH)
        if row < m and col < n:
            # With a modulus, alpha and beta are applied before the element is put.
            at = begin(matrix, alpha, beta, c, out, extra)
            if is_modular:
                at = begin(matrix, int64(1), int64(0), c, out, extra)
                by, plus = begin_finish(alpha, beta, extra[1], extra[2])
            loaded = take(extra[0][0], matrix, m, n, row, col)
            for j in static_range(WIDTH):
                if col + j < n:
                    of_element = ()
                    for i in static_range(moduli):
                        of_element = of_element + (int32(loaded[i][j]),)
                    if is_sum:
                        value = int64(of_element[0])
                    else:
                        value = combine(of_element, extra)
                    if is_modular:
                        place = matrix * c.batch + row * c.row + (col + j) * c.col
                        value = finish(value, by, plus, c, place, extra[1], extra[2])
                    put((value,), at, row, col + j)

    return add_residues_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(ThreadsConfig(threads=256),),
    simulator_configs=(ThreadsConfig(threads=2),),
    block_count=block_count,
)
