"""float32 products by wgmma: each operand is a sum of short parts, whose products are summed.

Idea: grown from `wgmma`. x * s = hi + lo / 2**12, hi and lo in float16, with s the power of two
that brings the largest element of its row of a (column of b) into [2**14, 2**15); `decompose` makes
them. hi keeps the upper 11 bits, lo the next 12 but for a rounding. Of the four products, lo @ lo
is too small to matter; three wgmmas a step give a @ b. Sums of tensor cores are truncated, not
rounded, which is a bias that grows with their number: so after a few steps they are added to the
sum of a section of k by true float32 additions, and the next sum begins anew. lo @ hi and hi @ lo
have sums of their own, or they would be truncated where hi @ hi is. Sections are added to a total:
its rounding errors grow with the number of sections, theirs with the length of one. The three sums
of a thread are more registers than all threads can have, so the producer leaves it most of its own.
The total is scaled back, exactly, before alpha, c and the epilogue see it. Of a symmetric result,
half the tiles are computed (`triangle`).
Layout: a (m, k) and b (k, n) as `decompose` leaves them, K-major or MN-major, any batch; c and out
(m, n), any strides. In the last parameter, behind the epilogue's operands: the factors that scale
rows and columns back, and the flag of validity_check.
Constraints: m, n and k are free. If the flag is not 0, the kernel computes nothing and leaves the
product to `native_fallback`.
Source: H. Ootomo and R. Yokota, "Recovering single precision accuracy from Tensor Cores while
surpassing the FP32 theoretical peak performance", arXiv 2203.03341.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from dxgemm.handwritten.parts.chunk_store import (
    CHUNK_COLS,
    LONGEST_LINE,
    STORE_BYTES,
    make_store_chunk,
)
from dxgemm.handwritten.parts.emulated_mainloop import make_mainloop
from dxgemm.handwritten.parts.emulation import PADDING, SCHEMES, parts_layout
from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel, Reductions, never
from dxgemm.handwritten.parts.tensor_map import MOST_ELEMENTS, TensorMap
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, STEPS, WARPGROUP

TENSOR_MAPS = ("a_tensor_map", "b_tensor_map")  # parameters after those of every kernel
WARP = 32
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 40, 232  # with two consumers


@dataclass(frozen=True)
class Config(BaseConfig):
    """Block tile tile_m x tile_n; a ring of `stages`; a promotion every `promote` steps of wgmma.

    A step is 16 k of float16, and a section is `section` k. If `promote` exceeds the steps of a
    stage, sums are promoted to the total itself. A threadblock swizzle of swizzle_rows tiles along
    m lets concurrent blocks share rows of a and columns of b in L2.
    """

    tile_m: int
    tile_n: int
    stages: int
    promote: int = 1
    section: int = 512
    parts: int = 2
    swizzle_rows: int = 16

    dynamic_smem: ClassVar[bool] = True

    def complaints(self) -> Iterator[str]:
        if self.tile_m not in (64, 128):
            yield "tile_m must be 64 or 128, for one or two warpgroups"
        if self.tile_n % 64 or not 64 <= self.tile_n <= 128:
            yield "tile_n must be 64 or 128; three sums are kept"
        if STEPS % self.promote and self.promote % STEPS:
            yield f"promote must be 1, 2, or a multiple of {STEPS}"
        if self.section % 64:
            yield "section must be a multiple of 64, whole stages"
        if self.smem_bytes("float32") > 227 * 1024:
            yield f"{self.smem_bytes('float32')} bytes of shared memory"

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.tile_m // 64

    @property
    def threads(self) -> int:
        """Threads of a block: those of the consumers, and the warpgroup of the producer."""
        return (self.consumers + 1) * WARPGROUP

    @property
    def launch_registers(self) -> int:
        """Registers of a thread at launch; 0 with one consumer, where none are exchanged.

        With two consumers, the producer then leaves most of its own to them.
        """
        if self.consumers == 1:
            return 0
        return (PRODUCER_REGISTERS + 2 * CONSUMER_REGISTERS) // 3

    @property
    def stage_bytes(self) -> int:
        return self.parts * (self.tile_m + self.tile_n) * ROW_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """Bytes of the ring, aligned to 1024, of a chunk of the result a warp, and of barriers."""
        ring = 1024 + self.stages * self.stage_bytes
        return ring + self.consumers * 4 * STORE_BYTES + self.stages * 16

    def accumulator_bytes(self, dtype: str) -> int:
        """Bytes of two of a thread's three sums; the producer leaves registers for the third."""
        return 2 * self.tile_n // 2 * 4

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n} stages {self.stages}"
        return f"{tile} promote {self.promote} section {self.section}"


