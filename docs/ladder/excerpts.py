"""Lines of each kernel file that docs/ladder.md shows: from one text to another, inclusive."""

from __future__ import annotations

from typing import NamedTuple


class Excerpt(NamedTuple):
    """Lines of a file in handwritten/.

    Attributes:
        first, last: texts in its first and last line.
        file: its path in handwritten/; empty for the rung's own.
    """

    first: str
    last: str
    file: str = ""


EXCERPTS: dict[str, tuple[Excerpt, ...]] = {
    "naive": (Excerpt("row = tile //", "col = tile %"), Excerpt("while left > 0", "left -= 1")),
    "coalesced": (Excerpt("row = tile //", "col = tile %"),),
    "shared_tile": (Excerpt("a_smem[thread_row, thread_col", "left -= tile_k"),),
    "thread_tile_1d": (Excerpt("for kk in static_range", "acc[i] +="),),
    "thread_tile_2d": (Excerpt("for kk in static_range", "acc[i, j] +="),),
    "vectorized": (
        Excerpt("for kk in static_range", "outer_product"),
        Excerpt("for i in static_range(vectors)", "return fragment", "parts/tiles.py"),
    ),
    "conflict_free": (
        Excerpt("row_group, col_group =", "row_group, col_group ="),
        Excerpt("def padded_layout", "return SmemLayout", "parts/tiles.py"),
        Excerpt("if xor > 0:", "target", "parts/tiles.py"),
    ),
    "warp_tile": (Excerpt("lane: int32 =", "thread_col: int32 ="),),
    "double_buffer": (Excerpt("while int64(done) * tile_k < k", "outer_product"),),
    "async_copy": (
        Excerpt("def fetch", "write_stage += stage_bytes"),
        Excerpt("for _ in range(k_tiles)", "write_stage = 0"),
    ),
    "ping_pong": (
        Excerpt("a_next, b_next = (), ()", "b_next = b_next +"),
        Excerpt("acc = outer_product", "a_frag, b_frag = a_next"),
    ),
    "tuned": (
        Excerpt("matrix = divide(index", "return matrix", "parts/tile_order.py"),
        Excerpt("exact: int32 =", "turns: int32 =", "parts/thread_mainloop.py"),
    ),
    "tensor_core": (Excerpt("for i in static_range(left_mmas)", "left_now = left_ready"),),
    "wgmma": (
        Excerpt("while depth < tile.end_k", "stage, parity = after(", "frames/tma.py"),
        Excerpt("while left > 0", "stage, parity = after(", "parts/wgmma_mainloop.py"),
    ),
}
