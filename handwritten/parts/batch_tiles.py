"""Tiles of many small matrices, as their kernels find and copy them.

A tile is copied whole, k included, and then multiplied: a block of a few warps lives for some
thousand clocks, and its work around the product counts. So strides and offsets are 32-bit numbers,
of which one instruction makes an address, unless the strides of a matrix need more.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.configs import MOST_REGISTERS, REGISTERS_PER_SM
from dxgemm.handwritten.parts.kernel import block_a_tile
from dxgemm.handwritten.parts.operands import VECTOR_BYTES

# Words of a variant besides the layouts of a and b: strides that need 64 bits, and an a that is the
# same for a whole batch.
FAR, SHARED_A = "far", "shared a"
NEAR_BYTES = 1 << 31

# Limits of an SM for small blocks that share it. A block takes a little memory besides its own, and
# more threads would have too few registers each.
SMEM_BYTES, RESERVED_SMEM_BYTES, THREADS = 227 << 10, 1 << 10, 1024
EPILOGUE_REGISTERS = 32  # of a thread, for the functions and their operands


def resident_blocks(threads: int, registers: int, smem_bytes: int) -> int:
    """Blocks that an SM holds, at so many registers a thread and bytes a block."""
    by_smem = SMEM_BYTES // (smem_bytes + RESERVED_SMEM_BYTES)
    by_registers = REGISTERS_PER_SM // (threads * min(registers, MOST_REGISTERS))
    return max(1, min(by_smem, by_registers, THREADS // threads))


def block_count(config: Any, problem: Any) -> int:
    """Blocks to launch: one for `config.matrices` tiles of the result."""
    return -(-block_a_tile(config, problem) // config.matrices)


def batch_notes(problem: Any) -> tuple[str, ...]:
    """Words of a variant about strides and batch: FAR, SHARED_A, both or none."""
    is_shared = problem.batch > 1 and problem.a.batch == 0
    return (*distance(problem), SHARED_A) if is_shared else distance(problem)


def distance(problem: Any) -> tuple[str, ...]:
    """Words of a variant about the strides in a matrix: FAR if their bytes exceed 32 bits."""
    item_size = np.dtype(problem.dtype).itemsize
    operands = (problem.a, problem.b, problem.c, problem.out)
    longest = max(abs(stride) for o in operands for stride in (o.row, o.col))
    return () if longest * item_size < NEAR_BYTES else (FAR,)


def make_line_copy(
    is_along_k: bool, is_vector: bool, tile_k: int, tile_outer: int, unit_bytes: int,
    line_bytes: int, threads: int, dtype: str, most_line_threads: int = 1024,
    is_cached: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Device functions that start copying a tile of an operand, all `threads` of it together.

    The tile is lines of neighbouring elements, along k or along the operand's other index, its
    outer one. Strides are bytes of int32, or of int64.

    Args:
        is_along_k: True if lines run along k.
        is_vector: True if 16 bytes are copied at a time, else single elements.
        tile_k, tile_outer: extents of the tile.
        unit_bytes, line_bytes: bytes in shared memory from an element of a line to the next, and
            from a line to the next. Vectors need elements that lie together there too.
        most_line_threads: the most threads that copy neighbouring units of a line.
        is_cached: True if copies go through L1.

    Returns:
        copy: (thread, smem, source, k_stride, outer_stride), for a tile inside the operand.
        copy_predicated: the same with (k_left, outer_left), of which what is inside is copied; the
            rest becomes zero.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.cached_copy import copy_async_cached, copy_async_part_cached
    from dxgemm.handwritten.parts.intrinsics import copy_async, copy_async_part, device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    length, lines = (tile_k, tile_outer) if is_along_k else (tile_outer, tile_k)
    start_copy = copy_async_cached if is_cached else copy_async
    start_part = copy_async_part_cached if is_cached else copy_async_part
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size if is_vector else 1
    size, units = width * item_size, length // width
    # Neighbours copy neighbouring units, of several lines at once where these are short.
    most_line_threads = min(threads, most_line_threads)
    line_threads = units if units <= most_line_threads else gcd(units, most_line_threads)
    lines_at_once = threads // line_threads
    steps = tuple(
        (line, unit)
        for line in range(0, lines, lines_at_once)
        for unit in range(0, units, line_threads)
    )
    line_steps, unit_steps = zip(*steps, strict=True)
    copies = len(steps)
    has_idle_threads = lines_at_once * line_threads < threads
    # Steps that not every thread takes part in: a thread's line may lie behind the last.
    partial = tuple(has_idle_threads or line + lines_at_once > lines for line in line_steps)

    def begin(thread, smem, source, stride, line_stride):
        line, unit = int32(thread // line_threads), int32(thread % line_threads)
        if has_idle_threads and line >= lines_at_once:
            line = int32(lines)
        target = int32(smem + line * line_bytes + unit * (width * unit_bytes))
        first = source + int64(line) * int64(line_stride)
        if is_vector:
            first += unit * size
        else:
            first += int64(unit) * int64(stride)
        return line, unit, target, first

    begin = device_function(begin)

    def copy(thread, smem, source, k_stride, outer_stride):
        stride, line_stride = k_stride, outer_stride
        if not is_along_k:
            stride, line_stride = outer_stride, k_stride
        line, _, target, first = begin(thread, smem, source, stride, line_stride)
        for i in static_range(copies):
            if not partial[i] or line < lines - line_steps[i]:
                start_copy(
                    size,
                    target,
                    line_steps[i] * line_bytes + unit_steps[i] * width * unit_bytes,
                    first
                    + int64(int32(line_steps[i])) * int64(line_stride)
                    + int64(int32(unit_steps[i] * width)) * int64(stride),
                )

    def make_predicated_copy(piece: int) -> Any:
        """The predicated copy of `piece` elements at a time: a unit, or one."""
        pieces = width // piece
        piece_bytes = piece * item_size

        def copy_pieces(target, first, line, unit, stride, line_stride, length_left, lines_left):
            for i in static_range(copies):
                if not partial[i] or line < lines - line_steps[i]:
                    for part in static_range(pieces):
                        place = unit_steps[i] * width + part * piece
                        is_inside = line_steps[i] < lines_left and place < length_left
                        start_part(
                            piece_bytes,
                            target,
                            line_steps[i] * line_bytes
                            + (unit_steps[i] * width + part * piece) * unit_bytes,
                            first
                            + int64(int32(line_steps[i])) * int64(line_stride)
                            + int64(int32(place)) * int64(stride),
                            int32(piece_bytes * is_inside),
                        )

        return device_function(unroll(copy_pieces))

    copy_units, copy_elements = make_predicated_copy(width), make_predicated_copy(1)

    def copy_predicated(thread, smem, source, k_stride, outer_stride, k_left, outer_left):
        stride, line_stride, length_left, lines_left = k_stride, outer_stride, k_left, outer_left
        if not is_along_k:
            stride, line_stride = outer_stride, k_stride
            length_left, lines_left = outer_left, k_left
        line, unit, target, first = begin(thread, smem, source, stride, line_stride)
        has_units = length_left % width == 0
        length_left = int32(length_left - unit * width)
        lines_left = int32(lines_left - line)
        if is_vector and has_units:
            copy_units(target, first, line, unit, stride, line_stride, length_left, lines_left)
        else:
            copy_elements(target, first, line, unit, stride, line_stride, length_left, lines_left)

    functions = copy, copy_predicated
    copy, copy_predicated = (device_function(unroll(f)) for f in functions)
    return copy, copy_predicated


def make_find_matrix(config: Any) -> Any:
    """A device function: (block, thread, m, n, batch) -> the place of a thread's work.

    It returns the thread's number in its tile, the tile's number in the block, True if that tile
    exists, and its matrix, first row and first column. Behind the last tile, it is the last matrix.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, divide

    tile_m, tile_n = config.tile_m, config.tile_n
    tile_threads, matrices = config.tile_threads, config.matrices

    def find_matrix(block, thread, m, n, batch):
        found, member = block, int32(0)
        if matrices > 1:
            member, thread = int32(thread // tile_threads), int32(thread % tile_threads)
            found = int32(found * matrices + member)
        tile_row, tile_col = int32(0), int32(0)
        if m > tile_m or n > tile_n:  # tiny matrices would spend their time on divisions
            tiles_m = int32((m + tile_m - 1) // tile_m)
            tiles_n = int32((n + tile_n - 1) // tile_n)
            line = divide(found, tiles_n)
            tile_col = int32((found - line * tiles_n) * tile_n)
            found = divide(line, tiles_m)
            tile_row = int32((line - found * tiles_m) * tile_m)
        if matrices == 1:
            return thread, member, True, found, tile_row, tile_col
        return thread, member, found < batch, min(found, int32(batch - 1)), tile_row, tile_col

    return device_function(find_matrix)


def make_batch_kernel(config: Any, dtype: str, compute_tile: Any) -> Callable[..., None]:
    """A kernel whose blocks compute one tile after the other of a batch in three arrays."""
    from numba import cuda, int32, int64

    from dxgemm.handwritten.parts.intrinsics import shared_address
    from dxgemm.handwritten.parts.unroll import gemm_kernel

    scalar = np.dtype(dtype).type
    tile_k, tile_bytes = config.tile_k, config.tile_bytes(dtype)
    find_matrix = make_find_matrix(config)

    @gemm_kernel
    def batch_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        m, n, k = int32(m), int32(n), int32(k)
        thread, member, exists, matrix, tile_row, tile_col = find_matrix(
            int32(cuda.blockIdx.x), int32(cuda.threadIdx.x & 1023), m, n, int32(batch)
        )
        smem: int32 = shared_address(cuda.shared.array(0, scalar)) + member * tile_bytes
        place = int64(matrix)
        compute_tile(
            thread, smem, exists, place, tile_row, tile_col, int32((k + tile_k - 1) // tile_k),
            alpha, beta, m, n, k,
            a, place * a.batch, b, place * b.batch,
            c, place * c.batch, out, place * out.batch, extra,
        )  # fmt: skip

    return batch_kernel
