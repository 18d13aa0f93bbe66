"""The sum over the slices of k: the second kernel of split-K with a workspace.

If a result has few tiles and k is long, blocks share out k as well, each with a slice, and leave
their sums in a workspace. This kernel adds them, in the order of the slices whatever the timing,
and applies the epilogue. The groups of threads in a block have neighbouring elements of the
flattened matrix, one each. A group's members take its slices in turn and add their sums pairwise.
Totals of an inner function are added as it adds. Of a symmetric result, only the sums of the lower
triangle are read, for either triangle, unless each element is the sum of two, on both sides of the
diagonal.
Layout: a is the workspace: m x n matrices with unit stride along n, `a_stride_k` from one of the k
slices to the next. c and out (m, n), any strides, any batch, in the dtype of sums or in half
precision; out also in int8, to which no c is added.
Constraints: see `GroupsConfig`.
On Hopper this kernel is launched before the slices have ended, and waits for them.
Source: NVIDIA's CUTLASS, "Efficient GEMM in CUDA", "Parallelized Reductions"; CUDA C++ Programming
Guide, "Programmatic Dependent Launch".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import GroupsConfig
from dxgemm.handwritten.parts.groups import make_merge_members
from dxgemm.handwritten.parts.kernel import Kernel


@dataclass(frozen=True)
class Config(GroupsConfig):
    """A `GroupsConfig` whose groups have an element each."""

    begins_early = True

    @property
    def elements(self) -> int:
        """Elements of a block."""
        return self.groups

    def smem_bytes(self, dtype: str) -> int:
        return self.threads * np.dtype(dtype).itemsize

    def accumulator_bytes(self, dtype: str) -> int:
        return np.dtype(dtype).itemsize


MOST_THREADS = 2**18  # about what fits on a large GPU at once


def choose_config(configs: tuple[Config, ...], elements: int, slices: int) -> Config:
    """Choose the largest groups with two slices a member and room on the GPU."""
    fitting = [
        config
        for config in configs
        if 2 * config.threads_per_group <= slices
        and elements * config.threads_per_group <= MOST_THREADS
    ]
    return max(fitting, key=lambda config: config.threads_per_group, default=configs[0])


def make_kernel(
    config: Config,
    dtype: str,
    out_dtype: str | None = None,
    triangle: str = "",
    added: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    Args:
        dtype: dtype of the sums.
        out_dtype: dtype of c and out; None for that of the sums.
        triangle: triangles of a symmetric result that are written, from the sums of the lower one;
            "" for another result.
        added: "transposed" if the transpose of the sums is added to them, in a symmetric result.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts.elements import make_find_element, make_put_element
    from dxgemm.handwritten.parts.inner import make_combine, make_plus
    from dxgemm.handwritten.parts.intrinsics import wait_earlier_kernel
    from dxgemm.handwritten.parts.unroll import device, gemm_kernel

    scalar = np.dtype(dtype).type
    groups, group_threads, threads = config.groups, config.threads_per_group, config.threads
    find_element = make_find_element(groups)
    begin, put = make_put_element(dtype, out_dtype or dtype, epilogue)
    join, (start,) = make_plus(epilogue, dtype), make_combine(epilogue, dtype).start
    sums_plainly = epilogue is None or epilogue.inner is None or epilogue.inner.takes_factors

    @device
    def add(values, others):
        if sums_plainly:
            return (values[0] + others[0],)
        return join(values, scalar(1), others)

    merge_members = make_merge_members(config, groups, (1,), add)

    @gemm_kernel
    def add_slices_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This group's element, this thread's share ---
        smem = cuda.shared.array(threads, scalar)
        thread: int32 = cuda.threadIdx.x & 1023
        block: int32 = cuda.blockIdx.x
        member: int32 = thread // groups
        matrix, row, col = find_element(block, thread % groups, m, n)
        is_inside = row < m
        sum_row, sum_col = row, col
        if triangle:
            if not added:
                sum_row, sum_col = max(row, col), min(row, col)
            if triangle == "lower":
                is_inside = is_inside and row >= col
            if triangle == "upper":
                is_inside = is_inside and row <= col

        # --- Main loop: this member's slices ---
        total = start
        wait_earlier_kernel()
        if is_inside:
            place = matrix * a.batch + sum_row * a.row + sum_col
            across = matrix * a.batch + sum_col * a.row + sum_row
            for part in range(member, int32(k), group_threads):
                if added:
                    total += a.data[place + part * a.col] + a.data[across + part * a.col]
                else:
                    (total,) = add((total,), (a.data[place + part * a.col],))
        sums = merge_members((smem,), thread, member, (total,))
        # --- Epilogue ---
        if is_inside and member == 0:
            put(sums, begin(matrix, scalar(alpha), scalar(beta), c, out, extra), row, col)

    return add_slices_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(groups=256, threads_per_group=1),
        Config(groups=64, threads_per_group=4),
        Config(groups=32, threads_per_group=8),
    ),
    simulator_configs=(Config(groups=8, threads_per_group=1),),
)
