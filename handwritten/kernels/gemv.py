"""One or a few rows or columns, read by elements: for odd widths, float64 and integers.

Idea: a warp reads neighbouring elements of the larger operand, one per thread, so rows may begin
anywhere. A thread has 32 of them in flight, and multiplies each by the elements of the few rows
at its k. If the operand is contiguous along k, the threads of a warp share out k, and a warp has
rows of its own; if not, threads have rows of their own, and warps share out k. A block adds up the
sums of its threads, and the blocks of a cluster, which share the k of a tile, in the order of their
ranks (skinny_store.py).
Integers are summed in as many bits as the result has.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch.
Constraints: compute capability 9.0, for the cluster. Elements with a stride are read slowly.
Source: M. Harris, "Optimizing Parallel Reduction in CUDA", for the sums of a warp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts import skinny_layouts
from dxgemm.handwritten.parts.kernel import Kernel
from dxgemm.handwritten.parts.place import make_skinny_place
from dxgemm.handwritten.parts.skinny_layouts import SUMS_ROW, TILE
from dxgemm.handwritten.parts.skinny_store import ITEM_BYTES, make_add_partial_tiles, make_store
from dxgemm.handwritten.parts.unroll import Operand, device, gemm_kernel, static_range

INTEGERS = (
    "int16", "uint16", "int32", "uint32", "int64", "uint64", "int16 uint16", "uint16 int16",
    "int32 uint32", "uint32 int32",
)  # fmt: skip
WIDE = (*INTEGERS, "float64")  # dtypes whose sums may have 64 bits
WARPS = 8
WARP = 32
TILE_K = 128
FULL_WARP = 0xFFFFFFFF


@dataclass(frozen=True)
class Config(skinny_layouts.SkinnyConfig):
    """Tile of TILE rows of the larger operand by `few` columns of the other one.

    Attributes:
        split_k: blocks of a cluster that share the k of a tile.
    """

    few: int
    split_k: int = 1

    partial_tiles = WARPS
    threads = WARPS * WARP

    def tile_k(self, dtype: str) -> int:
        return TILE_K

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the warps' sums, and of those that come from a cluster: of 64 bits at most."""
        return self.sums_bytes * (WARPS + (self.split_k > 1)) * (2 if dtype in WIDE else 1)

    def min_blocks(self, dtype: str) -> int:
        # Their reads hide each other's latency; sums of 64 bits need registers.
        return 1 if self.few > 1 and dtype in WIDE else 2

    def accumulator_bytes(self, dtype: str) -> int:
        return TILE // WARPS * self.few * 4

    def __str__(self) -> str:
        return f"{self.few}x{TILE}" + (f" split {self.split_k}" if self.split_k > 1 else "")


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """The larger operand; "k" or "mn", along which it is read; the dtype of another result."""
    large = skinny_layouts.large_operand(problem)
    b = problem.b
    along, (k_stride, along_stride) = problem.n, (b.row, b.col)
    if large == "a":
        along, (along_stride, k_stride) = problem.m, (problem.a.row, problem.a.col)
    is_along_k = abs(k_stride) <= abs(along_stride) or along == 1
    is_other = problem.out_dtype != problem.dtype
    return large, "k" if is_along_k else "mn", *([problem.out_dtype] if is_other else [])


def measured_as(dtype: str) -> str:
    """Float whose measured speeds integers take: one of as many bytes, up to four."""
    if dtype not in INTEGERS:
        return dtype
    return "float16" if "16" in dtype else "float32"


def sums_dtype(dtype: str, out_dtype: str) -> str:
    """Dtype of sums."""
    if dtype not in INTEGERS:
        return "float64" if dtype == "float64" else "float32"
    return "int64" if out_dtype in ("int64", "uint64") else "int32"


def make_multiply(config: Config, dtype: str, is_along_k: bool, sums: str) -> Callable[..., Any]:
    """A device function: a thread's sums, of its rows by all the few columns, over a share of k.

    It takes x and y, the elements of both operands, the offsets of the thread's rows and columns,
    the steps of their k, the thread's first k, and the end of the share. `sums` is their dtype.
    """
    import numba

    from dxgemm.handwritten.parts.intrinsics import low_word, outer_product, zeros
    from dxgemm.handwritten.parts.operands import HALVES
    from dxgemm.handwritten.parts.widening import WIDEN

    rows = TILE // WARPS if is_along_k else TILE // WARP
    k_next = WARP if is_along_k else WARPS  # from a thread's k to its next
    few, steps = config.few, TILE_K // k_next
    int32, scalar = numba.int32, getattr(numba, sums)
    cast = low_word if sums == "int32" else scalar
    widen = WIDEN[dtype] if dtype in HALVES else cast

    def make_read(count: int) -> Callable[..., Any]:
        """Read the elements of `count` rows at each of the thread's k in a tile."""

        @device
        def read(data, offsets, k_step, at, end, is_whole):
            values = ()
            for step in static_range(steps):
                for row in static_range(count):
                    value = scalar(0)
                    if is_whole or at + step * k_next < end:
                        value = widen(data[offsets[row] + (at + step * k_next) * k_step])
                    values = values + (value,)
            return values

        return read

    read_x, read_y = make_read(rows), make_read(few)

    @device
    def add(acc, x, y, x_offsets, y_offsets, x_step, y_step, at, end, is_whole):
        x_values = read_x(x, x_offsets, x_step, at, end, is_whole)
        y_values = read_y(y, y_offsets, y_step, at, end, is_whole)
        for step in static_range(steps):
            x_now = x_values[step * rows : (step + 1) * rows]
            acc = outer_product(acc, x_now, y_values[step * few : (step + 1) * few])
        return acc

    @device
    def multiply(x, y, x_offsets, y_offsets, x_step, y_step, at, end):
        acc = zeros(scalar, rows * few)
        while at + (TILE_K - k_next) < end:
            acc = add(acc, x, y, x_offsets, y_offsets, x_step, y_step, at, end, True)
            at = int32(at + TILE_K)
        return add(acc, x, y, x_offsets, y_offsets, x_step, y_step, at, end, False)

    return multiply


