"""The store of products of residues: int32 sums become residues, a byte each.

Source: `moduli`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.moduli import MODULI, byte_weights
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.store import Store

ALIGNMENT = 32  # of a line of residues, in bytes: a sector of the L2 cache
WARP, WARP_ROWS = 32, 16


def row_bytes(k: int) -> int:
    """Bytes from one line of residues to the next."""
    return -(-k // ALIGNMENT) * ALIGNMENT


def chunk_bytes(chunk_cols: int) -> int:
    """Shared memory of a warp's chunk of 16 rows, padded against bank conflicts."""
    return WARP_ROWS * (chunk_cols + VECTOR_BYTES)


def make_store_residues(chunk_cols: int) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The device functions constants_of and store_residues.

    constants_of(which) returns what store_residues needs to know of a modulus. store_residues
    stores the residues of a warp's sums, of 16 rows and `chunk_cols` columns, as `mma.sync` and
    `wgmma` leave them, through shared memory.
    """
    from numba import cuda, float32, int32, uint16, uint32

    from dxgemm.handwritten.parts.intrinsics import (
        dot_bytes,
        load_shared,
        store_global,
        store_shared,
    )
    from dxgemm.handwritten.parts.moduli import make_residue
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    line_bytes = chunk_cols + VECTOR_BYTES
    pieces = chunk_cols // VECTOR_BYTES  # of a row, each stored by a lane
    rows_per_step = WARP // pieces
    steps = WARP_ROWS // rows_per_step
    residue = make_residue()
    sign_bit = 2**31  # makes sums positive
    most_moduli = len(MODULI)
    weights = tuple(byte_weights(modulus, sign_bit, 4) for modulus in MODULI)
    inverses = tuple(float(float32(1 / modulus)) for modulus in MODULI)

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def constants_of(which):
        """The modulus of index `which`, its inverse, and the byte weights and offset of sums."""
        modulus, inverse = int32(MODULI[0]), float32(inverses[0])
        packed: int32 = weights[0][0][0]
        offset: int32 = weights[0][1]
        for index in static_range(1, most_moduli):
            if which == index:
                modulus, inverse = int32(MODULI[index]), float32(inverses[index])
                packed = weights[index][0][0]
                offset = weights[index][1]
        return modulus, inverse, packed, offset

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_residues(frag, chunk_smem, lane, rows, cols, target, pitch, constants):
        """Store 16 bytes at a time of rows x cols residues; cols counts padding too."""
        modulus, inverse, packed, offset = constants
        start: int32 = chunk_smem + lane // 4 * line_bytes + lane % 4 * 2
        cuda.syncwarp()  # the chunk before has been read
        for j in static_range(chunk_cols // 8):
            for h in static_range(2):
                bytes_of_pair = ()
                for e in static_range(2):
                    positive = uint32(frag[4 * j + 2 * h + e] ^ -sign_bit)
                    total = dot_bytes(positive, packed, offset)
                    nearest = residue(total, modulus, inverse)
                    bytes_of_pair = bytes_of_pair + (int32(nearest & 255),)
                pair = uint16(bytes_of_pair[0] | bytes_of_pair[1] << 8)
                store_shared(start, 8 * h * line_bytes + 8 * j, (pair,))
        cuda.syncwarp()
        row: int32 = lane // pieces
        piece: int32 = lane % pieces
        source: int32 = chunk_smem + row * line_bytes + piece * 16
        target += row * pitch + piece * 16
        for step in static_range(steps):
            if row + step * rows_per_step < rows and piece * 16 < cols:
                vector = load_shared(int32, 4, source, step * rows_per_step * line_bytes)
                store_global(target, 0, vector)
            target += rows_per_step * pitch

    return constants_of, store_residues


def make_store(tile_n: int, chunk_cols: int) -> Store:
    """The residues of a tile, of matrices that are products by all moduli in turn."""
    from numba import int32, int64

    from dxgemm.handwritten.parts.intrinsics import device_function, divide, global_address
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    warp_bytes, chunks, items = chunk_bytes(chunk_cols), tile_n // chunk_cols, chunk_cols // 2
    constants_of, store_residues = make_store_residues(chunk_cols)

    def begin(result):
        return (result.n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def store(sums, smem, thread, tile, work, result, pitch):
        warp: int32 = thread // WARP
        chunk_smem: int32 = smem + warp * warp_bytes
        constants = constants_of(
            int32(tile.matrix - divide(tile.matrix, work.period) * work.period)
        )
        top: int32 = tile.row + warp * WARP_ROWS
        rows: int32 = tile.end_row - top
        cols: int32 = pitch - tile.col
        target = global_address(result.out.data) + tile.col
        target += (int64(tile.matrix) * tile.end_row + top) * pitch
        for chunk in static_range(chunks):
            store_residues(
                sums[items * chunk : items * chunk + items], chunk_smem, int32(thread % WARP), rows,
                cols, target, pitch, constants,
            )  # fmt: skip
            target += chunk_cols
            cols -= chunk_cols

    return Store(device_function(unroll(begin)), device_function(unroll(store)))
