"""The sum of products of digits by their weights, modulo 2**64: see `digits`.

Idea: a thread has an element. It adds up the products of the digits from the highest weight on, by
Horner's scheme with 256, then applies alpha, beta and c.
Layout: c and out (m, n), any strides, any batch, in int64 or uint64. The sums are int32, in the
last operand: k products of m x n, the highest weight first, `a.col` elements apart, with unit
stride along n. a and b are not used.
Source: Donald E. Knuth, "The Art of Computer Programming", volume 2, 4.6.4, for Horner's scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig


def block_count(config: ThreadsConfig, problem: Any) -> int:
    """Blocks to launch: a thread for each element."""
    count: int = problem.batch * -(-problem.m * problem.n // config.threads)
    return count


def make_kernel(
    config: ThreadsConfig, dtype: str, out_dtype: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one dtype of c and out, as a Python function to compile."""
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.elements import make_find_element, make_put_element
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    find_element = make_find_element(config.threads)
    begin, put = make_put_element("int64", out_dtype)

    @gemm_kernel
    def add_digits_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        matrix, row, col = find_element(block, thread, m, n)
        if row < m:
            sums = extra[0][0]
            place = matrix * a.batch + row * a.row + col
            total = int64(0)
            for _ in range(int32(k)):
                total = total * 256 + sums[place]
                place += a.col
            put((total,), begin(matrix, alpha, beta, c, out, extra), row, col)

    return add_digits_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(ThreadsConfig(threads=256),),
    simulator_configs=(ThreadsConfig(threads=8),),
    block_count=block_count,
)