def make_offsets(count: int, step: int) -> Callable[..., Any]:
    """A device function: (origin, first, last, stride) -> offsets of `count` rows or columns.

    They are `step` apart; those beyond the last count as the last.
    """

    @device
    def offsets(origin, first, last, stride):
        found = ()
        for index in static_range(count):
            found = found + (origin + min(first + index * step, last) * stride,)
        return found

    return offsets


def make_put(rows: int, few: int, row_next: int, item: int) -> Callable[..., None]:
    """A device function: (sums, smem, row): a thread's sums to shared memory, [column][row].

    `item` is the bytes of a sum.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import store_shared

    column_bytes = SUMS_ROW * item // 4

    @device
    def put(sums, smem, row):
        for index in static_range(rows):
            for column in static_range(few):
                place: int32 = smem + (row + index * row_next) * item
                store_shared(place, column * column_bytes, (sums[index * few + column],))

    return put


def make_add_warp(count: int, sums: str) -> Callable[..., Any]:
    """A device function: (sums) -> `count` sums of all threads of a warp, of a dtype."""
    import numba
    from numba import cuda

    from dxgemm.handwritten.parts.intrinsics import low_word

    cast = low_word if sums == "int32" else getattr(numba, sums)

    @device
    def add_warp(sums):
        for power in static_range(5):
            totals = ()
            for index in static_range(count):
                other = cuda.shfl_xor_sync(FULL_WARP, sums[index], 1 << power)
                totals = totals + (cast(sums[index] + other),)
            sums = totals
        return sums

    return add_warp


def make_kernel(
    config: Config,
    dtype: str,
    large: str,
    along: str,
    out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and one layout, as a Python function to compile."""
    from numba import cuda, int32, int64, uint8

    from dxgemm.handwritten.parts.intrinsics import cluster_arrive, shared_address
    from dxgemm.handwritten.parts.widening import stored_type, view_as

    large_is_a, is_along_k = large == "a", along == "k"
    sums_kind = sums_dtype(dtype, out_dtype or dtype)
    few, split_k, item = config.few, config.split_k, ITEM_BYTES[sums_kind]
    sums_bytes = config.sums_bytes * item // 4
    rows, row_next = (TILE // WARPS, 1) if is_along_k else (TILE // WARP, WARP)
    (a_dtype, _, b_dtype) = dtype.partition(" ")
    x_stored, y_stored = stored_type(a_dtype), stored_type(b_dtype or a_dtype)
    if not large_is_a:
        x_stored, y_stored = y_stored, x_stored
    multiply = make_multiply(config, dtype, is_along_k, sums_kind)
    find = make_skinny_place(config, TILE_K, large_is_a)
    add_partial_tiles = make_add_partial_tiles(config, sums_kind)
    store_tile = make_store(config, large_is_a, sums_kind, out_dtype or dtype, epilogue)

    x_offsets, y_offsets = make_offsets(rows, row_next), make_offsets(few, 1)
    put, add_warp = make_put(rows, few, row_next, item), make_add_warp(rows * few, sums_kind)

    @gemm_kernel
    def gemv_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- This block's tile, its share of k ---
        tile = find(m, n, k)
        matrix, x, y, x_count, y_count = tile.matrix, tile.x, tile.y, tile.x_count, tile.y_count
        first: int32 = tile.first_k
        end: int32 = min(first + tile.stages * TILE_K, k)
        if split_k > 1:
            cluster_arrive()

        # --- Main loop: this thread's rows, its k ---
        smem: int32 = shared_address(cuda.shared.array(0, uint8))
        thread: int32 = cuda.threadIdx.x & 1023
        lane: int32 = thread % WARP
        warp: int32 = thread // WARP
        row: int32 = warp * rows if is_along_k else lane
        at: int32 = first + (lane if is_along_k else warp)
        columns = Operand(b.data, b.batch, b.col, b.row)
        large_one, small_one = (a, columns) if large_is_a else (columns, a)
        x_data, y_data = view_as(x_stored, large_one.data), view_as(y_stored, small_one.data)
        x_at = x_offsets(int64(matrix) * large_one.batch, x + row, x_count - 1, large_one.row)
        y_at = y_offsets(int64(matrix) * small_one.batch, y, y_count - 1, small_one.row)
        sums = multiply(x_data, y_data, x_at, y_at, large_one.col, small_one.col, at, end)

        # --- Epilogue: the block adds up; then a cluster, each block a share ---
        if is_along_k:
            sums = add_warp(sums)
            if lane == 0:
                put(sums, smem, row)
        else:
            put(sums, int32(smem + warp * sums_bytes), row)
            cuda.syncthreads()
            add_partial_tiles(smem, thread)
        buffer: int32 = smem + WARPS * sums_bytes
        store_tile(smem, buffer, thread, tile, alpha, beta, c, out, extra)

    return gemv_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(1),
        Config(1, split_k=2),
        Config(1, split_k=8),
        Config(4),
        Config(4, split_k=2),
        Config(4, split_k=8),
    ),
    dtypes=("float16", "bfloat16", "float32", "float64", *INTEGERS),
    only_arch=90,
    variant=variant,
    block_count=skinny_layouts.block_count,
    result_tile=skinny_layouts.result_tile,
    smaller_first=True,
    widens=True,
    measured_as=measured_as,
)
