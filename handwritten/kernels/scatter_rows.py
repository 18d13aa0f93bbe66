"""Copy of the rows of a matrix to indexed rows of another.

Idea: a thread moves chunks of 16 bytes where the rows of `out` allow it; else the elements of a
chunk one by one, neighbours by neighbouring threads.
Layout: a (m, n), row-major, its rows at multiples of 16 bytes; out (k, n), any strides. Row i of a
goes to row rows[i] of out, if there is one and i is below the last of `batch` offsets. b and c are
not used.
Source: as `align_rows`, its counterpart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.chunks import ChunksConfig, make_find_chunk
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import ITEM_BYTES, VECTOR_BYTES

WARP = 32


def block_count(config: ChunksConfig, problem: Any) -> int:
    """Blocks to launch: one for each tile."""
    row_chunks = -(-problem.n * ITEM_BYTES[problem.dtype] // VECTOR_BYTES)
    return config.blocks("row", problem.m, row_chunks)


def make_kernel(config: ChunksConfig, dtype: str, epilogue: Any) -> Callable[..., None]:
    """The kernel, as a Python function to compile.

    Args:
        config, dtype: config, and dtype of both matrices.
        epilogue: a `Fusion` of two buffers: indices of rows, and offsets.
    """
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts import intrinsics
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.widening import stored_type, view_as

    item_bytes, stored = ITEM_BYTES[dtype], stored_type(dtype)
    chunk_items = VECTOR_BYTES // item_bytes
    steps, (row_step, _) = config.steps, config.step("row")
    find_chunk = make_find_chunk(config, "row")

    @gemm_kernel
    def scatter_rows_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        rows, offsets = extra[0][0], extra[1][0]

        # --- This block's tile, this thread's first row and chunk ---
        chunks: int32 = (n + chunk_items - 1) // chunk_items
        block, thread = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x & 1023)
        _, first, chunk = find_chunk(block, thread, m, chunks)
        end = min(int64(offsets[batch - 1]), int64(m))
        source, target = intrinsics.global_address(a.data), intrinsics.global_address(out.data)
        has_vectors = out.col == 1 and n % chunk_items == 0
        has_vectors = has_vectors and (target | out.row * item_bytes) % VECTOR_BYTES == 0

        if has_vectors:
            # --- All reads, then all writes ---
            held = ()
            for step in static_range(steps):
                row: int32 = min(first + step * row_step, m - 1)
                at = source + (row * a.row * item_bytes + min(chunk, chunks - 1) * VECTOR_BYTES)
                held = held + intrinsics.load_global(int32, 4, at, 0)
            for step in static_range(steps):
                row = int32(first + step * row_step)
                if row < end and chunk < chunks:
                    line = int64(rows[row])
                    if line >= 0 and line < k:
                        to = target + (line * out.row * item_bytes + chunk * VECTOR_BYTES)
                        intrinsics.store_global(to, 0, held[4 * step : 4 * step + 4])
        else:
            # --- Element by element ---
            a_typed, out_typed = view_as(stored, a.data), view_as(stored, out.data)
            for step in static_range(steps):
                row = int32(first + step * row_step)
                if row < end:
                    line = int64(rows[row])
                    if line >= 0 and line < k:
                        lane: int32 = thread % WARP
                        col: int32 = (chunk - lane) * chunk_items + lane
                        for _ in range(chunk_items):
                            if col < n:
                                value = a_typed[row * a.row + col]
                                out_typed[line * out.row + col * out.col] = value
                            col += WARP

    return scatter_rows_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(ChunksConfig(threads=256, steps=4),),
    dtypes=("float16", "bfloat16", "float32", "float64"),
    block_count=block_count,
)
