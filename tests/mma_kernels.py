"""One small kernel for each intrinsic that `tensor_core` needs. Not for the simulator."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda, types

from dxgemm.handwritten.parts.intrinsics import (
    commit_copies,
    copy_async_part,
    divide,
    global_address,
    load_shared,
    shared_address,
    wait_copies,
)
from dxgemm.handwritten.parts.mma import as_is, mma_tile, negated, round_to_tf32


def compile_ptx(kernel: Callable[..., None], *dtypes: str, capability: Any = (9, 0)) -> str:
    """PTX for a compute capability of a kernel that takes pointers to these dtypes."""
    kinds: Any = tuple(types.CPointer(getattr(types, dtype)) for dtype in dtypes)
    ptx, _ = cuda.compile(kernel, kinds, device=False, abi="numba", cc=capability, output="ptx")
    return ptx


def mma_kernel(kind, convert):
    def kernel(acc, left, right, out):
        lane = cuda.threadIdx.x
        c = (acc[8 * lane], acc[8 * lane + 1], acc[8 * lane + 2], acc[8 * lane + 3])
        c = (*c, acc[8 * lane + 4], acc[8 * lane + 5], acc[8 * lane + 6], acc[8 * lane + 7])
        a = (left[4 * lane], left[4 * lane + 1], left[4 * lane + 2], left[4 * lane + 3])
        b = (right[4 * lane], right[4 * lane + 1], right[4 * lane + 2], right[4 * lane + 3])
        d = mma_tile(kind, c, convert(a), convert(b))
        for i in range(8):
            out[8 * lane + i] = d[i]

    return kernel


def turned(values, out):
    lane = cuda.threadIdx.x
    out[lane] = negated(values[lane])


mma_float64, mma_tf32 = mma_kernel("float64", as_is), mma_kernel("tf32", round_to_tf32)


def rounded(values, out):
    lane = cuda.threadIdx.x
    out[lane] = round_to_tf32((values[lane],))[0]


def divided(dividends, divisors, out):
    lane = cuda.threadIdx.x
    out[lane] = divide(dividends[lane], divisors[lane])


def copied_in_part(source, out):
    lane = types.int32(cuda.threadIdx.x)
    smem = shared_address(cuda.shared.array(68, np.float32, alignment=16))
    own = types.int32(smem + 16 * lane)
    copy_async_part(16, own, 0, global_address(source) + 16 * lane, types.int32(4 * lane))
    commit_copies()
    wait_copies(0)
    values = load_shared(np.float32, 4, own, 0)
    for i in range(4):
        out[4 * lane + i] = values[i]
