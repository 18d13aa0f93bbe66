"""Copy of a matrix whose rows begin at multiples of 16 bytes, for kernels that read so.

Idea: a thread writes chunks of 16 bytes. Rows at any address are read by the two aligned vectors
around a chunk, shifted in registers; elements with a stride one by one, by threads along m. Of
bytes, a thread has chunks of four rows: where these are neighbours, it reads them as words, and
turns four words at a time.
Layout: a (m, n), any strides, any batch; out (m, n), row-major and aligned. The last chunk of a row
is filled up with 0. b, c and k are not used. With indices of rows, a is (k, n), and row i of out is
row rows[i] of a; indices outside of a count as the nearest row.
The kernel is launched before the earlier one of the stream has ended, and waits for it.
Source: `line_tiles`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts import operands
from dxgemm.handwritten.parts.chunks import ChunksConfig, make_find_chunk
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.line_tiles import CHUNK_BYTES, WORD_BYTES, make_chunk_loads


def variant(config: ChunksConfig, problem: Any) -> tuple[str]:
    """Order of the elements of a row: "row" if they are neighbours in memory, else "any".

    That of bytes is "quads" instead.
    """
    is_row = problem.a.col == 1 or problem.n == 1
    return ("row" if is_row else "quads" if operands.ITEM_BYTES[problem.dtype] == 1 else "any",)


def block_count(config: ChunksConfig, problem: Any) -> int:
    """Blocks to launch: one for each tile of each matrix."""
    (order,), row_bytes = variant(config, problem), problem.n * operands.ITEM_BYTES[problem.dtype]
    count: int = problem.batch * config.blocks(order, problem.m, -(-row_bytes // CHUNK_BYTES))
    return count


def make_kernel(
    config: ChunksConfig, dtype: str, order: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one variant, as a Python function to compile; `epilogue` may hold indices."""
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import (
        global_address,
        load_global,
        store_global,
        wait_earlier_kernel,
    )
    from dxgemm.handwritten.parts.line_intrinsics import transpose_bytes
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range

    item_bytes = operands.ITEM_BYTES[dtype]
    chunk_items = CHUNK_BYTES // item_bytes
    steps, along, (row_step, chunk_step) = config.steps, order == "row", config.step(order)
    find_chunk = make_find_chunk(config, order)
    gather, _, load_chunk = make_chunk_loads(item_bytes)
    is_indexed = epilogue is not None
    has_quads = order == "quads" and not is_indexed

    @gemm_kernel
    def align_rows_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, this thread's first chunk ---
        chunks: int32 = (n + chunk_items - 1) // chunk_items
        block, thread = int32(cuda.blockIdx.x), int32(cuda.threadIdx.x & 1023)
        matrix, row, chunk = find_chunk(block, thread, m, chunks)
        row_bytes, col_bytes = a.row * item_bytes, a.col * item_bytes
        begin = global_address(a.data) + matrix * a.batch * item_bytes
        lines = k if is_indexed else m
        end = begin + ((lines - 1) * max(row_bytes, 0) + n * item_bytes)
        first = begin + (lines - 1) * min(row_bytes, 0)
        source = begin + chunk * chunk_items * col_bytes
        target = global_address(out.data) + (matrix * out.batch + row * out.row) * item_bytes
        target += chunk * CHUNK_BYTES

        # --- All reads, then all writes ---
        wait_earlier_kernel()
        is_quad = False
        if has_quads:
            is_quad = row + steps <= m and (chunk + 1) * CHUNK_BYTES <= n and row_bytes == 1
            is_quad = is_quad and ((source + row) | col_bytes) % WORD_BYTES == 0
        held = ()
        if is_quad:
            words = ()
            for item in static_range(0, CHUNK_BYTES, WORD_BYTES):
                read = ()
                for place in static_range(item, item + WORD_BYTES):
                    read = read + load_global(int32, 1, source + row + place * col_bytes, 0)
                words = words + transpose_bytes(read)
            for step in static_range(steps):
                for word in static_range(steps):
                    held = held + (words[4 * word + step],)
        else:
            gathered = ()
            for step in static_range(steps):
                is_inside = row + step * row_step < m and chunk + step * chunk_step < chunks
                items = n - (chunk + step * chunk_step) * chunk_items
                inside: int32 = min(items * item_bytes, CHUNK_BYTES) * is_inside
                line = int64(row + step * row_step)
                if is_indexed:
                    line = int64(extra[0][0][min(line, m - 1)])
                    line = min(max(line, int64(0)), lines - 1)
                at = source + (line * row_bytes + step * chunk_step * chunk_items * col_bytes)
                if along:
                    gathered = gathered + load_chunk(at, inside, first, end)
                else:
                    gathered = gathered + gather(at, col_bytes, inside)
            held = gathered
        for step in static_range(steps):
            if row + step * row_step < m and chunk + step * chunk_step < chunks:
                to = target + (step * row_step * out.row * item_bytes)
                store_global(to + step * chunk_step * CHUNK_BYTES, 0, held[4 * step : 4 * step + 4])

    return align_rows_kernel


class Config(ChunksConfig):
    """A `ChunksConfig` of a kernel that begins early."""

    begins_early = True


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(Config(threads=256, steps=4),),
    dtypes=("float16", "bfloat16", "float32", "float64", *operands.BYTES),
    variant=variant,
    block_count=block_count,
)
