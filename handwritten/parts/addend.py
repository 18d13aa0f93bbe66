"""The addend of a result, beta * c, which is the same for all kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dxgemm.handwritten.parts.unroll import device, static_range

# Dtypes of c that are added to sums of integers, modulo 2**32 or 2**64.
INTEGERS = {"int32": ("uint32", "bool"), "int64": ("uint64",)}
KINDS = {"float16": "f16", "bfloat16": "bf16"}  # as PTX names them


def make_plus(
    dtype: str, out_dtype: str, read: Callable[..., Any], plus: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """A device function: (values, beta, c, index, step) -> values + beta * c, each rounded once.

    Args:
        dtype: dtype of the values and of beta.
        out_dtype: dtype of c. Of a dtype to which such values are not added, c is not read: of
            int8, or of floats after int32.
        read: device function: (c, index, step) -> as many elements of c as there are values.
        plus: device function (values, beta, elements of c) -> values; None for `plus_scaled`.
    """
    from dxgemm.handwritten.parts.intrinsics import plus_scaled

    add = plus or plus_scaled
    adds_c = out_dtype == dtype or (out_dtype in KINDS and dtype == "float32")
    adds_c = adds_c or out_dtype in INTEGERS.get(dtype, ())

    @device
    def plus_c(values, beta, c, index, step):
        if adds_c and beta != 0:  # BLAS: beta == 0 must not read c, which may hold NaN
            values = add(values, beta, read(c, index, step))
        return values

    return plus_c


def make_plus_c(
    dtype: str, out_dtype: str | None = None, count: int = 1, width: int = 1,
    plus: Callable[..., Any] | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """`make_plus` for a c that is an operand.

    Values are a tuple of `count` times `width` elements. The first of each `width` neighbours are
    at index, index + step and so on in c.data, and c is read so many at a time.

    Args:
        out_dtype: dtype of c; None for that of the values.
        plus: as `make_plus` takes it.
    """
    from dxgemm.handwritten.parts.intrinsics import load_vector
    from dxgemm.handwritten.parts.widening import WIDEN, stored_type, view_as

    out_dtype = out_dtype or dtype
    stored = stored_type(out_dtype)
    widen = WIDEN[out_dtype] if out_dtype in KINDS else np.dtype(dtype).type

    @device
    def read(c, index, step):
        data, added = view_as(stored, c.data), ()
        for i in static_range(count):
            if width > 1:
                loaded = load_vector(stored, width, data, index + i * step)
            else:
                loaded = (data[index + i * step],)
            for element in static_range(width):
                added = added + (widen(loaded[element]),)
        return added

    return make_plus(dtype, out_dtype, read, plus)


def make_plus_c_at(dtype: str, out_dtype: str, count: int) -> Callable[..., Any]:
    """`make_plus` for a c that is the address of one element, or of 16 bytes; index and step are 0.

    Args:
        count: elements that are read, 1 or as many as 16 bytes have.
    """
    from numba import int32, uint16

    from dxgemm.handwritten.parts.hopper import unpack_pair
    from dxgemm.handwritten.parts.intrinsics import load_global

    kind, scalar = KINDS.get(out_dtype, ""), np.dtype(dtype).type

    @device
    def read(c, index, step):
        added = ()
        if not kind:
            added = load_global(scalar, 4 if count > 1 else 1, c, 0)
        elif count == 1:
            added = (unpack_pair(kind, int32(load_global(uint16, 1, c, 0)[0]))[0],)
        else:
            pairs = load_global(int32, 4, c, 0)
            for i in static_range(4):
                added = added + unpack_pair(kind, pairs[i])
        return added

    return make_plus(dtype, out_dtype, read)
