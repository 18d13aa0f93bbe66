"""A thread tile for narrow floats and integers of any dtypes in any layout.

Idea: grown from `thread_tile_2d`. Elements are widened on their way into shared memory: floats to
float32, multiplied by the scale of their block if they have one; integers to 32 bits, or 64 if they
have as many. They are multiplied and summed in float32, int32, or int64 for results of 64 bits.
Floats are rounded once, when they are stored; sums of integers wrap around, and bool is whether
they are 0. With a modulus, elements are reduced when they are copied, and sums after every few
products. The kernel lacks the speed of tensor cores, but has none of their constraints: it takes
what kernels for them must decline.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch; c and out of floats in
bfloat16, float16 or float32; of integers in any dtype of as many bits as the sums, and of bool in
bool. With a modulus, it and its inverse in float64 are the last operands.
Constraints: those of `thread_tile_2d`; shared memory holds the widened operands.
Source: as `thread_tile_2d`; `modular`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dxgemm.handwritten.ladder import thread_tile_2d
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.operands import FLOAT8, HALVES
from dxgemm.handwritten.parts.unroll import device, gemm_kernel, static_range

SIGNED = ("int8", "int16", "int32", "int64")
INTEGERS = (*SIGNED, *(f"u{dtype}" for dtype in SIGNED))
MIXED = (*(f"{x} u{x}" for x in SIGNED[:3]), *(f"u{x} {x}" for x in SIGNED[:3]))
FLOATS = (*HALVES, *FLOAT8)
SUMS_OF_64_BITS = ("int64", "uint64")


def held_dtype(factor: str) -> str:
    """Dtype in which elements of a or b are multiplied, before their products are widened."""
    if factor in FLOATS:
        return "float32"
    return {"uint32": "uint32", "int64": "int64", "uint64": "int64"}.get(factor, "int32")


def sums_dtype(dtype: str, out_dtype: str) -> str:
    """Dtype of sums."""
    if dtype in FLOATS:
        return "float32"
    return "int64" if out_dtype in SUMS_OF_64_BITS else "int32"


@dataclass(frozen=True)
class Config(thread_tile_2d.Config):
    """Block tile tile_m x tile_n x tile_k; thread tile thread_m x thread_n.

    Shared memory and registers hold four bytes for each element, or eight of 64 bits. Sums of 64
    bits take more registers, which other operands may have too.
    """

    def min_blocks(self, dtype: str) -> int:
        is_short = dtype in FLOATS or dtype in ("int8", "bool")
        return super().min_blocks("float32" if is_short else "int64")

    def padding(self, dtype: str) -> int:
        return super().padding(held_dtype(dtype.partition(" ")[0]))

    def smem_bytes(self, dtype: str) -> int:
        return super().smem_bytes(held_dtype(dtype.partition(" ")[0]))

    def accumulator_bytes(self, dtype: str) -> int:
        return super().accumulator_bytes(held_dtype(dtype.partition(" ")[0]))


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Dtype of the result, for which the kernel is compiled, and whether there is a modulus."""
    return (problem.out_dtype, *(["modular"] if problem.modulus else []))


def make_portion(threads: int, tile_k: int) -> Callable[..., Any]:
    """A device function: (thread, is_along_k, tile_outer) -> a thread's share of copying a tile.

    Its first element, as an index along m or n and one along k, and the steps to its next one.
    """
    from numba import int32

    @device
    def portion(thread, is_along_k, tile_outer):
        if is_along_k:
            outer: int32 = thread // tile_k
            k: int32 = thread % tile_k
            outer_step: int32 = threads // tile_k
            k_step: int32 = 0
        else:
            outer = thread % tile_outer
            k = thread // tile_outer
            outer_step = 0
            k_step = threads // tile_outer
        return outer, k, outer_step, k_step

    return portion


