"""The addend of a result, beta * c, which is the same for all kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def make_plus_c(
    dtype: str, out_dtype: str | None = None, count: int = 1, width: int = 1
) -> Callable[..., Any]:
    """A device function: (values, beta, c, index, step) -> values + beta * c, each rounded once.

    Values are a tuple of `count` times `width` elements. The first of each `width` neighbours are
    at index, index + step and so on in c.data, and c is read so many at a time.

    Args:
        dtype: dtype of the values and of beta.
        out_dtype: dtype of c; None for that of the values. Of a dtype to which such values are not
            added, c is not read: of int8, or of floats after int32.
    """
    from dxgemm.handwritten.parts.intrinsics import device_function, load_vector, plus_scaled
    from dxgemm.handwritten.parts.unroll import static_range, unroll
    from dxgemm.handwritten.parts.widening import HALVES, WIDEN, stored_type, view_as

    out_dtype = out_dtype or dtype
    is_half = out_dtype in HALVES
    adds_c = out_dtype == dtype or (is_half and dtype == "float32")
    stored, widen = stored_type(out_dtype), WIDEN[out_dtype] if is_half else np.dtype(dtype).type

    def plus_c(values, beta, c, index, step):
        if adds_c and beta != 0:  # BLAS: beta == 0 must not read c, which may hold NaN
            data, added = view_as(stored, c.data), ()
            for i in static_range(count):
                if width > 1:
                    loaded = load_vector(stored, width, data, index + i * step)
                else:
                    loaded = (data[index + i * step],)
                for element in static_range(width):
                    added = added + (widen(loaded[element]),)
            values = plus_scaled(values, beta, added)
        return values

    return device_function(unroll(plus_c))
