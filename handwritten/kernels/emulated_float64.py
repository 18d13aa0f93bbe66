"""float64 products by int8 wgmma: a product of residues for each of several moduli.

Idea: grown from `wgmma`. a and b are scaled to integers whose residues by pairwise coprime moduli
are int8 (`residues`). int32 sums of their products are exact; a sum's residue is that of the
integers' product, which `reconstruct` finds from all of them. The products by the moduli are the
matrices of a batch, one after the other. Only the store differs: it writes a byte an element. Of a
symmetric result, the tiles that meet the lower triangle are computed; `reconstruct` mirrors them.
Layout: a (moduli, m, k) and b (moduli, n, k) as `residues` leaves them, any batch; out
(batch, moduli, m, n), rows padded to 32 bytes. In the last parameter the flag of
validity_check and the number of moduli.
Constraints: k at most 2**17, or sums would not fit int32; m and n are free. If the flag is not 0,
the kernel computes nothing and leaves the product to `native_fallback`.
Source: `moduli`; PTX ISA, "wgmma.mma_async", for integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dxgemm.handwritten.kernels.residues import ALIGNMENT, LOST_BITS, row_bytes
from dxgemm.handwritten.parts.configs import WgmmaConfig
from dxgemm.handwritten.parts.kernel import Kernel, block_a_tile
from dxgemm.handwritten.parts.moduli import LONGEST_K, moduli_count, operand_bits
from dxgemm.handwritten.parts.residue_store import chunk_bytes
from dxgemm.handwritten.parts.tensor_map import MOST_ELEMENTS, TensorMap
from dxgemm.handwritten.parts.wgmma_mainloop import make_first_row
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES, WARPGROUP

TENSOR_MAPS = ("a_tensor_map", "b_tensor_map")  # parameters after those of every kernel
WARP = 32
LEAST_TILE = 64  # rows and columns of the smallest tile


class Config(WgmmaConfig):
    def complaints(self) -> Iterator[str]:
        yield from super().complaints()
        if self.tile_n not in (64, 128, 256):
            yield "tile_n must be 64, 128 or 256"

    @property
    def chunk_cols(self) -> int:
        """Columns of a warp's result that go through shared memory at a time."""
        return min(self.tile_n, 128)

    @property
    def chunk_bytes(self) -> int:
        """Shared memory of a warp's chunk of 16 rows, padded against bank conflicts."""
        return chunk_bytes(self.chunk_cols)