def make_copy(
    copies: int, factor: str, is_modular: bool, scale_of: Callable[..., Any] | None = None
) -> Callable[..., None]:
    """A device function: copy so many elements of a thread, widened, into a tile of [k][outer].

    (smem, data, index, index_step, outer, k, outer_step, k_step, outers, depth, modulus, origin):
    elements outside of outers x depth count as zero. The modulus is a pair of it and its inverse.

    Args:
        scale_of: device function: (origin, outer, k) -> scale of an element; None for no scales.
    """
    from numba import int32

    from dxgemm.handwritten.parts.modular import make_residue_of
    from dxgemm.handwritten.parts.widening import WIDEN, stored_type, view_as

    scalar = np.int32 if is_modular else np.dtype(held_dtype(factor)).type
    stored, residue_of = stored_type(factor), make_residue_of(factor)
    widen, is_scaled = WIDEN.get(factor, scalar), scale_of is not None

    @device
    def copy(
        smem, data, index, index_step, outer, k, outer_step, k_step, outers, depth, modulus, origin
    ):
        data = view_as(stored, data)
        for _ in range(copies):
            value = scalar(0)
            if outer < outers and k < depth:
                if is_modular:
                    value = scalar(residue_of(data[index], modulus[0], modulus[1]))
                else:
                    value = widen(data[index])
                if is_scaled:
                    value = value * scale_of(origin, outer, k)
            smem[k, outer] = value
            outer, k = int32(outer + outer_step), int32(k + k_step)
            index += index_step

    return copy


