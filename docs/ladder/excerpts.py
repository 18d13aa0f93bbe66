"""Which lines of each kernel file docs/ladder.md shows: from one text to another, both included."""

from __future__ import annotations

from typing import NamedTuple


class Excerpt(NamedTuple):
    """Lines of a file in handwritten/.

    Attributes:
        first, last: texts in its first and last line.
        file: its name without `.py`; empty for the rung's own.
    """

    first: str
    last: str
    file: str = ""


EXCERPTS: dict[str, tuple[Excerpt, ...]] = {
    "coalesced": (Excerpt("row = tile //", "col = tile %"),),
    "thread_tile_2d": (Excerpt("for kk in range(tile_k)", "acc[i, j] +="),),
    "tuned": (Excerpt("a_next, b_next = (), ()", "b_next = b_next +"),),
}
