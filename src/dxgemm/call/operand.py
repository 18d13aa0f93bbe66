"""Array of a call with its address and its layout, whose translation is cached."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from dxgemm.errors import ArrayTypeError, marked
from dxgemm.problem.layout import ALIGNMENTS, Layout, aligned
from dxgemm.runtime.arrays import Library, find_library, libraries
from dxgemm.runtime.exports import launch_stream, taken


class Operand(NamedTuple):
    """Array of the call, with its address and layout."""

    name: str
    array: Any
    library: Library
    pointer: int
    layout: Layout


def inspected(name: str, array: Any, stream: int | None, *anchors: Any) -> Operand:
    """Inspect and verify an operand of a call that launches on a stream: see `launch_stream`."""
    library = libraries.get(type(array))
    if library is None:
        array, library = taken(marked(name), array, launch_stream(stream, *anchors))
    pointer, key = library.inspect(array)
    library.check(marked(name), array, key)
    if library.doubts(key):
        library.verify(marked(name), array)
    return Operand(name, array, library, pointer, _layout(library, key, ALIGNMENTS[pointer & 15]))


def memory_problem(name: str, array: Any) -> str:
    """Error that a call would raise because an array's memory is not its value; "" if it is."""
    try:
        library = find_library(name, array)
        if library is not None:
            library.check(name, array, library.inspect(array)[1])
    except ArrayTypeError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4096)
def _layout(library: Library, key: Any, alignment: int) -> Layout:
    return aligned(library.layout(key), alignment)
