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
    "naive": (Excerpt("row = tile //", "col = tile %"), Excerpt("a_index = matrix", "left -= 1")),
    "coalesced": (Excerpt("row = tile //", "col = tile %"),),
    "shared_tile": (Excerpt("while left > 0", "left -= tile_k"),),
    "thread_tile_1d": (
        Excerpt("thread_row, thread_col = thread", "b_row, b_col = thread"),
        Excerpt("while left > 0", "left -= tile_k"),
    ),
    "thread_tile_2d": (Excerpt("while left > 0", "left -= tile_k"),),
    "vectorized": (Excerpt("while left > 0", "left -= tile_k"),),
    "conflict_free": (
        Excerpt("row_group, col_group =", "row_group, col_group ="),
        Excerpt("thread_row: int32 =", "thread_col: int32 ="),
        Excerpt("def padded_layout", "return SmemLayout", "parts/tiles.py"),
        Excerpt("def load_fragment", "return fragment", "parts/tiles.py"),
    ),
    "warp_tile": (Excerpt("lane: int32 =", "thread_col: int32 ="),),
    "double_buffer": (Excerpt("while int64(done) * tile_k < k", "stage = stage_size - stage"),),
    "async_copy": (
        Excerpt("def fetch", "write_stage += stage_bytes"),
        Excerpt("for _ in range(k_tiles)", "read_stage = 0"),
    ),
    "ping_pong": (Excerpt("for _ in range(k_tiles)", "a_frag, b_frag = a_next"),),
    "tuned": (Excerpt("group = divide", "tile_col ="),),
    "tensor_core": (Excerpt("for _ in range(exact if", "acc = sums"),),
    "wgmma": (
        Excerpt("while depth < tile.end_k", "stage, parity = after(", "frames/tma.py"),
        Excerpt("while left > 0", "stage, parity = after(", "parts/wgmma_mainloop.py"),
    ),
}