def supports(problem: Any) -> str | None:
    """Reason why the kernel cannot compute a problem; None if it can."""
    if problem.precision != "emulated":
        return "it multiplies parts of float32: pass precision='emulated' to permit it"
    smallest = min(KERNEL.configs, key=lambda config: config.tile_m * config.tile_n)
    tiles = KERNEL.block_count(smallest, problem)
    if max(problem.m, problem.n, problem.k, tiles) > MOST_ELEMENTS:
        return f"its 32-bit indices count to {MOST_ELEMENTS} along m, n, k, and over the tiles"
    return None


def accuracy(problem: Any) -> str:
    """Statement of what is kept of the operands, and of the bound on the error."""
    return "two float16 parts a number; error at most 2**-20 |A| |B| before it is summed"


def tensor_maps(
    config: Config,
    problem: Any,
    scheme_name: str,
    a_innermost: str,
    b_innermost: str,
    stored: str = "",
) -> tuple[TensorMap, ...]:
    """The maps of the parts of a and b, with the boxes that the producer asks for."""
    scheme = SCHEMES[scheme_name]
    row_items = ROW_BYTES // scheme.item_bytes
    maps = []
    for name, innermost, along, tile in (
        ("a", a_innermost, problem.m, config.tile_m),
        ("b", b_innermost, problem.n, config.tile_n),
    ):
        matrices = problem.batch if getattr(problem, name).batch else 1
        layout = parts_layout(scheme, innermost, along, problem.k)
        row_bytes = layout.row_items * scheme.item_bytes
        maps.append(
            TensorMap(
                operand=name,
                element=scheme.element,
                sizes=(layout.inner, layout.rows, matrices * scheme.parts),
                stride_bytes=(row_bytes, layout.rows * row_bytes),
                box=(row_items, tile if innermost == "k" else row_items, 1),
            )
        )
    return tuple(maps)


