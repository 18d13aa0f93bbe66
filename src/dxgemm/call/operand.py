"""Array of a call with its address and its layout, whose translation is cached."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from dxgemm.problem.layout import ALIGNMENTS, Layout, byte_extent
from dxgemm.runtime.arrays import Library, libraries, library_of

_extent = lru_cache(maxsize=4096)(byte_extent)


class Operand(NamedTuple):
    """Array of the call, with its address and layout."""

    name: str
    array: Any
    library: Library
    pointer: int
    layout: Layout

    @property
    def extent(self) -> tuple[int, int]:
        """Address of the first byte, and of the byte after the last."""
        first, end = _extent(self.layout)
        return self.pointer + first, self.pointer + end


def inspected(name: str, array: Any) -> Operand:
    """Inspect and verify an operand."""
    library = libraries.get(type(array)) or library_of(name, array)
    pointer, key = library.inspect(array)
    if library.doubts(key):
        library.verify(name, array)
    return Operand(name, array, library, pointer, _layout(library, key, ALIGNMENTS[pointer & 15]))


@lru_cache(maxsize=4096)
def _layout(library: Library, key: Any, alignment: int) -> Layout:
    return library.layout(key)._replace(alignment=alignment)