def supports(problem: Any) -> str | None:
    """Reason why the kernel cannot compute a problem; None if it can."""
    if not (problem.precision or "").startswith("emulated"):
        return "it multiplies residues of rounded numbers: pass precision='emulated' to permit it"
    if problem.k > LONGEST_K:
        return f"its sums fit int32 for k up to {LONGEST_K}"
    if problem.k == 0:
        return None
    count = moduli_count(problem)
    if operand_bits(count, problem.k) < 1:
        return f"{count} moduli leave no bit of the operands where k is {problem.k}"
    tiles = problem.batch * count * -(-problem.m // LEAST_TILE) * -(-problem.n // LEAST_TILE)
    if max(problem.m, problem.n, tiles) > MOST_ELEMENTS:
        return f"its 32-bit indices count to {MOST_ELEMENTS} along m and n, and over the tiles"
    return None


def accuracy(problem: Any) -> str:
    """Statement of the bits that are kept of the operands, and of the bound on the error."""
    count = moduli_count(problem)
    bits = operand_bits(count, problem.k)
    return (
        f"{count} moduli, {bits} bits below the largest of a row of a or column of b; "
        f"error at most 2**{LOST_BITS - bits} |A| |B|"
    )


def block_count(config: Config, problem: Any) -> int:
    """Tiles of the products by all moduli, which the persistent blocks share."""
    return block_a_tile(config, problem) * moduli_count(problem)


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Triangle of a symmetric result that is computed, for any that are written."""
    return ("lower",) if problem.triangle else ()


def tensor_maps(config: Config, problem: Any, *variant: str) -> tuple[TensorMap, ...]:
    """The maps of the residues of a and b, with the boxes that the producer asks for."""
    maps = []
    for name, along, tile in (("a", problem.m, config.tile_m), ("b", problem.n, config.tile_n)):
        matrices = problem.batch if getattr(problem, name).batch else 1
        pitch = row_bytes(problem.k)
        maps.append(
            TensorMap(
                operand=name,
                element="int8",
                sizes=(problem.k, along, matrices * moduli_count(problem)),
                stride_bytes=(pitch, along * pitch),
                box=(ROW_BYTES, tile, 1),
            )
        )
    return tuple(maps)


def make_kernel(
    config: Config, dtype: str, stored: str = "", epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config, as a Python function to compile.

    Args:
        stored: "lower" if a symmetric result needs the tiles of this triangle alone; else "".
        epilogue: a `Fusion` of two operands: the flag of validity_check, the number of moduli.
    """
    from numba import cuda, int32, uint8

    from dxgemm.handwritten.kernels.wgmma import make_fill, make_multiply
    from dxgemm.handwritten.parts.hopper import tensor_map
    from dxgemm.handwritten.parts.intrinsics import divide, global_address, shared_address, zeros
    from dxgemm.handwritten.parts.residue_store import make_store_residues
    from dxgemm.handwritten.parts.tile_order import make_tile_map
    from dxgemm.handwritten.parts.unroll import gemm_kernel, static_range
    from dxgemm.handwritten.parts.wgmma_ring import make_fetch, make_init_ring, make_produce

    tile_m, tile_n, stages = config.tile_m, config.tile_n, config.stages
    consumers = config.consumers
    chunk_cols, chunk_bytes = config.chunk_cols, config.chunk_bytes
    chunks, chunk_items = tile_n // chunk_cols, chunk_cols // 2
    chunks_smem = stages * config.stage_bytes
    full_smem = chunks_smem + consumers * 4 * chunk_bytes
    empty_smem = full_smem + 8 * stages
    a_parameter, b_parameter = TENSOR_MAPS
    fetch = make_fetch(config, ROW_BYTES, False, False)
    multiply = make_multiply(config, "s8", False, False)
    first_row = make_first_row(False)
    locate, count_tiles = make_tile_map(tile_m, tile_n, config.swizzle_rows, stored)
    produce = make_produce(locate, make_fill(config, ROW_BYTES, fetch))
    init_ring = make_init_ring(stages, consumers)
    constants_of, store_residues = make_store_residues(chunk_cols)

    @gemm_kernel
    def emulated_float64_kernel(a, b, c, out, alpha, beta, m, n, k, batch, extra):
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
        count: int32 = extra[1]
        tiles_m: int32 = (m + tile_m - 1) // tile_m
        tiles_n: int32 = (n + tile_n - 1) // tile_n
        tiles: int32 = count_tiles(batch * count, tiles_m, tiles_n)
        if extra[0][0][0] != 0:
            tiles = 0
        k_tiles: int32 = (k + ROW_BYTES - 1) // ROW_BYTES

        if thread >= consumers * WARPGROUP:
            # --- Producer: one thread ---
            if thread == consumers * WARPGROUP:
                produce(
                    smem, full, empty, block, blocks, tiles, tiles_m, tiles_n,
                    int32(0), k, count,
                    tensor_map(a_parameter), a.batch,
                    tensor_map(b_parameter), b.batch,
                )  # fmt: skip
        else:
            # --- Consumers: warpgroups of 64 rows of the tile each ---
            lane: int32 = thread % WARP
            chunk_smem: int32 = smem + chunks_smem + thread // WARP * chunk_bytes
            out_address, pitch = (
                global_address(out.data),
                (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT,
            )
            index, stage, parity = block, int32(0), int32(0)
            while index < tiles:
                sheet, row, col = locate(index, tiles_m, tiles_n)
                index = int32(index + blocks)
                constants = constants_of(int32(sheet - divide(sheet, count) * count))
                # --- Main loop: all k tiles ---
                acc = zeros(int32, tile_n // 2)
                acc, stage, parity = multiply(
                    acc, smem, full, empty, thread, k_tiles, stage, parity
                )
                # --- Epilogue: the producer is already fetching the next tile ---
                top: int32 = row + first_row(thread)
                target = out_address + (sheet * m + top) * pitch + col
                rows: int32 = m - top
                cols: int32 = pitch - col
                for chunk in static_range(chunks):
                    store_residues(
                        acc[chunk_items * chunk : chunk_items * chunk + chunk_items], chunk_smem,
                        lane, rows, cols, target, pitch, constants,
                    )  # fmt: skip
                    target += chunk_cols
                    cols -= chunk_cols

    return emulated_float64_kernel


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(tile_m=128, tile_n=256, stages=4),
        Config(tile_m=128, tile_n=128, stages=6),
        Config(tile_m=64, tile_n=128, stages=8),
    ),
    dtypes=("float64",),
    only_arch=90,
    supports=supports,
    variant=variant,
    block_count=block_count,
    tensor_maps=tensor_maps,
    tensor_map_names=TENSOR_MAPS,
    is_persistent=True,
    accuracy=accuracy,
    takes_triangles=True,
)
