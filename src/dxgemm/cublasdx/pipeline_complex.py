"""cuBLASDx pipelines of complex elements: NVIDIA's device functions multiply them as they lie.

Idea: `pipeline`, whose sums are complex: pairs of real and imaginary parts. They go through shared
memory to thread tiles, to which the rest of k is added, and then through the store that all complex
kernels share. A pipeline conjugates neither operand. So the product of two conjugates is computed
as the conjugate of a product; of one conjugated operand a copy is multiplied (`direct_form`).
Layout: a (m, k), b (k, n), c and out (m, n) of complex elements, any strides, any batch. alpha and
beta are the real and the imaginary part of the factor of the product, the extra arguments those of
the factor of c, which is not read if both are 0.
Constraints: see `Config`. Edges, a short k and operands without unit strides are multiplied by
plain loads, as in `pipeline`. Compute capability 8.0, for cp.async.
Source: cuBLASDx 0.6 documentation, "Pipelining"; mathdx.py for the functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.cublasdx import pipeline
from dxgemm.cublasdx.mathdx import Descriptor, DeviceFunctions
from dxgemm.handwritten.parts.complex_product import COMPLEX_PARTS, make_add_products
from dxgemm.handwritten.parts.complex_store import ThreadTile, make_store_complex
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES
from dxgemm.handwritten.parts.tile_store import row_bytes, tile_bytes
from dxgemm.handwritten.parts.tiles import smem_alignment

ROW_LANES = 16  # lanes along a row of the result: tiles of a thread are then nearly square


@dataclass(frozen=True)
class Config(pipeline.Config):
    """Config of `pipeline` for complex elements."""

    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.split_k > 1:
            yield "its blocks make no clusters"

    def thread_tile(self, dtype: str) -> ThreadTile:
        """Elements of a thread in the epilogue: 16 bytes for each lane, along rows first."""
        width = VECTOR_BYTES // ITEM_BYTES[dtype]
        lanes = min(ROW_LANES, self.tile_n // width)
        rows = self.threads // lanes
        return ThreadTile(self.tile_m // rows, self.tile_n // lanes, rows, lanes * width, 1)


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Conjugated operands, none or both; layouts of a and b, and "16" if 16 bytes can be copied.

    "sliced" follows if k is.
    """
    a_direction, b_direction, alignment = pipeline.operand_layouts(problem)
    if ITEM_BYTES[problem.dtype] == VECTOR_BYTES:
        alignment = "16"
    slicing = ("sliced",) if problem.slices > 1 else ()
    return problem.conjugates, a_direction, b_direction, alignment, *slicing


def descriptor(config: Config, dtype: str, conjugates: str, *layouts: str, arch: str) -> Descriptor:
    """Descriptor of the device functions of a kernel; several kernels may share one."""
    return pipeline.descriptor(config, dtype, *layouts, arch=arch)


def device_functions(
    config: Config, dtype: str, conjugates: str, *layouts: str, arch: str
) -> DeviceFunctions:
    """Device functions of a kernel, from disk or built."""
    return pipeline.device_functions(config, dtype, *layouts, arch=arch)