def make_kernel(
    config: Config,
    dtype: str,
    scheme_name: str,
    a_innermost: str,
    b_innermost: str,
    stored: str = "",
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and one layout, as a Python function to compile.

    Args:
        scheme_name: a key of `emulation.SCHEMES`.
        a_innermost, b_innermost: layout of the parts: "k" (K-major) or "mn" (MN-major).
        stored: triangles of a symmetric result that are written; "" for another result.
        epilogue: a `Fusion`, whose operands end with the buffers of row factors,
            column factors and the flag of validity_check.
    """
    from numba import cuda, int32, uint8

    from dxgemm.handwritten.kernels.wgmma import make_fill
    from dxgemm.handwritten.parts.hopper import limit_registers, tensor_map
    from dxgemm.handwritten.parts.intrinsics import global_address, low_word, shared_address
    from dxgemm.handwritten.parts.reduce_fragments import make_reduce_fragments
    from dxgemm.handwritten.parts.scale_back import make_scale_back
    from dxgemm.handwritten.parts.tile_order import make_tile_map
    from dxgemm.handwritten.parts.triangle_store import make_store_triangle
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.wgmma_ring import make_init_ring, make_produce

    scheme = SCHEMES[scheme_name]
    if scheme.shift and config.promote > STEPS:
        raise ValueError(f"{config}: {scheme_name} promotes its small products once a stage")
    tile_m, tile_n = config.tile_m, config.tile_n
    tile_k = ROW_BYTES // scheme.item_bytes
    stages, consumers = config.stages, config.consumers
    chunks_smem = stages * config.stage_bytes
    full_smem = chunks_smem + consumers * 4 * STORE_BYTES
    empty_smem = full_smem + 8 * stages
    chunks, moves_registers = tile_n // CHUNK_COLS, config.launch_registers > 0
    a_parameter, b_parameter = TENSOR_MAPS
    fetch, multiply = make_mainloop(config, scheme, a_innermost == "mn", b_innermost == "mn")
    finish = epilogue if epilogue.stages else None
    read_chunk, store_chunk, store_elements = make_store_chunk("float32", True, False, True, finish)
    _, store_tile = make_store_triangle(
        tile_n, "float32", True, False, stored, finish, commutes=False
    )
    is_reduced = epilogue.reduction is not None
    scales_first = is_reduced or stored != ""
    partials, counted = len(epilogue.stage_operands), epilogue.reduction.count if is_reduced else 1
    row_factors = len(epilogue.operands) - 3  # its place in `extra`
    col_factors, invalid = row_factors + 1, row_factors + 2
    reduce_fragments = make_reduce_fragments(epilogue, tile_n) if is_reduced else None
    locate, count_tiles = make_tile_map(tile_m, tile_n, config.swizzle_rows, stored)
    produce = make_produce(locate, make_fill(config, tile_k, fetch))
    init_ring = make_init_ring(stages, consumers)
    scale_back = make_scale_back(CHUNK_COLS)

    @cuda.jit(device=True, forceinline=True)
    def allows_vectors(address, stride_batch, stride_m, stride_n):
        """True if 16-byte accesses along the rows are possible."""
        is_aligned = (address | (stride_batch | stride_m) * 4) % 16 == 0
        return stride_n == 1 and is_aligned and abs(stride_m) < LONGEST_LINE

    @gemm_kernel
    def emulated_float32_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        # --- The ring, this block's tiles ---
        smem: int32 = (shared_address(cuda.shared.array(0, uint8)) + 1023) & -1024
        full: int32 = smem + full_smem
        empty: int32 = smem + empty_smem
        thread: int32 = cuda.threadIdx.x & 1023
        if thread == 0:
            init_ring(full, empty)
        cuda.syncthreads()

        block: int32 = cuda.blockIdx.x
        blocks: int32 = cuda.gridDim.x
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        tiles: int32 = count_tiles(batch, tiles_m, tiles_n)
        if extra[invalid][0][0] != 0:
            tiles = 0
        k_tiles: int32 = (k + tile_k - 1) // tile_k

        if thread >= consumers * WARPGROUP:
            # --- Producer: one thread ---
            if moves_registers:
                limit_registers("dec", PRODUCER_REGISTERS)
            if thread == consumers * WARPGROUP:
                produce(
                    smem, full, empty, block, blocks, tiles, tiles_m, tiles_n,
                    int32(0), k, int32(1),
                    tensor_map(a_parameter), a.batch,
                    tensor_map(b_parameter), b.batch,
                )  # fmt: skip
        else:
            # --- Consumers: warpgroups of 64 rows of the tile each ---
            if moves_registers:
                limit_registers("inc", CONSUMER_REGISTERS)
            lane: int32 = thread % WARP
            chunk_smem: int32 = smem + chunks_smem + thread // WARP * STORE_BYTES
            out_address, c_address = global_address(out.data), global_address(c.data)
            out_row_bytes, out_col_bytes = out.row * 4, out.col * 4
            c_row_bytes, c_col_bytes = c.row * 4, c.col * 4
            out_chunk_bytes, c_chunk_bytes = CHUNK_COLS * out_col_bytes, CHUNK_COLS * c_col_bytes
            # Vectors alone use these, which have lines below LONGEST_LINE.
            out_line_bytes, c_line_bytes = low_word(out_row_bytes), low_word(c_row_bytes)
            # Vectors that lie whole inside the result or whole outside of it.
            has_vectors = n % 4 == 0
            has_vectors &= allows_vectors(out_address, out.batch, out.row, out.col)
            if beta != 0:
                has_vectors &= allows_vectors(c_address, c.batch, c.row, c.col)

            slots: int32 = 0
            if is_reduced:  # of a row: the elements of the first buffer tell
                slots = extra[partials][1] // (counted * m * batch)

            index, stage, parity = block, int32(0), int32(0)
            while index < tiles:
                matrix, row, col = locate(index, tiles_m, tiles_n)
                index = int32(index + blocks)
                # --- Main loop: all k tiles ---
                total, stage, parity = multiply(smem, full, empty, thread, k_tiles, stage, parity)
                # --- Epilogue: the producer is already fetching the next tile ---
                top: int32 = row + thread // WARP * 16
                a_factors, _ = extra[row_factors]
                b_factors, _ = extra[col_factors]
                at = top + lane // 4
                if a.batch != 0:
                    at += matrix * ((m + PADDING - 1) // PADDING * PADDING)
                upper, lower = a_factors[at], a_factors[at + 8]
                at = col + lane % 4 * 2
                if b.batch != 0:
                    at += matrix * ((n + PADDING - 1) // PADDING * PADDING)
                c_at = c_address + (matrix * c.batch + top * c.row + col * c.col) * 4
                out_at = out_address + 4 * (matrix * out.batch + top * out.row + col * out.col)
                rows: int32 = m - top
                cols: int32 = n - col
                if scales_first:
                    scaled = ()
                    for chunk in static_range(chunks):
                        scaled = scaled + scale_back(
                            total[16 * chunk : 16 * chunk + 16], upper, lower, b_factors,
                            at + chunk * CHUNK_COLS,
                        )  # fmt: skip
                if stored:
                    store_tile(
                        scaled, chunk_smem, lane, matrix, top, col, m, n, has_vectors, alpha, beta,
                        c, out, extra,
                    )  # fmt: skip
                elif is_reduced:
                    reduce_fragments(
                        scaled, lane, matrix, slots, top, col, m, n, alpha, beta,
                        c, matrix * c.batch, extra,
                    )  # fmt: skip
                else:
                    for chunk in static_range(chunks):
                        left: int32 = col + chunk * CHUNK_COLS
                        if has_vectors:
                            operands = read_chunk(lane, rows, cols, matrix, top, left, extra)
                        frag = scale_back(
                            total[16 * chunk : 16 * chunk + 16], upper, lower, b_factors,
                            at + chunk * CHUNK_COLS,
                        )  # fmt: skip
                        if has_vectors:
                            store_chunk(
                                frag, chunk_smem, lane, rows, cols, alpha, beta,
                                c_at, c_line_bytes, out_at, out_line_bytes, operands,
                                matrix, top, left,
                            )  # fmt: skip
                        else:
                            store_elements(
                                frag, chunk_smem, lane, rows, cols, alpha,
                                beta, c_at, c_row_bytes, c_col_bytes, out_at, out_row_bytes,
                                out_col_bytes, matrix, top, int32(col + chunk * CHUNK_COLS), extra,
                            )  # fmt: skip
                        c_at += c_chunk_bytes
                        out_at += out_chunk_bytes
                        cols -= CHUNK_COLS

    return emulated_float32_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=128, stages=3),
        Config(tile_m=128, tile_n=64, stages=4),
        Config(tile_m=64, tile_n=64, stages=6),
    ),
    dtypes=("float32",),
    only_arch=90,
    supports=supports,
    tensor_maps=tensor_maps,
    tensor_map_names=TENSOR_MAPS,
    is_persistent=True,
    reductions=Reductions.OF_ROWS,
    accuracy=accuracy,
    takes_triangles=True,
    commutes=never,  # the parts of a are multiplied in another order than those of b
)
