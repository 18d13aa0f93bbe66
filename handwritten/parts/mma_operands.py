"""Tiles of the operands of `mma.sync`: copied to shared memory by cp.async, read as fragments.

A tile of the left operand is stored as [k][row], one of the right operand as [col][k]. A lane reads
pairs from them, two rows of one k or two k of one column: the instruction wants them in
neighbouring registers. So the instruction's rows 0, 1, .. 15 are rows 0, 2, .. 14, 1, 3, .. 15 of
the tile, and k of one step goes 0, 2, 4, 6, 1, 3, 5, 7, in both operands.
The 16-byte chunks of each 128 bytes, which is one row of all banks, are permuted by XOR with a
number that depends on the k or the column: the lanes that are served together find what they read
in different banks.

An operand that is stored as its tile is, is copied 16 bytes at a time, or by element
if it is not aligned or its rows end within 16 bytes; any other one by element, transposed on the
way. Either operand of the product may be the left one, as out.T = b.T @ a.T: `choose_sides` picks.
Source: CUTLASS, "Efficient GEMM in CUDA", for permuted layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dxgemm.handwritten.parts.operands import operand_mode

# Side of a, then how the left and the right operand are copied: 16 bytes or single elements along
# the index that is contiguous in shared memory, or single elements along the other one.
MODES = ("vector", "along", "across")  # best first

BANK_BYTES = 128  # one row of all banks of shared memory
CHUNK_BYTES = 16  # of the widest access
MMA_ROWS, MMA_COLS, MMA_K = 16, 8, 8


def choose_sides(problem: Any) -> tuple[str, str, str]:
    """Variant in which most is copied 16 bytes at a time.

    With a triangle, a is the left operand: what is computed is on and below the diagonal of the
    result, not of its transpose, for the imaginary part of a Hermitian result is antisymmetric.
    """
    a, b = _whole_vectors(problem, "a"), _whole_vectors(problem, "b")
    a_left = _mode(a, "col"), _mode(b, "col")
    a_right = _mode(b, "row"), _mode(a, "row")
    if problem.triangle or sum(map(MODES.index, a_left)) < sum(map(MODES.index, a_right)):
        return "a left", *a_left
    return "a right", *a_right


def _whole_vectors(problem: Any, name: str) -> str:
    """Layout of an operand, with 16 only if its rows (or columns) end with a whole vector.

    A copy of 16 bytes can leave some of them out, but reads them all.
    """
    mode = operand_mode(problem, name)
    rows, cols = (problem.m, problem.k) if name == "a" else (problem.k, problem.n)
    items = cols if mode.startswith("row") else rows
    is_whole = items * np.dtype(problem.dtype).itemsize % CHUNK_BYTES == 0
    return mode if is_whole else mode.removesuffix("16")


def _mode(operand: str, fitting: str) -> str:
    if not operand.startswith(fitting):
        return "across"
    return "vector" if operand.endswith("16") else "along"


class OperandTile(NamedTuple):
    """Device functions for the tiles of one operand. Its index other than k is called x.

    Attributes:
        first: (thread) -> (x, k) of the first element in a tile that the thread copies.
        place: (x, k) -> offset of an element in the tile, in bytes.
        start: (target, source, pass_bytes) starts the thread's copies of a tile that is inside
            the operand. target is the address of its first element in shared memory, source in
            global memory, pass_bytes the distance of its copies there.
        start_edge: (target, source, pass_bytes, x_left, k_left): predicated `start`; zeros replace
            elements x_left or k_left or more away from the thread's first.
        load: (base, shift) -> the lane's part of one instruction's operand, as `mma_tile` takes it,
            from the address base + shift of its first pair.
        load_xor, load_add: tables by step and instruction: base is XORed with the one, and the
            other added to shift, to get from the first to this one.
        pass_step: elements between a thread's copies, along k if passes_along_k, else along x.
        tile_bytes: shared memory of a tile.
    """

    first: Callable[..., Any]
    place: Callable[..., Any]
    start: Callable[..., Any]
    start_edge: Callable[..., Any]
    load: Callable[..., Any]
    load_xor: tuple[tuple[int, ...], ...]
    load_add: tuple[tuple[int, ...], ...]
    pass_step: int
    passes_along_k: bool
    tile_bytes: int


def make_operand_tile(
    side: str, mode: str, extent: int, warp_extent: int, tile_k: int, threads: int, dtype: str
) -> OperandTile:
    """The functions for one operand, whose tiles all threads of a block copy together.

    Args:
        side: "left" or "right" operand of the instruction.
        mode: how it is copied, one of MODES.
        extent, warp_extent: elements of the tile and of a warp's share along x; powers of two, like
            all sizes here.
    """
    from numba import int32

    from dxgemm.handwritten.parts.intrinsics import copy_async, copy_async_part, load_shared
    from dxgemm.handwritten.parts.unroll import device, static_range

    scalar, item_bytes = np.dtype(dtype).type, np.dtype(dtype).itemsize
    is_left = side == "left"
    chunk = CHUNK_BYTES // item_bytes
    width = chunk if mode == "vector" else 1
    copy_bytes = width * item_bytes
    row_bytes = (extent if is_left else tile_k) * item_bytes
    k_is_fast = is_left == (mode == "across")
    fast, slow = (tile_k, extent) if k_is_fast else (extent, tile_k)
    lanes = fast // width
    pass_step = threads // lanes
    passes = slow // pass_step
    step_chunks = MMA_K * item_bytes // CHUNK_BYTES

    def place(x, k):
        if is_left:  # served together: the pairs of k of all members, two chunks of rows
            chunk_bytes = (x // chunk ^ k % 8) * CHUNK_BYTES
            return int32(k * row_bytes + chunk_bytes + x % chunk * item_bytes)
        # served together: the chunks of one step, as many columns as fill 128 bytes
        permutation = x * step_chunks % 8 + x * step_chunks // 8 % step_chunks
        chunk_bytes = (k // chunk ^ permutation) * CHUNK_BYTES
        return int32(x * row_bytes + chunk_bytes + k % chunk * item_bytes)

    def split(offset: int) -> tuple[int, int]:
        """Parts of an offset in bytes: the first to be XORed (permuted bits), the second added."""
        return offset % BANK_BYTES, offset // BANK_BYTES * BANK_BYTES

    def changes(places: list[tuple[int, int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        xors, adds = zip(*(split(int(place(x, k))) for x, k in places), strict=True)
        return xors, adds

    # All sizes are powers of two: an offset is the XOR of those of its index's bits.
    pass_xor, pass_add = changes(
        [(p * pass_step, 0) if k_is_fast else (0, p * pass_step) for p in range(passes)]
    )
    mma_extent = MMA_ROWS if is_left else MMA_COLS
    load_xor, load_add = zip(
        *(
            changes([(x, k) for x in range(0, warp_extent, mma_extent)])
            for k in range(0, tile_k, MMA_K)
        ),
        strict=True,
    )

    def first(thread):
        along_fast, along_slow = int32(thread % lanes * width), int32(thread // lanes)
        if k_is_fast:
            return along_slow, along_fast
        return along_fast, along_slow

    def start(target, source, pass_bytes):
        for p in static_range(passes):
            to = int32(target ^ pass_xor[p])
            copy_async(copy_bytes, to, pass_add[p], source + p * pass_bytes)

    def start_edge(target, source, pass_bytes, x_left, k_left):
        fast_left, slow_left = (k_left, x_left) if k_is_fast else (x_left, k_left)
        for p in static_range(passes):
            to = int32(target ^ pass_xor[p])
            is_inside = fast_left > 0 and slow_left > p * pass_step
            count = int32(copy_bytes * is_inside)
            copy_async_part(copy_bytes, to, pass_add[p], source + p * pass_bytes, count)

    def load(base, shift):
        pair = load_shared(scalar, 2, int32(base + shift), 0)
        if is_left:  # the next k, whose chunks are permuted by one more
            odd = int32(base ^ CHUNK_BYTES)
            pair = pair + load_shared(scalar, 2, int32(odd + shift), row_bytes)
        return pair

    return OperandTile(
        device(first), device(place), device(start), device(start_edge), device(load),
        load_xor, load_add, pass_step, not k_is_fast, extent * tile_k * item_bytes,
    )  # fmt: skip
