"""The validity check of the parts of a and b: one block, launched before their product.

Idea: the status that `decompose` leaves for a and b bounds the error of each element of the product
by the same element of |A| |B|. If both are strict, each number is right to 2**-23 of itself, two
together to 2**-22, and lo @ lo, which is left out, is at most 2**-22: 2**-21 in all. If some lines
are not, their small elements add at most 2**-37 each, times at most 2**15 of the other operand:
over a sum of k less than k * 2**-21, in scaled numbers. If weak elements of any row of a and any
column of b are together at most 7/8 k, k/8 products of strong ones are left, each at least 2**8: so
|A| |B| is at least k * 2**5, and what is added at most 2**-26 of it.
Layout: m blocks split a, and n blocks b. In the last parameter their status, the flag, which is 0
if emulated_float32 may multiply, and a counter of the flags that are 1.
Constraints: none.
Source: N. Higham, "Accuracy and Stability of Numerical Algorithms", 3.5, for bounds by |A| |B|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.emulation import STATUS_ITEMS, UNFIT
from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig, one_block


@dataclass(frozen=True)
class Config(ThreadsConfig):
    """Threads of the block, which share their findings."""

    def smem_bytes(self, dtype: str) -> int:
        return self.threads * 4 * 4


def make_kernel(config: Config, dtype: str, epilogue: Any) -> Callable[..., None]:
    """The kernel, as a Python function to compile or to simulate.

    Args:
        epilogue: a `Fusion` of four buffers: status of a, status of b, flag, counter.
    """
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import add_global
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    threads = config.threads

    @gemm_kernel
    def validity_check_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem = cuda.shared.array(4 * threads, int32)
        thread: int32 = cuda.threadIdx.x & 1023
        for operand in static_range(2):
            status, _ = extra[operand]
            weak, lax = int32(0), int32(0)
            for block in range(thread, m if operand == 0 else n, threads):
                weak = max(weak, status[block * STATUS_ITEMS])
                lax = max(lax, status[block * STATUS_ITEMS + 1])
            smem[2 * operand * threads + thread] = weak
            smem[(2 * operand + 1) * threads + thread] = lax
        cuda.syncthreads()
        half: int32 = threads // 2
        while half > 0:
            if thread < half:
                for i in static_range(4):
                    at = i * threads + thread
                    smem[at] = max(smem[at], smem[at + half])
            cuda.syncthreads()
            half = half // 2
        if thread == 0:
            weak = int64(smem[0]) + smem[2 * threads]
            is_lax = smem[threads] != 0 or smem[3 * threads] != 0
            is_fit = 8 * weak <= 7 * k or (weak < UNFIT and not is_lax)
            invalid: int32 = 0 if is_fit else 1
            extra[2][0][0] = invalid
            add_global(extra[3][0], invalid)

    return validity_check_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(threads=256),),
    simulator_configs=(Config(threads=4),),
    block_count=one_block,
)
