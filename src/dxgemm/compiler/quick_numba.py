"""Shorter builds with numba, which compiles the same code to the same PTX in half of the time.

An unrolled kernel has thousands of additions and casts. For each numba tries the overloads of the
function again, tens of them, and the garbage collector looks through its objects again and again.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def calls_resolved_once() -> Iterator[None]:
    """Let numba resolve a function once for the same types of numbers, or of tuples of a number."""
    from numba import types

    resolve = types.BaseFunction.get_call_type
    known: dict[Any, Any] = {}

    def is_plain(argument: Any) -> bool:
        kind = argument.dtype if isinstance(argument, types.UniTuple) else argument
        return isinstance(kind, types.Number | types.Boolean)

    def get_call_type(function: Any, context: Any, arguments: Any, named: Any) -> Any:
        if named or not all(map(is_plain, arguments)):
            return resolve(function, context, arguments, named)
        key = (context, function, arguments)
        if key not in known:
            known[key] = resolve(function, context, arguments, named)
        return known[key]

    types.BaseFunction.get_call_type = get_call_type
    try:
        yield
    finally:
        types.BaseFunction.get_call_type = resolve


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector; a build then takes a twentieth more memory."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
