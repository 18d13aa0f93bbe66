"""Hopper's own path: TMA feeds shared memory, warpgroups multiply out of it.

Idea: grown from `tensor_core`. Threads no longer move data. One thread, the producer, tells the
TMA (TMA) which boxes of a and b to bring; two warpgroups, the consumers, multiply whole
64 x tile_n x 32-byte steps by wgmma, whose operands stay in shared memory. A ring of stages, with a
barrier that says "full" and one that says "empty" for each, is all they share. Blocks are
persistent: while the consumers store a tile, the producer is already fetching the next one.
Layout: a (m, k), b (k, n), any batch, row- or column-major; c and out (m, n), any strides.
float16 and bfloat16 operands are read as they lie: wgmma transposes on the way. tf32 operands must
lie along k, except that the left one may come from registers: so the left factor is the operand
that lies across k, if need be by computing out.T = b.T @ a.T.
Constraints: bases and strides at multiples of 16 bytes, as TMA wants; see `supports`. m, n and k
are free: TMA fills what lies outside with zeros. A stage is 128 bytes deep: 64 16-bit or 32 32-bit
elements of k.
Source: NVIDIA, "Hopper Tuning Guide" and PTX ISA; the roles are those of CUTLASS's
`KernelTmaWarpSpecializedCooperative`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from dxgemm.handwritten.parts.kernel import BaseConfig, Kernel
from dxgemm.handwritten.parts.tensor_map import MOST_ELEMENTS, TensorMap, operand_of
from dxgemm.handwritten.parts.wgmma_mainloop import ROW_BYTES, WARPGROUP, make_mainloop

TENSOR_MAPS = ("a_tensor_map", "b_tensor_map")  # parameters after those of every kernel
WARP = 32
LONGEST_LINE = 2**23  # elements: 32 lines of the result, in bytes, must fit 32 bits
CHUNK_BYTES = 2560  # of a warp's result on its way through shared memory, see wgmma_store.py


@dataclass(frozen=True)
class Config(BaseConfig):
    """Block tile tile_m x tile_n; a ring of `stages`.

    A threadblock swizzle of swizzle_rows tiles along m lets concurrent blocks share rows of a and
    columns of b in L2.
    """

    tile_m: int
    tile_n: int
    stages: int
    swizzle_rows: int = 16

    dynamic_smem: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.tile_m not in (64, 128):
            raise ValueError(f"{self}: tile_m must be 64 or 128, for one or two warpgroups")
        if self.tile_n % 64 or not 64 <= self.tile_n <= 256:
            raise ValueError(f"{self}: tile_n must be a multiple of 64 up to 256")
        if self.smem_bytes("float16") > 227 * 1024:
            raise ValueError(f"{self}: {self.smem_bytes('float16')} bytes of shared memory")

    @property
    def consumers(self) -> int:
        """Warpgroups that multiply."""
        return self.tile_m // 64

    @property
    def threads(self) -> int:
        """Of the consumers, and of the warp that produces."""
        return self.consumers * WARPGROUP + WARP

    @property
    def stage_bytes(self) -> int:
        return (self.tile_m + self.tile_n) * ROW_BYTES

    def smem_bytes(self, dtype: str) -> int:
        """The ring (from a multiple of 1024 bytes on), a chunk of the result a warp, barriers."""
        ring = 1024 + self.stages * self.stage_bytes
        return ring + self.consumers * 4 * CHUNK_BYTES + self.stages * 16

    def accumulator_bytes(self, dtype: str) -> int:
        return self.tile_n // 2 * 4

    def __str__(self) -> str:
        return f"{self.tile_m}x{self.tile_n} stages {self.stages}"


def supports(problem: Any) -> str | None:
    """None, or what wgmma or TMA cannot do."""
    if problem.dtype == "float32" and problem.precision != "tf32":
        return "wgmma has no float32; precision='tf32' permits TF32"
    smallest = min(KERNEL.configs, key=lambda config: config.tile_m * config.tile_n)
    if max(problem.m, problem.n, problem.k, block_count(smallest, problem)) > MOST_ELEMENTS:
        return f"its 32-bit indices count to {MOST_ELEMENTS} along m, n, k, and over the tiles"
    if problem.k == 0:
        return None
    a, b = operand_of(problem, "a"), operand_of(problem, "b")
    reason = a.refusal() or b.refusal()
    if reason is None and problem.dtype == "float32" and a.innermost == b.innermost == "mn":
        reason = "tf32 wgmma needs a or b contiguous along k"
    return reason


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """The index along which a, and b, lie: "k" or "mn"; and the result's dtype if it is another."""
    lies = _innermost(problem)
    return lies if problem.out_dtype == problem.dtype else (*lies, problem.out_dtype)


