"""The complex result of real products of parts, or of slices of k.

Idea: with P of the real parts, Q of the imaginary parts, and S of the sums of both, re = P - Q and
im = S - P - Q: three products instead of four; where im is small beside P and Q, it keeps
fewer digits. Or the real and the imaginary parts of a alone are multiplied by b as it is: with
the products P + i P' and Q + i Q', re = P - Q' and im = P' + Q. Of a Hermitian result, P holds the
real and Q the imaginary parts, of which half are computed: those on and below the diagonal. Sums of
split-K slices of complex elements are added in their order. An epilogue gets the complex result;
its result, complex or real, is stored.
Layout: a holds the products, row-major each, b.batch apart, for each matrix of the batch: P, Q and
S (m, n), or P and Q, or k slices, of complex elements; c and out (m, n), any strides. All strides
count real elements. alpha and beta are the real and the imaginary part of the factor of the
product, the extra arguments those of the factor of c, which is not read if both are 0.
Source: N. J. Higham, "Stability of a method for multiplying complex matrices with three real matrix
multiplications", 1992.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.complex_product import make_plus_multiple, make_scale
from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig

OF_PARTS = ("of parts", "of parts, conjugate")  # products of which only a goes in parts


@dataclass(frozen=True)
class Config(ThreadsConfig):
    """Threads of a block, each with an element."""

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return self.threads


def block_count(config: Config, problem: Any) -> int:
    """Blocks to launch: enough for all elements of each matrix."""
    count: int = problem.batch * -(-problem.m * problem.n // config.threads)
    return count


def make_kernel(
    config: Config, dtype: str, products: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel, as a Python function to compile or to simulate.

    Args:
        config, dtype: config, and dtype of the real and the imaginary parts.
        products: "three"; "of parts", or "of parts, conjugate" for the conjugate of their sum; or
            triangles of a Hermitian result that are written: "both", "lower" or "upper"; or
            "slices".
        epilogue: a `Fusion` that ends with two numbers.
    """
    # Global, because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.elements import make_find_element
    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import complex_of, load_vector, store_vector
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    scalar = np.dtype(dtype).type
    factors, is_real = len(epilogue.operands) - 2, epilogue.is_real
    is_fused = bool(epilogue.stages)
    is_hermitian = products not in ("three", "slices", *OF_PARTS)  # it names triangles
    complex_dtype = np.result_type(scalar, np.complex64).name
    finish = make_finish(epilogue, dtype, dtype if is_real else complex_dtype)
    find_element = make_find_element(config.threads)
    scale, plus_multiple = make_scale(1), make_plus_multiple(1)

    @gemm_kernel
    def complex_sum_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        block: int32 = cuda.blockIdx.x
        matrix, row, col = find_element(block, cuda.threadIdx.x & 1023, m, n)
        is_written = row < m
        if products == "lower":
            is_written = is_written and row >= col
        if products == "upper":
            is_written = is_written and row <= col
        if is_written:
            place = int64(matrix) * a.batch + row * a.row + col * a.col
            if products == "three":
                first, second = a.data[place], a.data[place + b.batch]
                re = first - second
                im = a.data[place + 2 * b.batch] - first - second
            elif products == "slices":
                re, im = scalar(0), scalar(0)
                for part in range(int32(k)):
                    own_re, own_im = load_vector(scalar, 2, a.data, place + part * b.batch)
                    re += own_re
                    im += own_im
            elif products in OF_PARTS:
                first, second = load_vector(scalar, 2, a.data, place)
                left, right = load_vector(scalar, 2, a.data, place + b.batch)
                re, im = first - right, second + left
                if products == "of parts, conjugate":
                    im = -im
            else:
                place = int64(matrix) * a.batch + int64(max(row, col)) * a.row + min(row, col)
                re, im = a.data[place], a.data[place + b.batch]
                if row < col:
                    im = -im
            re, im = scale((re, im), alpha, beta)
            factor_re, factor_im = extra[factors], extra[factors + 1]
            if factor_re != 0 or factor_im != 0:
                place = int64(matrix) * c.batch + row * c.row + col * c.col
                added = load_vector(scalar, 2, c.data, place)
                re, im = plus_multiple((re, im), factor_re, factor_im, added)
            if is_hermitian and row == col:
                im = scalar(0)
            place = int64(matrix) * out.batch + row * out.row + col * out.col
            if is_fused:
                result = finish(complex_of(re, im), matrix, row, col, extra)
                if is_real:
                    out.data[place] = result
                else:
                    store_vector(out.data, place, (result.real, result.imag))
            else:
                store_vector(out.data, place, (re, im))

    return complex_sum_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(threads=256),),
    simulator_configs=(Config(threads=8),),
    block_count=block_count,
)
