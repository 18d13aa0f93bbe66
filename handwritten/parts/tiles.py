"""Tiles between global memory, registers and shared memory, for any layout of the operands.

The rungs from `vectorized` to `double_buffer` share these functions. A tile of a or b is stored in
shared memory as tile_k rows of tile_outer elements, where `outer` is m for a and n for b; a
row-major a is transposed. A thread then reads its factors, rows of a or columns of b, 16 bytes at a
time. On the way there the tile is held in registers, a few units per thread; a unit is 16 bytes of
an operand that allows such accesses, along k or along outer, and one element of any other.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.fragment import Fragment
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode
from dxgemm.handwritten.parts.unroll import device, static_range

# As many vectors as there are registers for. What an epilogue's longer chains hold in between would
# not fit beside.
VECTORS_TOGETHER = 4
MOST_STAGES_TOGETHER = 3
BANK_BYTES = 128  # that shared memory delivers at a time, 4 from each of its 32 banks
# Layouts of (a, b) in which both allow accesses of 16 bytes.
VECTOR_MODES = tuple(product(("row16", "col16"), ("row16", "col16")))


def layouts_of(config: Any, problem: Any) -> tuple[str, str]:
    """Layouts of a and b that a kernel is compiled for (see `operand_mode`).

    If one of them does not allow accesses of 16 bytes, neither is accessed so.
    """
    a_mode, b_mode = operand_mode(problem, "a"), operand_mode(problem, "b")
    if (a_mode, b_mode) in VECTOR_MODES:
        return a_mode, b_mode
    return a_mode.removesuffix("16"), b_mode.removesuffix("16")


class SmemLayout(NamedTuple):
    """Place of element (k, outer) of a tile in shared memory.

    Attributes:
        row: elements from one k to the next: tile_outer, or more for padding.
        xor: unit of the swizzle, in elements; 0 for none. As many k as 16 bytes hold elements form
            a group; group g has its outer positions XORed with g % groups * xor.
        groups: number of different permutations, after which they repeat.
    """

    row: int
    xor: int = 0
    groups: int = 1


def plain_layout(tile_outer: int) -> SmemLayout:
    """Rows without gaps: the 16-byte units along k of a warp are scattered to the same banks."""
    return SmemLayout(tile_outer)


def padded_layout(tile_outer: int, dtype: str) -> SmemLayout:
    """Rows with 16 bytes of padding, so that the next one starts four banks further."""
    return SmemLayout(tile_outer + VECTOR_BYTES // np.dtype(dtype).itemsize)


def swizzled_layout(tile_outer: int, tile_k: int, dtype: str) -> SmemLayout:
    """Rows without gaps, permuted such that units along k go to different banks.

    The units that a warp writes at a time come from `groups` indices along k, and fill the banks if
    each of these has a share of its own.
    """
    item_size = np.dtype(dtype).itemsize
    elements = min(BANK_BYTES // item_size, tile_outer)
    width = VECTOR_BYTES // item_size
    groups = min(max(tile_k // width, 1), elements // width)
    return SmemLayout(tile_outer, elements // groups, groups)


class TileCopy(NamedTuple):
    """Device functions that copy one operand's tile, by all threads of the block, and read it.

    Attributes:
        place: (thread) -> (outer, k), the first element of the tile that a thread copies.
        load: (gmem, index, stride_outer, stride_k, is_full, outers, depth) -> values, a register
            tuple. `index` is that of the thread's first element. If is_full, the tile is inside
            the operand; else only `outers` x `depth` elements, counted from the thread's first,
            are inside: the others are zero, and memory outside is not touched. All threads must
            agree on is_full, so that full tiles pay one branch for it.
        store: (smem, start, outer, k, values): to shared memory, at `start` and the offset.
        load_fragment: (smem, start, outer, k) -> factors of a thread at one k, as a tuple, in
            vectors of 16 bytes; `outer` is the index of the first, and k a literal.
    """

    place: Any
    load: Any
    store: Any
    load_fragment: Any


def make_tile_copy(
    mode: str, is_k_along_rows: bool, tile_outer: int, tile_k: int, layout: SmemLayout,
    threads: int, dtype: str, thread_vectors: tuple[int, int],
) -> TileCopy:  # fmt: skip
    """The functions for one operand: a, whose rows run along k, or b, whose columns do.

    Args:
        thread_vectors: factors of a thread, and elements from one vector of them to the next.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_vector, store_vector
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    scalar = np.dtype(dtype).type
    width = VECTOR_BYTES // np.dtype(dtype).itemsize  # elements in 16 bytes
    unit = width if mode.endswith("16") else 1
    is_along_k = mode.startswith("row") == is_k_along_rows
    copies = tile_outer * tile_k // (unit * threads)
    # Thread t copies the units t, t + threads, ... of the tile, counted along its direction.
    along = (tile_k if is_along_k else tile_outer) // unit
    if copies * unit * threads != tile_outer * tile_k or (threads % along and along % threads):
        raise ValueError(f"{threads} threads cannot share a tile of {tile_outer} x {tile_k} evenly")
    steps_along = tuple(i * threads % along * unit for i in range(copies))
    steps_across = tuple(i * threads // along for i in range(copies))
    outer_steps, k_steps = (
        (steps_across, steps_along) if is_along_k else (steps_along, steps_across)
    )
    row, xor, groups = layout
    vectors, group = thread_vectors[0] // width, thread_vectors[1]

    def place(thread):
        along_start, across_start = int32(thread % along * unit), int32(thread // along)
        if is_along_k:
            return across_start, along_start
        return along_start, across_start

    def load(gmem, index, stride_outer, stride_k, is_full, outers, depth):
        if unit > 1:  # said to the compiler, which then needs no registers for its multiples
            if is_along_k:
                stride_k = 1
            else:
                stride_outer = 1
        values = ()
        if is_full:
            for i in static_range(copies):
                start = index + outer_steps[i] * stride_outer + k_steps[i] * stride_k
                values = values + load_vector(scalar, unit, gmem, start)
            return values
        elements = ()
        for i in static_range(copies):
            for element in static_range(unit):
                outer_step = outer_steps[i] + (0 if is_along_k else element)
                k_step = k_steps[i] + (element if is_along_k else 0)
                value = (scalar(0),)
                if outer_step < outers and k_step < depth:
                    value = (gmem[index + outer_step * stride_outer + k_step * stride_k],)
                elements = elements + value
        return elements

    def store(smem, start, outer, k, values):
        for i in static_range(copies):
            unit_k = int32(k + k_steps[i])
            column = int32(outer + outer_steps[i])
            if xor > 0:
                column = int32(column ^ (unit_k // width % groups * xor))
            target = int32(start + unit_k * row + column)
            if is_along_k:
                for element in static_range(unit):
                    store_vector(smem, int32(target + element * row), (values[i * unit + element],))
            else:
                store_vector(smem, target, values[i * unit : i * unit + unit])

    def load_fragment(smem, start, outer, k):
        fragment = ()
        for i in static_range(vectors):
            column: int32 = outer + i * group
            if xor > 0:
                column = column ^ (k // width % groups * xor)
            fragment = fragment + load_vector(scalar, width, smem, int32(start + k * row + column))
        return fragment

    parts = place, load, store, load_fragment
    return TileCopy(*(device_function(unroll(part)) for part in parts))


def make_find_tile(tile_m: int, tile_n: int) -> Any:
    """A device function: (block, m, n) -> matrix, first row and first column of a block's tile."""
    from dxgemm.handwritten.parts.intrinsics import below_2_31, device_function

    def find_tile(block, m, n):
        tiles_m = below_2_31((m + tile_m - 1) // tile_m)
        tiles_n = below_2_31((n + tile_n - 1) // tile_n)
        matrix, tile = divmod(below_2_31(block), below_2_31(tiles_m * tiles_n))
        return matrix, tile // tiles_n * tile_m, tile % tiles_n * tile_n

    return device_function(find_tile)


def vectors_together(epilogue: Any) -> int:
    """Vectors of the result that a thread works on at a time, so that it waits for them once."""
    is_short = epilogue is None or (
        len(epilogue.stages) <= MOST_STAGES_TOGETHER
        and not any(stage.outputs for stage in epilogue.stages)
    )
    return VECTORS_TOGETHER if is_short else 1


def make_store_result(
    fragment: Fragment, dtype: str, epilogue: Any = None, is_far: bool = True
) -> Any:
    """A device function: write a thread's elements of the result, alpha * acc + beta * c, finished.

    It takes the sums, the first element's row and column, whether the block's whole tile is inside,
    the `Origin` of the matrix, and the `Result`.

    Args:
        fragment: elements of a thread, in vectors of 16 bytes along rows.
        is_far: True if strides need 64 bits, in bytes.
    """
    from numba import int32, int64

    from dxgemm.handwritten.parts.addend import make_plus_c
    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_finish
    from dxgemm.handwritten.parts.inner import make_plus
    from dxgemm.handwritten.parts.intrinsics import (
        global_address,
        scaled,
        store_global,
        store_vector,
    )
    from dxgemm.handwritten.parts.tile_store import make_allows_vectors

    index, item_size = int64 if is_far else int32, np.dtype(dtype).itemsize
    width, step, span, firsts, rows, cols = fragment.runs(VECTOR_BYTES // item_size)
    # An index is halved only where it must be: `// 1` would change the compiled code.
    runs, taken = len(firsts), columns_for_one(epilogue)
    stored = width // taken  # results of a vector
    plus = make_plus(epilogue, dtype)
    plus_vector = make_plus_c(dtype, width=width, plus=plus)
    plus_one = make_plus_c(dtype, count=taken, plus=plus)
    finish, finish_wide = (make_finish(epilogue, dtype, dtype, count) for count in (taken, width))
    is_plain = epilogue is None or epilogue.is_stored_plainly
    allows_vectors, together = make_allows_vectors(dtype), vectors_together(epilogue)
    far = 1 << 16  # beyond every tile, and within 32 bits, which compare quicker than 64

    # Functions of their own, because numba then works out their types once and not for each call.
    @device
    def write_one(values, c_index, c_step, out_index, matrix, row, col, result):
        values = plus_one(scaled(result.alpha, values), result.beta, result.c, c_index, c_step)
        result.out.data[out_index] = finish(values, matrix, row, col, result.extra)[0]

    @device
    def write_vectors(acc, row, col, origin, result):
        # A few vectors at a time are all read, then computed, then written: a store would hold back
        # the loads that follow it.
        c, out, matrix, extra = result.c, result.out, origin.matrix, result.extra
        for first in static_range(0, runs, together):
            sums, results = (), ()
            for i in static_range(first, min(first + together, runs)):
                values = scaled(result.alpha, acc[firsts[i] : firsts[i] + span : step])
                c_index = origin.c + (row + rows[i]) * c.row + col + cols[i]
                sums = sums + plus_vector(values, result.beta, c, c_index, 0)
            for i in static_range(first, min(first + together, runs)):
                values = sums[(i - first) * width : (i - first) * width + width]
                results = results + finish_wide(values, matrix, row + rows[i], col + cols[i], extra)
            for i in static_range(first, min(first + together, runs)):
                line = origin.out + (row + rows[i]) * out.row
                at = line + col + cols[i] if taken == 1 else line + (col + cols[i]) // 2
                values = results[(i - first) * stored : (i - first) * stored + stored]
                store_vector(out.data, at, values)

    @device
    def store_result(acc, row, col, is_inside, origin, result):
        c, out = result.c, result.out
        is_vector = allows_vectors(origin, result)
        rows_left: int32 = min(result.m - row, far)
        cols_left: int32 = min(result.n - col, far)
        if is_plain and is_vector and result.beta == 0 and (is_inside or result.n % width == 0):
            stride = index(out.row * item_size)
            target = global_address(out.data) + (origin.out + col) * item_size
            target += int64(index(row)) * int64(stride)
            for i in static_range(runs):
                if rows[i] < rows_left and cols[i] < cols_left:
                    store_global(
                        target + int64(int32(rows[i])) * int64(stride), cols[i] * item_size,
                        scaled(result.alpha, acc[firsts[i] : firsts[i] + span : step]),
                    )  # fmt: skip
        elif is_vector and is_inside:
            write_vectors(acc, row, col, origin, result)
        else:
            for i in static_range(runs):
                # Zero says nothing about other rows: the compiler keeps no multiples between rows.
                c_step = c.col if rows[i] < rows_left else 0
                out_step = out.col if rows[i] < rows_left else 0
                c_row = origin.c + (row + rows[i]) * c.row + col * c.col
                out_col = col if taken == 1 else col // 2
                out_row = origin.out + (row + rows[i]) * out.row + out_col * out.col
                for j in static_range(0, width, taken):
                    if rows[i] < rows_left and cols[i] + j < cols_left:
                        write_one(
                            acc[firsts[i] + j * step : firsts[i] + (j + taken) * step : step],
                            c_row + (cols[i] + j) * c_step, c_step,
                            out_row + (cols[i] + j) // taken * out_step,
                            origin.matrix, row + rows[i], col + cols[i] + j, result,
                        )  # fmt: skip

    return store_result


def smem_alignment() -> int | None:
    """Alignment of a shared array that is read by 16 bytes; None for numba's simulator."""
    return None if _is_simulated() else VECTOR_BYTES


def _is_simulated() -> bool:
    from numba.core.config import ENABLE_CUDASIM

    return bool(ENABLE_CUDASIM)
