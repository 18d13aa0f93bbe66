"""The sum over the slices of k: the second kernel of split-K with a workspace.

If a result has few tiles and k is long, blocks share out k as well, each with a slice, and leave
their sums in a workspace. This kernel adds them, in the order of the slices whatever the timing,
and applies the epilogue. A block takes `elements` neighbours of the flattened matrix. For each of
them, `ways` threads add every ways-th slice, and then their sums pairwise.
Layout: a is the workspace: m x n matrices with unit stride along n, `a_stride_k` from one of the k
slices to the next. c and out (m, n), any strides, any batch.
Constraints: `ways` a power of two.
Source: NVIDIA's CUTLASS, "Efficient GEMM in CUDA", "Parallelized Reductions".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel


@dataclass(frozen=True)
class Config(BaseConfig):
    """Elements of a block, and `ways` threads that share each of them."""

    elements: int
    ways: int

    def complaints(self) -> Iterator[str]:
        if self.ways & (self.ways - 1) or not 1 <= self.threads <= 1024:
            yield "ways must be a power of two, and threads at most 1024"

    @property
    def threads(self) -> int:
        return self.elements * self.ways

    def smem_bytes(self, dtype: str) -> int:
        return self.threads * np.dtype(dtype).itemsize

    def accumulator_bytes(self, dtype: str) -> int:
        return np.dtype(dtype).itemsize

    def __str__(self) -> str:
        return f"{self.elements} elements in {self.ways} ways"


MOST_THREADS = 2**18  # about what fits on a large GPU at once


def choose_config(configs: tuple[Config, ...], elements: int, slices: int) -> Config:
    """Choose the most ways that leave a thread two slices or more and have room on the GPU."""
    fitting = [
        config
        for config in configs
        if 2 * config.ways <= slices and elements * config.ways <= MOST_THREADS
    ]
    return max(fitting, key=lambda config: config.ways, default=configs[0])


def make_kernel(config: Config, dtype: str, epilogue: Any = None) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile."""
    from numba import cuda, int32

    from dxgemm.handwritten.parts.epilogue import make_finish
    from dxgemm.handwritten.parts.intrinsics import divide
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    scalar = np.dtype(dtype).type
    elements, ways, threads = config.elements, config.ways, config.threads
    finish = make_finish(epilogue, dtype, dtype)

    @gemm_kernel
    def add_slices_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's elements, this thread's place ---
        smem = cuda.shared.array(threads, scalar)
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        blocks: int32 = (m * n + elements - 1) // elements
        matrix = divide(block, blocks)
        element: int32 = (block - matrix * blocks) * elements + thread % elements
        way: int32 = thread // elements
        row = divide(element, int32(n))
        col: int32 = element - row * n
        is_inside = row < m

        # --- Main loop: every ways-th slice ---
        total = scalar(0)
        if is_inside:
            place = matrix * a.batch + row * a.row + col
            for part in range(way, int32(k), ways):
                total += a.data[place + part * a.col]
        # --- Sums of the ways, pairwise ---
        step = ways // 2
        while step > 0:
            cuda.syncthreads()
            smem[thread] = total
            cuda.syncthreads()
            if way < step:
                total += smem[thread + step * elements]
            step //= 2
        # --- Epilogue ---
        if is_inside and way == 0:
            value = alpha * total
            if beta != 0:
                value += beta * c.data[matrix * c.batch + row * c.row + col * c.col]
            place = matrix * out.batch + row * out.row + col * out.col
            out.data[place] = finish(value, matrix, row, col, extra)

    return add_slices_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(elements=256, ways=1),
        Config(elements=64, ways=4),
        Config(elements=32, ways=8),
    ),
)
