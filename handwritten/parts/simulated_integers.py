"""Integers of 32 bits for numba's simulator, which raise an error where those of a GPU would wrap.

numba computes with int32 in 64 bits: what wraps is a cast. On the simulator a cast gave NumPy's
int32, which computes in 32 bits and wraps without a word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba.core.types import Integer

LEAST, MOST = -(2**31), 2**31 - 1


class Int32(int):
    """An int32 of a kernel: it fits 32 bits, and results computed from it have 64."""

    def __new__(cls, value: Any) -> Int32:
        """Cast an integer.

        Raises:
            OverflowError: it needs more than 32 bits.
        """
        number = int(value)
        if not LEAST <= number <= MOST:
            raise OverflowError(f"a kernel casts {number} to int32, which would wrap")
        return super().__new__(cls, number)


def low_word(value: Any) -> Any:
    """The low 32 bits of an integer, as an int32: for data and addresses, of which more are cut."""
    return np.int32((int(value) - LEAST) % 2**32 + LEAST)


def below_2_31(value: Any) -> int:
    """The same integer.

    Raises:
        OverflowError: it is negative, or 2**31 or more.
    """
    if not 0 <= value <= MOST:
        raise OverflowError(f"a kernel takes {value} for a number below 2**31")
    return int(value)


@contextmanager
def casts_are_checked() -> Iterator[None]:
    """Make casts of integers to int32 return an `Int32`."""
    original = Integer.cast_python_value

    def cast(self: Any, value: Any) -> Any:
        is_checked = self.name == "int32" and not isinstance(value, (float, np.floating))
        return Int32(value) if is_checked else original(self, value)

    Integer.cast_python_value = cast  # type: ignore[method-assign]
    try:
        yield
    finally:
        Integer.cast_python_value = original  # type: ignore[method-assign]
