"""The left operand of wgmma in registers: MN-major bytes, which it cannot read from shared memory.

`ldmatrix.trans` takes bytes as pairs of rows of a: a register gets two rows of two k. Of two such
registers, `prmt` makes four k of either row. So the two rows of a thread, which are otherwise eight
apart, are neighbours. The lines that a thread has of a matrix of `ldmatrix` alternate between the
first and the last two of its four k, so that the eight lines of a matrix are in different banks.
Shared memory is read as often as by wgmma itself.
Source: PTX ISA, "ldmatrix", "prmt", "wgmma.mma_async", "Register Fragments"; the transposition of
V in J. Shah et al., "FlashAttention-3" (arXiv:2407.08608), section 3.3, which writes it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dxgemm.handwritten.parts.unroll import device
from dxgemm.handwritten.parts.wgmma_ring import ROW_BYTES

PANEL_ROWS = 128  # of a, bytes of a line of shared memory: see `wgmma_ring`


def make_left_bytes() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Make the device functions begin and read for a tile of PANEL_ROWS rows.

    begin(smem, thread) -> (address, selectors), smem being the tile of the first stage. read(these,
    bytes from there to a step of a stage) -> the four registers of the step.
    """
    from numba import int32

    from dxgemm.handwritten.parts.line_intrinsics import load_matrices, permute_bytes
    from dxgemm.handwritten.parts.unroll import static_range

    @device
    def begin(smem, thread):
        lane: int32 = thread % 32
        line: int32 = lane // 2 % 4 * 4 + lane % 2  # of k
        line += lane // 16 * 16 + (lane // 4 ^ lane // 8) % 2 * 2
        piece: int32 = thread // 32 ^ line % 8  # 16 rows of a, in the swizzle
        selectors = int32(0x6420), int32(0x7531)
        if lane % 4 >= 2:
            selectors = int32(0x2064), int32(0x3175)
        return int32(smem + line * ROW_BYTES + piece * 16), selectors

    @device
    def read(places, step):
        upper, lower = places[1]
        fragment = ()
        words = load_matrices(True, int32(places[0] + step), 0)
        for half in static_range(0, 4, 2):
            fragment = fragment + (
                permute_bytes(words[half], words[half + 1], upper),
                permute_bytes(words[half], words[half + 1], lower),
            )
        return fragment

    return begin, read
