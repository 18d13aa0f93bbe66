"""Many small matrices in half precision on tensor cores, at any address.

Idea: grown from `tensor_batch`, with the instruction of `tensor_tile`. Up to 64 x 64 memory is the
bound by far, so what counts is that all of a block's bytes are on their way at once, whole lines of
any length, and that results leave in whole lines, too. A tile is copied whole, k included
(batch_lines.py), multiplied, and stored through the shared memory that held it (batch_store.py).
Tiny matrices have a warp each.
Layout: a (m, k) and b (k, n), rows or columns of neighbours, with any stride; c and out (m, n), any
strides, in the dtype of a and b or in float32; any batch.
Constraints: compute capability 8.0. Larger matrices are computed tile by tile. Edges are
predicated: elements outside count as zero and are not written.
Source: PTX ISA, "mma.m16n8k16", "ldmatrix"; A. Abdelfattah et al., "Fast Batched Matrix
Multiplication for Small Sizes using Half-Precision Arithmetic on GPUs", IPDPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.frames.resident import make_resident_kernel
from dxgemm.handwritten.parts import batch_store
from dxgemm.handwritten.parts.batch_lines import (
    ITEM_BYTES,
    LONGEST_LINE,
    MODES,
    line_bytes,
    line_mode,
    make_line_load,
    share_lines,
)
from dxgemm.handwritten.parts.batch_multiply import MMA, make_half_multiply
from dxgemm.handwritten.parts.batch_place import make_batch_place
from dxgemm.handwritten.parts.batch_store import make_line_store
from dxgemm.handwritten.parts.batch_tiles import WarpConfig, block_count
from dxgemm.handwritten.parts.kernel import Kernel, block_a_tile

MOST_TILE = 160


@dataclass(frozen=True)
class Config(WarpConfig):
    """Tile of a matrix tile_m x tile_n x tile_k; each warp's share of it."""

    parts = 1
    address_registers = 40
    has_warps_apart = True

    def complaints(self) -> Iterator[str]:
        if self.tile_m % self.warp_m or self.tile_n % self.warp_n:
            yield "warp tiles must fill the tile"
        if self.warp_m % MMA or self.warp_n % MMA or self.tile_k % MMA:
            yield f"an instruction computes {MMA} x {MMA} x {MMA}"
        if max(self.tile_m, self.tile_n, self.tile_k) > MOST_TILE:
            yield f"an element's line is found in tiles of up to {MOST_TILE} x {MOST_TILE}"
        if self.tile_threads * 4 < max(self.tile_m, self.tile_n, self.tile_k) * ITEM_BYTES:
            yield "a thread copies 4 bytes of a line, or more"

    def operand_bytes(self, tile_outer: int) -> int:
        """Shared memory of an operand's tile, along k or along its other index: the larger."""
        return max(tile_outer * line_bytes(self.tile_k), self.tile_k * line_bytes(tile_outer))

    def a_bytes(self, dtype: str) -> int:
        return self.operand_bytes(self.tile_m)

    def tile_bytes(self, dtype: str) -> int:
        """Shared memory of one matrix."""
        operands = self.operand_bytes(self.tile_m) + self.operand_bytes(self.tile_n)
        return max(operands, batch_store.tile_bytes(self.tile_m, self.tile_n))

    def accumulator_bytes(self, dtype: str) -> int:
        return self.warp_m * self.warp_n // 32 * 4

    def tile_registers(self, dtype: str) -> int:
        """Registers of a thread's sums, and of its fragments."""
        return self.warp_m * self.warp_n // 32 + (self.warp_m + self.warp_n) // 4

    def __str__(self) -> str:
        tile = f"{self.tile_m}x{self.tile_n}x{self.tile_k}"
        return f"{tile} warp {self.warp_m}x{self.warp_n} matrices {self.matrices}"


def variant(config: Config, problem: Any) -> tuple[str, ...]:
    """Modes of a and b (see `batch_lines`), and the dtype of the result."""
    a_mode, b_mode = line_mode(problem, "a"), line_mode(problem, "b")
    # Without k nothing is read.
    modes = (mode if mode in MODES else MODES[0] for mode in (a_mode, b_mode))
    return *modes, problem.out_dtype


def supports(problem: Any) -> str | None:
    """Reason why a problem's operands are not read line by line; None if they are."""
    if problem.is_empty or problem.k == 0:
        return None
    modes = {name: line_mode(problem, name) for name in "ab"}
    apart = [name for name in "ab" if modes[name] not in MODES]
    if apart:
        return f"neither rows nor columns of {' and '.join(apart)} are contiguous"
    a_step = problem.a.row if modes["a"].startswith("k") else problem.a.col
    b_step = problem.b.col if modes["b"].startswith("k") else problem.b.row
    if max(abs(a_step), abs(b_step)) > LONGEST_LINE:
        return f"rows or columns are more than {LONGEST_LINE} elements apart"
    return None


def make_kernel(
    config: Config, dtype: str, a_mode: str, b_mode: str, out_dtype: str, epilogue: Any = None
) -> Callable[..., None]:
    """The kernel of one config and variant, as a Python function to compile."""
    a_lines = share_lines(a_mode, config.tile_m, config.tile_k, config.tile_threads)
    b_lines = share_lines(b_mode, config.tile_n, config.tile_k, config.tile_threads)
    multiply = make_half_multiply(config, dtype, a_lines, b_lines)
    return make_resident_kernel(
        config, dtype, make_batch_place(config),
        make_line_load(a_lines, config.tile_k, False), make_line_load(b_lines, config.tile_k, True),
        multiply, make_line_store(config, multiply.locate, out_dtype, epilogue),
    )  # fmt: skip


KERNEL = Kernel(
    make_kernel=make_kernel,
    configs=(
        Config(144, 144, 144, warp_m=48, warp_n=48),
        Config(128, 128, 128, warp_m=32, warp_n=64),
        Config(96, 96, 96, warp_m=48, warp_n=32),
        Config(80, 80, 80, warp_m=16, warp_n=80),
        Config(64, 64, 128, warp_m=32, warp_n=32),
        Config(64, 64, 64, warp_m=32, warp_n=32),
        Config(48, 48, 48, warp_m=16, warp_n=48),
        Config(32, 32, 32, warp_m=16, warp_n=32, matrices=2),
        Config(16, 16, 16, warp_m=16, warp_n=16, matrices=4),
    ),
    dtypes=("float16", "bfloat16"),
    minimum_arch=80,
    supports=supports,
    variant=variant,
    block_count=block_count,
    tile_count=block_a_tile,
    takes_pairs=True,
    order_of_sums="mma",
)