def make_kernel(
    config: Config,
    dtype: str,
    conjugates: str,
    a_direction: str,
    b_direction: str,
    alignment: str,
    slicing: str = "",
    *,
    functions: DeviceFunctions | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:
    """Make the kernel of one config and variant, as a Python function to compile or to simulate.

    Args:
        config, dtype: config, and dtype of the complex elements.
        conjugates, a_direction, b_direction, alignment: see `variant`.
        slicing: "sliced" if the grid has a y for each slice of k, and out holds one batch of sums a
            slice; otherwise "".
        functions: device functions to link with; None for the simulator, which has a stand-in.
        epilogue: a `Fusion` that ends with two numbers; None for slices, whose sums are stored as
            they are.
    """
    from numba import cuda, int32, int64, uint8

    from dxgemm.cublasdx.result_tile import make_find_tile
    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        divide,
        global_address,
        load_global,
        load_shared,
        shared_address,
        zeros,
    )
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range, unroll

    is_sliced, is_conjugate = slicing == "sliced", conjugates == "ab"
    is_fused = epilogue is not None and bool(epilogue.stages)
    real_dtype, item_bytes = COMPLEX_PARTS[dtype], ITEM_BYTES[dtype]
    real = np.dtype(real_dtype).type
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    stages, threads = config.stages, config.threads
    is_a_row, is_b_row = a_direction == "row", b_direction == "row"
    smem_row_bytes, alignment_bytes = row_bytes(tile_n, dtype), smem_alignment() and 1024
    tile = config.thread_tile(dtype)
    thread_m, thread_n, row_group, col_group, _ = tile
    width = VECTOR_BYTES // item_bytes
    lanes = col_group // width
    if functions is None:
        from dxgemm.cublasdx.simulated_product import make_product

        multiply_tile, put_tile = make_product(
            tile_m, tile_n, tile_k, threads, dtype, a_direction, b_direction
        )
    else:
        from numba import types

        from dxgemm.cublasdx.intrinsics import make_intrinsics

        start, element = config.pipeline_start(dtype), getattr(types, real_dtype)
        intrinsics = make_intrinsics(functions, element, real_dtype, start, parts=2)
        multiply_tile, put_tile = intrinsics.multiply_tile, intrinsics.put_tile
    find_tile = make_find_tile(tile_m, tile_n, config.band_m)
    add_products = make_add_products(thread_m, thread_n, conjugates)
    store_complex = make_store_complex(
        tile, dtype, int64, epilogue, threads, tile_bytes(tile_m, tile_n, dtype)
    )

    def take_sums(address):
        """The thread's sums, from the tile in shared memory."""
        sums = ()
        for i in static_range(thread_m):
            for j in static_range(thread_n):
                re, im = load_shared(
                    real, 2, address,
                    i * row_group * smem_row_bytes
                    + (j // width * col_group + j % width) * item_bytes,
                )  # fmt: skip
                sums = sums + (re, -im if is_conjugate else im)
        return sums

    take_sums = device_function(unroll(take_sums))

    @gemm_kernel
    def pipeline_complex_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        smem_array = cuda.shared.array(0, uint8, alignment_bytes)
        smem = shared_address(smem_array)

        # --- This block's tile of the result and its share of k ---
        matrix, row_tile, col_tile = find_tile(int32(cuda.blockIdx.x), m, n, batch)
        tile_row, tile_col = row_tile * tile_m, col_tile * tile_n
        # First row and column that the pipeline reads: at an edge, further inwards than the tile.
        first_row, first_col = min(tile_row, m - tile_m), min(tile_col, n - tile_n)
        is_whole = first_row >= 0 and first_col >= 0
        if is_a_row:
            a_stride, is_whole = a.row, is_whole and a.col == 1
        else:
            a_stride, is_whole = a.col, is_whole and a.row == 1
        if is_b_row:
            b_stride, is_whole = b.row, is_whole and b.col == 1
        else:
            b_stride, is_whole = b.col, is_whole and b.row == 1
        part, parts, out_matrix = int32(0), int32(1), matrix
        if is_sliced:
            part, parts = int32(cuda.blockIdx.y), int32(cuda.gridDim.y)
            out_matrix = int32(part * batch + matrix)
        # The pipeline fills all its stages, however short its k is; so no block has fewer k tiles.
        k_tiles: int32 = k // tile_k
        if not is_whole or k_tiles < stages * parts:
            k_tiles = 0
        k_start: int32 = divide(int32(k_tiles * part), parts) * tile_k
        k_end: int32 = divide(int32(k_tiles * (part + 1)), parts) * tile_k
        depth: int32 = k_end - k_start
        a_matrix = global_address(a.data) + item_bytes * (matrix * a.batch)
        b_matrix = global_address(b.data) + item_bytes * (matrix * b.batch)
        thread: int32 = cuda.threadIdx.x & 1023
        thread_row: int32 = thread // lanes
        thread_col: int32 = thread % lanes * width

        # --- Main loop, in cuBLASDx; its sums go through shared memory to thread tiles ---
        sums = zeros(real, 2 * thread_m * thread_n)
        if depth > 0:
            acc = multiply_tile(
                smem_array,
                depth,
                a_matrix + item_bytes * (first_row * a.row + k_start * a.col),
                tile_m,
                a_stride,
                b_matrix + item_bytes * (first_col * b.col + k_start * b.row),
                tile_n,
                b_stride,
            )
            cuda.syncthreads()
            skipped_rows, skipped_cols = int32(tile_row - first_row), int32(tile_col - first_col)
            put_tile(smem, smem_row_bytes, acc, real(1), skipped_rows, skipped_cols)
            cuda.syncthreads()
            sums = take_sums(int32(smem + thread_row * smem_row_bytes + thread_col * item_bytes))

        # --- The rest of k, by plain loads; what lies beyond the result is not stored ---
        row: int32 = tile_row + thread_row
        col: int32 = tile_col + thread_col
        if part == parts - 1:
            for kk in range(int64(k_tiles) * tile_k, k):
                a_from = a_matrix + item_bytes * (kk * a.col)
                b_from = b_matrix + item_bytes * (kk * b.row)
                a_frag, b_frag = (), ()
                for i in static_range(thread_m):
                    a_row = min(int64(row + i * row_group), m - 1)
                    a_frag = a_frag + load_global(real, 2, a_from + item_bytes * (a_row * a.row), 0)
                for j in static_range(thread_n):
                    b_col = min(int64(col + (j // width * col_group + j % width)), n - 1)
                    b_frag = b_frag + load_global(real, 2, b_from + item_bytes * (b_col * b.col), 0)
                sums = add_products(sums, a_frag, b_frag)

        # --- Epilogue ---
        if is_fused:
            cuda.syncthreads()  # the sums have been read
        store_complex(
            sums, smem, thread, matrix, row, col, m, n, alpha, beta,
            c, matrix * c.batch, out, out_matrix * out.batch, extra,
        )  # fmt: skip

    return pipeline_complex_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config("complex64", 64, 64, 16, threads=128, stages=4, blocks_per_sm=3),
        Config("complex128", 64, 64, 16, threads=128, stages=3, blocks_per_sm=2),
    ),
    simulator_configs=(
        Config("complex64", 32, 64, 4, threads=64, stages=2),
        Config("complex128", 32, 32, 4, threads=32, stages=3),
    ),
    dtypes=tuple(COMPLEX_PARTS),
    minimum_arch=80,
    variant=variant,
    slices_k=True,
    device_functions=device_functions,
    descriptor=descriptor,
    finish_cubin=pipeline.finish_cubin,
)
