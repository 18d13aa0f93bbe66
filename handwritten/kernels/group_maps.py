"""Tensor maps of groups that share out k: one block, launched before `grouped_wgmma_k`.

Idea: a TMA box that reaches beyond a group would bring elements of the next one. What is beyond
the end of a tensor map arrives as zeros. So each group gets maps of a and b of its own, which end
where it ends: copies of the maps of all k, with one number replaced.
Layout: a (m, k), b (k, n), as one call has them; k counts the elements of all groups. Of a row of
the table, ROW_ITEMS numbers per group, the first 128 bytes are the map of a, the next those of b;
then the group's first k and its size follow.
Constraints: as `group_offsets` has them on offsets. The table begins at a multiple of 128 bytes.
Source: PTX ISA, "tensormap.replace"; NVIDIA's CUTLASS, `KernelPtrArrayTmaWarpSpecialized`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts import group_table, wgmma_layouts
from dxgemm.handwritten.parts.kernel import Kernel, ThreadsConfig


def make_kernel(
    config: ThreadsConfig, dtype: str, a_innermost: str, b_innermost: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel, as a Python function to compile.

    Args:
        config, dtype: config, and dtype of a and b.
        a_innermost, b_innermost: layouts of a and b, see `wgmma_layouts`.
        epilogue: a `Fusion` of two buffers: offsets and table.
    """
    from numba import cuda, int32

    from dxgemm.handwritten.parts import hopper
    from dxgemm.handwritten.parts.intrinsics import global_address
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    threads, names, row_items = config.threads, wgmma_layouts.TENSOR_MAPS, group_table.ROW_ITEMS
    first_item, size_item = group_table.FIRST, group_table.SIZE
    row_bytes, map_bytes = row_items * group_table.ITEM_BYTES, group_table.MAP_BYTES
    k_index = tuple(0 if innermost == "k" else 1 for innermost in (a_innermost, b_innermost))
    find_part = group_table.make_find_part()

    @gemm_kernel
    def group_maps_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        offsets, table = extra[0][0], extra[1][0]
        group: int32 = cuda.threadIdx.x
        while group < batch:
            first, size = find_part(offsets, group, k)
            row = group * row_items
            for operand in static_range(2):
                target = global_address(table) + group * row_bytes + operand * map_bytes
                hopper.write_tensor_map(target, hopper.tensor_map(names[operand]))
                hopper.limit_tensor_map(target, k_index[operand], max(first + size, 1))
            table[row + first_item], table[row + size_item] = first, size
            group += threads
        hopper.publish_tensor_maps()

    return group_maps_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(ThreadsConfig(threads=128),),
    dtypes=("float16", "bfloat16"),
    only_arch=90,
    variant=wgmma_layouts.variant,
    tensor_map_names=wgmma_layouts.TENSOR_MAPS,
)