def make_kernel(
    config: Config, dtype: str, out_dtype: str, sums_kind: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile or to simulate."""
    # Imported here and not above: a kernel that is already on disk launches without numba. Global,
    # because numba's simulator replaces `cuda` among the kernel's globals.
    global cuda
    from numba import cuda, int32

    from dxgemm.handwritten.parts.block_mask import make_is_dead
    from dxgemm.handwritten.parts.block_scales import make_element_scales
    from dxgemm.handwritten.parts.elements import make_put_element
    from dxgemm.handwritten.parts.epilogue import columns_for_one
    from dxgemm.handwritten.parts.inner import make_combine, make_take_c
    from dxgemm.handwritten.parts.modular import SUMMED, make_finish, make_nearest
    from dxgemm.handwritten.parts.tiles import make_find_tile

    sums, (a_dtype, _, b_dtype) = sums_dtype(dtype, out_dtype), dtype.partition(" ")
    b_dtype = b_dtype or a_dtype
    a_held, b_held = (np.dtype(held_dtype(factor)).type for factor in (a_dtype, b_dtype))
    is_modular = sums_kind == "modular"
    if is_modular:
        sums, a_held, b_held, epilogue = "int64", np.int32, np.int32, None
    nearest, finish = make_nearest(), make_finish(out_dtype)
    scalar = np.dtype(sums).type
    epilogue, is_masked, is_dead = make_is_dead(epilogue)
    epilogue, (a_scale, b_scale) = make_element_scales(epilogue)
    find_tile = make_find_tile(config.tile_m, config.tile_n)
    # A thread's columns are as far apart as there are threads in a row; or pairs of columns are.
    taken = columns_for_one(epilogue)
    begin, put = make_put_element(sums, out_dtype, epilogue)
    take_c = make_take_c(epilogue, sums, out_dtype)
    is_inner, _, _, step, start, close = make_combine(epilogue, sums)
    parts = len(start)
    tile_m, tile_n, tile_k = config.tile_m, config.tile_n, config.tile_k
    thread_m, thread_n = config.thread_m, config.thread_n
    threads_m, threads_n, threads = tile_m // thread_m, tile_n // thread_n, config.threads
    a_smem_row = tile_m + config.padding(dtype)
    b_smem_row = tile_n + config.padding(dtype)
    copy_a = make_copy(tile_m * tile_k // threads, a_dtype, is_modular, a_scale)
    copy_b = make_copy(tile_n * tile_k // threads, b_dtype, is_modular, b_scale)
    portion = make_portion(threads, tile_k)

    @device
    def total_of(acc, i, j):
        total = ()
        for part in static_range(parts):
            total = total + (acc[part, i, j],)
        return total

    @gemm_kernel
    def widening_tile_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        a_smem = cuda.shared.array((tile_k, a_smem_row), a_held)
        b_smem = cuda.shared.array((tile_k, b_smem_row), b_held)
        a_frag = cuda.local.array(thread_m, a_held)
        b_frag = cuda.local.array(thread_n, b_held)
        acc = cuda.local.array((parts, thread_m, thread_n), scalar)

        # --- This block's tile, this thread's first element ---
        matrix, tile_row, tile_col = find_tile(cuda.blockIdx.x, m, n)
        if is_masked and is_dead(tile_row, tile_col, extra):
            return
        # The mask proves to the compiler that no index is negative: without it, each access to an
        # array pays for Python's wraparound.
        thread = cuda.threadIdx.x & 1023
        thread_row, thread_col = thread // threads_n, thread % threads_n * taken

        # The first element of each tile this thread copies, and the step to its next one.
        a_row, a_k, a_row_step, a_k_step = portion(thread, abs(a.col) <= abs(a.row), tile_m)
        b_col, b_k, b_col_step, b_k_step = portion(thread, abs(b.col) > abs(b.row), tile_n)
        a_index = matrix * a.batch + (tile_row + a_row) * a.row + a_k * a.col
        b_index = matrix * b.batch + (tile_col + b_col) * b.col + b_k * b.row
        a_index_step = a_row_step * a.row + a_k_step * a.col
        b_index_step = b_col_step * b.col + b_k_step * b.row
        rows: int32 = min(m - tile_row, tile_m)
        cols: int32 = min(n - tile_col, tile_n)
        modulus = (0, 0)
        if is_modular:
            modulus = (extra[0], extra[1])

        for i in range(thread_m):
            for j in range(thread_n):
                for part in static_range(parts):
                    acc[part, i, j] = start[part]
        if parts > 1:
            for i in static_range(thread_m):
                row = tile_row + thread_row + i * threads_m
                for j in static_range(thread_n):
                    col = tile_col + thread_col + j // taken * (taken * threads_n) + j % taken
                    if row < m and col < n:
                        index = matrix * c.batch + row * c.row + col * c.col
                        last = take_c((acc[parts - 1, i, j],), scalar(beta), c, index, c.col)
                        acc[parts - 1, i, j] = last[0]

        # --- Main loop ---
        left = k
        while left > 0:
            depth: int32 = min(left, tile_k)
            copy_a(
                a_smem, a.data, a_index, a_index_step, a_row, a_k, a_row_step, a_k_step, rows,
                depth, modulus, (extra, matrix, tile_row, k - left),
            )  # fmt: skip
            copy_b(
                b_smem, b.data, b_index, b_index_step, b_col, b_k, b_col_step, b_k_step, cols,
                depth, modulus, (extra, matrix, tile_col, k - left),
            )  # fmt: skip
            a_index += tile_k * a.col
            b_index += tile_k * b.row
            cuda.syncthreads()

            for kk in static_range(tile_k):
                for i in range(thread_m):
                    a_frag[i] = a_smem[kk, thread_row + i * threads_m]
                for j in range(thread_n):
                    if taken == 1:
                        b_frag[j] = b_smem[kk, thread_col + j * threads_n]
                    else:
                        b_frag[j] = b_smem[kk, thread_col + j // 2 * (2 * threads_n) + j % 2]
                for i in range(thread_m):
                    for j in range(thread_n):
                        if not is_inner:
                            acc[0, i, j] += scalar(a_frag[i]) * scalar(b_frag[j])
                        elif kk < depth:  # elements beyond k are zero
                            total = total_of(acc, i, j)
                            total = step(total, scalar(a_frag[i]), scalar(b_frag[j]))
                            for part in static_range(parts):
                                acc[part, i, j] = total[part]
                        if is_modular and ((kk + 1) % SUMMED == 0 or kk + 1 == tile_k):
                            acc[0, i, j] = nearest(acc[0, i, j], modulus[0], modulus[1])
            cuda.syncthreads()  # before the next tile overwrites this one
            left -= tile_k

        # --- Epilogue ---
        at = begin(matrix, scalar(alpha), scalar(beta), c, out, extra)
        if is_modular or parts > 1:  # alpha and beta are applied before elements are put
            at = begin(matrix, scalar(1), scalar(0), c, out, extra)
        for i in static_range(thread_m):
            row = tile_row + thread_row + i * threads_m
            for j in static_range(0, thread_n, taken):
                col = tile_col + thread_col + j * threads_n
                if row < m and col < n:
                    values = ()
                    for piece in static_range(taken):
                        total = total_of(acc, i, j + piece)
                        values = values + (close(total) if parts > 1 else total)
                    if is_modular:
                        place = matrix * c.batch + row * c.row + col * c.col
                        values = (finish(values[0], alpha, beta, c, place, modulus[0], modulus[1]),)
                    put(values, at, row, col)

    return widening_tile_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128, tile_k=8, thread_m=8, thread_n=8),
        Config(tile_m=64, tile_n=64, tile_k=16, thread_m=8, thread_n=4),
        Config(tile_m=32, tile_n=32, tile_k=16, thread_m=2, thread_n=2),
    ),
    simulator_configs=(Config(tile_m=4, tile_n=4, tile_k=2, thread_m=2, thread_n=2),),
    dtypes=(*FLOATS, "bool", *INTEGERS, *MIXED),
    variant=variant,
    takes_pairs=True,
    takes_inner=True,
    takes_masks=True,
    quantises=True,
    takes_block_scales=True,
    widens=True,
    takes_modulus=True,
)
