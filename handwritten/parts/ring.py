"""What the frame `ring` expects of its parts `load` and `multiply`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Load(NamedTuple):
    """Device functions of all threads, which copy stage after stage.

    Attributes:
        begin: (smem, thread, work, tile, a, b, m, n, k) -> the thread's copies of the first stage.
        copy: by step of a stage, for the first steps: (copies, write, then) -> the copies that
            follow. The first one starts copies to the stage at the offset `write`; the others write
            what came through registers to the one at `then`, which is read next.
    """

    begin: Callable[..., Any]
    copy: tuple[Callable[..., Any], ...]


class Multiply(NamedTuple):
    """Device functions of all threads, which multiply out of a stage.

    Attributes:
        begin: (smem, thread) -> where the thread reads in a stage, and its sums, of zeros.
        read: by step: (where, stage) -> the fragments of a and b from the stage at an offset.
        add: by step: (sums, fragments) -> sums. Those of the tile come first.
    """

    begin: Callable[..., Any]
    read: tuple[Callable[..., Any], ...]
    add: tuple[Callable[..., Any], ...]