def block_count(config: Config, problem: Any) -> int:
    """Tiles of the results, which the blocks share out among themselves."""
    m, n = problem.m, problem.n
    if _is_exchanged(problem.dtype, *_innermost(problem)):
        m, n = n, m
    tiles: int = problem.batch * -(-m // config.tile_m) * -(-n // config.tile_n)
    return tiles


def tensor_maps(config: Config, problem: Any) -> tuple[TensorMap | None, ...]:
    """The maps of a and b, with the boxes that the producer asks for; None if nothing is read."""
    if problem.k == 0:
        return None, None
    row_items = ROW_BYTES // (4 if problem.dtype == "float32" else 2)
    element = "tfloat32" if problem.dtype == "float32" else problem.dtype
    extents = [config.tile_m, config.tile_n]
    if _is_exchanged(problem.dtype, *_innermost(problem)):
        extents.reverse()
    maps = []
    for name, extent in zip(("a", "b"), extents, strict=True):
        operand = operand_of(problem, name)
        box_along = extent if operand.innermost == "k" else row_items
        maps.append(operand.tensor_map(element, box_along, row_items))
    return tuple(maps)


def _innermost(problem: Any) -> tuple[str, str]:
    """The index along which a and b lie; "k" for operands that are not read."""
    if problem.k == 0:
        return "k", "k"
    return operand_of(problem, "a").innermost or "k", operand_of(problem, "b").innermost or "k"


def _is_exchanged(dtype: str, a_innermost: str, b_innermost: str) -> bool:
    """Whether out.T = b.T @ a.T is computed: tf32 wgmma cannot read a b that lies across k."""
    return dtype == "float32" and b_innermost == "mn"


def make_kernel(
    config: Config,
    dtype: str,
    a_innermost: str,
    b_innermost: str,
    out_dtype: str | None = None,
    epilogue: Any = None,
) -> Callable[..., None]:
    """The kernel of one config and one arrangement, as a Python function to compile."""
    from numba import cuda, float32, int32, uint8

    from dxgemm.handwritten.parts.hopper import tensor_map
    from dxgemm.handwritten.parts.intrinsics import global_address, shared_address, zeros
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.wgmma_ring import make_locate, make_ring
    from dxgemm.handwritten.parts.wgmma_store import CHUNK_COLS, SPLIT_ROWS, make_store

    kind = {"float16": "f16", "bfloat16": "bf16", "float32": "tf32"}[dtype]
    out_dtype = out_dtype or dtype
    out_bytes = 4 if out_dtype == "float32" else 2
    tile_m, tile_n = config.tile_m, config.tile_n
    tile_k = ROW_BYTES // (4 if kind == "tf32" else 2)
    stages, consumers = config.stages, config.consumers
    chunks_smem = stages * config.stage_bytes
    full_smem = chunks_smem + consumers * 4 * CHUNK_BYTES
    empty_smem = full_smem + 8 * stages
    chunks, out_is_short = tile_n // CHUNK_COLS, out_bytes == 2
    # From here on a and b are the left and the right factor of what is computed, m its rows.
    exchanged = _is_exchanged(dtype, a_innermost, b_innermost)
    a_parameter, b_parameter = TENSOR_MAPS
    if exchanged:
        a_innermost, b_innermost = b_innermost, a_innermost
        a_parameter, b_parameter = b_parameter, a_parameter
    a_across, b_across = a_innermost == "mn", b_innermost == "mn"
    fetch, multiply, first_row = make_mainloop(config, kind, a_across, b_across)
    rows_are_split = kind == "tf32" and a_across
    # With a in registers and lines along its rows, edges would take registers of the mainloop.
    has_edges = not rows_are_split or exchanged
    store_vectors, store_rounded, store_elements, store_finished = make_store(
        out_dtype, not exchanged, rows_are_split, has_edges, epilogue
    )
    is_fused = epilogue is not None
    rounds_first = out_is_short and not is_fused
    locate = make_locate(tile_m, tile_n, config.swizzle_rows)
    init_ring, produce = make_ring(config, tile_k, locate, fetch)

    @cuda.jit(device=True, forceinline=True)
    def allows_vectors(address, stride_batch, stride_m, stride_n):
        """Whether 16-byte accesses along the contiguous direction are possible."""
        unit, other = (stride_m, stride_n) if exchanged else (stride_n, stride_m)
        is_aligned = (address | (stride_batch | other) * out_bytes) % 16 == 0
        return unit == 1 and is_aligned and abs(other) < LONGEST_LINE

    @gemm_kernel
    def wgmma_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
        if exchanged:
            m, n = n, m
            a.batch, b.batch = b.batch, a.batch
            c.row, c.col = c.col, c.row
            out.row, out.col = out.col, out.row

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
        tiles: int32 = batch * tiles_m * tiles_n
        k_tiles: int32 = (k + tile_k - 1) // tile_k

        if thread >= consumers * WARPGROUP:
            if thread == consumers * WARPGROUP and k_tiles > 0:
                produce(
                    smem, full, empty, block, blocks, tiles, tiles_m, tiles_n, k, int32(1),
                    tensor_map(a_parameter), a.batch,
                    tensor_map(b_parameter), b.batch,
                )  # fmt: skip
        else:
            lane: int32 = thread % WARP
            chunk_smem: int32 = smem + chunks_smem + thread // WARP * CHUNK_BYTES
            out_address, c_address = global_address(out.data), global_address(c.data)
            out_row_bytes, out_col_bytes = out.row * out_bytes, out.col * out_bytes
            c_row_bytes, c_col_bytes = c.row * out_bytes, c.col * out_bytes
            out_chunk_bytes, c_chunk_bytes = CHUNK_COLS * out_col_bytes, CHUNK_COLS * c_col_bytes
            if exchanged:
                out_line_bytes: int32 = out_col_bytes
                c_line_bytes: int32 = c_col_bytes
            else:
                out_line_bytes = out_row_bytes
                c_line_bytes = c_row_bytes
            # Vectors that lie whole inside the result or whole outside of it.
            has_vectors = (m if exchanged else n) * out_bytes % 16 == 0
            has_vectors &= allows_vectors(out_address, out.batch, out.row, out.col)
            if beta != 0:
                has_vectors &= allows_vectors(c_address, c.batch, c.row, c.col)

            index, stage, parity = block, int32(0), int32(0)
            while index < tiles:
                matrix, row, col = locate(index, tiles_m, tiles_n)
                index = int32(index + blocks)
                acc = zeros(float32, tile_n // 2)
                acc, stage, parity = multiply(
                    acc, smem, full, empty, thread, k_tiles, stage, parity
                )
                top = row + first_row(thread)
                c_at = c_address + (matrix * c.batch + top * c.row + col * c.col) * out_bytes
                out_at = out_address + out_bytes * (
                    matrix * out.batch + top * out.row + col * out.col
                )
                rows: int32 = m - top
                cols: int32 = n - col
                are_vectors = has_vectors
                if not has_edges:
                    are_vectors = are_vectors and rows >= SPLIT_ROWS and cols >= tile_n
                if are_vectors:
                    if rounds_first and beta == 0:
                        for pair in static_range(chunks // 2):
                            store_rounded(
                                acc[32 * pair : 32 * pair + 32], chunk_smem, lane, rows, cols,
                                alpha, out_at, out_line_bytes,
                            )  # fmt: skip
                            out_at += 2 * out_chunk_bytes
                            cols = cols - 2 * CHUNK_COLS
                    else:
                        for chunk in static_range(chunks):
                            if is_fused:
                                store_finished(
                                    acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols,
                                    alpha, beta, c_at, c_line_bytes, out_at, out_line_bytes,
                                    matrix, top, int32(col + chunk * CHUNK_COLS), extra,
                                )  # fmt: skip
                            else:
                                store_vectors(
                                    acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols,
                                    alpha, beta, c_at, c_line_bytes, out_at, out_line_bytes,
                                )  # fmt: skip
                            c_at += c_chunk_bytes
                            out_at += out_chunk_bytes
                            cols -= CHUNK_COLS
                else:
                    for chunk in static_range(chunks):
                        store_elements(
                            acc[16 * chunk : 16 * chunk + 16], chunk_smem, lane, rows, cols, alpha,
                            beta, c_at, c_row_bytes, c_col_bytes, out_at, out_row_bytes,
                            out_col_bytes, matrix, top, int32(col + chunk * CHUNK_COLS), extra,
                        )  # fmt: skip
                        c_at += c_chunk_bytes
                        out_at += out_chunk_bytes
                        cols -= CHUNK_COLS

    return wgmma_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    # The first is fastest where its tiles fill the GPU; the others where they do not, to 512^3.
    configs=(
        Config(tile_m=128, tile_n=256, stages=4),
        Config(tile_m=128, tile_n=128, stages=6),
        Config(tile_m=128, tile_n=64, stages=8),
        Config(tile_m=64, tile_n=64, stages=8),
    ),
    dtypes=("float16", "bfloat16", "float32"),
    only_arch=90,
    supports=supports,
    variant=variant,
    block_count=block_count,
    tensor_maps=tensor_maps,
    tensor_map_names=TENSOR_MAPS,
    is_persistent=True,
)
