"""Tiles between global memory, registers and shared memory, for any layout of the operands.

The rungs from `vectorized` to `double_buffer` share these functions. A tile of a or b lies in
shared memory as tile_k rows of tile_outer elements, where `outer` is m for a and n for b; a
row-major a is transposed. A thread then reads its factors, rows of a or columns of b, 16 bytes at a
time. On the way there the tile is held in registers, a few units a thread; a unit is 16 bytes of an
operand that allows such accesses, along k or along outer, and one element of any other.
"""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode

# Vectors of the result that a thread works on at a time, so that it waits for them once: as many as
# there are registers for. What an epilogue's longer chains hold in between would not fit beside.
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

    The units that a warp writes at a time come from `groups` places along k, and fill the banks if
    each of these has a share of its own.
    """
    item_size = np.dtype(dtype).itemsize
    elements = min(BANK_BYTES // item_size, tile_outer)
    width = VECTOR_BYTES // item_size
    groups = min(max(tile_k // width, 1), elements // width)
    return SmemLayout(tile_outer, elements // groups, groups)


class TileCopy(NamedTuple):
    """Device functions that copy one operand's tile; all threads of the block take part.

    Attributes:
        place: (thread) -> (outer, k), the first element of the tile that a thread copies.
        load: (gmem, index, stride_outer, stride_k, is_full, outers, depth) -> values, a register
            tuple. `index` is that of the thread's first element. If is_full, the tile lies inside
            the operand; else only `outers` x `depth` elements, counted from the thread's first,
            are inside: the others are zero, and memory outside is not touched. All threads must
            agree on is_full, so that full tiles pay one branch for it.
        store: (smem, start, outer, k, values): to shared memory, at `start` and the place.
    """

    place: Any
    load: Any
    store: Any


def make_tile_copy(
    mode: str, is_k_along_rows: bool, tile_outer: int, tile_k: int, layout: SmemLayout,
    threads: int, dtype: str,
) -> TileCopy:  # fmt: skip
    """The functions for one operand: a, whose rows run along k, or b, whose columns do."""
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

    return TileCopy(*(device_function(unroll(part)) for part in (place, load, store)))


def make_load_fragment(thread_outer: int, group: int, layout: SmemLayout, dtype: str) -> Any:
    """A device function: (smem, start, outer, k) -> factors of a thread at one k, as a tuple.

    thread_outer elements in vectors of 16 bytes, `group` elements apart; `outer` is the place of
    the first, and k a literal.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import device_function, load_vector
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    scalar = np.dtype(dtype).type
    width = VECTOR_BYTES // np.dtype(dtype).itemsize
    vectors = thread_outer // width
    row, xor, groups = layout

    def load_fragment(smem, start, outer, k):
        fragment = ()
        for i in static_range(vectors):
            column: int32 = outer + i * group
            if xor > 0:
                column = column ^ (k // width % groups * xor)
            fragment = fragment + load_vector(scalar, width, smem, int32(start + k * row + column))
        return fragment

    return device_function(unroll(load_fragment))


def make_find_tile(tile_m: int, tile_n: int) -> Any:
    """A device function: (block, m, n) -> matrix, first row and first column of a block's tile."""
    from dxgemm.handwritten.parts.intrinsics import below_2_31, device_function

    def find_tile(block, m, n):
        tiles_m = below_2_31((m + tile_m - 1) // tile_m)
        tiles_n = below_2_31((n + tile_n - 1) // tile_n)
        matrix, tile = divmod(below_2_31(block), below_2_31(tiles_m * tiles_n))
        return matrix, tile // tiles_n * tile_m, tile % tiles_n * tile_n

    return device_function(find_tile)


def make_store_result(
    thread_m: int, thread_n: int, row_group: int, col_group: int, dtype: str, epilogue: Any = None,
    row_width: int | None = None,
) -> Any:  # fmt: skip
    """A device function: write a thread's elements of the result, alpha * acc + beta * c, finished.

    They lie in vectors of 16 bytes along rows and, along columns, in row_width neighbouring rows,
    by default as many; these are row_group and col_group elements apart. (row, col) is the first
    element, counted in the matrix at c_start and out_start; `is_inside` says that the block's whole
    tile is inside.
    """
    from numba import int32

    from dxgemm.handwritten.parts.epilogue import columns_for_one, make_finish
    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        global_address,
        load_vector,
        plus_scaled,
        scaled,
        store_vector,
    )
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    scalar = np.dtype(dtype).type
    item_size = np.dtype(dtype).itemsize
    width = VECTOR_BYTES // item_size
    col_vectors = thread_n // width
    row_width = row_width or width
    # An index is halved only where it must be: `// 1` would change what the compiler makes of it.
    taken = columns_for_one(epilogue)
    finish = make_finish(epilogue, dtype, dtype, None if taken == 1 else taken)
    finish_vector = make_finish(epilogue, dtype, dtype, width)
    stored = width // taken  # results of a vector
    vectors = thread_m * col_vectors
    is_short = epilogue is None or (
        len(epilogue.stages) <= MOST_STAGES_TOGETHER
        and not any(stage.outputs for stage in epilogue.stages)
    )
    far = 1 << 16  # beyond every tile, and within 32 bits, which compare quicker than 64

    def write_element(value, alpha, beta, c, c_index, out, out_index, matrix, row, col, extra):
        value = scaled(alpha, value)
        if beta != 0:  # BLAS: beta == 0 must not read c, which may hold NaN
            value = plus_scaled(value, beta, c.data[c_index])
        out.data[out_index] = finish(value, matrix, row, col, extra)

    def write_pair(
        values, alpha, beta, c, c_index, c_step, out, out_index, matrix, row, col, extra
    ):
        first, second = scaled(alpha, values[0]), scaled(alpha, values[1])
        if beta != 0:
            first = plus_scaled(first, beta, c.data[c_index])
            second = plus_scaled(second, beta, c.data[c_index + c_step])
        out.data[out_index] = finish((first, second), matrix, row, col, extra)[0]

    def sum_vector(values, alpha, beta, c, c_index):
        result = ()
        if beta != 0:
            added = load_vector(scalar, width, c.data, c_index)
            for element in static_range(width):
                product = scaled(alpha, values[element])
                result = result + (plus_scaled(product, beta, added[element]),)
        else:
            for element in static_range(width):
                result = result + (scaled(alpha, values[element]),)
        return result

    def row_of(row, place):
        """Row of a vector, counted row by row among the thread's vectors."""
        i = place // col_vectors
        return row + (i // row_width * row_group + i % row_width)

    def write_apart(
        acc, row, col, alpha, beta,
        c, c_start, out, out_start, matrix, extra,
    ):  # fmt: skip
        for place in static_range(vectors):
            i_row, i_col = row_of(row, place), col + place % col_vectors * col_group
            c_index = c_start + i_row * c.row + i_col
            out_index = out_start + i_row * out.row + (i_col if taken == 1 else i_col // 2)
            values = acc[place * width : place * width + width]
            # In branches of its own, so that the compiler leaves it apart.
            if beta != 0:
                sums = sum_vector(values, alpha, beta, c, c_index)
                store_vector(out.data, out_index, finish_vector(sums, matrix, i_row, i_col, extra))
            else:
                sums = sum_vector(values, alpha, beta, c, c_index)
                store_vector(out.data, out_index, finish_vector(sums, matrix, i_row, i_col, extra))

    def write_together(
        acc, row, col, alpha, beta,
        c, c_start, out, out_start, matrix, extra,
    ):  # fmt: skip
        # A few vectors at a time are all read, then computed, then written: a store would hold back
        # the loads that follow it.
        for first in static_range(0, vectors, VECTORS_TOGETHER):
            sums, results = (), ()
            for place in static_range(first, first + VECTORS_TOGETHER):
                if place < vectors:
                    i_row = row_of(row, place)
                    sums = sums + sum_vector(
                        acc[place * width : place * width + width], alpha, beta, c,
                        c_start + i_row * c.row + col + place % col_vectors * col_group,
                    )  # fmt: skip
            for place in static_range(first, first + VECTORS_TOGETHER):
                if place < vectors:
                    results = results + finish_vector(
                        sums[(place - first) * width : (place - first) * width + width],
                        matrix,
                        row_of(row, place),
                        col + place % col_vectors * col_group,
                        extra,
                    )  # fmt: skip
            for place in static_range(first, first + VECTORS_TOGETHER):
                if place < vectors:
                    out_line = out_start + row_of(row, place) * out.row
                    if taken == 1:
                        out_index = out_line + col + place % col_vectors * col_group
                    else:
                        out_index = out_line + (col + place % col_vectors * col_group) // 2
                    store_vector(
                        out.data,
                        out_index,
                        results[(place - first) * stored : (place - first) * stored + stored],
                    )

    # Functions of their own, because numba then works out their types once and not for each call.
    write_element, write_pair = device_function(write_element), device_function(write_pair)
    sum_vector = device_function(unroll(sum_vector))
    row_of = device_function(row_of)
    write_vectors = device_function(unroll(write_together if is_short else write_apart))

    def store_result(
        acc, row, col, is_inside, m, n, alpha, beta,
        c, c_start, out, out_start,
        matrix, extra,
    ):  # fmt: skip
        is_vector = (
            is_inside and out.col == 1
            and (global_address(out.data) | (out.row | out_start) * item_size) % 16 == 0
        )  # fmt: skip
        if is_vector and beta != 0:
            is_vector = (
                c.col == 1 and (global_address(c.data) | (c.row | c_start) * item_size) % 16 == 0
            )
        if is_vector:
            write_vectors(
                acc, row, col, alpha, beta,
                c, c_start, out, out_start, matrix, extra,
            )  # fmt: skip
        else:
            rows: int32 = min(m - row, far)
            cols: int32 = min(n - col, far)
            for i in static_range(thread_m):
                i_step = i // row_width * row_group + i % row_width
                # Zero says nothing about other rows: the compiler keeps no multiples between rows.
                c_step = c.col if i_step < rows else 0
                out_step = out.col if i_step < rows else 0
                c_row = c_start + (row + i_step) * c.row + col * c.col
                out_col = col if taken == 1 else col // 2
                out_row = out_start + (row + i_step) * out.row + out_col * out.col
                for j in static_range(0, thread_n, taken):
                    j_step = j // width * col_group + j % width
                    if i_step < rows and j_step < cols:
                        if taken > 1:
                            write_pair(
                                acc[i * thread_n + j : i * thread_n + j + 2], alpha, beta,
                                c, c_row + j_step * c_step, c_step,
                                out, out_row + j_step // 2 * out_step,
                                matrix, row + i_step, col + j_step, extra,
                            )  # fmt: skip
                        else:
                            write_element(
                                acc[i * thread_n + j], alpha, beta,
                                c, c_row + j_step * c_step,
                                out, out_row + j_step * out_step,
                                matrix, row + i_step, col + j_step, extra,
                            )  # fmt: skip

    return device_function(unroll(store_result))


def smem_alignment() -> int | None:
    """Alignment of a shared array that is read by 16 bytes; None for numba's simulator."""
    return None if _is_simulated() else VECTOR_BYTES


def _is_simulated() -> bool:
    from numba.core.config import ENABLE_CUDASIM

    return bool(ENABLE_CUDASIM)
