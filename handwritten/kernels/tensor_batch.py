"""Many small float64 matrices on tensor cores; `small_batch` is the same without them.

Idea: grown from `small_batch`, with the instruction of `tensor_core`. Float64 products are half as
many clocks on tensor cores, and their fragments a fifth of the reads from shared memory: from
16 x 16 on a block has time to do nothing but wait for memory. Tiles are copied whole, k included,
and multiplied in one go, or in `parts`: the first is multiplied while others are still on their
way. Threads take so few registers that all blocks of a thousand 32 x 32 run in one wave: a second
wave would wait for memory once more.
Layout: a (m, k), b (k, n), c and out (m, n), any strides, any batch. The instruction computes
out.T = b.T @ a.T: its left operand, 16 rows, is b and its right one, 8 columns, a. In shared memory
both are as in global memory; a lane reads two neighbours along k, or of b along n, at a time.
So the instruction's rows 0, 1, .. 15 are columns 0, 2, .. 14, 1, 3, .. 15 of out, and its k goes 0,
2, 4, 6, 1, 3, 5, 7. Lines in shared memory are padded: those along k to half or a quarter of all
banks, those along m and n by 16 bytes. So lanes that are served together read different banks.
Constraints: compute capability 8.0, whose tensor cores take float64. Larger matrices are
computed tile by tile. Edges are predicated: elements outside count as zero and are not written.
Source: PTX ISA, "mma.m16n8k8"; A. Abdelfattah et al., "Fast Batched Matrix Multiplication for Small
Sizes using Half-Precision Arithmetic on GPUs", IPDPS 2019, for small matrices on tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.frames.resident import make_resident_kernel
from dxgemm.handwritten.parts.batch_load import TileBytes, make_tile_load
from dxgemm.handwritten.parts.batch_multiply import make_float64_multiply
from dxgemm.handwritten.parts.batch_place import make_batch_place
from dxgemm.handwritten.parts.batch_store import make_fragment_store
from dxgemm.handwritten.parts.batch_tiles import FAR, WarpConfig, batch_notes, block_count
from dxgemm.handwritten.parts.fragment import mma_fragment
from dxgemm.handwritten.parts.kernel import Kernel, block_a_tile
from dxgemm.handwritten.parts.mma_operands import BANK_BYTES, MMA_COLS, MMA_K, MMA_ROWS
from dxgemm.handwritten.parts.operands import VECTOR_BYTES, operand_mode

ITEM_BYTES = 8
A_LINES, B_LINES = 1, 2  # rows of a, columns of b from one group of four lanes to the next


@dataclass(frozen=True)
class Config(WarpConfig):
    """Tile of a matrix tile_m x tile_n x tile_k; each warp's share of it.

    Attributes:
        parts: equal parts of tile_k, each multiplied as soon as it has arrived.
    """

    parts: int = 1

    address_registers = 24

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            yield "warp tiles must fill the tile"
        if self.warp_m % MMA_COLS or self.warp_n % MMA_ROWS:
            yield f"an instruction computes {MMA_COLS} x {MMA_ROWS}"
        if self.tile_k % (self.parts * MMA_K):
            yield f"parts of k go through instructions of {MMA_K}"

    def k_line_bytes(self, group_lines: int) -> int:
        """Bytes from one line along k to the next in shared memory.

        Args:
            group_lines: lines from one group of four lanes to the next.
        """
        size = self.tile_k * ITEM_BYTES
        return size + (BANK_BYTES // 2 // group_lines - size) % (BANK_BYTES // group_lines)

    def line_bytes(self, tile_outer: int) -> int:
        """Bytes from one line along m or n to the next in shared memory."""
        return tile_outer * ITEM_BYTES + VECTOR_BYTES

    def tile_place(self, tile_outer: int, is_along_k: bool, group_lines: int) -> TileBytes:
        """An operand's tile in shared memory, in the layout of global memory."""
        if is_along_k:
            return TileBytes(self.k_line_bytes(group_lines), ITEM_BYTES)
        return TileBytes(ITEM_BYTES, self.line_bytes(tile_outer))

    def operand_bytes(self, tile_outer: int, group_lines: int) -> int:
        """Shared memory of an operand's tile, along k or along its other index: the larger."""
        along_k = tile_outer * self.k_line_bytes(group_lines)
        return max(along_k, self.tile_k * self.line_bytes(tile_outer))

    def a_bytes(self, dtype: str) -> int:
        return self.operand_bytes(self.tile_m, A_LINES)

    def tile_bytes(self, dtype: str) -> int:
        """Shared memory of one matrix."""
        return self.a_bytes(dtype) + self.operand_bytes(self.tile_n, B_LINES)

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_m * self.warp_n // 32 * ITEM_BYTES

    def tile_registers(self, dtype: str) -> int:
        """Registers of a thread's sums, and of its fragments for one instruction each."""
        return 2 * (self.warp_m * self.warp_n // 32 + (self.warp_m + self.warp_n) // 4)

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        parts = f" parts {self.parts}" if self.parts > 1 else ""
        return f"{tile} warp {self.warp_m}x{self.warp_n} matrices {self.matrices}{parts}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Layouts of a and b (see `operand_mode`), then the words of `batch_notes`."""
    return operand_mode(problem, "a"), operand_mode(problem, "b"), *batch_notes(problem)


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, *notes: str, epilogue: Any = None,
    place: Any = None,
) -> Callable[..., None]:  # fmt: skip
    """The kernel of one config, as a Python function to compile.

    Args:
        place: the `place` of another kernel; None for that of a batch.
    """
    a_place = config.tile_place(config.tile_m, a_mode.startswith("row"), A_LINES)
    b_place = config.tile_place(config.tile_n, b_mode.startswith("col"), B_LINES)
    multiply = make_float64_multiply(config, a_place, b_place)
    # The operands have changed sides: out.T = b.T @ a.T.
    fragment = mma_fragment(config.warp_n // MMA_ROWS, config.warp_m // MMA_COLS).transposed()
    store = make_fragment_store(config, fragment, multiply.locate, dtype, epilogue, FAR in notes)
    place = place or make_batch_place(config)
    return make_resident_kernel(
        config, dtype, place,
        make_tile_load(config, dtype, "a", a_mode, a_place, notes),
        make_tile_load(config, dtype, "b", b_mode, b_place, notes),
        multiply, store,
    )  # fmt: skip


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(96, 96, 48, warp_m=48, warp_n=32, parts=3),
        Config(80, 80, 80, warp_m=40, warp_n=16, parts=5),
        Config(128, 64, 64, warp_m=64, warp_n=32, parts=4),
        Config(64, 64, 64, warp_m=32, warp_n=32, parts=4),
        Config(48, 48, 48, warp_m=24, warp_n=16, parts=3),
        Config(32, 32, 32, warp_m=16, warp_n=32, parts=2),
        Config(16, 16, 16, warp_m=8, warp_n=16),
    ),
    dtypes=("float64",),
    minimum_arch=80,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    takes_pairs=True,
    order_of_sums="mma",
)
