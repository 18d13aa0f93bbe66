"""Chunks of 16 bytes of a matrix's rows, and which ones a thread has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dxgemm.handwritten.parts.groups import make_find_piece
from dxgemm.handwritten.parts.kernel import ThreadsConfig
from dxgemm.handwritten.parts.unroll import device

WARP = 32


@dataclass(frozen=True)
class ChunksConfig(ThreadsConfig):
    """Threads of a block, those of a warp along a row, "row", or across the rows.

    In the order "quads", a thread has a chunk of each of `steps` rows; a quarter of the threads of
    a warp are across the rows.

    Attributes:
        steps: chunks per thread, in the other direction; in "quads" four.
    """

    steps: int = 1

    def tile(self, order: str) -> tuple[int, int]:
        """Rows and chunks of a block."""
        others = self.threads // WARP * self.steps
        return (others, WARP) if order == "row" else (WARP, others)

    def step(self, order: str) -> tuple[int, int]:
        """Rows and chunks from a thread's chunk to its next one."""
        if order == "quads":
            return 1, 0
        apart = self.threads // WARP
        return (apart, 0) if order == "row" else (0, apart)

    def blocks(self, order: str, rows: int, chunks: int) -> int:
        """Blocks of a matrix."""
        tile_rows, tile_chunks = self.tile(order)
        return -(-rows // tile_rows) * -(-chunks // tile_chunks)


def make_find_chunk(config: ChunksConfig, order: str) -> Callable[..., Any]:
    """A device function: (block, thread, m, chunks) -> matrix, row and chunk of a thread's first.

    A matrix has m rows of so many chunks.
    """
    from numba import int32

    find_piece, along = make_find_piece(*config.tile(order)), order == "row"
    is_quad, quads = order == "quads", WARP // config.steps

    @device
    def find_chunk(block, thread, m, chunks):
        matrix, row, chunk = find_piece(block, m, chunks)
        across: int32 = thread // WARP if along else thread % WARP
        beside: int32 = thread % WARP if along else thread // WARP
        if is_quad:
            across = int32(thread % quads * (WARP // quads))
            beside = int32(thread // quads)
        return matrix, int32(row + across), int32(chunk + beside)

    return find_chunk
