"""The store of products of residues: int32 sums become residues, a byte each.

Source: `moduli`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.fragment import make_warp_corner
from dxgemm.handwritten.parts.moduli import MODULI, byte_weights
from dxgemm.handwritten.parts.operands import VECTOR_BYTES
from dxgemm.handwritten.parts.store import Store

ALIGNMENT = 32  # of a line of residues, in bytes: a sector of the L2 cache
WARP, WARP_ROWS = 32, 16
SIGN_BIT = 2**31  # makes sums positive


def row_bytes(k: int) -> int:
    """Bytes from one line of residues to the next."""
    return -(-k // ALIGNMENT) * ALIGNMENT


def chunk_bytes(chunk_cols: int) -> int:
    """Shared memory of a warp's chunk of 16 rows, padded against bank conflicts."""
    return WARP_ROWS * (chunk_cols + VECTOR_BYTES)


def make_constants() -> Callable[..., Any]:
    """A device function: index of a modulus -> it, its inverse, byte weights and offset of sums."""
    from numba import float32, int32

    from dxgemm.handwritten.parts.intrinsics import device_function
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    most_moduli = len(MODULI)
    weights = tuple(byte_weights(modulus, SIGN_BIT, 4) for modulus in MODULI)
    inverses = tuple(float(float32(1 / modulus)) for modulus in MODULI)

    def constants_of(which):
        modulus, inverse = int32(MODULI[0]), float32(inverses[0])
        packed: int32 = weights[0][0][0]
        offset: int32 = weights[0][1]
        for index in static_range(1, most_moduli):
            if which == index:
                modulus, inverse = int32(MODULI[index]), float32(inverses[index])
                packed = weights[index][0][0]
                offset = weights[index][1]
        return modulus, inverse, packed, offset

    return device_function(unroll(constants_of))


def make_take(moduli: int, width: int, dtype: str = "int8") -> Callable[..., Any]:
    """A device function: `width` residues by each modulus, from an element of a matrix on.

    It takes the pointer to all residues, the index of the matrix, m and n, the row and the column.
    `dtype` is that of the residues, or of sums in their place.
    """
    from numba import int8, int32

    from dxgemm.handwritten.parts.intrinsics import load_vector
    from dxgemm.handwritten.parts.unroll import device, static_range

    scalar = int32 if dtype == "int32" else int8

    @device
    def take(residues, matrix, m, n, row, col):
        pitch = (n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        place = (matrix * moduli * m + row) * pitch + col
        taken = ()
        for i in static_range(moduli):
            taken = taken + (load_vector(scalar, width, residues, place + i * m * pitch),)
        return taken

    return take


def make_store(config: Any, chunk_cols: int) -> Store:
    """The residues of a tile, of matrices that are products by all moduli in turn.

    Args:
        config: has a warp's share of the tile, warp_m x warp_n.
        chunk_cols: columns of 16 rows of a warp that go through shared memory at a time.
    """
    from numba import cuda, int32, int64, uint16, uint32

    from dxgemm.handwritten.parts.intrinsics import (
        device_function,
        divide,
        dot_bytes,
        global_address,
        load_shared,
        store_global,
        store_shared,
    )
    from dxgemm.handwritten.parts.moduli import make_residue
    from dxgemm.handwritten.parts.unroll import static_range, unroll

    line_bytes, warp_bytes = chunk_cols + VECTOR_BYTES, chunk_bytes(chunk_cols)
    vectors = chunk_cols // VECTOR_BYTES  # of a row, each stored by a lane
    rows_per_step = WARP // vectors
    steps = WARP_ROWS // rows_per_step
    pieces, chunks, items = config.warp_m // WARP_ROWS, config.warp_n // chunk_cols, chunk_cols // 2
    corner, constants_of, residue = make_warp_corner(config), make_constants(), make_residue()

    @cuda.jit(device=True, forceinline=True)
    @unroll
    def store_chunk(frag, chunk_smem, lane, rows, cols, target, pitch, constants):
        """Store 16 bytes at a time of rows x cols residues; cols counts padding too."""
        modulus, inverse, packed, offset = constants
        start: int32 = chunk_smem + lane // 4 * line_bytes + lane % 4 * 2
        cuda.syncwarp()  # the chunk before has been read
        for j in static_range(chunk_cols // 8):
            for h in static_range(2):
                bytes_of_pair = ()
                for e in static_range(2):
                    positive = uint32(int64(frag[4 * j + 2 * h + e]) + SIGN_BIT)
                    total = dot_bytes(positive, packed, offset)
                    nearest = residue(total, modulus, inverse)
                    bytes_of_pair = bytes_of_pair + (int32(nearest & 255),)
                pair = uint16(bytes_of_pair[0] | bytes_of_pair[1] << 8)
                store_shared(start, 8 * h * line_bytes + 8 * j, (pair,))
        cuda.syncwarp()
        row: int32 = lane // vectors
        item: int32 = lane % vectors * VECTOR_BYTES
        source: int32 = chunk_smem + row * line_bytes + item
        target += row * pitch + item
        for step in static_range(steps):
            if row + step * rows_per_step < rows and item < cols:
                vector = load_shared(int32, 4, source, step * rows_per_step * line_bytes)
                store_global(target, 0, vector)
            target += rows_per_step * pitch

    def begin(result):
        return (result.n + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def store(sums, smem, thread, tile, work, result, pitch):
        lane: int32 = thread % WARP
        chunk_smem: int32 = smem + thread // WARP * warp_bytes
        row, col = corner(thread)
        constants = constants_of(
            int32(tile.matrix - divide(tile.matrix, work.period) * work.period)
        )
        left: int32 = tile.col + col
        for piece in static_range(pieces):
            top: int32 = tile.row + row + WARP_ROWS * piece
            rows: int32 = tile.end_row - top
            target = global_address(result.out.data) + left
            target += (int64(tile.matrix) * tile.end_row + top) * pitch
            for chunk in static_range(chunks):
                store_chunk(
                    sums[items * (chunks * piece + chunk) : items * (chunks * piece + chunk + 1)],
                    chunk_smem, lane, rows, int32(pitch - left - chunk * chunk_cols),
                    target + chunk * chunk_cols, pitch, constants,
                )  # fmt: skip

    return Store(device_function(unroll(begin)), device_function(unroll(store)))
